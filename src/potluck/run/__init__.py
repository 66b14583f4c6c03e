"""An experiment from settings to result."""

from potluck.run.assemble import Setup, assemble
from potluck.run.door import experiment, read_experiment, recipe
from potluck.run.loop import Watch
from potluck.run.session import Result, compare, resume, run
from potluck.run.settings import Experiment

__all__ = [
    "Experiment", "Result", "Setup", "Watch", "assemble", "compare", "experiment", "read_experiment", "recipe",
    "resume", "run",
]  # fmt: skip
