"""The engine for several machines: a Ray cluster."""

from potluck.engines.cluster.engine import Ray, disconnect

__all__ = ["Ray", "disconnect"]
