"""Words with BIO tags, for named-entity recognition: a .jsonl file, or a folder of them. On each line a record:

    {"tokens": ["Anna", "lives", "in", "New", "York"], "tags": ["B-PER", "O", "O", "B-LOC", "I-LOC"], "user": "anna"}

`tokens` are the words; `tags` as many tags: O, or B- or I- and a kind; `user`, optional, a text.

The tag of a word is the label of its first token; its other tokens are ignored. Words beyond data.length are left out,
in scores too. In a folder every file is a user (for example a hospital). Tags are numbered over all files, so that all
users share one set of classes. Words are tokenised once and kept in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.jsonl import Record, cache_key, records_of_all_files
from potluck.data.safe_reading import check_padding, existing_path, file_error
from potluck.data.settings import Data
from potluck.data.source import IGNORED, Array, InputForm, Source, from_arrays
from potluck.data.tokenizer import Tokenizer, encode_row, load_tokenizer, plain_tokenizer, with_tokenizer

_SHAPE = 'give {"tokens": ["a", "word"], "tags": ["O", "B-thing"]}'


@dataclass(frozen=True)
class TaggedSentence:
    """One record: the words of a sentence, the tag of each word, and the user (empty if unknown)."""

    words: list[str]
    tags: list[str]
    user: str


def read(data: Data) -> Source:
    """Reads .jsonl files. x: token ids of (rows, length); y: the tag of each, IGNORED inside words and in padding."""
    return _read(*cache_key(data))


@lru_cache(maxsize=4)
def _read(data: Data, states: object) -> Source:
    path = existing_path(data.path, data.name)
    train = _read_file(path)
    kinds = sorted({tag[2:] for row in train for tag in row.tags if tag != "O"})
    names = ("O", *(f"{sign}-{kind}" for kind in kinds for sign in "BI"))
    tokenizer = load_tokenizer(data, (word for row in train for word in row.words))
    x, y = _rows(train, tokenizer, names, data.length, path)
    sides: tuple[Array | None, Array | None] = (None, None)
    if data.test_path:
        other = existing_path(data.test_path, data.name)
        sides = _rows(_read_file(other), tokenizer, names, data.length, other)
    users = np.array([row.user for row in train]) if all(row.user for row in train) else None
    source = with_tokenizer(from_arrays(x, y, users, *sides, names=names, name=str(path)), tokenizer)
    return replace(source, tagged=True, form=InputForm("tags", ("tokens",), plain_tokenizer(tokenizer)))


def _read_file(path: Path) -> list[TaggedSentence]:
    found = [
        _parse_record(record, f"line {number}", file) for number, record, file in records_of_all_files(path, _SHAPE)
    ]
    return [row for row in found if row.words]


def _parse_record(record: Record, where: str, path: Path) -> TaggedSentence:
    words, tags, user = (record.get(key) for key in ("tokens", "tags", "user"))
    for name, column in (("tokens", words), ("tags", tags)):
        if not isinstance(column, list) or not all(isinstance(each, str) for each in column):
            raise file_error(path, f"{where} has no list of {name} in quotes; {_SHAPE}")
    assert isinstance(words, list)
    assert isinstance(tags, list)
    if len(words) != len(tags):
        raise file_error(path, f"{where} has {len(words)} tokens and {len(tags)} tags; give a tag for each token")
    for tag in tags:
        if tag != "O" and (tag[:2] not in ("B-", "I-") or len(tag) < 3):
            raise file_error(path, f"{where} has the tag {tag!r}; give O, or B- or I- and a name")
    return TaggedSentence(words, tags, user if isinstance(user, str) else "")


def _rows(
    records: list[TaggedSentence], tokenizer: Tokenizer, names: tuple[str, ...], length: int, path: Path
) -> tuple[Array, Array]:
    if not records:
        raise InputError(f"{path}: no words in it; {_SHAPE}")
    check_padding(path, len(records), length)
    places = {name: place for place, name in enumerate(names)}
    x, y = np.full((len(records), length), tokenizer.pad), np.full((len(records), length), IGNORED)
    for number, row in enumerate(records):
        tokens: list[int] = []
        labels: list[int] = []
        for word, tag in zip(row.words, row.tags, strict=True):
            if tag not in places:
                raise InputError(f"{path}: the tag {tag!r} is not a tag of the training rows: {', '.join(names[:8])}")
            pieces = tokenizer(f" {word}") or [tokenizer.unknown]
            tokens += pieces
            labels += [places[tag], *[IGNORED] * (len(pieces) - 1)]
        line = encode_row(tokenizer, length, tokens)
        x[number, : len(line)] = line
        kept = labels[: len(line) - len(tokenizer.start) - 1]
        y[number, len(tokenizer.start) : len(tokenizer.start) + len(kept)] = kept
    return x, y
