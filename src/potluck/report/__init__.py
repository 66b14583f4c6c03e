"""Tables for the terminal and the HTML report, made from run folders only.

`read.py` turns a run folder into `records.py`. From records, `summary.py` computes numbers over seeds, and
`sentences.py` words. `tables.py` prints them in the terminal. `page.py` writes the HTML report: `run_page.py` for one
run, `compare_page.py` for several. Each topic of the page has a file: curves, presence, cost, clients, coverage,
features, transfer. They draw with `html.py`, `svg.py` and `marks.py`, and write numbers with `units.py`.
"""

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
from potluck.report.sentences import format_needs, privacy_guarantee, refusal_summary, verdict
from potluck.report.summary import CostSoFar, compare_rows, costs_so_far, group_by_method, rounds_to
from potluck.report.tables import compare_table, needs_table, nodes_table, run_table
from potluck.report.units import MetricFormat

__all__ = [
    "ClientScores", "CostSoFar", "GroupCoverage", "LearningCurve", "MetricFormat", "ModelScore", "NodeRecord",
    "RoundRecord", "RoundScores", "RunRecord", "TaskFailure", "TaskTotals", "TierRecord", "compare_rows",
    "compare_table", "costs_so_far", "format_needs", "group_by_method", "name_nodes", "needs_table", "nodes_table",
    "privacy_guarantee", "read_record", "refusal_summary", "render", "rounds_to", "rounds_until", "run_table",
    "verdict", "write_report",
]  # fmt: skip
