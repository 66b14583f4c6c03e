"""Shared memory between two processes: one writes the tensors of a message, the other reads them."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Table: TypeAlias = "dict[str, list[object]]"
"""Each tensor's dtype, shape and offset in bytes."""

_ROUND = 64
"""Tensors begin at multiples of this many bytes, for fast access."""
_TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)}  # fmt: skip


class SharedMemoryBuffer:
    """One process's handle on a piece of shared memory, which grows for a larger message."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._map: mmap.mmap | None = None

    @staticmethod
    def make() -> int:
        """A new piece of shared memory, as an anonymous file."""
        return os.memfd_create("potluck")

    def write(self, body: Mapping[str, Tensor]) -> Table:
        """Overwrites the memory with these tensors; the returned table says where each one is."""
        table: Table = {}
        end = 0
        for name, tensor in body.items():
            table[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end]
            end += -(-tensor.nbytes // _ROUND) * _ROUND
        if end:
            room = torch.frombuffer(self._map_at_least(end), dtype=torch.uint8)
            for tensor, (_, _, start) in zip(body.values(), table.values(), strict=True):
                assert isinstance(start, int)
                room[start : start + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
        return table

    def view(self, table: Table) -> dict[str, Tensor]:
        """Views of the tensors in this memory (copy-on-write): the other process does not see changes to them."""
        if not table:
            return {}
        return _tensors(mmap.mmap(self.handle, os.fstat(self.handle).st_size, access=mmap.ACCESS_COPY), table)

    def copy(self, table: Table) -> dict[str, Tensor]:
        """Copies of the tensors in this memory."""
        if not table:
            return {}
        there = self._map_at_least(os.fstat(self.handle).st_size)
        return {name: tensor.clone() for name, tensor in _tensors(there, table).items()}

    def close(self) -> None:
        """Releases the memory; it is freed when the other process has released it too."""
        self._map = None
        os.close(self.handle)

    def _map_at_least(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if os.fstat(self.handle).st_size < size:
                os.ftruncate(self.handle, size)
            self._map = mmap.mmap(self.handle, os.fstat(self.handle).st_size)
        return self._map


def _tensors(there: mmap.mmap, table: Table) -> dict[str, Tensor]:
    found = {}
    for name, (kind, shape, start) in table.items():
        assert isinstance(kind, str)
        assert isinstance(shape, list)
        assert isinstance(start, int)
        count = math.prod(shape)
        flat = torch.frombuffer(there, dtype=_TYPES[kind], count=count, offset=start) if count else torch.empty(0)
        found[name] = flat.to(_TYPES[kind]).view(shape)
    return found
