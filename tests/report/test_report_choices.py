"""Tables and the report say what tuning chose, by which score and at what cost."""

import csv
import io
import json
from pathlib import Path

import pytest
from tiny_runs import tiny

from potluck.report import compare_rows, read_record, render
from potluck.report.choices import choice_lines
from potluck.report.paper_table import make_table
from potluck.run import compare


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """FedProx at its smallest rate, and a method without a grid beside it would be one without a choice."""
    settings = tiny(rounds=1, tier=[{"name": "all"}], compare={"tune": {"local.lr": (0.1, 0.0001)}})
    results = compare(settings, tmp_path_factory.mktemp("tuned"), [{"name": "fedprox"}], [0, 1])
    return [read_record(result.folder) for result in results]


def test_a_row_has_what_was_chosen(tuned):
    (row,) = compare_rows(tuned)
    assert row["chosen"]["values"] == {"local.lr": 0.1}
    assert row["chosen"]["runs"] == 2


def test_a_line_says_what_was_chosen_and_another_that_it_lies_at_the_edge(tuned):
    first, second = choice_lines(tuned)
    score = compare_rows(tuned)[0]["chosen"]["score"]
    assert first.startswith(f"chosen by validation: FedProx: local.lr = 0.1 ({100 * score:.1f} %; 2 runs, ")
    assert second == "FedProx: local.lr is at the edge of what was tried; better values may lie beyond it"


def test_the_page_has_a_table_of_choices(tuned):
    page = render(tuned, Path("report.html"))
    assert "What each method chose" in page
    assert "local.lr = 0.1" in page
    assert "no test row took part" in page


def test_a_table_for_a_paper_says_what_was_chosen_at_what_cost_and_that_it_lies_at_the_edge(tuned):
    said = "Chosen by validation score on other seeds: FedProx: local.lr = 0.1 (2 runs, "
    beyond = "At the edge of what was tried, so that better values may lie beyond: FedProx: local.lr."
    for to in ("markdown", "latex"):
        text = make_table(tuned, to).replace("\\_", "_")
        assert said in text
        assert beyond in text
    (row,) = csv.DictReader(io.StringIO(make_table(tuned, "csv", ["global"])))
    facts = compare_rows(tuned)[0]["chosen"]
    assert (row["chosen"], row["chosen_at_edge"], row["tuning_runs"]) == ("local.lr = 0.1", "local.lr", "2")
    assert float(row["tuning_joules"]) == pytest.approx(facts["cost"]["joules"])
    (told,) = json.loads(make_table(tuned, "json", ["global"]))
    assert told["chosen"] == facts


def test_runs_that_were_not_tuned_have_no_choice(tmp_path):
    (result,) = compare(tiny(rounds=0), tmp_path, [{"name": "fedprox"}], [0])
    record = read_record(result.folder)
    assert choice_lines([record]) == []
    assert "Chosen by" not in make_table([record], "markdown")
    assert "chosen" not in make_table([record], "csv")
    assert "What each method chose" not in render([record, record], Path("report.html"))
