"""Memory that two processes share: one writes the tensors of a message into it, the other reads them."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

Table: TypeAlias = "dict[str, list[object]]"
"""Where each tensor lies: its type, its shape, its first byte."""

_ROUND = 64
"""Tensors begin at multiples of this, where processors like them."""
_TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
)}  # fmt: skip


class SharedMemoryBuffer:
    """One side's handle on a piece of shared memory, which grows when a larger message is written."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._map: mmap.mmap | None = None

    @staticmethod
    def make() -> int:
        """A new piece of shared memory, as a file that has no name."""
        return os.memfd_create("potluck")

    def write(self, body: Mapping[str, Tensor]) -> Table:
        """Writes tensors over whatever was there; the table tells the other side where they lie."""
        table: Table = {}
        end = 0
        for name, tensor in body.items():
            table[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end]
            end += -(-tensor.nbytes // _ROUND) * _ROUND
        if end:
            room = torch.frombuffer(self._mapped(end), dtype=torch.uint8)
            for tensor, (_, _, start) in zip(body.values(), table.values(), strict=True):
                assert isinstance(start, int)
                room[start : start + tensor.nbytes].copy_(tensor.reshape(-1).view(torch.uint8))
        return table

    def view(self, table: Table) -> dict[str, Tensor]:
        """The tensors that lie here, as they lie: a change to one is seen by nobody else, and gone with it."""
        if not table:
            return {}
        return _tensors(mmap.mmap(self.handle, os.fstat(self.handle).st_size, access=mmap.ACCESS_COPY), table)

    def copy(self, table: Table) -> dict[str, Tensor]:
        """The tensors that lie here, copied."""
        if not table:
            return {}
        there = self._mapped(os.fstat(self.handle).st_size)
        return {name: tensor.clone() for name, tensor in _tensors(there, table).items()}

    def close(self) -> None:
        """Lets go of the memory; it is gone when the other side does, too."""
        self._map = None
        os.close(self.handle)

    def _mapped(self, size: int) -> mmap.mmap:
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
