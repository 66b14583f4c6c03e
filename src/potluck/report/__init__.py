"""Tables for the terminal and the HTML report, made from run folders only.

`read.py` turns a run folder into `records.py`. From records, `summary.py` computes numbers over seeds, and
`sentences.py` words. `tables.py` prints them in the terminal. `page.py` writes the HTML report: `run_page.py` for one
run, `compare_page.py` for several, in the frame of `page_frame.py`. Each topic of the page has a file: curves,
presence, cost, holdings, clients, coverage, features, transfer; of a comparison also compare_cost, scatter, variants,
settings_table. `multiples.py` splits charts of many methods by `families.py`. They draw with `html.py`, `svg.py` and
`marks.py`, and write numbers with `units.py`. `assets` has the style, and the script that sorts, shows one method alone
and saves files.
"""

from potluck.report.choices import choice_lines
from potluck.report.coverage import rounds_until
from potluck.report.node_log import name_nodes
from potluck.report.page import render, write_report
from potluck.report.read import read_record
from potluck.report.records import (
    ClientScores,
    GroupCoverage,
    LearningCurve,
    ModelScore,
    NodeRecord,
    RoundRecord,
    RoundScores,
    RunRecord,
    TaskFailure,
    TaskTotals,
    TierRecord,
)
from potluck.report.sentences import format_needs, privacy_guarantee, refusal_summary, secure_summary, verdict
from potluck.report.summary import CostSoFar, compare_rows, costs_so_far, group_by_method, rounds_to
from potluck.report.tables import compare_table, comparison_tables, needs_table, nodes_table, run_table
from potluck.report.units import MetricFormat

__all__ = [
    "ClientScores", "CostSoFar", "GroupCoverage", "LearningCurve", "MetricFormat", "ModelScore", "NodeRecord",
    "RoundRecord", "RoundScores", "RunRecord", "TaskFailure", "TaskTotals", "TierRecord", "choice_lines",
    "compare_rows", "compare_table", "comparison_tables", "costs_so_far", "format_needs", "group_by_method",
    "name_nodes", "needs_table", "nodes_table", "privacy_guarantee", "read_record", "refusal_summary", "render",
    "rounds_to", "rounds_until", "run_table", "secure_summary", "verdict", "write_report",
]  # fmt: skip
