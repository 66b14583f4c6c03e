"""What the report says in words: verdicts, what methods need, and refused replies."""

from __future__ import annotations

from collections.abc import Sequence
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
from potluck.report.sentences import format_needs, needs_cells

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
    assert verdict(runs)[0] == "Best final accuracy: FedRolex with 80.0 %, 10.0 points above FedMD."
    assert "Not ranked: AllLarge, a bound that ignores what devices can carry." in verdict(runs)
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text()
    assert '<span class="best">80.0</span>' in page
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
    assert verdict(runs) == ["Best final Matthews correlation: A with 0.500, 0.750 above B."]
    assert shown(compare_table(runs, 120), 120).splitlines()[0].startswith("Final test Matthews correlation, and cost")
    assert "0.500" in shown(run_table(runs[0]), 120)
    for chosen in (runs[:1], runs):
        page = write_report([run.folder for run in chosen], tmp_path / "page.html").read_text()
        assert "0.500" in page
        assert "50.0" not in page


def test_the_verdict_names_the_best_and_the_margin(tmp_path: Path) -> None:
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
        "Best final accuracy: A with 90.0 %, 5.0 points above B.",
        "On watch: A with 70.0 %, level with B.",
        "Not ranked: C, scored by its clients and not on the shared test set.",
    ]


def test_a_margin_within_the_seeds_spread_is_said_to_be(tmp_path: Path) -> None:
    for label, seed, accuracy in (("A", 0, 0.8), ("A", 1, 0.9), ("B", 0, 0.84), ("B", 1, 0.84)):
        scores = [{"round": 4, "global": {"test": {"accuracy": accuracy}}}]
        write_folder(tmp_path / f"{label}{seed}", manifest(label, seed), [], scores)
    found = verdict([read_record(tmp_path / name) for name in ("A0", "A1", "B0", "B1")])
    assert found == ["Best final accuracy: A with 85.0 %, 1.0 points above B, within the seeds' spread of ± 7.1."]


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
