"""Rounds to the targets that a run names, or else to the usual ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import manifest, write_folder
from rich.console import Console

from potluck.report import MetricFormat, RunRecord, compare_rows, compare_table, read_record, write_report
from potluck.report.summary import main_target, targets

CURVE = ((0, 0.1), (3, 0.55), (7, 0.83), (9, 0.86))


def made(path: Path, wanted: str = "", metric: str = "accuracy", settings: str | None = None) -> RunRecord:
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
    run = made(tmp_path / "a", "[0.85, 0.6, 0.85]")
    assert run.targets == targets(run) == (0.85, 0.6)
    assert main_target(run) == 0.85


@pytest.mark.parametrize("wanted", ["", "[]"])
def test_a_run_that_names_none_has_the_usual_ones(tmp_path: Path, wanted: str) -> None:
    run = made(tmp_path / "a", wanted)
    assert (run.targets, targets(run), main_target(run)) == ((), (0.5, 0.8, 0.9, 0.95), 0.8)


@pytest.mark.parametrize(
    "settings",
    ["[score\n", "score = 3\n", "[score]\ntargets = 0.85\n", "[score]\ntargets = [85, -1, nan, true, '1']\n"],
)
def test_settings_that_say_nothing_sensible_name_none(tmp_path: Path, settings: str) -> None:
    assert made(tmp_path / "a", settings=settings).targets == ()


def test_runs_that_differ_have_all_their_targets_sorted(tmp_path: Path) -> None:
    runs = [made(tmp_path / name, wanted) for name, wanted in (("a", "[0.85, 0.2]"), ("b", "[0.6]"), ("c", ""))]
    assert targets(*runs) == (0.2, 0.6, 0.85)
    assert main_target(*runs) == 0.2
    assert targets(runs[0], runs[2]) == (0.85, 0.2)


def test_rows_count_rounds_to_the_named_targets_for_every_method(tmp_path: Path) -> None:
    rows = compare_rows([made(tmp_path / "a", "[0.85]"), made(tmp_path / "b", "[0.6, 0.99]")])
    for row in rows:
        found = row["rounds_to"]
        assert isinstance(found, dict)
        assert {target: until["mean"] for target, until in found.items()} == {"0.6": 7.0, "0.85": 9.0, "0.99": None}


def test_the_printed_table_counts_to_the_first_named_target(tmp_path: Path) -> None:
    assert "global to 80% bytes" in head(made(tmp_path / "none"))
    runs = [made(tmp_path / name, "[0.85, 0.5]") for name in "ab"]
    assert "global to 85% bytes" in head(*runs)
    console = Console(width=140)
    with console.capture() as capture:
        console.print(compare_table(runs, 140))
    assert capture.get().splitlines()[3].split()[:3] == ["a", "86.0", "9"]


def test_a_correlation_and_a_target_between_whole_percents_are_written_in_full(tmp_path: Path) -> None:
    assert "to 85.5% bytes" in head(made(tmp_path / "a", "[0.855]"))
    assert "to 0.85 bytes" in head(made(tmp_path / "b", "[0.85]", "matthews"))
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
    folders = [made(tmp_path / name, "[0.85]").folder for name in "ab"]
    for chosen in (folders[:1], folders):
        page = write_report(chosen, tmp_path / "page.html").read_text()
        part = page[page.index("<h3>Rounds to a target") :]
        part = part[: part.index("</table>")]
        assert "85 %" in part
        assert "90 %" not in part
        assert "<td>9</td>" in part


def test_a_named_target_stays_where_there_is_no_room_for_more(tmp_path: Path) -> None:
    assert head(made(tmp_path / "none"), width=40) == "method global bytes time* energy*"
    assert head(made(tmp_path / "named", "[0.85]"), width=40) == "method global to 85% bytes time* energy*"
