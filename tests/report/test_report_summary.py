"""Numbers over runs: the tiers' average, rounds to targets, cost so far, and rows over seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_runs import made_run, manifest, task, write_folder
from rich.console import Console

from potluck.report import (
    MetricFormat,
    RunRecord,
    compare_rows,
    compare_table,
    costs_so_far,
    group_by_method,
    read_record,
    rounds_to,
    write_report,
)
from potluck.report.summary import main_target, mean_of, targets, tier_average, tiers_differ, worst_tier

Tiers = Mapping[str, float | None]
SHARES = {"watch": 3.0, "phone": 1.0}
CURVE = ((0, 0.1), (3, 0.55), (7, 0.83), (9, 0.86))


def made_with_tiers(
    path: Path, *rounds: Tiers, shared: float | None = 0.9, seed: int = 0, shares: object = SHARES
) -> RunRecord:
    """A run with these scores of its tiers, round by round; None stands for a tier that only its clients score."""
    assert isinstance(shares, dict)
    scores = [
        {
            "round": index,
            "global": None if shared is None else {"test": {"accuracy": shared}},
            "clients": {"mean": 0.5},
            "tiers": {
                name: {"clients": {"mean": 0.5}} | ({} if score is None else {"test": {"accuracy": score}})
                for name, score in tiers.items()
            },
        }
        for index, tiers in enumerate(rounds, 1)
    ]
    declared = [{"name": name, "clients": 4} | ({"share": share} if share else {}) for name, share in shares.items()]
    return read_record(write_folder(path, manifest(path.name.split("-")[0], seed, tiers=declared), [], scores))


def line(run: RunRecord) -> list[tuple[float, float]]:
    return tier_average(run).line(lambda point: point.score)


def shown(width: int, *runs: RunRecord) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(compare_table(runs, width))
    return capture.get().splitlines()


def test_tiers_count_by_their_share_of_clients(tmp_path: Path) -> None:
    run = made_with_tiers(tmp_path / "a", {"watch": 0.2, "phone": 0.6}, {"watch": 0.4, "phone": 0.8})
    assert line(run) == [(1.0, pytest.approx(0.3)), (2.0, pytest.approx(0.5))]


@pytest.mark.parametrize(
    "shares", [{"watch": None, "phone": None}, {"watch": 3.0, "phone": None}, {"watch": -3, "phone": 1}]
)
def test_tiers_count_alike_where_shares_are_not_recorded(tmp_path: Path, shares: dict[str, float | None]) -> None:
    assert line(made_with_tiers(tmp_path / "a", {"watch": 0.2, "phone": 0.6}, shares=shares)) == [
        (1.0, pytest.approx(0.4))
    ]


def test_the_servers_own_work_is_no_tier_of_the_average(tmp_path: Path) -> None:
    event = {"event": "task", "round": 1, "client": "server", "outcome": "accepted"}
    tiers = {name: {"test": {"accuracy": score}} for name, score in (("watch", 0.2), ("phone", 0.6), ("laptop", 0.4))}
    scores = [{"round": 1, "global": {"test": {"accuracy": 0.9}}, "tiers": tiers}]
    run = read_record(write_folder(tmp_path / "a", manifest(), [event], scores))  # shares of 0.4, 0.4 and 0.2
    assert [tier.name for tier in run.tiers] == ["watch", "phone", "laptop", "server"]
    assert line(run) == [(1.0, pytest.approx(0.4))]


def test_a_tier_without_a_model_leaves_the_average_unknown(tmp_path: Path) -> None:
    assert line(made_with_tiers(tmp_path / "scored by clients", {"watch": None, "phone": 0.6})) == []
    assert line(made_with_tiers(tmp_path / "never scored", {"phone": 0.6})) == []
    assert line(
        made_with_tiers(tmp_path / "at first", {"watch": None, "phone": 0.6}, {"watch": 0.2, "phone": 0.6})
    ) == [(2.0, pytest.approx(0.3))]


def test_a_run_that_its_clients_score_has_no_average(tmp_path: Path) -> None:
    assert line(made_with_tiers(tmp_path / "a", {"watch": None, "phone": None}, shared=None)) == []


def test_tiers_that_their_clients_score_on_the_common_test_set_have_an_average(tmp_path: Path) -> None:
    run = made_with_tiers(tmp_path / "b", {"watch": 0.2, "phone": 0.6}, shared=None)
    assert run.curve.on_clients
    assert line(run) == [(1.0, pytest.approx(0.3))]


def test_an_average_tells_where_tiers_of_some_run_differ(tmp_path: Path) -> None:
    alike = made_with_tiers(tmp_path / "alike", {"watch": 0.2, "phone": 0.6}, {"watch": 0.9, "phone": 0.9})
    apart = made_with_tiers(tmp_path / "apart", {"watch": 0.8, "phone": 0.9})
    alone = made_with_tiers(tmp_path / "alone", {"watch": 0.8}, shares={"watch": 1.0})
    unknown = made_with_tiers(
        tmp_path / "unknown", {"watch": 0.8, "phone": 0.9, "tv": None}, shares={**SHARES, "tv": 1.0}
    )
    assert [tiers_differ([run]) for run in (alike, apart, alone, unknown)] == [False, True, False, False]
    assert tiers_differ([alike, apart])
    assert all("average" not in row for row in compare_rows([alike, alone, unknown]))


def test_rows_hold_the_mean_and_deviation_over_seeds_or_say_that_it_is_unknown(tmp_path: Path) -> None:
    runs = [made_with_tiers(tmp_path / f"a-{s}", {"watch": w, "phone": 0.6}, seed=s) for s, w in ((0, 0.2), (1, 0.4))]
    known, unknown = compare_rows([*runs, made_with_tiers(tmp_path / "b", {"watch": None, "phone": 0.7})])
    assert list(known)[list(known).index("global") + 1] == "average"
    assert known["average"] == {"mean": pytest.approx(0.375), "sd": pytest.approx(0.01125**0.5), "count": 2}
    assert unknown["average"] == {"mean": None, "sd": None, "count": 0}


def test_the_printed_table_has_the_average_after_the_global_score(tmp_path: Path) -> None:
    apart, unknown = (
        made_with_tiers(tmp_path / "a", {"watch": 0.2, "phone": 0.6}),
        made_with_tiers(tmp_path / "b", {"watch": None}),
    )
    lines = shown(80, apart, unknown)
    assert lines[1].split()[:7] == ["method", "global", "average", "worst", "tier", "watch", "phone"]
    assert lines[3].split()[:6] == ["a", "90.0", "30.0", "20.0", "20.0", "60.0"]
    assert lines[4].split()[:4] == ["b", "90.0", "—", "—"]
    assert "average: of the tiers" in "\n".join(lines)
    assert "average" not in "\n".join(shown(80, unknown))


def test_the_worst_tier_is_the_lowest_of_each_run(tmp_path: Path) -> None:
    """Seed 0: watch is worst with 20 %; seed 1: phone with 30 %. Their mean is 25 %, below the mean of either tier."""
    tiers = ({"watch": 0.2, "phone": 0.6}, {"watch": 0.6, "phone": 0.3})
    runs = [made_with_tiers(tmp_path / f"a-{seed}", each, seed=seed) for seed, each in enumerate(tiers)]
    (row,) = compare_rows(runs)
    assert row["worst_tier"] == {"mean": pytest.approx(0.25), "sd": pytest.approx(0.0707107), "count": 2}
    assert row["by_seed"]["worst_tier"] == {"0": 0.2, "1": 0.3}  # type: ignore[index]


def test_the_worst_tier_counts_at_the_end_and_needs_every_tier(tmp_path: Path) -> None:
    """A tier without a score could be the worst; scores of clients and of the test set are not compared."""
    later = made_with_tiers(tmp_path / "later", {"watch": 0.1, "phone": 0.2}, {"watch": 0.5, "phone": 0.4})
    unscored = made_with_tiers(tmp_path / "unscored", {"phone": 0.6})
    mixed = made_with_tiers(tmp_path / "mixed", {"watch": None, "phone": 0.6})
    clients = made_with_tiers(tmp_path / "clients", {"watch": None, "phone": None}, shared=None)
    none = made_with_targets(tmp_path / "none")
    assert [worst_tier(run) for run in (later, unscored, mixed, clients, none)] == [0.4, None, None, 0.5, None]


def test_a_terminal_too_narrow_for_the_average_keeps_the_range_of_the_tiers(tmp_path: Path) -> None:
    run = made_with_tiers(tmp_path / "a", {"watch": 0.2, "phone": 0.6})
    narrow = shown(45, run)
    assert narrow[1].split() == ["method", "global", "worst", "tier", "2", "tiers"]
    assert "average" not in "\n".join(narrow)
    assert max(map(len, narrow)) <= 45
    assert shown(52, run)[1].split()[:3] == ["method", "global", "average"]


def test_the_page_shows_the_average_and_the_rounds_it_took(tmp_path: Path) -> None:
    apart = made_with_tiers(tmp_path / "a", {"watch": 0.4, "phone": 0.6}, {"watch": 0.5, "phone": 0.7})
    unknown = made_with_tiers(tmp_path / "b", {"watch": None, "phone": 0.6})
    page = write_report([apart.folder, unknown.folder], tmp_path / "page.html").read_text()
    heads = re.findall(r'<th scope="col">(.*?)</th>', page)
    assert heads[:5] == ["", "runs", "global", "average", "worst tier"]
    assert "Average: of the tiers" in page
    part = page[page.index("by the tiers") :]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", part[: part.index("</table>")])
    assert cells == ["2", "—", "—", "—", "—", "—", "—", "—"]  # 55 % in round 2; nothing for the other run


def test_the_page_says_nothing_of_an_average_that_repeats_the_global_score(tmp_path: Path) -> None:
    runs = [made_with_tiers(tmp_path / name, {"watch": 0.9, "phone": 0.9}) for name in "ab"]
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text()
    assert "verage: of the tiers" not in page
    assert "by the tiers" not in page


def made_with_targets(path: Path, wanted: str = "", metric: str = "accuracy", settings: str | None = None) -> RunRecord:
    """A run whose score is at 55 % in round 3, 83 % in round 7 and 86 % in round 9."""
    scores = [{"round": n, "metric": metric, "global": {"test": {metric: score}}} for n, score in CURVE]
    named = f"[score]\ntargets = {wanted}\n" if wanted else ""
    return read_record(write_folder(path, manifest(path.name, tiers=[]), [], scores, settings or named))


def head(*runs: RunRecord, width: int = 140) -> str:
    console = Console(width=140)
    with console.capture() as capture:
        console.print(compare_table(runs, width))
    return " ".join(capture.get().splitlines()[1].split())


def test_a_run_has_the_targets_that_its_settings_name(tmp_path: Path) -> None:
    run = made_with_targets(tmp_path / "a", "[0.85, 0.6, 0.85]")
    assert run.targets == targets(run) == (0.85, 0.6)
    assert main_target(run) == 0.85


@pytest.mark.parametrize("wanted", ["", "[]"])
def test_a_run_that_names_none_has_the_usual_ones(tmp_path: Path, wanted: str) -> None:
    run = made_with_targets(tmp_path / "a", wanted)
    assert (run.targets, targets(run), main_target(run)) == ((), (0.5, 0.8, 0.9, 0.95), 0.8)


@pytest.mark.parametrize(
    "settings",
    ["[score\n", "score = 3\n", "[score]\ntargets = 0.85\n", "[score]\ntargets = [85, -1, nan, true, '1']\n"],
)
def test_settings_that_say_nothing_sensible_name_none(tmp_path: Path, settings: str) -> None:
    assert made_with_targets(tmp_path / "a", settings=settings).targets == ()


def test_runs_that_differ_have_all_their_targets_sorted(tmp_path: Path) -> None:
    runs = [
        made_with_targets(tmp_path / name, wanted) for name, wanted in (("a", "[0.85, 0.2]"), ("b", "[0.6]"), ("c", ""))
    ]
    assert targets(*runs) == (0.2, 0.6, 0.85)
    assert main_target(*runs) == 0.2
    assert targets(runs[0], runs[2]) == (0.85, 0.2)


def test_rows_count_rounds_to_the_named_targets_for_every_method(tmp_path: Path) -> None:
    rows = compare_rows([made_with_targets(tmp_path / "a", "[0.85]"), made_with_targets(tmp_path / "b", "[0.6, 0.99]")])
    for row in rows:
        found = row["rounds_to"]
        assert isinstance(found, dict)
        assert {target: until["mean"] for target, until in found.items()} == {"0.6": 7.0, "0.85": 9.0, "0.99": None}


def test_the_printed_table_counts_to_the_first_named_target(tmp_path: Path) -> None:
    assert "global to 80% bytes" in head(made_with_targets(tmp_path / "none"))
    runs = [made_with_targets(tmp_path / name, "[0.85, 0.5]") for name in "ab"]
    assert "global to 85% bytes" in head(*runs)
    console = Console(width=140)
    with console.capture() as capture:
        console.print(compare_table(runs, 140))
    assert capture.get().splitlines()[3].split()[:3] == ["a", "86.0", "9"]


def test_a_correlation_and_a_target_between_whole_percents_are_written_in_full(tmp_path: Path) -> None:
    assert "to 85.5% bytes" in head(made_with_targets(tmp_path / "a", "[0.855]"))
    assert "to 0.85 bytes" in head(made_with_targets(tmp_path / "b", "[0.85]", "matthews"))
    assert [MetricFormat.of_metric("f1").format_target(value) for value in (0.5, 0.57, 0.9995, 1.0)] == [
        "50 %",
        "57 %",
        "99.95 %",
        "100 %",
    ]
    assert [MetricFormat.of_metric("pearson").format_target(value) for value in (0.5, 0.855, -0.25)] == [
        "0.50",
        "0.855",
        "-0.25",
    ]


def test_the_page_of_a_run_and_of_several_show_the_named_targets_only(tmp_path: Path) -> None:
    folders = [made_with_targets(tmp_path / name, "[0.85]").folder for name in "ab"]
    for chosen in (folders[:1], folders):
        page = write_report(chosen, tmp_path / "page.html").read_text()
        part = page[page.index("<h3>Rounds to a target") :]
        part = part[: part.index("</table>")]
        assert "85 %" in part
        assert "90 %" not in part
        assert ">9</td>" in part


def test_a_named_target_stays_where_there_is_no_room_for_more(tmp_path: Path) -> None:
    assert head(made_with_targets(tmp_path / "none"), width=50) == "method global bytes time* energy*"
    assert head(made_with_targets(tmp_path / "named", "[0.85]"), width=50) == "method global to 85% bytes time* energy*"


def scored(round_: int, test: float | None, validation: float | None = None, **more: object) -> dict[str, object]:
    whole = {"test": {"accuracy": test}, "validation": {"accuracy": validation}}
    return {"round": round_, "global": whole, **more}


def ended(round_: int, **more: object) -> dict[str, object]:
    return {"event": "round", "round": round_, **more}


def test_cost_so_far_grows_round_by_round(tmp_path: Path) -> None:
    events = [task(1, "c1", "watch", bytes_down=1, bytes_up=2), ended(1, device_seconds=3.0, round_seconds=5.0)]
    events += [task(2, "c1", "watch", bytes_down=10, bytes_up=20), ended(2, device_seconds=4.0, round_seconds=5.0)]
    costs = costs_so_far(read_record(write_folder(tmp_path / "a", manifest(), events, [])))
    assert [(cost.bytes_down, cost.bytes_up, cost.device_seconds, cost.round_seconds) for cost in costs.values()] == [
        (0, 0, 0, 0),
        (1, 2, 3, 5),
        (11, 22, 7, 10),
    ]


def test_rounds_to_is_the_first_scored_round_at_the_target(tmp_path: Path) -> None:
    run = read_record(write_folder(tmp_path / "a", manifest(), [], [scored(0, 0.1), scored(5, 0.8), scored(10, 0.79)]))
    assert (rounds_to(run, 0.5), rounds_to(run, 0.8), rounds_to(run, 0.81)) == (5, 5, None)


def test_rounds_to_asks_the_clients_where_no_model_is_shared(tmp_path: Path) -> None:
    scores = [
        {"round": 1, "global": None, "clients": {"mean": 0.4}},
        {"round": 2, "global": None, "clients": {"mean": 0.6}},
    ]
    assert rounds_to(read_record(write_folder(tmp_path / "a", manifest(), [], scores)), 0.5) == 2


def test_compare_rows_are_means_and_sample_deviations_over_seeds(tmp_path: Path) -> None:
    for seed, accuracy in ((0, 0.8), (1, 0.9)):
        tiers = {"watch": {"test": {"accuracy": accuracy - 0.1}}}
        events = [task(1, "c1", "watch", bytes_up=10 * (seed + 1), modelled_flops=50), ended(1, device_seconds=2.0)]
        write_folder(tmp_path / f"{seed}", manifest(seed=seed), events, [scored(1, accuracy, tiers=tiers)])
    (row,) = compare_rows([read_record(tmp_path / "0"), read_record(tmp_path / "1")])
    assert row["label"] == "FedAvg"
    assert row["seeds"] == [0, 1]
    assert row["global"] == {"mean": pytest.approx(0.85), "sd": pytest.approx(0.0707107), "count": 2}
    assert row["tiers"] == {"watch": {"mean": pytest.approx(0.75), "sd": pytest.approx(0.0707107), "count": 2}}
    assert row["bytes"] == {"mean": 15.0, "sd": pytest.approx(7.0710678), "count": 2}
    assert row["device_seconds"] == {"mean": 2.0, "sd": 0.0, "count": 2}
    assert row["round_seconds"] == {"mean": 2.0, "sd": 0.0, "count": 2}  # the server computes nothing
    assert json.loads(json.dumps(row))["flops"]["mean"] == 50.0


def test_runs_that_share_label_and_seed_are_kept_apart_by_name(tmp_path: Path) -> None:
    runs = [read_record(made_run(tmp_path / name, rounds=1, name=name)) for name in ("slow", "fast")]
    assert list(group_by_method(runs)) == ["FedAvg · slow", "FedAvg · fast"]


def diverged(base: Path) -> list[RunRecord]:
    """FedAvg with seeds 0 and 1; FedProx with seeds 0 and 1, of which the second diverged after a round of score 1."""
    tiers = {"watch": 0.5}
    ended = [made_with_tiers(base / f"{name}-{seed}", tiers, shared=0.6, seed=seed, shares={"watch": 1.0})
             for name, seed in (("FedAvg", 0), ("FedAvg", 1), ("FedProx", 0))]  # fmt: skip
    stopped = manifest("FedProx", 1, status="diverged", fault_round=12, fault="round 12: 'x' is not finite")
    scores = [{"round": 11, "global": {"test": {"accuracy": 1.0}}, "tiers": {"watch": {"test": {"accuracy": 1.0}}}}]
    return [*ended, read_record(write_folder(base / "FedProx-1", stopped, [task(11, "c0", "watch")], scores))]


def test_a_run_that_diverged_is_in_no_mean_and_is_told(tmp_path: Path) -> None:
    runs = diverged(tmp_path)
    averaged, proximal = compare_rows(runs)
    assert (averaged["runs"], averaged["failed"]) == (2, [])
    assert (proximal["runs"], proximal["seeds"]) == (1, [0])
    assert proximal["failed"] == [{"seed": 1, "status": "diverged", "round": 12}]
    assert proximal["global"] == {"mean": 0.6, "sd": None, "count": 1}
    assert proximal["tiers"] == {"watch": {"mean": 0.5, "sd": None, "count": 1}}
    assert mean_of(proximal["rounds_to"]["0.95"]) is None  # type: ignore[index]
    assert "seed 1 diverged in round 12" in " ".join(" ".join(shown(100, *runs)).split())
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text("utf-8")
    assert "FedProx, seed 1, diverged in round 12" in page
    assert "100.0" not in re.sub(r"(?s)<details.*?</details>", "", page)


def test_a_comparison_in_which_every_run_diverged_has_a_table_and_a_page(tmp_path: Path) -> None:
    runs = diverged(tmp_path)[3:]
    both = [*runs, read_record(made_run(tmp_path / "b", "FedAvg", status="failed", fault_round=3))]
    assert [row["runs"] for row in compare_rows(both)] == [0, 0]
    text = " ".join(" ".join(shown(100, *both)).split())
    assert "diverged in round 12" in text
    assert "failed in round 3" in text
    assert "<html" in write_report([run.folder for run in both], tmp_path / "page.html").read_text("utf-8")
    assert "diverged in round 12" in write_report([runs[0].folder], tmp_path / "one.html").read_text("utf-8")


def with_settings(base: Path, name: str, seed: int, text: str) -> RunRecord:
    return read_record(made_run(base / name, rounds=1, seed=seed, settings=f"seed = {seed}\n{text}"))


def test_runs_of_one_label_with_other_settings_are_never_averaged(tmp_path: Path) -> None:
    rates = {"a": (0, 0.01), "b": (1, 0.1), "c": (2, 0.1)}
    runs = [with_settings(tmp_path, name, seed, f"[local]\nlr = {lr}\n") for name, (seed, lr) in rates.items()]
    found = {label: [run.seed for run in some] for label, some in group_by_method(runs).items()}
    assert found == {"FedAvg · local.lr=0.01": [0], "FedAvg · local.lr=0.1": [1, 2]}
    assert [row["label"] for row in compare_rows(runs)] == list(found)


def test_runs_that_differ_in_how_they_run_or_are_looked_at_are_one_method(tmp_path: Path) -> None:
    one = with_settings(tmp_path, "a", 0, 'rounds = 3\n[run]\nengine = "pool"\n[compare.budget]\nenergy = 1.0\n')
    two = with_settings(tmp_path, "b", 1, 'rounds = 9\n[run]\nengine = "serial"\n[score]\ntargets = [0.5]\n')
    assert list(group_by_method([one, two])) == ["FedAvg"]


def test_a_run_of_a_version_that_lacked_a_setting_is_grouped_with_newer_ones(tmp_path: Path) -> None:
    old = with_settings(tmp_path, "a", 0, "[local]\nlr = 0.1\n")
    new = with_settings(tmp_path, "b", 1, "[local]\nlr = 0.1\nclip = 0.0\n[gate]\nstrikes = 3\n")
    broken = with_settings(tmp_path, "c", 2, "= broken")
    assert list(group_by_method([old, new, broken])) == ["FedAvg"]


def test_networks_that_differ_in_one_setting_alone_are_told_apart(tmp_path: Path) -> None:
    runs = [with_settings(tmp_path, f"{seed}", seed, f'[model]\nname = "mlp"\n{more}')
            for seed, more in enumerate(("", "hidden = 8\n"))]  # fmt: skip
    assert list(group_by_method(runs)) == ["FedAvg · model.hidden=default", "FedAvg · model.hidden=8"]
