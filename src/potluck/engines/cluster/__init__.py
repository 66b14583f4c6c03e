"""The engine for several machines: a Ray cluster."""

from potluck.engines.cluster.engine import (
    NO_TOKEN,
    Connection,
    Ray,
    RemoteObject,
    await_any,
    connect,
    disconnect,
    own_paths,
)
from potluck.engines.cluster.worker import machine

__all__ = [
    "NO_TOKEN", "Connection", "Ray", "RemoteObject", "await_any", "connect", "disconnect", "machine", "own_paths",
]  # fmt: skip
