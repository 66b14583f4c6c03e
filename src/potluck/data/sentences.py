"""Texts or pairs of texts with a label, as in GLUE: a .jsonl file, or a folder of them. On each line a record:

    {"s1": "A man sleeps.", "s2": "Nobody is awake.", "label": 1, "user": "anna"}

`s1` is a text; `s2` a second one, only for pairs; `label` a whole number, a name or a number with a fraction; `user`,
optional, a text. In a folder every file is a user, whose name is the file's up to the first dot.

Whole numbers and names are classes; if any label has a fraction, all labels are numbers to regress on. Texts are
tokenised once and kept in memory, also for later runs in the same process.
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
from potluck.data.source import Array, InputForm, Source, from_arrays
from potluck.data.tokenizer import Tokenizer, encode_row, load_tokenizer, plain_tokenizer, with_tokenizer

_SHAPE = 'give {"s1": "...", "s2": "...", "label": 0}; s2 only for pairs of texts'


@dataclass(frozen=True)
class LabelledText:
    """One record: one text or two, the label, and the user (empty if unknown)."""

    one: str
    two: str | None
    label: int | float | str
    user: str


def read(data: Data) -> Source:
    """Reads .jsonl files. x: token ids of (rows, length); y: a class or a number for each row."""
    return _read(*cache_key(data))


@lru_cache(maxsize=4)
def _read(data: Data, states: object) -> Source:
    path = existing_path(data.path, data.name)
    other = existing_path(data.test_path, data.name) if data.test_path else None
    return from_texts(_read_file(path), None if other is None else _read_file(other), data, str(path), str(other))


def from_texts(
    train: list[LabelledText], test: list[LabelledText] | None, data: Data, name: str, test_name: str = ""
) -> Source:
    """A source made of texts; `name` and `test_name` are for errors."""
    path, other = Path(name), Path(test_name or name)
    kinds = {type(row.label) for row in train}
    if str in kinds and len(kinds) > 1:
        raise InputError(f"{path}: some labels are names and some are numbers; give one kind")
    names = tuple(sorted({row.label for row in train if isinstance(row.label, str)}))
    tokenizer = load_tokenizer(data, (text for row in train for text in (row.one, row.two) if text))
    x, y = _rows(train, tokenizer, data.length, path), _labels(train, names, float in kinds, path)
    x_test = y_test = None
    if test is not None:
        x_test, y_test = _rows(test, tokenizer, data.length, other), _labels(test, names, float in kinds, other)
    users = np.array([row.user for row in train]) if all(row.user for row in train) else None
    sep = tokenizer.separator[0] if any(row.two is not None for row in train) else -1
    found = with_tokenizer(from_arrays(x, y, users, x_test, y_test, names=names, name=str(path)), tokenizer, sep)
    columns = (data.text_column,) if data.text_column else ("s1",) if sep < 0 else ("s1", "s2")
    return replace(found, form=InputForm("text", columns, plain_tokenizer(tokenizer)))


def _read_file(path: Path) -> list[LabelledText]:
    return [
        _parse_record(record, f"line {number}", file) for number, record, file in records_of_all_files(path, _SHAPE)
    ]


def _parse_record(record: Record, where: str, path: Path) -> LabelledText:
    one, two, label, user = (record.get(key) for key in ("s1", "s2", "label", "user"))
    if not isinstance(one, str) or not isinstance(two, str | None):
        raise file_error(path, f"{where} has no text s1 in quotes, or an s2 that is not a text; {_SHAPE}")
    if isinstance(label, bool) or not isinstance(label, int | float | str):
        raise file_error(path, f"{where} has no label, a number or a name; {_SHAPE}")
    return LabelledText(one, two, label, user if isinstance(user, str) else "")


def _rows(records: list[LabelledText], tokenizer: Tokenizer, length: int, path: Path) -> Array:
    if path.exists():
        check_padding(path, len(records), length)
    x = np.full((len(records), length), tokenizer.pad)
    for index, each in enumerate(records):
        row = encode_row(tokenizer, length, tokenizer(each.one), None if each.two is None else tokenizer(each.two))
        x[index, : len(row)] = row
    return x


def _labels(records: list[LabelledText], names: tuple[str, ...], numbers: bool, path: Path) -> Array:
    """Indices into the names, or the numbers themselves."""
    labels = [row.label for row in records]
    if not names:
        if odd := [label for label in labels if isinstance(label, str) or (isinstance(label, float) and not numbers)]:
            raise InputError(f"{path}: label {odd[0]!r} is not a class of the training rows, which are whole numbers")
        try:
            return np.array(labels, np.float32 if numbers else np.int64)
        except OverflowError:
            raise InputError(f"{path}: a label is too large for 64 bits; number the classes from 0") from None
    places: dict[int | float | str, int] = {name: place for place, name in enumerate(names)}
    for label in labels:
        if label not in places:
            raise InputError(f"{path}: label {label!r} is not a class of the training rows: {', '.join(names[:8])}")
    return np.array([places[label] for label in labels])
