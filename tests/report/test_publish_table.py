"""Tables for papers: CSV, LaTeX, Markdown and JSON with the numbers of a comparison."""

import csv
import io
import json
import re

import pytest
from made_runs import made_run, manifest, write_folder

from potluck.report import compare_rows, read_record
from potluck.report.paper_table import make_table
from potluck.report.published import UnknownChoice

HOSTILE = "100% & _a_ # $x$ {y} ~z ^w \\end{tabular} <b>|"


def run(folder, label, seed, score, watch=0.5, seconds=2.0, **facts):
    """A run with one scored round: the server's model has `score`, the tier watch has `watch`."""
    scores = {"test": {"accuracy": score}}
    line = {"round": 1, "global": scores, "tiers": {"watch": {"test": {"accuracy": watch}}}, "clients": None}
    round_ = {"event": "round", "round": 1, "seconds": 0.1, "device_seconds": seconds}
    return read_record(write_folder(folder, manifest(label, seed, **facts), [round_], [line]))


def two_methods(tmp_path):
    """A has 0.75 and 0.5, mean 0.625, sd 0.1767766952966369; B has 0.875 twice."""
    scores = {("A", 0): 0.75, ("A", 1): 0.5, ("B", 0): 0.875, ("B", 1): 0.875}
    return [run(tmp_path / f"{label}{seed}", label, seed, score) for (label, seed), score in scores.items()]


def table_lines(text):
    """The cells of the body of a LaTeX table."""
    body = text.split("\\midrule")[1].split("\\bottomrule")[0]
    return [[cell.strip() for cell in line.removesuffix("\\\\").split(" & ")] for line in body.strip().splitlines()]


def test_csv_has_mean_and_sd_in_columns_of_their_own_with_all_digits(tmp_path):
    rows = list(csv.DictReader(io.StringIO(make_table(two_methods(tmp_path), "csv", ["global", "watch"]))))
    assert [row["method"] for row in rows] == ["A", "B"]
    assert (float(rows[0]["global_mean"]), float(rows[0]["global_sd"])) == (0.625, 0.1767766952966369)
    assert (float(rows[1]["global_mean"]), float(rows[1]["global_sd"])) == (0.875, 0.0)
    assert [row["seeds"] for row in rows] == ["2", "2"]
    parts = ["global_mean", "global_sd", "watch_mean", "watch_sd"]
    assert list(rows[0]) == ["method", "variant", "seeds", "failed", *parts]


def test_latex_writes_mean_and_sd_and_the_best_in_bold(tmp_path):
    text = make_table(two_methods(tmp_path), "latex", ["global", "watch"])
    assert table_lines(text) == [
        ["A", "$62.5 \\pm 17.7$", "$50.0 \\pm 0.0$"],
        ["B", "$\\mathbf{87.5} \\pm 0.0$", "$50.0 \\pm 0.0$"],
    ]
    assert text.count("\\begin{tabular}{lrr}") == 1
    assert "2 seeds" in text
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1


def test_the_smallest_cost_is_the_best_and_equal_ones_are_equally_good(tmp_path):
    runs = [
        run(tmp_path / name, name, 0, 0.5, seconds=seconds) for name, seconds in (("A", 2.0), ("B", 3.0), ("C", 2.0))
    ]
    text = make_table(runs, "latex", ["device_seconds"])
    assert table_lines(text) == [["A", "\\textbf{2 s}"], ["B", "3 s"], ["C", "\\textbf{2 s}"]]


def test_nothing_is_bold_where_all_are_level(tmp_path):
    runs = [run(tmp_path / name, name, 0, 0.5) for name in "AB"]
    assert "\\mathbf" not in make_table(runs, "latex", ["global"])


def test_a_bound_is_never_in_bold_and_stands_last(tmp_path):
    bound = run(tmp_path / "bound", "AllLarge", 0, 0.99, facts={"bound": True})
    others = [run(tmp_path / "a", "A", 0, 0.5), run(tmp_path / "b", "B", 0, 0.4)]
    text = make_table([bound, *others], "latex", ["global"])
    assert table_lines(text) == [["A", "$\\mathbf{50.0}$"], ["B", "$40.0$"], ["AllLarge", "$99.0$"]]


def unescaped(text, letter):
    return re.findall(rf"(?<!\\)(?:\\\\)*{re.escape(letter)}", text)


def test_a_label_cannot_break_out_of_latex(tmp_path):
    text = make_table([run(tmp_path / "a", HOSTILE, 0, 0.5), run(tmp_path / "b", "B", 0, 0.4)], "latex", ["global"])
    [hostile, _] = table_lines(text.replace(" \\& ", " AND "))
    label = hostile[0]
    for letter in "%#$~^":
        assert unescaped(label, letter) == [], letter
    assert label.startswith("100\\% AND \\_a\\_ \\# \\$x\\$ \\{y\\} \\textasciitilde{}z \\textasciicircum{}w")
    assert "\\textbackslash{}end\\{tabular\\}" in label
    assert text.count("\\end{tabular}") == 1
    opened, closed = len(unescaped(text, "{")), len(unescaped(text, "}"))
    assert opened == closed


