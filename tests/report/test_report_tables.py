"""Tables for the terminal: what they show in how many characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from made_runs import FIVE, made_family, made_run, made_widths, manifest, write_folder
from rich.console import Console

from potluck.report import RunRecord, compare_rows, compare_table, comparison_tables, read_record, run_table, units


def shown(table: object) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_terminal_table_has_a_row_per_tier_and_one_for_all(tmp_path: Path) -> None:
    run = read_record(made_run(tmp_path / "run", "[red]FedAvg[/red]"))
    text = shown(run_table(run))
    assert run.curve.final
    for words in ("watch", "phone", "laptop", "global", "22,666", "[red]FedAvg[/red]"):
        assert words in text
    assert units.format_percent(run.curve.final.score) in text
    assert units.format_bytes(run.totals.bytes_down) in text


def test_the_comparison_in_the_terminal_has_a_row_per_method(tmp_path: Path) -> None:
    text = shown(compare_table([read_record(folder) for folder in made_family(tmp_path)], 160))
    for name in ("FedAvg (smallest model)", "HeteroFL", "FedRolex", "watch", "phone", "laptop", "global"):
        assert name in text
    assert "±" in text


def table(runs: Sequence[RunRecord], width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(compare_table(runs, width))
    return capture.get().splitlines()


def test_five_tiers_and_local_accuracy_are_readable_in_80_columns(tmp_path: Path) -> None:
    runs = [read_record(path) for path in made_widths(tmp_path, rounds=2)]
    lines = table(runs, 80)
    assert max(map(len, lines)) <= 80
    assert lines[1] == "method              global  average worst tier worst 10%    local      5 tiers"
    for row, line in zip(compare_rows(runs), lines[3:], strict=False):
        assert line.startswith(str(row["label"]))
        assert line.count("±") == 5
    assert "5 tiers: from the lowest to the highest" in "\n".join(lines)


def every_table(runs: Sequence[RunRecord], width: int, height: int = 25) -> list[str]:
    console = Console(width=width, height=height)
    with console.capture() as capture:
        for one in comparison_tables(runs, width):
            console.print(one)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_three_tiers_the_worst_and_the_costs_are_readable_in_80_columns(tmp_path: Path) -> None:
    """Costs stand in a table of their own; no number is cut."""
    runs = [read_record(folder) for folder in made_family(tmp_path)]
    lines = every_table(runs, 80)
    assert max(map(len, lines)) <= 80
    assert lines[1] == "method           global  average worst tier worst 10%    watch    phone   laptop"
    assert "method                  to 80%   bytes   compute*  time* energy*" in lines
    for row in compare_rows(runs):
        found = [line for line in lines if line.startswith(str(row["label"]).split()[0])]
        assert found[0].count("±") == 7
        assert found[1].endswith("J")
    assert "…" not in "".join(lines)


def test_a_terminal_wide_enough_for_all_has_one_table(tmp_path: Path) -> None:
    runs = [read_record(folder) for folder in made_family(tmp_path)]
    assert len(comparison_tables(runs, 80)) == 2
    (one,) = comparison_tables(runs, 160)
    assert [str(column.header) for column in one.columns][:5] == [
        "method",
        "global",
        "average",
        "worst tier",
        "worst 10%",
    ]
    assert str(one.columns[-1].header) == "energy*"


def test_more_methods_than_lines_of_a_terminal_are_all_printed(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / f"{number}", f"Method{number:02}", rounds=1) for number in range(40)]
    lines = every_table([read_record(folder) for folder in folders], 80, height=10)
    for number in range(40):
        assert sum(line.startswith(f"Method{number:02} ") for line in lines) == 2  # scores and costs


def test_the_worst_tenth_has_a_column_only_if_clients_are_scored(tmp_path: Path) -> None:
    with_clients = [read_record(made_run(tmp_path / "a", rounds=1))]
    assert "worst 10%: mean over the worst tenth of the clients" in "\n".join(table(with_clients, 160))
    line = {"round": 1, "global": {"test": {"accuracy": 0.5}}}
    without = [read_record(write_folder(tmp_path / "b", manifest(), [], [line]))]
    assert "worst" not in "\n".join(table(without, 160))


def test_a_wide_terminal_shows_every_tier_with_its_spread(tmp_path: Path) -> None:
    lines = table([read_record(path) for path in made_widths(tmp_path, rounds=2)], 120)
    assert lines[1].split()[-5:] == [tier["name"] for tier in FIVE]
    assert lines[3].count("±") == 10


def test_tiers_lose_their_spread_before_they_are_folded(tmp_path: Path) -> None:
    lines = table([read_record(path) for path in made_widths(tmp_path, rounds=2)], 96)
    assert lines[1].split()[-5:] == [tier["name"] for tier in FIVE]
    assert lines[3].count("±") == 5
