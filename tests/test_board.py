"""The board of the papers' claims: made from kept runs, and equal to the pages in docs/."""

import json
import re
import shutil
from pathlib import Path

import board
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages():
    return board.make()


def test_the_pages_are_what_the_kept_runs_give(pages):
    for name, text in pages.items():
        assert (ROOT / "docs" / name).read_text() == text, f"run `make board`: docs/{name} is old"


def test_the_kept_runs_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "results").rglob("*") if path.is_file()) < 20e6


def test_every_link_of_the_board_leads_to_a_heading(pages):
    headings = {name: {board.anchor(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
                for name, text in pages.items()}  # fmt: skip
    for name, text in pages.items():
        for page, where in re.findall(r"\]\(((?:results/)?\w*(?:\.md)?)#([^)]*)\)", text):
            assert where in headings[page or name], f"{name}: {page}#{where}"


def test_every_claim_that_was_not_run_names_a_recipe_and_minutes_or_says_why(pages):
    for claim in board.tomllib.loads((ROOT / "results" / "board.toml").read_text())["claim"]:
        if "recipe" in claim:
            assert (ROOT / claim["recipe"]).exists(), claim["recipe"]
            assert "minutes" in claim or "archive" in claim, claim["what"]
        else:
            assert claim["why"], claim["what"]


def kept(tmp_path, runs):
    """An archive of made-up runs, each given as (method, seed, scores of rounds 10, 20, ...)."""
    for method, seed, scores in runs:
        folder = tmp_path / "runs" / f"{method}-{seed}"
        folder.mkdir(parents=True)
        (folder / "settings.toml").write_text(
            f'seed = {seed}\n[data]\npath = "/home/me/data"\n[method]\nname = "{method}"'
        )
        (folder / "manifest.json").write_text(json.dumps({"mark": "abcdef0123", "host": "here", "pid": 7}))
        lines = [{"round": 10 * n, "metric": "accuracy", "global": {"test": {"accuracy": score}}}
                 for n, score in enumerate(scores, 1)]  # fmt: skip
        (folder / "scores.jsonl").write_text("\n".join(map(json.dumps, lines)))
    board.keep(list((tmp_path / "runs").iterdir()), tmp_path / "runs.tar.gz")


def claim(tmp_path, **more):
    rows = [{"name": name, "where": {"method.name": name}} for name in ("a", "b")]
    plain = {"paper": "p", "what": "Table 1", "says": "a is above b", "archive": "runs.tar.gz", "row": rows}
    return board.Claim({**plain, "order": [["a", "b"]], "rounds": 60, "seeds": 2, "recipe": "r", **more}, tmp_path)


UP, FLAT = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.1, 0.3, 0.3, 0.3, 0.3, 0.3]
"""Means of the last five: 0.4 and 0.3."""


@pytest.mark.parametrize(
    ("runs", "verdict", "seen"),
    [
        ([("a", 0, UP), ("a", 1, UP), ("b", 0, FLAT), ("b", 1, FLAT)], "reproduced", "a minus b: +10.0, +10.0"),
        ([("a", 0, FLAT), ("a", 1, FLAT), ("b", 0, UP), ("b", 1, UP)], "not reproduced", "a minus b: -10.0, -10.0"),
        ([("a", 0, UP), ("a", 1, FLAT), ("b", 0, FLAT), ("b", 1, UP)], "open", "a minus b: +10.0, -10.0"),
        ([("a", 0, UP), ("b", 0, FLAT)], "open", "a minus b: +10.0; a has 1 of 2 seeds; b has 1 of 2 seeds"),
        ([("a", 0, UP[:3]), ("b", 0, FLAT)], "open", "a minus b: -3.3; a is at round 30 of 60; b has 1 of 2 seeds"),
        ([("a", 0, UP)], "open", "a has 1 of 2 seeds; b was not run"),
        ([("c", 0, UP)], "not run", "`r`"),
    ],
)  # fmt: skip
def test_a_verdict_follows_from_the_scores(tmp_path, runs, verdict, seen):
    """The run that is at round 30 is compared there: means 0.2 and 0.7 / 3."""
    kept(tmp_path, runs)
    found = claim(tmp_path)
    assert (found.verdict, found.seen) == (verdict, seen)


def test_a_run_that_diverged_is_told_and_counts_in_no_mean(tmp_path):
    kept(tmp_path, [("a", 0, UP), ("b", 0, FLAT)])
    folder = tmp_path / "runs" / "a-1"
    shutil.copytree(tmp_path / "runs" / "a-0", folder)
    (folder / "settings.toml").write_text('seed = 1\n[method]\nname = "a"')
    (folder / "manifest.json").write_text(json.dumps({"mark": "ab", "status": "diverged", "fault_round": 12}))
    board.keep(list((tmp_path / "runs").iterdir()), tmp_path / "more.tar.gz")
    found = claim(tmp_path, archive="more.tar.gz", seeds=1)
    assert found.cells["a", "ours"].by_seed.keys() == {0}
    assert (found.verdict, found.seen) == ("open", "a minus b: +10.0; a diverged in round 12 with seed 1")


def test_the_best_and_the_last_scoring_can_be_asked_for(tmp_path):
    kept(tmp_path, [("a", 0, [0.1, 0.6, 0.5])])
    shown = [claim(tmp_path, statistic=kind).cells["a", "ours"].mean for kind in ("best", "last")]
    assert shown == [0.6, 0.5]


def test_a_kept_run_names_no_machine(tmp_path):
    kept(tmp_path, [("a", 0, UP)])
    (run,) = board.read_archive(tmp_path / "runs.tar.gz")
    assert run.settings["data"]["path"] == "data"
    assert run.manifest.keys() == {"mark"}
