"""Rows that stay in files and are read when a batch needs them, for data sets larger than the memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core import InputError

Array = NDArray[Any]
Rows = NDArray[np.int64]
RowEdit = Callable[[Array, str, Rows], Array]
"""Turns rows as stored into rows as used; it gets the name of their file and their numbers in it for errors."""

IN_MEMORY = 2 << 30
"""Pictures, and inputs of a torch or Hugging Face data set, that take more bytes than this stay where they are; a
larger CSV or Parquet file is refused."""

SAMPLE_ROWS = 4096
"""The most rows of a stored column that its fingerprint covers ..."""

SAMPLE_BYTES = 64 << 20
"""... and the most bytes: rows of large images are fewer."""


@dataclass(frozen=True)
class NpyFile:
    """A plain .npy file whose header was read and checked: an array, and where its rows begin.

    Rows are read by position, not through a memory map. With a map, a file that is cut short or a disk that fails would
    end the process without a word, and each row of a file that is not in the cache would bring its surroundings with
    it. The file is opened for each read: nothing is shared with forked workers, and there is no limit on the files.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    """The place of the first row, in bytes."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self, rows: Rows) -> Array:
        """These rows. Stretches of consecutive rows are read at once."""
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if not len(rows):
            return out
        room, width = out.reshape(-1).view(np.uint8).data, self.row_bytes
        starts = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist()]
        try:
            with self.path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self.offset + len(self) * width:
                    raise InputError(f"{self.path}: its size changed while it was in use; restore it")
                for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
                    self._fill(file.fileno(), room[start * width : end * width], self.offset + int(rows[start]) * width)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror or error}; it was there before") from None
        return out

    def _fill(self, handle: int, room: memoryview, place: int) -> None:
        done = 0
        while done < len(room):
            count = os.preadv(handle, [room[done:]], place + done)
            if not count:
                raise InputError(f"{self.path}: it was cut short while it was read; restore it")
            done += count


@dataclass(frozen=True)
class MappedRows:
    """Rows of an array that a user mapped into memory."""

    array: Array

    @property
    def path(self) -> Path:
        """What an error names."""
        return Path(str(getattr(self.array, "filename", None) or "a memory map"))

    def __len__(self) -> int:
        return len(self.array)

    def read(self, rows: Rows) -> Array:
        """These rows, copied out of the map."""
        return np.asarray(self.array[rows])


class RowFile(Protocol):
    """A file, or several, of which rows are read when they are asked for."""

    @property
    def path(self) -> Path:
        """What an error names."""

    def __len__(self) -> int: ...
    def read(self, rows: Rows) -> Array: ...


class StoredRows:
    """Rows of one or several files, end to end, like a NumPy array of which only the rows asked for are read.

    `edit` treats each row by itself, so that a row has the same bits in every batch.
    """

    def __init__(self, files: Sequence[RowFile], edit: RowEdit) -> None:
        self._files, self._edit = tuple(files), edit
        self._ends = np.cumsum([len(file) for file in files])
        first = self._read(0, np.zeros(1, np.int64))
        self.shape: tuple[int, ...] = (int(self._ends[-1]), *first.shape[1:])
        self.dtype, self.ndim = first.dtype, first.ndim
        self.size = math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Rows) -> Array:
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        if not len(numbers):
            return np.empty((0, *self.shape[1:]), self.dtype)
        if numbers.min() < 0 or numbers.max() >= len(self):
            raise IndexError(f"rows {numbers.min()} to {numbers.max()} of {len(self)}")
        which = np.searchsorted(self._ends, numbers, side="right")
        if (which == which[0]).all():
            return self._read(int(which[0]), numbers)
        out = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        for index in np.unique(which).tolist():
            mine = which == index
            out[mine] = self._read(index, numbers[mine])
        return out

    def _read(self, index: int, numbers: Rows) -> Array:
        """Rows of one file, by their numbers in the whole."""
        file = self._files[index]
        rows = numbers - (self._ends[index] - len(file))
        return self._edit(file.read(rows), str(file.path), rows)


def in_memory_or_stored(
    file: RowFile, row_bytes: int, edit: RowEdit = lambda values, what, rows: values
) -> Array | StoredRows:
    """All rows of a file, if they take at most `IN_MEMORY` bytes; else rows that are read when a batch needs them."""
    if len(file) * row_bytes <= IN_MEMORY:
        rows = np.arange(len(file))
        return edit(file.read(rows), str(file.path), rows)
    return StoredRows([file], edit)


class StoredColumn:
    """Stored rows as a column of `Examples`: every batch is read into memory, then copied to the device."""

    def __init__(self, rows: StoredRows, device: torch.device | None = None) -> None:
        self._rows = rows
        self.shape = torch.Size(rows.shape)
        self.dtype = torch.from_numpy(np.empty(0, rows.dtype)).dtype
        self.device = device or torch.device("cpu")

    def dim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice, /) -> Tensor:
        return self._tensor(self._rows[rows])

    def index_select(self, dim: int, index: Tensor, /) -> Tensor:
        if dim != 0:
            raise ValueError(f"a stored column has rows along dimension 0, not {dim}")
        return self._tensor(self._rows[index.cpu().numpy()])

    def to(self, device: torch.device, /) -> StoredColumn:
        """The same rows, whose batches are on this device; nothing is read."""
        return StoredColumn(self._rows, device)

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(np.require(values, requirements=["C", "W"])).to(self.device)


def sample_rows(count: int, row_bytes: int) -> Rows:
    """The rows that the fingerprint of a stored column covers: all if they are few, else evenly spaced ones.

    The first and the last are among them. A change to any stretch as long as their distance is noticed.
    """
    most = min(count, SAMPLE_ROWS, max(2, SAMPLE_BYTES // max(row_bytes, 1)))
    return np.arange(most) * (count - 1) // max(most - 1, 1)
