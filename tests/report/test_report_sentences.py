"""What the report says in words: verdicts, what methods need, and refused replies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from made_runs import made_run, manifest, task, write_folder
from rich.console import Console

from potluck.report import (
    RunRecord,
    compare_rows,
    compare_table,
    needs_table,
    read_record,
    refusal_summary,
    run_table,
    verdict,
    write_report,
)
from potluck.report.sentences import best_labels, column, format_needs, needs_cells

PLAIN = {"networks": "one", "public": "none", "memory": False, "larger": False, "sums": True, "bound": False}


def shown(table: object, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def folder(path: Path, score: float, metric: str = "accuracy", **facts: object) -> RunRecord:
    label = facts.pop("label", path.name)
    line = {"round": 4, "metric": metric, "global": {"test": {metric: score}}, "clients": {"mean": score, "sd": 0.05}}
    event = task(1, "c0", "watch", bytes_down=1000, bytes_up=1000, modelled_flops=5e9)
    declared = {**PLAIN, **facts}
    return read_record(write_folder(path, manifest(str(label), facts=declared), [event], [line]))


def three(path: Path) -> Sequence[RunRecord]:
    return [
        folder(path / "AllLarge", 0.99, bound=True),
        folder(path / "FedRolex", 0.8, networks="width", larger=True),
        folder(path / "FedMD", 0.7, networks="any", public="labels", memory=True, sums=False),
    ]


def test_facts_read_as_words_and_as_cells() -> None:
    facts = {"networks": "any", "public": "labels", "memory": True, "larger": True, "sums": False}
    assert needs_cells(facts) == ["any", "labels", "yes", "yes", ""]
    assert format_needs(facts) == "any networks, public labels, memory, larger server"
    assert format_needs(PLAIN) == "one network, secure sums"
    assert needs_cells(None) == ["—"] * 5


def test_a_bound_comes_last_and_is_not_ranked(tmp_path: Path) -> None:
    runs = three(tmp_path)
    assert [row["label"] for row in compare_rows(runs)] == ["FedRolex", "FedMD", "AllLarge"]
    assert verdict(runs)[0] == "Final accuracy: FedRolex has the highest, 80.0 %, 10.0 points above FedMD."
    assert "One seed: nothing can be said about chance." in verdict(runs)
    assert "Not ranked: AllLarge, a bound that ignores what devices can carry." in verdict(runs)
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text()
    assert 'class="best"' not in page  # one seed
    assert "AllLarge ‡" in page


def test_a_wide_terminal_shows_what_methods_need_beside_what_they_cost(tmp_path: Path) -> None:
    runs = three(tmp_path)
    lines = shown(compare_table(runs, 140), 140).splitlines()
    assert lines[1].split()[-5:] == ["networks", "public", "memory", "larger", "secure"]
    assert "to 80% bytes compute* time* energy*" in " ".join(lines[1].split())
    assert " ".join(lines[3].split()) == "FedRolex 80.0 4 2 kB 5 GFLOP — 0 J width yes yes"
    assert lines[4].split()[-3:] == ["any", "labels", "yes"]
    assert lines[5].strip() == ""  # the bound stands apart
    assert lines[6].startswith("AllLarge ‡")
    assert needs_table(runs, 140) is None


def test_a_narrow_terminal_shows_what_methods_need_in_a_table_of_its_own(tmp_path: Path) -> None:
    runs = three(tmp_path)
    assert "networks" not in shown(compare_table(runs, 80), 80)
    table = needs_table(runs, 80)
    assert table is not None
    lines = shown(table, 80).splitlines()
    assert lines[3].split() == ["FedRolex", "width", "yes", "yes"]
    assert max(map(len, lines)) <= 80


def test_runs_that_declare_nothing_have_no_such_table(tmp_path: Path) -> None:
    runs = [read_record(made_run(tmp_path / name, name, rounds=1)) for name in "ab"]
    assert needs_table(runs, 80) is None
    assert "networks" not in shown(compare_table(runs, 160), 160)
    assert "need and allow" not in write_report([run.folder for run in runs], tmp_path / "p.html").read_text()


def test_correlations_are_plain_numbers_everywhere(tmp_path: Path) -> None:
    runs = [folder(tmp_path / name, score, "matthews") for name, score in (("A", 0.5), ("B", -0.25))]
    assert verdict(runs) == [
        "Final Matthews correlation: A has the highest, 0.500, 0.750 above B.",
        "One seed: nothing can be said about chance.",
    ]
    assert shown(compare_table(runs, 120), 120).splitlines()[0].startswith("Final test Matthews correlation, and cost")
    assert "0.500" in shown(run_table(runs[0]), 120)
    for chosen in (runs[:1], runs):
        page = write_report([run.folder for run in chosen], tmp_path / "page.html").read_text()
        assert "0.500" in page
        assert "50.0" not in page


def test_the_verdict_of_one_seed_names_the_highest_and_says_nothing_of_chance(tmp_path: Path) -> None:
    for label, accuracy in (("A", 0.9), ("B", 0.85), ("C", 0.95)):
        shared = {"test": {"accuracy": accuracy}} if label != "C" else None
        scores = [
            {
                "round": 4,
                "global": shared,
                "clients": {"mean": accuracy},
                "tiers": {"watch": {"test": {"accuracy": 0.7}}},
            }
        ]
        write_folder(tmp_path / label, manifest(label), [], scores)
    assert verdict([read_record(tmp_path / label) for label in "ABC"]) == [
        "Final accuracy: A has the highest, 90.0 %, 5.0 points above B.",
        "On watch: A has the highest, 70.0 %, level with B.",
        "One seed: nothing can be said about chance.",
        "Not ranked: C, scored by its clients and not on the shared test set.",
    ]


def over_seeds(path: Path, **scores: Sequence[float | None]) -> list[RunRecord]:
    """Methods with these accuracies for seeds 0, 1, ...; None: there is no such run."""
    found = []
    for label, values in scores.items():
        for seed, score in enumerate(values):
            if score is not None:
                line = {"round": 4, "global": {"test": {"accuracy": score}}}
                found.append(read_record(write_folder(path / f"{label}-{seed}", manifest(label, seed), [], [line])))
    return found


def marked(runs: Sequence[RunRecord], path: Path) -> bool:
    return 'class="best"' in write_report([run.folder for run in runs], path / "page.html").read_text("utf-8")


def test_a_method_is_ahead_if_paired_seeds_carry_it(tmp_path: Path) -> None:
    """Differences of 4, 5 and 6 points: mean 5, sd 1, so the half-width is 4.303 / sqrt(3) = 2.48."""
    runs = over_seeds(tmp_path, A=(0.64, 0.75, 0.86), B=(0.60, 0.70, 0.80))
    assert verdict(runs) == [
        "Final accuracy: A, 75.0 %, is ahead of B by 5.0 points (95 % interval 2.5 to 7.5; in 3 of 3 seeds)."
    ]
    assert marked(runs, tmp_path)


def test_a_difference_within_chance_is_said_to_be(tmp_path: Path) -> None:
    """Differences of 1, 2 and 3 points: mean 2, half-width 2.48. That seeds differ by 10 points plays no part."""
    runs = over_seeds(tmp_path, A=(0.61, 0.72, 0.83), B=(0.60, 0.70, 0.80))
    assert verdict(runs) == [
        "Final accuracy: A has the highest mean, 72.0 %, but over 3 seeds its difference to B "
        "(2.0 points, -0.5 to 4.5; ahead in 3 of 3 seeds) may be chance."
    ]
    assert not marked(runs, tmp_path)


def test_the_best_of_several_is_ahead_of_each_after_holms_correction(tmp_path: Path) -> None:
    runs = over_seeds(tmp_path, A=(0.74, 0.85, 0.96), B=(0.60, 0.70, 0.80), C=(0.51, 0.60, 0.71))
    assert verdict(runs) == [
        "Final accuracy: A, 85.0 %, is ahead of B by 15.0 points (95 % interval 12.5 to 17.5; in 3 of 3 seeds), and of "
        "the other method (Holm's correction for 2 comparisons)."
    ]
    assert marked(runs, tmp_path)


def test_an_interval_without_zero_is_no_proof_if_the_best_of_several_was_picked(tmp_path: Path) -> None:
    """Differences of 4, 5 and 6 points have p = 0.0131: times 2 it is below 0.05, times 4 it is not."""
    base = (0.60, 0.70, 0.80)
    runs = over_seeds(tmp_path / "five", A=(0.64, 0.75, 0.86), B=base, C=base, D=base, E=base)
    assert verdict(runs) == [
        "Final accuracy: A has the highest mean, 75.0 %, but over 3 seeds its difference to B (5.0 points, 2.5 to 7.5; "
        "ahead in 3 of 3 seeds) may be chance, as it is the best of 5 methods; so may those to 3 others."
    ]
    runs = over_seeds(tmp_path / "three", A=(0.64, 0.75, 0.86), B=base, C=base)
    assert verdict(runs)[0].startswith("Final accuracy: A, 75.0 %, is ahead of B by 5.0 points")


def test_the_best_must_be_ahead_of_a_method_with_a_lower_mean_but_a_wide_spread_too(tmp_path: Path) -> None:
    """A is ahead of B in every seed by about 15 points, but C, with a lower mean than B, beats it in one."""
    runs = over_seeds(tmp_path, A=(0.74, 0.85, 0.96), B=(0.60, 0.70, 0.80), C=(0.20, 0.90, 0.50))
    assert "its difference to C (31.7 points, " in verdict(runs)[0]
    assert verdict(runs)[0].endswith("ahead in 2 of 3 seeds) may be chance.")
    assert not marked(runs, tmp_path)


def test_only_seeds_that_both_have_make_pairs(tmp_path: Path) -> None:
    """Seed 3 of A, with a very high score, has no partner; the other differences are 1, 2 and 3 points."""
    runs = over_seeds(tmp_path, A=(0.61, 0.72, 0.83, 1.0), B=(0.60, 0.70, 0.80))
    assert "(2.0 points, -0.5 to 4.5; ahead in 3 of 3 seeds) may be chance" in verdict(runs)[0]
    apart = over_seeds(tmp_path / "apart", A=(None, None, 0.9, 0.9), B=(0.6, 0.7))
    assert verdict(apart) == [
        "Final accuracy: A has the highest, 90.0 %, 25.0 points above B.",
        "Methods share one seed at most: nothing can be said about chance.",
    ]
    assert not marked(apart, tmp_path)


def test_a_rival_with_too_few_common_seeds_is_told_so(tmp_path: Path) -> None:
    runs = over_seeds(tmp_path / "one", A=(0.9, 0.95), B=(0.5, 0.56), C=(None, 0.8))
    assert "A has the highest mean, 92.5 %, but shares only one seed with C" in verdict(runs)[0]
    runs = over_seeds(tmp_path / "none", A=(0.9, 0.95), B=(0.5, 0.56), C=(None, None, 0.7))
    assert "but shares no seed with C, so nothing can be said about chance." in verdict(runs)[0]


def test_a_highest_mean_that_lies_in_other_seeds_is_told_so(tmp_path: Path) -> None:
    """A's mean is 66.7 % by a seed of its own; on the two that it shares with B it is 1 and 2 points behind.

    The half-width for two seeds: t(1) = 12.706 times 0.7071 points / sqrt(2) = 6.35.
    """
    runs = over_seeds(tmp_path, A=(0.50, 0.50, 1.0), B=(0.51, 0.52))
    assert verdict(runs) == [
        "Final accuracy: A has the highest mean, 66.7 %, but not on the seeds that it shares with B "
        "(-1.5 points, -7.9 to 4.9; ahead in 0 of 2 seeds)."
    ]


def test_a_method_that_is_surely_behind_on_common_seeds_is_not_the_best(tmp_path: Path) -> None:
    """B is ahead by 4, 5 and 6 points; A's mean is higher by two seeds that B does not have."""
    runs = over_seeds(tmp_path, A=(0.50, 0.50, 0.50, 1.0, 1.0), B=(0.54, 0.55, 0.56))
    assert verdict(runs)[0].endswith(
        "but not on the seeds that it shares with B (-5.0 points, -7.5 to -2.5; ahead in 0 of 3 seeds)."
    )
    assert not marked(runs, tmp_path)


