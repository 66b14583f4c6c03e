"""Engines carry tasks to devices and replies back. All stand behind one desk and one gate."""

from collections.abc import Callable, Mapping

from potluck.engines.desk import Desk, Entry, Session
from potluck.engines.gate import Gate
from potluck.engines.graphs import Graphs
from potluck.engines.pool import Pool
from potluck.engines.serial import Engine, Serial, Wire
from potluck.engines.site import Site
from potluck.engines.world import Letter, Outcome, Shard, Shelf, World

ENGINES: Mapping[str, Callable[[World, int], Engine]] = {
    "serial": Serial,
    "wire": Wire,
    "pool": Pool,
    "graphs": Graphs,
}
"""Engines by name; each is made of a world and a number of workers."""

__all__ = [
    "ENGINES", "Desk", "Engine", "Entry", "Gate", "Graphs", "Letter", "Outcome", "Pool", "Serial", "Session", "Shard",
    "Shelf", "Site", "Wire", "World",
]  # fmt: skip
