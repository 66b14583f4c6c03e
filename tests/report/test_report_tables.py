"""Tables for the terminal: what they show in how many characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from made_runs import FIVE, made_family, made_run, made_widths
from rich.console import Console

from potluck.report import RunRecord, compare_rows, compare_table, read_record, run_table, units


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
    assert lines[1].split() == ["method", "global", "average", "local", "5", "tiers", "bytes", "time*", "energy*"]
    for row, line in zip(compare_rows(runs), lines[3:], strict=False):
        assert line.startswith(str(row["label"]))
        assert line.count("±") == 3
        assert line.rstrip().endswith("J")
    assert "5 tiers: from the lowest to the highest" in "\n".join(lines)


def test_a_wide_terminal_shows_every_tier_with_its_spread(tmp_path: Path) -> None:
    lines = table([read_record(path) for path in made_widths(tmp_path, rounds=2)], 120)
    assert lines[1].split()[4:9] == [tier["name"] for tier in FIVE]
    assert lines[3].count("±") == 8


def test_tiers_lose_their_spread_before_they_are_folded(tmp_path: Path) -> None:
    lines = table([read_record(path) for path in made_widths(tmp_path, rounds=2)], 96)
    assert lines[1].split()[4:9] == [tier["name"] for tier in FIVE]
    assert lines[3].count("±") == 3