@pytest.mark.parametrize(("label", "start"), [("[x] y", "{[}x] y"), ("*star", "{*}star")])
def test_a_label_after_a_line_break_is_no_argument_of_it(tmp_path, label, start):
    assert table_lines(make_table([run(tmp_path / "a", label, 0, 0.5)], "latex", ["global"]))[0][0] == start


def test_control_characters_and_line_breaks_of_a_label_are_spaces(tmp_path):
    runs = [run(tmp_path / "a", "one\n\n\\\\two\x1b[31m", 0, 0.5)]
    for kind in ("latex", "markdown", "csv"):
        assert "\x1b" not in make_table(runs, kind, ["global"])
    assert len(make_table(runs, "markdown", ["global"]).splitlines()) == 4 + 1


def test_markdown_has_a_row_for_each_method_and_escapes_labels(tmp_path):
    text = make_table([run(tmp_path / "a", "a|b <i> *c* `d`", 0, 0.5)], "markdown", ["global", "watch"])
    head, rule, row = text.splitlines()[:3]
    assert head == "| method | global | watch |"
    assert rule == "| --- | ---: | ---: |"
    assert row == "| a\\|b \\<i\\> \\*c\\* \\`d\\` | 50.0 | 50.0 |"


def test_json_holds_the_summaries_of_the_rows(tmp_path):
    runs = two_methods(tmp_path)
    found = json.loads(make_table(runs, "json", ["global"]))
    assert found[0]["method"] == "A"
    assert found[0]["global"] == compare_rows(runs)[0]["global"]
    assert found[0]["seeds"] == [0, 1]


def test_a_failed_run_is_marked_and_in_no_mean(tmp_path):
    runs = [
        run(tmp_path / "a0", "A", 0, 0.5),
        run(tmp_path / "a1", "A", 1, 0.9, status="diverged", fault_round=12),
        run(tmp_path / "b0", "B", 0, 0.4, status="failed"),
    ]
    [first, second] = table_lines(make_table(runs, "latex", ["seeds", "global"]))
    assert first == ["A (seed 1 diverged in round 12)", "1", "$50.0$"]
    assert second == ["B (seed 0 failed)", "0", "---"]
    rows = list(csv.DictReader(io.StringIO(make_table(runs, "csv", ["global"]))))
    assert rows[0]["failed"] == "seed 1 diverged in round 12"
    assert rows[1]["global_mean"] == ""


def test_without_columns_a_table_has_what_the_runs_know(tmp_path):
    folders = [made_run(tmp_path / f"{label}{seed}", label, seed, rounds=2) for label in "AB" for seed in (0, 1)]
    runs = [read_record(folder) for folder in folders]
    head = make_table(runs, "markdown").splitlines()[0]
    names = [cell.strip() for cell in head.strip("|").split("|")]
    assert names[:2] == ["method", "seeds"]
    for name in ("global", "average", "watch", "phone", "laptop", "worst tenth", "bytes", "time", "energy"):
        assert name in names, name
    assert "local" not in names


def test_tiers_and_rounds_to_targets_can_be_asked_for_as_a_group(tmp_path):
    runs = two_methods(tmp_path)
    assert "| method | watch |" in make_table(runs, "markdown", ["tiers"])
    assert "to 80 %" in make_table(runs, "markdown", ["rounds_to"]).splitlines()[0]


def test_an_unknown_column_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(UnknownChoice, match=r"no column 'globall'\. Did you mean 'global'\?"):
        make_table(two_methods(tmp_path), "csv", ["globall"])


def test_a_label_that_a_spreadsheet_would_compute_is_text(tmp_path):
    rows = list(csv.DictReader(io.StringIO(make_table([run(tmp_path / "a", "=1+1", 0, 0.5)], "csv", ["global"]))))
    assert rows[0]["method"] == "'=1+1"


def test_correlations_are_plain_numbers_and_not_percent(tmp_path):
    line = {"round": 1, "metric": "pearson", "global": {"test": {"pearson": 0.5}}, "tiers": {}, "clients": None}
    found = read_record(write_folder(tmp_path / "a", manifest("A", 0), [], [line]))
    assert table_lines(make_table([found], "latex", ["global"])) == [["A", "$0.500$"]]


def test_scores_within_a_budget_have_a_column_and_runs_that_did_not_spend_it_are_told_of(tmp_path):
    lines = [{"round": at, "global": {"test": {"accuracy": at / 4}}, "tiers": {}, "clients": None} for at in range(4)]
    rounds = [{"event": "round", "round": at, "seconds": 0.1, "device_seconds": 2.0} for at in (1, 2, 3)]
    settings = "[compare.budget]\nrounds = 2\ntime = 60.0\n"
    found = read_record(write_folder(tmp_path / "a", manifest("A", 0), rounds, lines, settings))
    text = make_table([found], "markdown", ["at_budget"])
    assert text.splitlines()[0] == "| method | at 2 rounds | at 60 s |"
    assert text.splitlines()[2] == "| A | 50.0 | 75.0 |"
    assert "ended before it had spent its budget" in text
    assert "ended before" not in make_table([found], "markdown", ["rounds=2"])
