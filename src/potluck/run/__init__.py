"""Runs experiments: from settings to results."""

from potluck.run.assemble import Setup, assemble
from potluck.run.comparison import UnfinishedComparison, compare
from potluck.run.config import experiment, read_experiment, recipe, value
from potluck.run.exporting import export
from potluck.run.interrupts import Interrupted
from potluck.run.result import FailedRun, Result
from potluck.run.session import resume, run
from potluck.run.settings import Experiment
from potluck.run.watch import Watch

__all__ = [
    "Experiment", "FailedRun", "Interrupted", "Result", "Setup", "UnfinishedComparison", "Watch", "assemble", "compare",
    "experiment", "export", "read_experiment", "recipe", "resume", "run", "value",
]  # fmt: skip
