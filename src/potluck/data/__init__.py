"""Data sets, and who holds which rows of them."""

from potluck.data.federation import Federation, Shard
from potluck.data.settings import Data
from potluck.data.source import Scale, Source, from_arrays
from potluck.data.sources import load, load_public, sources

__all__ = ["Data", "Federation", "Scale", "Shard", "Source", "from_arrays", "load", "load_public", "sources"]
