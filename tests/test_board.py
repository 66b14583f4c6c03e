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


def test_a_row_may_need_another_number_of_seeds(tmp_path):
    kept(tmp_path, [("a", 0, UP), ("a", 1, UP), ("b", 0, FLAT)])
    rows = [{"name": "a", "where": {"method.name": "a"}}, {"name": "b", "where": {"method.name": "b"}, "seeds": 1}]
    assert claim(tmp_path).seen == "a minus b: +10.0; b has 1 of 2 seeds"
    assert (claim(tmp_path, row=rows).verdict, claim(tmp_path, row=rows).seen) == ("reproduced", "a minus b: +10.0")


def test_a_verdict_may_follow_from_several_columns(tmp_path):
    """a is above b with seed 0, which is one column, and below it with seed 1, which is the other."""
    kept(tmp_path, [("a", 0, UP), ("a", 1, FLAT), ("b", 0, FLAT), ("b", 1, UP), ("c", 0, FLAT)])
    columns = [{"name": f"case {seed}", "where": {"seed": seed}} for seed in (0, 1)]
    first = claim(tmp_path, column=columns, seeds=1)
    assert (first.verdict, first.seen) == ("reproduced", "a minus b: +10.0")
    names = ["case 0", "case 1"]
    both = claim(tmp_path, column=columns, seeds=1, judged=names)
    assert (both.verdict, both.seen) == (
        "not reproduced",
        "a minus b (case 0): +10.0; a minus b (case 1): -10.0",
    )
    rows = [{"name": name, "where": {"method.name": name}} for name in ("a", "c")]
    lacking = claim(tmp_path, column=columns, seeds=1, judged=names, row=rows, order=[["a", "c"]])
    assert (lacking.verdict, lacking.seen) == ("open", "a minus c (case 0): +10.0; c (case 1) was not run")


def flat(method, seed, score):
    return (method, seed, [score] * 6)


NOISY = [flat("a", 0, 0.31), flat("a", 1, 0.30), flat("a", 2, 0.29), *(flat("b", seed, 0.3) for seed in range(3))]
"""Differences of +1, 0 and -1 points: the interval is 0 +- 4.3027 / sqrt(3)."""


@pytest.mark.parametrize(
    ("paper", "verdict", "told"),
    [
        ((50, 47), "not reproduced", "(mean +0.0, 95 % interval -2.5 to +2.5; the paper: +3.0)"),
        ((50, 48), "open", "; the paper: +2.0; to find so much in 80 % of tests takes about 2 seeds)"),
        (("50", "47"), "open", "-1.0"),
    ],
)  # fmt: skip
def test_if_seeds_differ_their_interval_is_held_against_what_the_paper_prints(tmp_path, paper, verdict, told):
    kept(tmp_path, NOISY)
    rows = [{"name": name, "where": {"method.name": name}, "paper": one} for name, one in zip("ab", paper, strict=True)]
    found = claim(tmp_path, row=rows, seeds=3)
    assert (found.verdict, found.seen.endswith(told)) == (verdict, True), found.seen


@pytest.mark.parametrize(("spread", "difference", "seeds"), [(168, 50, 89), (0.01, 0.01, 8), (0.001, 1.0, 2)])
def test_how_many_seeds_a_difference_needs(spread, difference, seeds):
    """(1.96 + 0.84) squared is 7.85 times the squared ratio of spread and difference."""
    assert board.seeds_needed(spread, difference) == seeds


def test_only_the_seeds_that_count_are_shown(tmp_path):
    kept(tmp_path, NOISY)
    assert claim(tmp_path, among=[0]).seen.startswith("a minus b: +1.0; a has 1 of 2 seeds")


def test_the_round_of_the_best_scoring_is_a_whole_number_of_rounds(tmp_path):
    kept(tmp_path, [("a", 0, [0.1, 0.6, 0.5]), ("b", 0, [0.5, 0.2, 0.1])])
    found = claim(tmp_path, statistic="round of the best", rounds=30, seeds=1)
    assert (found.verdict, found.seen) == ("reproduced", "a minus b: +10")
    assert [found.format(found.cells[name, "ours"].mean) for name in "ab"] == ["20", "10"]


def test_what_clients_upload_is_told_in_millions_of_numbers(tmp_path):
    """480 MB in 6 rounds of 10 clients are 2 million numbers for each."""
    kept(tmp_path, [("a", 0, UP), ("b", 0, FLAT)])
    for name, sent in (("a", 480e6), ("b", 240e6)):
        manifest = {"mark": "ab", "cohort": 10, "result": {"bytes_up": sent}}
        (tmp_path / "runs" / f"{name}-0" / "manifest.json").write_text(json.dumps(manifest))
        lines = (tmp_path / "runs" / f"{name}-0" / "scores.jsonl").read_text()
        (tmp_path / "runs" / f"{name}-0" / "scores.jsonl").write_text(lines.replace("0,", ","))
    board.keep(list((tmp_path / "runs").iterdir()), tmp_path / "more.tar.gz")
    found = claim(tmp_path, archive="more.tar.gz", measure="uploaded", rounds=6, seeds=1)
    assert (found.verdict, found.seen) == ("reproduced", "a minus b: +1.00")
    assert found.format(found.cells["a", "ours"].mean) == "2.00"


