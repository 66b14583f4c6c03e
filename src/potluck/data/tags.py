"""Words with tags: .jsonl files of {"tokens": [...], "tags": [...]} in the BIO scheme, as for naming entities.

A word's tag stands at its first token, its other tokens count nowhere. Words that do not fit into data.length are left
out, of scores too. In a folder every file is a user (a hospital, say), and tags are numbered over all of them, so that
each user's labels are a part of the whole. Words are tokenised once and kept in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.guard import fault, found, pads
from potluck.data.records import Record, every, stamped
from potluck.data.settings import Data
from potluck.data.source import IGNORED, Array, Source, from_arrays
from potluck.data.tokens import Tokenizer, packed, tokenizer, trimmed

_SHAPE = 'give {"tokens": ["a", "word"], "tags": ["O", "B-thing"]}'


@dataclass(frozen=True)
class Tagged:
    """A sentence: its words, the tag of each, and whose it is, if that is told."""

    words: list[str]
    tags: list[str]
    user: str


def read(data: Data) -> Source:
    """x: token ids of (rows, length); y: the tag of each, IGNORED within words and at padding."""
    return _read(*stamped(data))


@lru_cache(maxsize=4)
def _read(data: Data, stamps: object) -> Source:
    path = found(data.path, data.name)
    train = _side(path)
    kinds = sorted({tag[2:] for row in train for tag in row.tags if tag != "O"})
    names = ("O", *(f"{sign}-{kind}" for kind in kinds for sign in "BI"))
    cut = tokenizer(data, (word for row in train for word in row.words))
    x, y = _rows(train, cut, names, data.length, path)
    sides: tuple[Array | None, Array | None] = (None, None)
    if data.test_path:
        other = found(data.test_path, data.name)
        sides = _rows(_side(other), cut, names, data.length, other)
    users = np.array([row.user for row in train]) if all(row.user for row in train) else None
    source = trimmed(from_arrays(x, y, users, *sides, names=names, name=str(path)), cut)
    return replace(source, tagged=True)


def _side(path: Path) -> list[Tagged]:
    found = [_tagged(record, f"line {number}", file) for number, record, file in every(path, _SHAPE)]
    return [row for row in found if row.words]


def _tagged(record: Record, where: str, path: Path) -> Tagged:
    words, tags, user = (record.get(key) for key in ("tokens", "tags", "user"))
    for name, column in (("tokens", words), ("tags", tags)):
        if not isinstance(column, list) or not all(isinstance(each, str) for each in column):
            raise fault(path, f"{where} has no list of {name} in quotes; {_SHAPE}")
    assert isinstance(words, list)
    assert isinstance(tags, list)
    if len(words) != len(tags):
        raise fault(path, f"{where} has {len(words)} tokens and {len(tags)} tags; give a tag for each token")
    for tag in tags:
        if tag != "O" and (tag[:2] not in ("B-", "I-") or len(tag) < 3):
            raise fault(path, f"{where} has the tag {tag!r}; give O, or B- or I- and a name")
    return Tagged(words, tags, user if isinstance(user, str) else "")


def _rows(side: list[Tagged], cut: Tokenizer, names: tuple[str, ...], length: int, path: Path) -> tuple[Array, Array]:
    if not side:
        raise InputError(f"{path}: no words in it; {_SHAPE}")
    pads(path, len(side), length)
    places = {name: place for place, name in enumerate(names)}
    x, y = np.full((len(side), length), cut.pad), np.full((len(side), length), IGNORED)
    for number, row in enumerate(side):
        tokens: list[int] = []
        labels: list[int] = []
        for word, tag in zip(row.words, row.tags, strict=True):
            if tag not in places:
                raise InputError(f"{path}: the tag {tag!r} is none of the training rows': {', '.join(names[:8])}")
            pieces = cut(f" {word}") or [cut.unknown]
            tokens += pieces
            labels += [places[tag], *[IGNORED] * (len(pieces) - 1)]
        line = packed(cut, length, tokens)
        x[number, : len(line)] = line
        kept = labels[: len(line) - len(cut.first) - 1]
        y[number, len(cut.first) : len(cut.first) + len(kept)] = kept
    return x, y