def test_equal_differences_have_no_interval(tmp_path: Path) -> None:
    runs = over_seeds(tmp_path / "same", A=(0.61, 0.71), B=(0.60, 0.70))
    assert verdict(runs) == [
        "Final accuracy: A has the highest mean, 66.0 %, but its difference to B (1.0 points in each of 2 seeds) does "
        "not vary, so it has no interval."
    ]
    assert not marked(runs, tmp_path)
    level = over_seeds(tmp_path / "level", A=(0.6, 0.7), B=(0.6, 0.7))
    assert verdict(level) == ["Final accuracy: A, 65.0 %, is level with B in each of 2 seeds."]


def test_a_run_that_diverged_makes_no_pair(tmp_path: Path) -> None:
    """Seeds 0 and 1 differ by 4 and 5 points; B diverged with seed 2, after a round of a low score."""
    runs = over_seeds(tmp_path / "ended", A=(0.64, 0.75, 0.86), B=(0.60, 0.70))
    lost = manifest("B", 2, status="diverged", fault_round=3)
    scores = [{"round": 2, "global": {"test": {"accuracy": 0.1}}}]
    runs.append(read_record(write_folder(tmp_path / "lost", lost, [], scores)))
    assert "(4.5 points, -1.9 to 10.9; ahead in 2 of 2 seeds) may be chance" in verdict(runs)[0]


