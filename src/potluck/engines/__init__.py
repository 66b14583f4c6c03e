"""Engines carry tasks to devices and replies back. All stand behind one desk and one gate."""

from collections.abc import Callable, Mapping

from potluck.engines.context import ClientDatasets, Shard, SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.cuda import Graphs
from potluck.engines.dispatcher import Dispatcher, Entry, RoundSession
from potluck.engines.gate import Gate
from potluck.engines.pool import Pool
from potluck.engines.serial import Engine, Serial, Wire
from potluck.engines.worker import Worker

ENGINES: Mapping[str, Callable[[SimulationContext, int], Engine]] = {
    "serial": Serial,
    "wire": Wire,
    "pool": Pool,
    "graphs": Graphs,
}
"""Engines by name; each is made of a world and a number of workers."""

__all__ = [
    "ENGINES",
    "ClientDatasets",
    "Dispatcher",
    "Engine",
    "Entry",
    "Gate",
    "Graphs",
    "Pool",
    "RoundSession",
    "Serial",
    "Shard",
    "SimulationContext",
    "TaskEnvelope",
    "TaskResult",
    "Wire",
    "Worker",
]  # fmt: skip
