"""Examples: columns of equal length, and a selection of their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = Mapping[str, Tensor]
Prepare: TypeAlias = Callable[[dict[str, Tensor]], Batch]


class Column(Protocol):
    """One value for each row: a tensor, or a column whose rows are read from files when a batch needs them."""

    @property
    def shape(self) -> torch.Size: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device:
        """Where batches are."""

    def dim(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Tensor: ...
    def index_select(self, dim: int, index: Tensor, /) -> Tensor: ...
    def to(self, device: torch.device, /) -> Column: ...


class Augmentation(Protocol):
    """Random changes to training batches. They are drawn first and applied later, so an engine can draw ahead."""

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """Random numbers for `count` rows, one row of them for each."""

    def __call__(self, batch: Batch, drawn: Tensor) -> Batch:
        """The stored batch, changed according to the random numbers `drawn`."""


class Examples:
    """Some rows of a data set: columns shared with others, and a list of row numbers. Batches are gathered on request.

    ``examples[rows]`` is a batch; ``examples.pick(rows)`` is again `Examples` and copies only the row numbers.
    Columns are named: ``x`` is the input and ``y`` the label, unless a problem says otherwise. `prepare` turns a batch
    into the input of a network (bytes into scaled floats). `augment` changes training batches at random.
    """

    __slots__ = ("augment", "columns", "prepare", "rows")

    def __init__(
        self,
        columns: Mapping[str, Column],
        rows: Tensor | None = None,
        prepare: Prepare | None = None,
        augment: Augmentation | None = None,
    ) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")
        self.columns: dict[str, Column] = dict(columns)
        self.rows = rows
        self.prepare = prepare
        self.augment = augment

    def __len__(self) -> int:
        if self.rows is not None:
            return self.rows.shape[0]
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, rows: Tensor | slice) -> Batch:
        """The batch of these rows, prepared."""
        return self.batch(rows)

    def batch(self, rows: Tensor | slice, drawn: Tensor | None = None) -> Batch:
        """The batch of these rows: augmented with the random numbers `drawn`, if given, then prepared."""
        if self.rows is not None:
            rows = _select(self.rows, rows)
        elif isinstance(rows, Tensor):
            rows = rows.to(next(iter(self.columns.values())).device)
        batch = {
            name: column[rows] if isinstance(rows, slice) else column.index_select(0, rows)
            for name, column in self.columns.items()
        }
        if self.augment is not None and drawn is not None:
            batch = dict(self.augment(batch, drawn))
        return self.prepare(batch) if self.prepare else batch

    def pick(self, rows: Tensor) -> Examples:
        """A selection of these rows, with the same columns; `rows` are positions in this selection."""
        picked = Examples.__new__(Examples)  # skips the check: these columns have equal length
        picked.columns, picked.prepare, picked.augment = self.columns, self.prepare, self.augment
        where = next(iter(self.columns.values())).device
        picked.rows = rows.to(where) if self.rows is None else _select(self.rows, rows)
        return picked

    def column(self, name: str) -> Tensor:
        """One column at these rows, as stored (not prepared). Of a column in files, these rows are read into memory."""
        found = self.columns[name]
        if self.rows is not None:
            return found.index_select(0, self.rows)
        return found if isinstance(found, Tensor) else found[:]

    def all(self) -> Batch:
        """Every row as one batch."""
        return self[slice(None)]


def _select(held: Tensor, rows: Tensor | slice) -> Tensor:
    """These entries of a list of row numbers; by the faster operation if it can be used."""
    if isinstance(rows, Tensor) and rows.dtype is torch.int64 and rows.dim() == 1 and rows.device == held.device:
        return held.index_select(0, rows)
    return held[rows]


NOTHING = Examples({"x": torch.zeros(0, 1), "y": torch.zeros(0, dtype=torch.long)})
