"""Methods under each variant of a comparison, side by side."""

from __future__ import annotations

import re
from pathlib import Path

from made_runs import made_run, manifest, write_folder

from potluck.report import read_record, verdict, write_report
from potluck.report.summary import compare_rows
from potluck.report.variants import is_logarithmic, variant_numbers, variant_scores


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
    written = {"lr = 1E-2": 0.01, "lr = .5": 0.5, "lr = +1e+1": 10.0, "lr = 1_000": 1000.0, "lr = -2.5": -2.5}
    assert variant_numbers(list(written)) == ("lr", written)
    assert variant_numbers(["K8", "K16"]) == ("K", {"K8": 8.0, "K16": 16.0})
    assert variant_numbers(["x = 1a", "x = 2"]) is None
    assert variant_numbers(["rho = 1", "gamma = 1"]) is None
    assert variant_numbers(["1", "2"]) is None
    assert variant_numbers(["x = 1", "x = 1e999"]) is None


def test_a_learning_rate_or_more_than_two_decades_are_on_a_logarithmic_axis() -> None:
    assert is_logarithmic("local.lr", [0.1, 0.3])
    assert is_logarithmic("server_lr", [0.1, 0.3])
    assert is_logarithmic("mu", [0.001, 1.0])
    assert not is_logarithmic("mu", [0.01, 1.0])
    assert not is_logarithmic("local.lr", [0.0, 0.3])
    assert not is_logarithmic("colour", [0.1, 0.3])


def test_numbers_that_no_axis_can_hold_do_not_stop_the_page(tmp_path: Path) -> None:
    names = ["lr = 1e-300", "lr = 1e300", "lr = 1"]
    folders = [made_run(tmp_path / f"{n}", "A", rounds=1, variant=name) for n, name in enumerate(names)]
    assert "What varies" in write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")


def test_many_variants_are_rows_in_their_order_and_a_diverged_cell_is_marked(tmp_path: Path) -> None:
    rates = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]
    folders = [
        made_run(tmp_path / f"{method}-{rate}", method, rounds=2, variant=f"local.lr = {rate}",
                 **({"status": "diverged", "fault_round": 1} if (method, rate) == ("A", 10) else {}))
        for method in ("A", "B")
        for rate in reversed(rates)
    ]  # fmt: skip
    page = write_report(folders, tmp_path / "page.html").read_text(encoding="utf-8")
    part = page[page.index("<h2>What varies") : page.index("<h2>Accuracy")]
    assert re.findall(r'<th scope="col">(.*?)</th>', part) == ["", "A", "B"]
    assert re.findall(r'data-name="([^"]*)"', part) == [f"local.lr = {rate}" for rate in rates]
    assert '<span class="lost">diverged in round 1</span>' in part
    assert "Final accuracy against local.lr" in part
    assert "&quot;log&quot;:true" in part
    assert [tick for tick in ("0.001", "0.01", "0.1", "1", "10") if f">{tick}</text>" not in part] == []


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
