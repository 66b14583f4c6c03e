"""`potluck show data`: a table in the terminal, a page or a picture if asked for, and nothing else."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from tiny_runs import TEXT, tiny

from potluck.cli.showing import mix
from potluck.run import run


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(TEXT)
    return tmp_path / "a.toml"


def test_counts_become_a_strip_of_bars():
    assert mix([0, 1, 4, 8]) == "·▁▄█"
    assert mix([0, 0]) == "··"
    assert mix([1, 1000]) == "▁█"


def test_it_prints_tiers_and_clients_and_writes_nothing(potluck, file):
    before = sorted(file.parent.rglob("*"))
    code, out, err = potluck("show", "data", file, "--set", "data.partition=labels")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert out.startswith("tiny, seed 0: training rows of 8 clients, partition labels\n")
    assert [words[0] for words in lines if words and words[0].startswith("c") and words[0][1:].isdigit()] == [
        f"c{number}" for number in range(8)
    ]
    assert [words[3] for words in lines if words and words[0] == "c3"] == ["2"]  # labels
    assert sorted(file.parent.rglob("*")) == before


def test_json_has_the_counts(potluck, file):
    code, out, _ = potluck("show", "data", file, "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert sum(sum(each["counts"]) for each in found["held"]) == 1258  # of 1797 digits, 539 are held out
    assert [tier["name"] for tier in found["tiers"]] == ["small", "large"]


def test_it_draws_a_page_or_a_picture_if_asked_for(potluck, file):
    for name in ("new/a.html", "a.svg"):
        code, _, err = potluck("show", "data", file, "--to", name)
        assert (code, err) == (0, f"picture: {name}\n")
    assert "Who holds what" in Path("new/a.html").read_text("utf-8")
    assert Path("a.svg").read_text("utf-8").startswith("<svg xmlns=")


def test_many_clients_are_a_sample_that_says_so(potluck, file):
    _, out, _ = potluck("show", "data", file, "--set", "data.clients=5000")
    assert "training rows of 120 of 5,000 clients, evenly spaced in every tier" in out
    assert "24 clients are shown; --format json and --to FILE have 120." in out


def test_a_run_folder_shows_what_it_recorded(potluck, file):
    run(tiny(rounds=1), "run")
    code, out, _ = potluck("show", "data", "run")
    assert code == 0
    assert "training rows of 8 clients, partition iid" in out
    Path("run/holdings.json").unlink()
    code, _, err = potluck("show", "data", "run")
    assert code == 3
    assert err == "potluck: run holds no record of who holds what; give the settings: run/settings.toml.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("data", "a.toml", "--to", "a.pdf"), 2, "--to a.pdf: give a name that ends in .html or .svg."),
        (("data", "b.toml"), 2, "b.toml: there is no such file"),
        (("data", "a.toml", "--set", "data.partition=groups"), 2, "needs a user column"),
        (("data", "a.toml", "--set", "data.partition=lables"), 2, "did you mean 'labels'?"),
        (("cats",), 2, "'cats' is not one of 'data'"),
        (("data", "."), 3, "is not a run folder"),
    ],
)
def test_a_mistake_is_one_line_with_its_code(potluck, file, arguments, code, said):
    found, out, err = potluck("show", *arguments)
    assert said in err, err
    assert (found, out, err.count("\n")) == (code, "", 1)
