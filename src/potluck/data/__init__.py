"""Data sets, and who holds which rows of them."""

from potluck.data.federation import ClientShard, Federation
from potluck.data.frames import from_frame
from potluck.data.hub import from_hub
from potluck.data.npy_writer import write_npy_folder
from potluck.data.registry import load, load_public, sources
from potluck.data.sending import pack_sources, unpack_sources
from potluck.data.settings import OWN, UNDIVIDED, Data
from potluck.data.source import InputForm, InputScaling, Source, from_arrays
from potluck.data.torch_dataset import from_dataset

__all__ = [
    "OWN", "UNDIVIDED", "ClientShard", "Data", "Federation", "InputForm", "InputScaling", "Source", "from_arrays",
    "from_dataset", "from_frame", "from_hub", "load", "load_public", "pack_sources", "sources", "unpack_sources",
    "write_npy_folder",
]  # fmt: skip
