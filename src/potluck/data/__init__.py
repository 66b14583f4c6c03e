"""Data sets, and who holds which rows of them."""

from potluck.data.federation import ClientShard, Federation
from potluck.data.npy_writer import write_npy_folder
from potluck.data.registry import load, load_public, sources
from potluck.data.sending import pack_sources, unpack_sources
from potluck.data.settings import OWN, Data
from potluck.data.source import InputScaling, Source, from_arrays

__all__ = [
    "OWN", "ClientShard", "Data", "Federation", "InputScaling", "Source", "from_arrays", "load", "load_public",
    "pack_sources", "sources", "unpack_sources", "write_npy_folder",
]  # fmt: skip