def test_a_column_may_have_its_own_statistic(tmp_path):
    kept(tmp_path, [("a", 0, UP)])
    kinds = {"ours": {}, "best": {"statistic": "best"}, "two": {"statistic": "mean of the last 2"}}
    columns = [{"name": name, **kind} for name, kind in kinds.items()]
    found = claim(tmp_path, column=columns)
    assert [found.format(found.cells["a", column["name"]].mean) for column in columns] == ["40.0", "60.0", "55.0"]


def with_costs(tmp_path, costs):
    """An archive of the made-up runs, with what each method spends in a round."""
    for folder in (tmp_path / "runs").iterdir():
        spent = costs[folder.name.partition("-")[0]]
        rounds = len((folder / "scores.jsonl").read_text().splitlines()) * 10
        result = {"rounds": rounds, **{name: cost * rounds for name, cost in spent.items()}}
        (folder / "manifest.json").write_text(json.dumps({"mark": "ab", "result": result}))
    board.keep(list((tmp_path / "runs").iterdir()), tmp_path / "costs.tar.gz")
    return {"archive": "costs.tar.gz", "statistic": "rounds to 0.4"}


def test_rounds_to_a_score_count_from_where_a_run_stays_there(tmp_path):
    """Run a of seed 1 falls back once; run b of seed 1 never comes to stay."""
    kept(tmp_path, [("a", 0, [0.4, 0.5, 0.6]), ("a", 1, [0.5, 0.3, 0.4]),
                    ("b", 0, [0.1, 0.4, 0.5]), ("b", 1, [0.5, 0.5, 0.3])])  # fmt: skip
    found = claim(tmp_path, rounds=30, order=[["b", "a"]], command="c", **with_costs(tmp_path, {"a": {}, "b": {}}))
    assert [found.cells[name, "ours"].by_seed for name in "ab"] == [{0: 10, 1: 30}, {0: 20, 1: board.math.inf}]
    assert (found.verdict, found.seen) == ("reproduced", "b minus a: +10, +∞")
    text = board.page([found], {"costs.tar.gz": {"commit": "0", "hardware": "x"}}, "{claims}\n", {})
    assert "| a | 20 ± 14 (10, 30) |" in text
    assert "| b | 20, ∞ |" in text
    assert "stays at 40.0 (accuracy) or above" in text


def test_runs_of_which_none_reaches_a_score_decide_nothing(tmp_path):
    kept(tmp_path, [("a", 0, [0.1, 0.2]), ("b", 0, [0.1, 0.2])])
    found = claim(tmp_path, rounds=20, seeds=1, **with_costs(tmp_path, {"a": {}, "b": {}}))
    assert (found.verdict, found.seen) == ("open", "")


def test_what_was_spent_until_a_score_may_turn_the_order(tmp_path):
    """Method a needs half the rounds of b, and spends three times as much in each."""
    kept(tmp_path, [("a", 0, [0.4, 0.5]), ("b", 0, [0.1, 0.4])])
    costs = with_costs(tmp_path, {"a": {"joules": 30.0}, "b": {"joules": 10.0}})
    column = {"name": "kJ", "times": "joules", "unit": 1e3}
    orders = [claim(tmp_path, rounds=20, seeds=1, order=[["b", "a"]], column=[one], **costs)
              for one in ({"name": "rounds"}, column)]  # fmt: skip
    assert [(one.verdict, one.seen) for one in orders] == [
        ("reproduced", "b minus a: +10"),
        ("not reproduced", "b minus a: -0.1"),
    ]


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


def test_a_claim_may_be_about_what_networks_see_at_the_end(tmp_path):
    """One figure for each run, out of the manifest; runs that were not looked at are missing."""
    kept(tmp_path, [("a", 0, UP), ("a", 1, UP), ("b", 0, UP)])
    seen = {"a-0": 0.875, "b-0": 0.75}
    for folder in sorted((tmp_path / "runs").iterdir()):
        if folder.name in seen:
            manifest = json.loads((folder / "manifest.json").read_text())
            manifest["features"] = {"clients": {"stem": 0.5, "body": seen[folder.name]}, "separation": {"large": 0.25}}
            (folder / "manifest.json").write_text(json.dumps(manifest))
    board.keep(list((tmp_path / "runs").iterdir()), tmp_path / "runs.tar.gz")
    board.read_archive.cache_clear()
    found = claim(tmp_path, seeds=1, measure="features.clients.body")
    assert (found.verdict, found.seen, found.metric) == ("reproduced", "a minus b: +0.125", "CKA")
    assert claim(tmp_path, seeds=1, measure="features.separation.large").metric == "silhouette"
    assert claim(tmp_path, seeds=1, measure="features.separation.small").verdict == "not run"
