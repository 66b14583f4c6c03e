"""Comparison at equal cost: the score within a budget, and what a target cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_runs import manifest, task, write_folder
from rich.console import Console

from potluck.report import RunRecord, compare_rows, costs_so_far, read_record, write_report
from potluck.report.budgets import CostBudget, budgets, score_within, spent_by_round, spent_until
from potluck.report.records import LearningCurve, ModelScore, RoundScores
from potluck.report.tables import budget_table, comparison_tables, target_table

CURVE = ((0, 0.1), (2, 0.5), (4, 0.8))
"""(round, accuracy)"""


def spender(
    path: Path,
    settings: str = "",
    label: str = "A",
    seed: int = 0,
    rounds: int = 4,
    curve: Sequence[tuple[int, float]] = CURVE,
) -> RunRecord:
    """A run whose every round costs 30 bytes, 2 s, 100 J and 5 FLOPs; its server's own work costs nothing here."""
    events = []
    for number in range(1, rounds + 1):
        cost = {"bytes_down": 10, "bytes_up": 20, "modelled_seconds": 2, "modelled_joules": 100, "modelled_flops": 5}
        events.append(task(number, "c1", "watch", **cost))
        events.append(task(number, "server", "server", modelled_joules=1e6, modelled_flops=1e9))
        events.append({"event": "round", "round": number, "device_seconds": 2.0, "round_seconds": 9.0})
    lines = [{"round": number, "global": {"test": {"accuracy": score}}} for number, score in curve]
    return read_record(write_folder(path, manifest(label, seed), events, lines, settings))


def budget(text: str) -> str:
    return f"[compare]\nbudget = {text}\n"


def shown(table: object, width: int = 80) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return [" ".join(line.split()) for line in capture.get().splitlines()]


def test_a_run_has_the_budget_that_its_settings_name(tmp_path: Path) -> None:
    run = spender(tmp_path / "a", budget("{energy = 500, rounds = 3.0}"))
    assert run.budget == {"energy": 500.0, "rounds": 3.0}
    assert budgets(run, run) == (CostBudget("energy", 500.0), CostBudget("rounds", 3.0))


@pytest.mark.parametrize(
    "settings",
    ["", "[compare]\n", "[compare\n", "compare = 3\n", budget("500"), budget("{time = 0, bytes = -1, joules = 3}"),
     budget("{energy = nan, flops = inf, time = 'x', rounds = true}")],
)  # fmt: skip
def test_settings_without_a_sensible_budget_have_none(tmp_path: Path, settings: str) -> None:
    run = spender(tmp_path / "a", settings)
    assert run.budget == {}
    assert compare_rows([run])[0]["at_budget"] == {}
    assert budget_table([run]) is None


def test_costs_add_up_by_round_without_the_servers_own(tmp_path: Path) -> None:
    run = spender(tmp_path / "a", rounds=2)
    found = {kind: spent_by_round(run, kind) for kind in ("rounds", "bytes", "time", "energy", "flops")}
    assert found == {
        "rounds": {0: 0, 1: 1, 2: 2, 4: 4},  # round 4 was scored
        "bytes": {0: 0, 1: 30, 2: 60},
        "time": {0: 0, 1: 2, 2: 4},
        "energy": {0: 0, 1: 100, 2: 200},
        "flops": {0: 0, 1: 5, 2: 10},
    }
    assert [cost.flops for cost in costs_so_far(run).values()] == [0, 5, 10]


@pytest.mark.parametrize(
    ("limit", "score", "round_", "unspent_of"),
    [
        (50, 0.1, 0, None),  # not even one round
        (200, 0.5, 2, None),  # exactly two rounds
        (399, 0.5, 2, None),  # round 3 is within the budget, but has no score
        (400, 0.8, 4, None),  # all of it
        (401, 0.8, 4, 400),  # one joule was left
    ],
)
def test_the_score_is_that_of_the_last_scored_round_within_the_budget(
    tmp_path: Path, limit: float, score: float, round_: int, unspent_of: float | None
) -> None:
    run = spender(tmp_path / "a")
    found = score_within(run.curve, spent_by_round(run, "energy"), limit)
    assert (found.score, found.round, found.unspent_of) == (score, round_, unspent_of)


def test_a_run_that_does_not_say_what_it_cost_has_no_score_within_a_budget(tmp_path: Path) -> None:
    lines = [{"round": 4, "global": {"test": {"accuracy": 0.9}}}]
    run = read_record(write_folder(tmp_path / "a", manifest(), [], lines, budget("{energy = 5, rounds = 4}")))
    (row,) = compare_rows([run])
    assert row["at_budget"] == {
        "energy=5": {"mean": None, "sd": None, "count": 0, "ended_before": 0, "spent_in_all": None},
        "rounds=4": {"mean": 0.9, "sd": None, "count": 1, "ended_before": 0, "spent_in_all": None},
    }


