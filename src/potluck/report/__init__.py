"""Tables, charts and the one-page report, read from run folders only."""

from potluck.report.coverage import rounds_until
from potluck.report.needs import in_words
from potluck.report.page import render, write_report
from potluck.report.promise import promised
from potluck.report.reading import read
from potluck.report.records import Coverage, Curve, Fault, Point, Round, Run, Score, Spread, Tier, Totals
from potluck.report.refusals import refused
from potluck.report.summary import Spent, compare_rows, groups, rounds_to, spent
from potluck.report.tables import compare_table, needs_table, run_table
from potluck.report.units import MetricFormat
from potluck.report.verdict import verdict

__all__ = [
    "Coverage", "Curve", "Fault", "MetricFormat", "Point", "Round", "Run", "Score", "Spent", "Spread", "Tier", "Totals",
    "compare_rows", "compare_table", "groups", "in_words", "needs_table", "promised", "read", "refused", "render",
    "rounds_to", "rounds_until", "run_table", "spent", "verdict", "write_report",
]  # fmt: skip
