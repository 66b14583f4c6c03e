"""Texts with a label: .jsonl files as of GLUE, {"s1": ..., "s2": ..., "label": ...}, one text or two in each record.

Whole numbers and names are classes; where any label has a fraction, all are numbers to regress on. Texts are tokenised
once and kept in memory, for later runs of the same process too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.guard import fault, found, pads
from potluck.data.records import Record, every, stamped
from potluck.data.settings import Data
from potluck.data.source import Array, Source, from_arrays
from potluck.data.tokens import Tokenizer, packed, tokenizer, trimmed

_SHAPE = 'give {"s1": "...", "s2": "...", "label": 0}; s2 only where there are pairs'


@dataclass(frozen=True)
class Labelled:
    """One text or two, what is said of them, and whose they are, if that is told."""

    one: str
    two: str | None
    label: int | float | str
    user: str


def read(data: Data) -> Source:
    """x: token ids of (rows, length); y: a class or a number for each."""
    return _read(*stamped(data))


@lru_cache(maxsize=4)
def _read(data: Data, stamps: object) -> Source:
    path = found(data.path, data.name)
    train = _side(path)
    kinds = {type(row.label) for row in train}
    if str in kinds and len(kinds) > 1:
        raise InputError(f"{path}: some labels are names and some are numbers; give one kind")
    names = tuple(sorted({row.label for row in train if isinstance(row.label, str)}))
    cut = tokenizer(data, (text for row in train for text in (row.one, row.two) if text))
    x, y = _rows(train, cut, data.length, path), _labels(train, names, float in kinds, path)
    x_test = y_test = None
    if data.test_path:
        other = found(data.test_path, data.name)
        test = _side(other)
        x_test, y_test = _rows(test, cut, data.length, other), _labels(test, names, float in kinds, other)
    users = np.array([row.user for row in train]) if all(row.user for row in train) else None
    sep = cut.between[0] if any(row.two is not None for row in train) else -1
    return trimmed(from_arrays(x, y, users, x_test, y_test, names=names, name=str(path)), cut, sep)


def _side(path: Path) -> list[Labelled]:
    return [_labelled(record, f"line {number}", file) for number, record, file in every(path, _SHAPE)]


def _labelled(record: Record, where: str, path: Path) -> Labelled:
    one, two, label, user = (record.get(key) for key in ("s1", "s2", "label", "user"))
    if not isinstance(one, str) or not isinstance(two, str | None):
        raise fault(path, f"{where} has no text s1 in quotes, or an s2 that is none; {_SHAPE}")
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        raise fault(path, f"{where} has no label, a number or a name; {_SHAPE}")
    return Labelled(one, two, label, user if isinstance(user, str) else "")


def _rows(side: list[Labelled], cut: Tokenizer, length: int, path: Path) -> Array:
    pads(path, len(side), length)
    x = np.full((len(side), length), cut.pad)
    for place, each in enumerate(side):
        row = packed(cut, length, cut(each.one), None if each.two is None else cut(each.two))
        x[place, : len(row)] = row
    return x


def _labels(side: list[Labelled], names: tuple[str, ...], numbers: bool, path: Path) -> Array:
    """Places among the names, or the numbers as they are."""
    labels = [row.label for row in side]
    if not names:
        if odd := [label for label in labels if isinstance(label, str) or (isinstance(label, float) and not numbers)]:
            raise InputError(f"{path}: label {odd[0]!r} is no class of the training rows, which are whole numbers")
        try:
            return np.array(labels, np.float32 if numbers else np.int64)
        except OverflowError:
            raise InputError(f"{path}: a label is beyond all numbers; number the classes from 0") from None
    places: dict[int | float | str, int] = {name: place for place, name in enumerate(names)}
    for label in labels:
        if label not in places:
            raise InputError(f"{path}: label {label!r} is no class of the training rows: {', '.join(names[:8])}")
    return np.array([places[label] for label in labels])
