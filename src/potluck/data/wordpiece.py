"""WordPiece, the tokenizer of BERT.

Devlin et al., https://arxiv.org/abs/1810.04805, and Wu et al., https://arxiv.org/abs/1609.08144. Control characters are
removed; Chinese characters and punctuation marks are words of their own; upper case and accents are removed if the
vocabulary is in lower case. A word is cut into the longest known piece from its start, again and again; if no piece is
known, the whole word is unknown.
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

from potluck.core import InputError

VOCABULARY, CONFIG = "vocab.txt", "tokenizer_config.json"
LONGEST = 100
"""The most characters of a word; a longer word is unknown."""
_HAN = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WordPieceTokenizer:
    """The tokenizer of a folder in Hugging Face's layout: vocab.txt, and what tokenizer_config.json says of case."""

    def __init__(self, folder: Path) -> None:
        self.known = _vocabulary(folder / VOCABULARY)
        config = _config(folder / CONFIG)
        self.lower = config.get("do_lower_case", True) is True
        plain = config.get("strip_accents")
        self.plain = self.lower if plain is None else plain is True
        self.size = max(self.known.values()) + 1
        self.pad, self.unknown = self.known["[PAD]"], self.known["[UNK]"]
        self.start, self.separator = (self.known["[CLS]"],), (self.known["[SEP]"],)
        self._known_words: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        return [piece for word in self.words(text) for piece in self.pieces(word)]

    def words(self, text: str) -> list[str]:
        """The words and punctuation marks of a text, as the vocabulary would write them."""
        found = []
        for word in "".join(map(_normalise, text)).split():
            word = word.lower() if self.lower else word
            if self.plain:
                word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
            found += "".join(f" {c} " if _is_punctuation(c) else c for c in word).split()
        return found

    def pieces(self, word: str) -> list[int]:
        """The token ids of a word, kept for the next time."""
        if word not in self._known_words:
            self._known_words[word] = self._cut_word(word)
        return self._known_words[word]

    def _cut_word(self, word: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(word) <= LONGEST:
            ahead = (f"{'##' * (start > 0)}{word[start:end]}" for end in range(len(word), start, -1))
            piece = next((piece for piece in ahead if piece in self.known), None)
            if piece is None:
                return [self.unknown]
            found.append(self.known[piece])
            start += len(piece) - 2 * (start > 0)
        return found or [self.unknown]


def _normalise(character: str) -> str:
    """The character with blanks around it if it is Chinese; a blank for any white space; nothing for a control."""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or unicodedata.category(character)[0] == "C":
        return ""
    return f" {character} " if any(low <= ord(character) <= high for low, high in _HAN) else character


def _is_punctuation(character: str) -> bool:
    """Whether this is a punctuation mark; every ASCII character that is not a letter or digit counts as one."""
    ascii_mark = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return ascii_mark or unicodedata.category(character)[0] == "P"


def _vocabulary(path: Path) -> dict[str, int]:
    """The id of each token: the number of its line."""
    if not path.is_file():
        raise InputError(f"data.tokenizer: {path.parent} holds no {VOCABULARY}; name a folder with a BERT's tokenizer")
    try:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; download it again") from None
    known = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]"):
        if token not in known:
            raise InputError(f"{path} has no token {token}; name a folder with a BERT's tokenizer in data.tokenizer")
    return known


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes()) if path.is_file() else {}
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; download it again") from None
    return found if isinstance(found, dict) else {}