def test_a_scored_round_before_the_first_score_has_none() -> None:
    curve = LearningCurve((RoundScores(2, test=ModelScore(0.5)),))
    assert score_within(curve, {0: 0.0, 1: 10.0, 2: 20.0}, 15.0).score is None
    assert spent_until({0: 0.0, 1: 10.0}, 5) == 10.0
    assert spent_until({}, 5) is None


def two_methods(tmp_path: Path, settings: str) -> list[RunRecord]:
    """A runs for 4 rounds with two seeds; B for 3, after which it is at 70 %."""
    runs = [spender(tmp_path / f"A{seed}", settings, "A", seed) for seed in (0, 1)]
    short = ((0, 0.1), (2, 0.4), (3, 0.7))
    return [*runs, *(spender(tmp_path / f"B{seed}", settings, "B", seed, 3, short) for seed in (0, 1))]


def test_rows_and_tables_show_the_score_at_each_budget(tmp_path: Path) -> None:
    runs = two_methods(tmp_path, budget("{energy = 350, bytes = 70}"))
    first, second = (row["at_budget"] for row in compare_rows(runs))
    none = {"sd": 0.0, "count": 2, "ended_before": 0, "spent_in_all": None}
    assert first == {"energy=350": {"mean": 0.5, **none}, "bytes=70": {"mean": 0.5, **none}}
    assert second == {
        "energy=350": {"mean": 0.7, "sd": 0.0, "count": 2, "ended_before": 2, "spent_in_all": 300.0},
        "bytes=70": {"mean": 0.4, **none},
    }
    lines = shown(budget_table(runs))
    assert lines[0] == "Test accuracy in % at equal"
    assert "method at 350 J at 70 B" in lines
    assert "A 50.0±0.0 50.0±0.0" in lines
    assert "B 70.0±0.0 § 40.0±0.0" in lines
    assert "§ Ended with some of 350 J left, and taken at the end: B, all of it 300 J." in " ".join(lines)
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text("utf-8")
    assert ">at 350 J<" in page
    assert "70.0 ± 0.0 §" in page
    assert "B, all of it 300 J." in page


def test_runs_that_name_different_budgets_have_a_column_for_each(tmp_path: Path) -> None:
    runs = [spender(tmp_path / "a", budget("{energy = 350}")), spender(tmp_path / "b", budget("{time = 5}"), "B")]
    assert "method at 350 J at 5 s" in shown(budget_table(runs))


@pytest.mark.parametrize(
    ("kind", "amount", "name"),
    [("rounds", 40, "40 rounds"), ("bytes", 12_345_600, "12.3456 MB"), ("time", 90, "90 s"), ("time", 7200, "2 h"),
     ("energy", 500, "500 J"), ("energy", 0.5, "500 mJ"), ("flops", 2e12, "2 TFLOP")],
)  # fmt: skip
def test_budgets_are_named_with_all_their_digits(kind: str, amount: float, name: str) -> None:
    assert CostBudget(kind, amount).name == name


def test_the_cost_to_a_target_counts_up_to_the_round_that_reached_it(tmp_path: Path) -> None:
    run = spender(tmp_path / "a", "[score]\ntargets = [0.5, 0.9]\n")
    reached, missed = compare_rows([run])[0]["cost_to"].values()  # type: ignore[attr-defined]
    means = {kind: reached[kind]["mean"] for kind in ("rounds", "bytes", "time", "energy", "flops")}
    assert means == {"rounds": 2, "bytes": 60, "time": 4, "energy": 200, "flops": 10}
    assert (reached["reached"], missed["reached"], missed["runs"]) == (1, 0, 1)
    assert missed["energy"] == {"mean": None, "sd": None, "count": 0}


def test_a_target_that_some_seeds_missed_says_how_many_reached_it(tmp_path: Path) -> None:
    """Seed 0 reaches 80 % after 4 rounds, seed 1 never; B never does."""
    settings = "[score]\ntargets = [0.8]\n"
    runs = [spender(tmp_path / "0", settings), spender(tmp_path / "1", settings, seed=1, curve=((4, 0.7),))]
    runs += [spender(tmp_path / "b", settings, "B", curve=((4, 0.7),))]
    lines = shown(target_table(runs))
    assert lines[0] == "Cost until 80 % was reached"
    assert "method rounds bytes time* energy* compute* reached" in lines
    assert "A 4 120 B 8 s 400 J 20 FLOP 1 of 2" in lines
    assert "B (1 of them) not reached 0 of 1" in lines
    assert "4 (1 of 2)" in " ".join(shown(comparison_tables(runs, 160)[0], 160))
    page = write_report([run.folder for run in runs], tmp_path / "page.html").read_text("utf-8")
    part = page[page.index("Cost to 80 %") :]
    assert "not reached" in part[: part.index("</table>")]
    assert "1 of 2" in part[: part.index("</table>")]


def test_the_terminal_shows_the_cost_to_a_target_only_if_target_or_budget_is_named(tmp_path: Path) -> None:
    assert target_table([spender(tmp_path / "a")]) is None
    assert target_table([spender(tmp_path / "b", budget("{rounds = 3}"))]) is not None