def test_each_variant_has_a_best_of_its_own(tmp_path: Path) -> None:
    """Under the first variant A is ahead of B, under the second the seeds do not tell; variants are not compared."""
    scores = {
        ("A", "one"): (0.64, 0.75),
        ("B", "one"): (0.4, 0.509),
        ("A", "two"): (0.1, 0.2),
        ("B", "two"): (0.2, 0.1),
    }
    for (label, variant), values in scores.items():
        for seed, score in enumerate(values):
            line = {"round": 4, "global": {"test": {"accuracy": score}}}
            write_folder(tmp_path / f"{label}{variant}{seed}", manifest(label, seed, variant=variant), [], [line])
    rows = compare_rows([read_record(path) for path in sorted(tmp_path.iterdir())])
    assert best_labels(rows, partial(column, "global")) == {"A, one"}


def test_the_average_of_the_tiers_has_a_sentence_where_tiers_differ(tmp_path: Path) -> None:
    for label, tiers in (("A", (0.5, 0.9)), ("B", (0.6, 0.7))):
        both = {name: {"test": {"accuracy": score}} for name, score in zip(("watch", "phone"), tiers, strict=True)}
        declared = [{"name": name, "share": 1.0} for name in both]
        scores = [{"round": 4, "global": {"test": {"accuracy": 0.9}}, "tiers": both}]
        write_folder(tmp_path / label, manifest(label, tiers=declared), [], scores)
    runs = [read_record(tmp_path / label) for label in "AB"]
    assert verdict(runs)[1] == "Average of the tiers: A has the highest, 70.0 %, 5.0 points above B."
    titles = [line.split(":")[0] for line in verdict(runs, by_tier=False)]
    assert titles == ["Final accuracy", "Average of the tiers", "One seed"]


def test_different_problems_are_not_ranked(tmp_path: Path) -> None:
    runs = [read_record(made_run(tmp_path / f"{n}", f"m{n}", rounds=1, classes=n)) for n in (10, 100)]
    assert verdict(runs) == []


def test_what_was_refused_is_told_in_a_line_and_absence_is_not(tmp_path: Path) -> None:
    absent = [task(round, "c1", "watch", "absent", "battery") for round in (1, 2, 3)]
    good = write_folder(tmp_path / "a", manifest(), [task(1, "c2", "watch"), *absent], [])
    assert refusal_summary(read_record(good)) == ""
    bad = [task(2, "c2", "watch", "quarantined", "not finite")]
    assert refusal_summary(read_record(write_folder(tmp_path / "b", manifest(), [*absent, *bad], []))) == (
        "1 reply; 1 from tier 'watch': not finite"
    )
    bad += [task(round, "server", "server", "quarantined", "far off") for round in (2, 3)]
    assert refusal_summary(read_record(write_folder(tmp_path / "c", manifest(), [*absent, *bad], []))) == (
        "3 replies; 2 of the server's own: far off"
    )
