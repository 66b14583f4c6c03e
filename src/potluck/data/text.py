"""Text by user from a .jsonl file, to predict the next word or character. On each line a record:

    {"user": "anna", "lines": ["To be, or not to be", "that is the question"]}

`user` is a text; `lines` a list of texts, or `text` one text in its place. The records of a user need not be
neighbours.

The defaults are FedRolex's on Stack Overflow: the 10,000 most frequent words, rows of 20 tokens. The lines of a user
are joined to one stream, with ``<end>`` after each line, and cut into rows. The last row is padded, so that users with
less than one row take part too (in the authors' code they count in the average without any training).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.jsonl import records
from potluck.data.safe_reading import check_padding, existing_path, file_error
from potluck.data.settings import Data
from potluck.data.source import IGNORED, Array, InputForm, Source, from_arrays

RESERVED = ("<pad>", "<unknown>", "<end>")
"""The first tokens: padding, a word that the vocabulary lacks, and the end of a line (also before the first line)."""
UNKNOWN, END = 1, 2

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
_SHAPE = 'give {"user": "...", "lines": ["...", ...]}, or "text": "..." in place of lines'


def read(data: Data) -> Source:
    """Reads one .jsonl file. x: token ids of (rows, length); y: the id after each, IGNORED in the padding."""
    path = existing_path(data.path, data.name)
    if path.is_dir():
        raise InputError(f"{data.path}: a folder; set data.path to the .jsonl file")
    known: dict[str, int] = {RESERVED[END]: 0}  # no word and no character has the name of a reserved token
    streams: dict[str, array[int]] = {}
    for user, lines in _user_lines(path):
        stream = streams.setdefault(user, array("i"))
        for line in lines:
            if tokens := tokenize(line, data.tokens):
                stream.extend(known.setdefault(token, len(known)) for token in tokens)
                stream.append(0)
    held = [np.frombuffer(stream, np.intc) for stream in streams.values() if stream]
    if not held:
        raise file_error(path, "no text in it; check data.path")
    names, codes = _vocabulary(known, held, data.vocabulary)
    x, y, users = _rows([codes[stream] for stream in held], data, path)
    told = {"kind": data.tokens, "known": {name: place for place, name in enumerate(names)}, "unknown": UNKNOWN}
    form = InputForm("stream", ("lines",), {**told, "pad": 0, "start": [END], "separator": [END]})
    return replace(from_arrays(x, y, users, names=names, name=str(path)), form=form)


def tokenize(line: str, tokens: str) -> Sequence[str]:
    """The tokens of a line: its characters, or its lower-case words and its punctuation marks."""
    return line if tokens == "characters" else _WORD.findall(line.lower())


def _vocabulary(known: dict[str, int], held: list[Array], most: int) -> tuple[tuple[str, ...], Array]:
    """The reserved and the most frequent tokens (ties in alphabetical order), and the final id of each known token."""
    counts = np.zeros(len(known), np.int64)
    for stream in held:
        np.add.at(counts, stream, 1)
    others = sorted(
        (token for token, place in known.items() if place), key=lambda token: (-counts[known[token]], token)
    )
    names = (*RESERVED, *others[:most])
    codes = np.full(len(known), UNKNOWN)
    for place, token in enumerate(names[END:], END):
        codes[known[token]] = place
    return names, codes


def _rows(streams: list[Array], data: Data, path: Path) -> tuple[Array, Array, Array]:
    """Inputs, labels and the user of every row."""
    counts = [-(-len(stream) // data.length) for stream in streams]
    check_padding(path, sum(counts), data.length)
    x, y = np.zeros((sum(counts), data.length), np.int64), np.full((sum(counts), data.length), IGNORED)
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        end = start + len(stream)
        y.reshape(-1)[start:end] = stream
        x.reshape(-1)[start], x.reshape(-1)[start + 1 : end] = END, stream[:-1]
        start += count * data.length
    return x, y, np.repeat(np.arange(len(streams)), counts)


def _user_lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The user and the lines of each record."""
    for number, record in records(path, _SHAPE):
        user, lines, text = (record.get(key) for key in ("user", "lines", "text"))
        if not isinstance(user, str):
            raise file_error(path, f"line {number} has no user in quotes; {_SHAPE}")
        if lines is None and isinstance(text, str):
            lines = text.splitlines()
        if not isinstance(lines, list) or not all(isinstance(each, str) for each in lines):
            raise file_error(path, f"line {number} has no list of lines in quotes, nor a text; {_SHAPE}")
        yield user, lines
