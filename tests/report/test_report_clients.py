"""Scores of clients. Local accuracy: the shared model on every client's own examples and classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made_runs import made_run, manifest, write_folder
from rich.console import Console

from potluck.report import compare_rows, compare_table, read_record, write_report
from potluck.report.clients import bin_counts, pool_clients
from potluck.report.paper_table import make_table


def scored(round_: int, **local: object) -> dict[str, object]:
    return {"round": round_, "global": {"test": {"accuracy": 0.5}}, **({"local": local} if local else {})}


def folder(path: Path, *scores: dict[str, object], **facts: object) -> Path:
    return write_folder(path, manifest(**facts), [], scores)


def test_bins_are_five_points_wide_and_hold_their_lower_edge() -> None:
    found = bin_counts([0.0, 0.049, 0.05, 0.15, 0.55, 0.999, 1.0, 1.01, -0.1, 7.5])
    assert {index: many for index, many in enumerate(found) if many} == {0: 2, 1: 1, 3: 1, 11: 1, 19: 2}
    assert len(found) == 20
    assert [bin_counts([index / 20]).index(1) for index in range(20)] == list(range(20))


def test_the_last_round_that_has_local_accuracies_counts(tmp_path: Path) -> None:
    scores = [scored(1, mean=0.4, values=[0.4]), scored(2, mean=0.6, sd=0.1, worst=0.3, count=2, values=[0.5, 0.7])]
    point = read_record(folder(tmp_path / "run", *scores, scored(3))).curve.last_local
    assert point
    assert (point.round, point.local.mean, point.local.values) == (2, 0.6, (0.5, 0.7))
    assert read_record(folder(tmp_path / "none", scored(1))).curve.last_local is None


def test_compare_rows_hold_the_mean_over_seeds_of_the_local_mean(tmp_path: Path) -> None:
    runs = [read_record(folder(tmp_path / f"{s}", scored(1, mean=m), seed=s)) for s, m in ((0, 0.6), (1, 0.8))]
    (row,) = compare_rows(runs)
    assert row["local"] == {"mean": pytest.approx(0.7), "sd": pytest.approx(0.02**0.5), "count": 2}
    (row,) = compare_rows([read_record(folder(tmp_path / "none", scored(1)))])
    assert row["local"] == {"mean": None, "sd": None, "count": 0}


def test_seeds_share_one_histogram(tmp_path: Path) -> None:
    runs = [
        read_record(folder(tmp_path / "a", scored(1, mean=0.5, values=[0.4, 0.6]))),
        read_record(folder(tmp_path / "b", scored(1, mean=0.9, values=[0.9]))),
        read_record(folder(tmp_path / "c", scored(1))),
    ]
    assert (pool_clients(runs).mean, pool_clients(runs).values) == (pytest.approx(0.7), (0.4, 0.6, 0.9))


def test_a_run_shows_its_histogram_with_the_mean_marked(tmp_path: Path) -> None:
    spread = {"mean": 0.5, "sd": 0.1, "worst": 0.12, "count": 4, "values": [0.12, 0.62, 0.63, 0.63]}
    page = write_report([folder(tmp_path / "run", scored(7, **spread))], tmp_path / "a.html").read_text()
    assert re.findall(r'data-tip="([^"]*clients)"', page) == [
        "10 to 15 %: 1 of 4 clients",
        "60 to 65 %: 3 of 4 clients",
    ]
    for words in ("Round 7: 50.0 ± 10.0 %, worst tenth 12.0 %", ">mean 50.0 %<", "local: 50.0 %"):
        assert words in page


def test_a_run_without_local_accuracies_has_no_histogram(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / name, name, rounds=2) for name in ("a", "b")]
    for chosen in (folders[:1], folders):
        assert "ocal accuracy" not in write_report(chosen, tmp_path / "page.html").read_text()


def test_methods_get_a_histogram_each_on_common_axes(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "a", scored(1, mean=0.5, values=[0.5, 0.5]), label="A"),
        folder(tmp_path / "b", scored(1, mean=0.5, values=[n / 20 for n in range(20)]), label="B"),
        folder(tmp_path / "c", scored(1), label="C"),
    ]
    page = write_report(folders, tmp_path / "page.html").read_text()
    part = page[page.index("<h2>Local accuracy") : page.index("<h2>What accuracy costs")]
    assert re.findall(r"<figcaption>(.*?)<", part) == ["A", "B"]
    heights = [float(height) for height in re.findall(r'<rect[^>]* height="([0-9.]+)"', part)]
    assert heights == [198.0, *[9.9] * 20]


@pytest.mark.parametrize(
    "local", [{"values": []}, {"values": [float("nan"), None, "x", 7.5]}, {"mean": 7.5, "values": [0.5]}, {"mean": 0.5}]
)
def test_odd_local_accuracies_do_not_stop_the_page(tmp_path: Path, local: dict[str, object]) -> None:
    folders = [folder(tmp_path / label, scored(1, **local), label=label) for label in "ab"]
    for chosen in (folders[:1], folders):
        assert "</html>" in write_report(chosen, tmp_path / "page.html").read_text()


def after_local_epochs(tmp_path: Path) -> list[Path]:
    """A has 31 % on the common test set and 75 % on its clients' mixes, B has 25 % and 80 %; guessing has 67 %."""
    found = []
    for label, common, own in (("A", 0.31, 0.75), ("B", 0.25, 0.8)):
        spread = {"common": {"mean": common, "count": 2}, "own": {"mean": own, "count": 2}, "commonest": 0.67}
        found.append(folder(tmp_path / label, {**scored(1), "personal": spread}, label=label))
    return found


GUESSING = "always saying its commonest label: 67.0%."


def test_the_terminal_shows_scores_after_local_epochs_in_both_measures(tmp_path: Path) -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(compare_table([read_record(path) for path in after_local_epochs(tmp_path)], 160))
    _, head, _, *lines = [line.split() for line in capture.get().splitlines()]
    assert head[:5] == ["method", "global", "personal", "own", "mix"]
    assert [line[:4] for line in lines[:2]] == [["A", "50.0", "31.0", "75.0"], ["B", "50.0", "25.0", "80.0"]]
    assert GUESSING in " ".join(word for line in lines for word in line)


def test_the_page_of_a_comparison_shows_scores_after_local_epochs_in_both_measures(tmp_path: Path) -> None:
    page = write_report(after_local_epochs(tmp_path), tmp_path / "a.html").read_text()
    (rows,) = re.findall(r"<th scope=\"col\">personal</th><th scope=\"col\">own mix</th>.*?</table>", page)
    assert re.findall(r"seed \(0\)\">([\d.]+)</td>", rows) == ["50.0", "31.0", "75.0", "50.0", "25.0", "80.0"]
    assert GUESSING in page


def test_the_page_of_a_run_shows_scores_after_local_epochs_in_both_measures(tmp_path: Path) -> None:
    page = write_report(after_local_epochs(tmp_path)[:1], tmp_path / "a.html").read_text()
    assert "after local epochs: 31.0 %; on clients' own mix of labels 75.0 %" in page


def test_a_table_for_papers_shows_scores_after_local_epochs_in_both_measures(tmp_path: Path) -> None:
    runs = [read_record(path) for path in after_local_epochs(tmp_path)]
    head, _, *lines = make_table(runs).splitlines()
    assert head == "| method | global | personal | own mix |"
    assert lines[:2] == ["| A | 50.0 | **31.0** | 75.0 |", "| B | 50.0 | 25.0 | **80.0** |"]
    assert GUESSING in lines[-1]
    assert GUESSING not in make_table(runs, columns=["global"])
