"""The engine with worker processes of one thread each, on one machine."""

from potluck.engines.pool.engine import Pool

__all__ = ["Pool"]
