"""`potluck compare` over a grid: what diverges is a result, what cannot start is told at once."""

import json
from pathlib import Path

import pytest
from tiny_runs import TEXT

GRID = (
    *("compare", "small.toml", "--methods", "fedavg,fedprox:mu=10.0,fedavgm", "--vary", "local.lr=0.01,0.05,3.0"),
    *("--seeds", "0,1,2", "--out", "all", "--set", "run.retries=0", "--set", "score.clients=0"),
)
"""Three methods, three rates, three seeds. FedProx pulls with 10 times the distance: at a rate of 3 it blows up."""


@pytest.fixture
def small(place):
    text = TEXT.replace('share = "layerwise"\n', "").replace('name = "small"\ndepth = 1\n', 'name = "small"\n')
    (place / "small.toml").write_text(text)


def test_a_grid_with_a_rate_that_diverges_ends_with_a_table_a_report_and_a_code_and_is_not_run_twice(small, potluck):
    code, out, err = potluck(*GRID)
    assert code == 8
    last = err.strip().splitlines()[-1]
    assert last.startswith(
        "potluck: 3 of 27 runs have no result: fedprox (mu=10.0), lr = 3.0, seed 0, diverged in round"
    )
    assert "seed 0 diverged in round" in " ".join(out.split())
    assert "report: all/report.html" in out
    page = Path("all/report.html").read_text()
    assert "diverged in round" in page
    folders = sorted(path.name for path in Path("all").iterdir() if path.is_dir())
    assert len(folders) == 27
    stamps = {path: path.stat().st_mtime_ns for path in Path("all").glob("*/ledger.jsonl")}
    assert len(stamps) == 27

    code, again, err = potluck(*GRID)
    assert code == 8
    assert again == out
    assert "round 3/3" not in err
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


def test_what_diverged_is_in_no_mean(small, potluck):
    _, out, _ = potluck(*GRID, "--format", "json")
    told = json.loads(out)
    assert [(one["method"], one["seed"], one["status"]) for one in told["failed"]] == [
        ("fedprox", seed, "diverged") for seed in (0, 1, 2)
    ]
    lost = [row for row in told["rows"] if row["failed"]]
    assert [(row["variant"], row["runs"], row["global"]["mean"]) for row in lost] == [("lr = 3.0", 0, None)]
    assert all(row["runs"] == 3 for row in told["rows"] if not row["failed"])


def test_methods_that_cannot_start_are_told_in_a_line_each(small, potluck):
    code, out, err = potluck("compare", "small.toml", "--methods", "feddf,fedavg,fedmd,fedrolex", "--out", "all")
    assert (code, out) == (2, "")
    first, *others = err.splitlines()
    assert first == "potluck: 2 of 4 methods cannot start, so no run was started:"
    assert [line.partition(":")[0] for line in others] == ["  feddf", "  fedmd"]
    assert not Path("all").exists()


def test_a_warning_comes_before_the_first_round(small, potluck):
    code, _, err = potluck("compare", "small.toml", "--methods", "fedrolex", "--set", "rounds=1", "--out", "all")
    assert code == 0
    lines = err.splitlines()
    assert lines[0].startswith("fedrolex: FedRolex gives devices networks that differ in width")
    assert lines[1].startswith("fedrolex seed 0: round 1/1")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--vary", "local.lr=0.1,1e-1"), "--vary local.lr=0.1,1e-1: 1e-1 is given twice"),
        (("--seeds", "0,0"), "seed 0 is given twice in seeds"),
        (("--vary", "local.lr"), "--vary local.lr: write it as key=a,b,c"),
        (("--tune", "local.lr="), "--tune local.lr=: write it as key=a,b,c"),
        (("--tune", "local.lr=0.1,0.2", "--tune-seeds", "x"), "--tune-seeds x: write whole numbers"),
        (("--tune", "local.lr=0.1,0.2", "--tune-seeds", "0"), "seed 0 is a seed of the comparison"),
        (("--tune", "local.rate=0.1"), "[local] has no setting 'rate'"),
        (("--vary", "local.lr=0.1", "--set", "compare.variants={a = []}"), "exclude each other"),
    ],
)
def test_a_grid_that_makes_no_sense_is_one_line(small, fail, options, said):
    code, line = fail("compare", "small.toml", "--methods", "fedavg", *options, "--out", "all")
    assert code == 2
    assert said in line
    assert not Path("all").exists()


LISTED = """
[compare]
methods = [{name = "fedprox", mu = 0.3}, {name = "fedprox", mu = 0.2}, "fedavg", {name = "moon", mu = 0.5}]
seeds = [0]

[compare.variants]
"few, large" = ["data.clients=4", "cohort=4"]
"many" = ["data.clients=8"]

[compare.only]
"many" = ["moon"]
"""
"""A file that lists methods with settings, and variants of which one is for one method alone."""


@pytest.fixture
def listed(small, place):
    (place / "small.toml").write_text((place / "small.toml").read_text() + LISTED)


def compared(potluck, *options):
    code, out, err = potluck("compare", "small.toml", *options, "--set", "rounds=1", "--out", "all", "--format", "json")
    assert code == 0, err
    return sorted({row["label"].removesuffix(f", {options[-1]}") for row in json.loads(out)["rows"]})


def test_a_name_alone_means_the_files_methods_of_that_name_with_their_settings(listed, potluck):
    found = compared(potluck, "--methods", "fedprox,fedavg:share=per_arch,fedadam", "--variant", "few, large")
    assert found == ["FedAdam", "FedAvg (share=per_arch)", "FedProx (mu=0.2)", "FedProx (mu=0.3)"]


def test_a_variant_runs_alone_with_the_methods_that_run_under_it(listed, potluck):
    assert compared(potluck, "--variant", "many") == ["MOON (mu=0.5)"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("mny", "potluck: [compare.variants] has no 'mny'. Did you mean 'many'?"),
        ("all of them", "potluck: [compare.variants] has no 'all of them'. There are: few, large, many."),
    ],
)
def test_a_variant_that_is_not_there_is_one_line(listed, potluck, name, line):
    code, out, err = potluck("compare", "small.toml", "--variant", name)
    assert (code, out, err.strip()) == (2, "", line)
