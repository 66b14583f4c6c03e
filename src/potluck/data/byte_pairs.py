"""Byte-level byte-pair encoding, the tokenizer of GPT-2 and RoBERTa.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019. The bytes of a word are merged pair by
pair, in the order in which the vocabulary learned the pairs. A blank belongs to the word after it; no text is
unknown.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from potluck.core import InputError

VOCABULARY, MERGES = "vocab.json", "merges.txt"


class BytePairTokenizer:
    """The tokenizer of a folder in Hugging Face's layout: vocab.json and merges.txt."""

    def __init__(self, folder: Path) -> None:
        self.known = _vocabulary(folder / VOCABULARY)
        self.ranks = _merges(folder / MERGES)
        self.size = max(self.known.values()) + 1
        self.pad, self.unknown = self.known["<pad>"], self.known["<unk>"]
        self.start, self.separator = (self.known["<s>"],), (self.known["</s>"],) * 2
        self._cut: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        return [piece for word in _words().findall(text) for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[int]:
        """The token ids of a word, kept for the next time."""
        if word not in self._cut:
            letters = _letters()
            merged = self._merge_pairs([letters[byte] for byte in word.encode("utf-8", "replace")])
            self._cut[word] = [self.known.get(piece, self.unknown) for piece in merged]
        return self._cut[word]

    def _merge_pairs(self, pieces: list[str]) -> list[str]:
        while len(pieces) > 1:
            best = min(pairwise(pieces), key=lambda pair: self.ranks.get(pair, sys.maxsize))
            if best not in self.ranks:
                break
            merged, at = [], 0
            while at < len(pieces):
                here = at + 1 < len(pieces) and (pieces[at], pieces[at + 1]) == best
                merged.append("".join(best) if here else pieces[at])
                at += 1 + here
            pieces = merged
        return pieces


@lru_cache(maxsize=1)
def _letters() -> list[str]:
    """The character for each byte: itself if it is printable, else a character from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


@lru_cache(maxsize=1)
def _words() -> re.Pattern[str]:
    """The pattern of a word: an English ending; letters, digits or marks with the blank before them; other blanks."""
    every = map(chr, range(sys.maxunicode + 1))
    numbers = re.escape("".join(each for each in every if unicodedata.category(each) in ("Nl", "No")))
    kinds = rf" ?[^\W\d_{numbers}]+| ?[\d{numbers}]+| ?(?:[^\s\w]|_)+"
    return re.compile(rf"'s|'t|'re|'ve|'m|'ll|'d|{kinds}|\s+(?!\S)|\s+")


def _vocabulary(path: Path) -> dict[str, int]:
    try:
        found: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; download it again") from None
    if not isinstance(found, dict) or not all(type(place) is int and place >= 0 for place in found.values()):
        raise InputError(f"{path} holds no numbered tokens; download it again")
    for token in ("<s>", "<pad>", "</s>", "<unk>"):
        if token not in found:
            raise InputError(f"{path} has no token {token}; name a folder with a RoBERTa's tokenizer in data.tokenizer")
    return found


def _merges(path: Path) -> dict[tuple[str, str], int]:
    """The rank of each pair: lower ranks are merged first."""
    if not path.is_file():
        raise InputError(f"data.tokenizer: {path.parent} holds {VOCABULARY} but no {MERGES}; download it too")
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; download it again") from None
    pairs = (tuple(line.split()) for line in lines if not line.startswith("#version"))
    return {(pair[0], pair[1]): rank for rank, pair in enumerate(pair for pair in pairs if len(pair) == 2)}
