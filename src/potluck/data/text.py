"""Text by user, from a .jsonl file: each user's words (or characters) in rows, every one with the token that follows.

FedRolex's set-up on Stack Overflow is the default: the 10,000 most frequent words, rows of 20. A user's lines follow
one another in one stream with an end after each, cut into rows; the last row is padded, so that users with less than a
whole one take part too (in the authors' code they count in the average without having trained).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.guard import fault, found, pads
from potluck.data.records import records
from potluck.data.settings import Data
from potluck.data.source import IGNORED, Array, Source, from_arrays

RESERVED = ("<pad>", "<unknown>", "<end>")
"""The first tokens: what fills a row up, what the vocabulary lacks, and what ends a line (and precedes the first)."""
UNKNOWN, END = 1, 2

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")
_SHAPE = 'give {"user": "...", "lines": ["...", ...]}, or "text": "..." in place of lines'


def read(data: Data) -> Source:
    """One .jsonl file. x: token ids of (rows, length); y: the id that follows each, IGNORED behind a user's end."""
    path = found(data.path, data.name)
    if path.is_dir():
        raise InputError(f"{data.path}: a folder; set data.path to the .jsonl file")
    known: dict[str, int] = {RESERVED[END]: 0}  # no word and no character has the name of a reserved token
    streams: dict[str, array[int]] = {}
    for user, lines in _records(path):
        stream = streams.setdefault(user, array("i"))
        for line in lines:
            if tokens := split(line, data.tokens):
                stream.extend(known.setdefault(token, len(known)) for token in tokens)
                stream.append(0)
    held = [np.frombuffer(stream, np.intc) for stream in streams.values() if stream]
    if not held:
        raise fault(path, "no text in it; check data.path")
    names, codes = _vocabulary(known, held, data.vocabulary)
    x, y, users = _rows([codes[stream] for stream in held], data, path)
    return from_arrays(x, y, users, names=names, name=str(path))


def split(line: str, tokens: str) -> Sequence[str]:
    """A line's tokens: its characters, or its words in lower case and its punctuation marks, each by itself."""
    return line if tokens == "characters" else _WORD.findall(line.lower())


def _vocabulary(known: dict[str, int], held: list[Array], most: int) -> tuple[tuple[str, ...], Array]:
    """The reserved tokens and the most frequent others (ties by the token itself), and each known token's place."""
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
    pads(path, sum(counts), data.length)
    x, y = np.zeros((sum(counts), data.length), np.int64), np.full((sum(counts), data.length), IGNORED)
    start = 0
    for stream, count in zip(streams, counts, strict=True):
        end = start + len(stream)
        y.reshape(-1)[start:end] = stream
        x.reshape(-1)[start], x.reshape(-1)[start + 1 : end] = END, stream[:-1]
        start += count * data.length
    return x, y, np.repeat(np.arange(len(streams)), counts)


def _records(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each record's user and lines; a record may stand on every line of the file that is not blank."""
    for number, record in records(path, _SHAPE):
        user, lines, text = (record.get(key) for key in ("user", "lines", "text"))
        if not isinstance(user, str):
            raise fault(path, f"line {number} has no user in quotes; {_SHAPE}")
        if lines is None and isinstance(text, str):
            lines = text.splitlines()
        if not isinstance(lines, list) or not all(isinstance(each, str) for each in lines):
            raise fault(path, f"line {number} has no list of lines in quotes, nor a text; {_SHAPE}")
        yield user, lines
