"""What observes every run besides the user's own watch."""

from __future__ import annotations

import dataclasses

from potluck import track
from potluck.ledger import RunFolder
from potluck.run.assemble import Setup
from potluck.run.live import LiveLog
from potluck.run.watch import Watch


def observers(setup: Setup, folder: RunFolder) -> list[Watch]:
    """The observers of a run in this folder. None of them can change a result, and one that fails is left out."""
    live = [LiveLog(setup.population, folder.path)] if setup.experiment.run.live else []
    return [*live, *track.trackers(dataclasses.asdict(setup.experiment.track), folder, setup.experiment.plain())]


def check_observers(setup: Setup) -> None:
    """Refuses observers that cannot work, before the run has a folder."""
    track.check(dataclasses.asdict(setup.experiment.track), setup.experiment.name)
