"""Recipes under `experiments`, and the runs that their comparisons plan."""

from pathlib import Path

from potluck.run import read_experiment
from potluck.run.planning import plan_entries

FOLDER = Path(__file__).parents[1] / "experiments"


def planned(path):
    """Every method of a recipe under every variant; a recipe that compares nothing plans its own method."""
    found = read_experiment(path)
    methods = [{"name": method} if isinstance(method, str) else method for method in found.compare.methods]
    return plan_entries(found, methods or [found.method])
