"""Examples: columns of equal length, and which rows of them are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = Mapping[str, Tensor]
Prepare: TypeAlias = Callable[[dict[str, Tensor]], Batch]


class Augmentation(Protocol):
    """Random changes to batches, in training alone: drawn first, then applied, so that an engine can draw ahead."""

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """The dice of so many rows, one row each."""

    def __call__(self, batch: Batch, drawn: Tensor) -> Batch:
        """A batch as stored, changed as the dice say."""


class Examples:
    """Rows of a data set: shared columns, an own list of rows, gathered only when asked for.

    ``examples[rows]`` is a batch; ``examples.pick(rows)`` is again `Examples` and copies nothing but the row numbers.
    Columns are named; ``x`` is the input and ``y`` the label wherever a problem does not say otherwise. `prepare` turns
    a gathered batch into what a network wants (bytes into scaled floats). `augment` changes batches at random
    in training.
    """

    __slots__ = ("augment", "columns", "prepare", "rows")

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        rows: Tensor | None = None,
        prepare: Prepare | None = None,
        augment: Augmentation | None = None,
    ) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")
        self.columns = dict(columns)
        self.rows = rows
        self.prepare = prepare
        self.augment = augment

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, rows: Tensor | slice) -> Batch:
        """The batch of these rows, prepared."""
        return self.batch(rows)

    def batch(self, rows: Tensor | slice, drawn: Tensor | None = None) -> Batch:
        """The batch of these rows, varied as the dice say, if there are any, and prepared."""
        if self.rows is not None:
            rows = self.rows[rows]
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
        """These rows of these rows, sharing the columns."""
        picked = Examples.__new__(Examples)  # the columns are known to agree
        picked.columns, picked.prepare, picked.augment = self.columns, self.prepare, self.augment
        where = next(iter(self.columns.values())).device
        picked.rows = rows.to(where) if self.rows is None else self.rows[rows]
        return picked

    def column(self, name: str) -> Tensor:
        """One column at these rows, as stored (not prepared)."""
        found = self.columns[name]
        return found if self.rows is None else found.index_select(0, self.rows)

    def all(self) -> Batch:
        """Every row as one batch."""
        return self[slice(None)]


NOTHING = Examples({"x": torch.zeros(0, 1), "y": torch.zeros(0, dtype=torch.long)})
