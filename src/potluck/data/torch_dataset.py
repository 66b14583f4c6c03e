"""A torch `Dataset` as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potluck.core import InputError, one_line
from potluck.data import stored
from potluck.data.settings import Layout
from potluck.data.source import Array, Source, channels_first, from_arrays, input_rows
from potluck.data.stored import Rows, StoredRows


def from_dataset(
    dataset: Any,
    test: Any = None,
    *,
    user: Iterable[Any] | None = None,
    names: Sequence[str] = (),
    scale: str = "auto",
    layout: Layout = "auto",
    name: str = "",
) -> Source:
    """A source made of a torch `Dataset` with a length, whose items are (x, y), (x, y, user) or {"x": ..., "y": ...}.

    Every item is asked for once at the start, for its label. Inputs that fit into memory are kept; others are asked for
    again whenever a batch needs them, so `dataset[i]` must give the same each time: random changes belong into
    data.augment. `test` is a `Dataset` of test rows; `user` says whose row each is, if the items do not.
    """
    name = name or type(dataset).__name__
    x, y, users = _read(dataset, name, layout)
    x_test, y_test, _ = (None, None, None) if test is None else _read(test, f"{name}, test rows", layout)
    whose = np.asarray(list(user)) if user is not None else users
    known = tuple(names) or _classes_of(dataset)
    first = "channels_first" if layout == "channels_last" else layout
    return from_arrays(x, y, whose, x_test, y_test, names=known, scale=scale, layout=first, name=name)


def _read(dataset: Any, name: str, layout: Layout) -> tuple[Array | StoredRows, Array, Array | None]:
    """The inputs, the labels and, if items say it, the users."""
    count = _length(dataset, name)
    first = _item(dataset, 0, name)
    held, total = [first.x], first.x.nbytes * count
    labels, users = [first.y], [first.user]
    for index in range(1, count):
        item = _item(dataset, index, name)
        if item.x.shape != first.x.shape or item.x.dtype != first.x.dtype:
            raise InputError(
                f"{name}: item {index} is {item.x.dtype} of {item.x.shape}, item 0 is {first.x.dtype} of "
                f"{first.x.shape}; give all the same type and shape"
            )
        if total <= stored.IN_MEMORY:
            held.append(item.x)
        labels.append(item.y)
        users.append(item.user)
    whose = _users(users, name)
    if total <= stored.IN_MEMORY:
        return channels_first(np.stack(held), f"{name}: x", layout), np.asarray(labels), whose
    asked = DatasetRows(dataset, count, name)

    def edit(values: Array, what: str, rows: Rows) -> Array:
        return input_rows(channels_first(values, what, layout), what, (), rows)

    return StoredRows([asked], edit), np.asarray(labels), whose


def _users(users: list[Any], name: str) -> Array | None:
    """The users, if items say them; either all do or none."""
    nobody = [index for index, user in enumerate(users) if user is None]
    if len(nobody) == len(users):
        return None
    if nobody:
        raise InputError(f"{name}: item {nobody[0]} has no user, and others have one; give it one, or leave it out")
    return np.asarray(users)


def _length(dataset: Any, name: str) -> int:
    iterable = isinstance(dataset, torch.utils.data.IterableDataset)
    if iterable or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"{name} has no length: rows are drawn by number, so give a Dataset with __len__ and __getitem__, or read "
            "it into arrays (from_arrays)"
        )
    try:
        count = len(dataset)
    except Exception as fault:  # a user's code may raise anything
        reason = one_line(str(fault) or type(fault).__name__, 120)
        raise InputError(
            f"{name}: its __len__ fails ({type(fault).__name__}: {reason}); give a Dataset with a length"
        ) from fault
    if count < 1:
        raise InputError(f"{name} holds no rows; give at least one")
    return count


@dataclass(frozen=True)
class _Item:
    x: Array
    y: Any
    user: Any


def _item(dataset: Any, index: int, name: str) -> _Item:
    found = dataset[index]
    if isinstance(found, Mapping):
        parts = [found.get("x"), found.get("y"), found.get("user")]
    elif isinstance(found, list | tuple) and len(found) in (2, 3):
        parts = [*found, None][:3]
    else:
        parts = [None, None, None]
    if parts[0] is None or parts[1] is None:
        raise InputError(
            f'{name}: item {index} is {one_line(repr(found), 60)}; give (x, y), (x, y, user) or {{"x": ..., "y": ...}}'
        )
    x = _array(parts[0])
    if x.dtype.hasobject:
        raise InputError(f"{name}: item {index} has an input of {type(parts[0]).__name__}; give a tensor or an array")
    y = _array(parts[1])
    return _Item(x, y.item() if y.ndim == 0 else y, parts[2])


def _array(value: Any) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _classes_of(dataset: Any) -> tuple[str, ...]:
    """The names of the classes, as torchvision's data sets have them."""
    found = getattr(dataset, "classes", None)
    return tuple(map(str, found)) if isinstance(found, list | tuple) else ()


@dataclass(frozen=True)
class DatasetRows:
    """Inputs of a `Dataset`, asked for when they are needed."""

    dataset: Any
    count: int
    name: str

    @property
    def path(self) -> Path:
        """What an error names."""
        return Path(self.name)

    def __len__(self) -> int:
        return self.count

    def read(self, rows: Rows) -> Array:
        """These inputs."""
        return np.stack([_item(self.dataset, int(row), self.name).x for row in rows])
