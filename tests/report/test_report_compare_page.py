"""Methods under each variant of a comparison, side by side."""

from __future__ import annotations

from pathlib import Path

from made_runs import made_run, manifest, write_folder

from potluck.report import read_record, verdict, write_report
from potluck.report.compare_page import variant_numbers, variant_scores
from potluck.report.summary import compare_rows


def swept(base: Path) -> list[Path]:
    """Two methods under two variants, two seeds each."""
    return [
        made_run(base / f"{method}-{variant}-{seed}", label=method, seed=seed, top=top, variant=variant)
        for method in ("FedRolex", "HeteroFL")
        for variant, top in (("share = 0.1", 0.7), ("share = 0.9", 0.9))
        for seed in (0, 1)
    ]


def test_a_cell_is_the_mean_over_seeds_of_one_method_under_one_variant(tmp_path: Path) -> None:
    runs = [read_record(folder) for folder in swept(tmp_path)]
    found = variant_scores(runs)
    assert list(found) == ["FedRolex", "HeteroFL"]
    assert list(found["FedRolex"]) == ["share = 0.1", "share = 0.9"]
    two = [run.curve.final.score for run in runs[2:4] if run.curve.final]
    assert found["FedRolex"]["share = 0.9"]["mean"] == sum(filter(None, two)) / 2


def test_a_page_of_variants_has_a_table_and_a_chart(tmp_path: Path) -> None:
    page = write_report(swept(tmp_path), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "What varies" in page
    assert "Final accuracy against share" in page
    assert "HeteroFL, share = 0.9" in page
    assert page.index("What varies") < page.index("<h2>Accuracy")


def test_variants_are_not_ranked_against_each_other(tmp_path: Path) -> None:
    assert verdict([read_record(folder) for folder in swept(tmp_path)]) == []


def test_runs_without_variants_have_no_such_section(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / name, label=name) for name in ("A", "B")]
    assert "What varies" not in write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")


def test_names_that_differ_in_one_number_are_places_on_an_axis() -> None:
    assert variant_numbers(["gamma = 2", "gamma = 16"]) == ("gamma", {"gamma = 2": 2.0, "gamma = 16": 16.0})
    assert variant_numbers(["L = 2", "iid"]) is None
    assert variant_numbers(["rho = 1", "gamma = 1"]) is None
    assert variant_numbers(["1", "2"]) is None


def best_page(tmp_path: Path, *settings: str) -> str:
    """The page of two methods whose scores are 50 % and then 40 %, without validation."""
    scores: list[dict[str, object]] = [
        {"round": round_, "global": {"test": {"accuracy": value}}} for round_, value in ((1, 0.5), (2, 0.4))
    ]
    folders = [
        write_folder(tmp_path / f"run{n}", manifest(f"M{n}"), [], scores, text) for n, text in enumerate(settings)
    ]
    return write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_best_round_that_the_test_set_chose_is_called_so(tmp_path: Path) -> None:
    page = best_page(tmp_path, '[score]\nbest = "test"\n', '[score]\nbest = "test"\n')
    assert ">best round by the test set</th>" in page
    assert "the test set itself chose it" in page
    assert page.count("50.0") >= 2
    assert "by validation" not in page


def test_best_rounds_that_were_chosen_in_two_ways_are_called_neither(tmp_path: Path) -> None:
    page = best_page(tmp_path, '[score]\nbest = "test"\n', "")
    assert ">best round</th>" in page
    assert "test set itself chose" in page


def test_rows_say_what_chose_the_best_round_and_which_it_is(tmp_path: Path) -> None:
    best_page(tmp_path, '[score]\nbest = "test"\n')
    (row,) = compare_rows([read_record(tmp_path / "run0")])
    assert (row["best_by"], row["best"], row["best_round"]) == (
        "test",
        {"mean": 0.5, "sd": None, "count": 1},
        {"mean": 1.0, "sd": None, "count": 1},
    )
