"""Engines run tasks on simulated devices and return replies. All share one dispatcher and one gate."""

from collections.abc import Callable, Mapping

from potluck.engines.cluster import Ray
from potluck.engines.context import (
    ClientData,
    ClientDatasets,
    ClusterPlan,
    SimulationContext,
    TaskEnvelope,
    TaskResult,
)
from potluck.engines.cores import VARIABLE as CORES_VARIABLE
from potluck.engines.cores import usable_cores
from potluck.engines.cuda import Graphs
from potluck.engines.dispatcher import Dispatcher, LedgerEntry, RoundSession
from potluck.engines.gate import Gate
from potluck.engines.pool import Pool
from potluck.engines.serial import Engine, Serial, Wire
from potluck.engines.usual import Usual
from potluck.engines.worker import Worker

ENGINES: Mapping[str, Callable[[SimulationContext, int], Engine]] = {
    "serial": Serial,
    "wire": Wire,
    "pool": Pool,
    "graphs": Graphs,
    "ray": Ray,
}
"""Engines by name; each is created from a simulation context and a number of workers."""

__all__ = [
    "CORES_VARIABLE", "ENGINES", "ClientData", "ClientDatasets", "ClusterPlan", "Dispatcher", "Engine", "Gate",
    "Graphs", "LedgerEntry", "Pool", "Ray", "RoundSession", "Serial", "SimulationContext", "TaskEnvelope", "TaskResult",
    "Usual", "Wire", "Worker", "usable_cores",
]  # fmt: skip
