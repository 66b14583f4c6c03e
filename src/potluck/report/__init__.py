"""Tables, charts and the one-page report, read from run folders only."""

from potluck.report.coverage import rounds_until
from potluck.report.needs import in_words
from potluck.report.page import render, write_report
from potluck.report.promise import promised
from potluck.report.read import read_record
from potluck.report.records import (
    ClientScores,
    GroupCoverage,
    LearningCurve,
    ModelScore,
    RoundRecord,
    RoundScores,
    RunRecord,
    TaskFailure,
    TaskTotals,
    TierRecord,
)
from potluck.report.refusals import refused
from potluck.report.summary import Spent, compare_rows, groups, rounds_to, spent
from potluck.report.tables import compare_table, needs_table, run_table
from potluck.report.units import MetricFormat
from potluck.report.verdict import verdict

__all__ = [
    "ClientScores", "GroupCoverage", "LearningCurve", "MetricFormat", "ModelScore", "RoundRecord", "RoundScores",
    "RunRecord", "Spent", "TaskFailure", "TaskTotals", "TierRecord", "compare_rows", "compare_table", "groups",
    "in_words", "needs_table", "promised", "read_record", "refused", "render", "rounds_to", "rounds_until",
    "run_table", "spent", "verdict", "write_report",
]  # fmt: skip
