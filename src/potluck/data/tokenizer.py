"""From texts to rows of token ids: with a pre-trained tokenizer, or with the words of the training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor

from potluck.core import Batch, Examples, InputError, SettingsError
from potluck.data.settings import Data
from potluck.data.source import Source
from potluck.data.subwords import WORD_PIECES, SubwordTokenizer, subword_tokenizer
from potluck.data.text import END, RESERVED, UNKNOWN, tokenize


class Tokenizer(Protocol):
    """Turns a text into token ids."""

    @property
    def size(self) -> int:
        """The size of the vocabulary."""

    @property
    def pad(self) -> int:
        """The padding token."""

    @property
    def unknown(self) -> int:
        """The token for what the vocabulary lacks."""

    @property
    def start(self) -> tuple[int, ...]:
        """The tokens before a text: BERT's [CLS], from which a classifier reads its features."""

    @property
    def separator(self) -> tuple[int, ...]:
        """The tokens between two texts; the first of them also ends a row."""

    def __call__(self, text: str) -> list[int]: ...


@dataclass(frozen=True, eq=False)
class WordTokenizer:
    """A vocabulary of the most frequent words or characters of some texts; <end> stands before and after a text."""

    known: dict[str, int]
    tokens: str
    pad: int = 0
    unknown: int = UNKNOWN
    start: tuple[int, ...] = (END,)
    separator: tuple[int, ...] = (END,)

    @property
    def size(self) -> int:
        return len(RESERVED) + len(self.known)

    def __call__(self, text: str) -> list[int]:
        return [self.known.get(token, self.unknown) for token in tokenize(text, self.tokens)]


def plain_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer as plain values, for JSON: its kind, the id of each known token, and the special tokens."""
    if not isinstance(tokenizer, WordTokenizer | SubwordTokenizer):
        raise TypeError(f"a {type(tokenizer).__name__} cannot be written as plain values")
    how = tokenizer.how if isinstance(tokenizer, SubwordTokenizer) else {"kind": tokenizer.tokens}
    told = {"kind": how["kind"], "known": tokenizer.known, **how, "pad": tokenizer.pad, "unknown": tokenizer.unknown}
    return {**told, "start": list(tokenizer.start), "separator": list(tokenizer.separator)}


@dataclass(frozen=True)
class TrimPadding:
    """Cuts a batch to its longest row, so that no time is spent on padding that all rows share."""

    pad: int
    steady: ClassVar[None] = None
    """What replaces this where every batch must have the same shape: nothing, because networks mask padding."""

    def lengths(self, x: Tensor) -> Tensor:
        """How many tokens each row has."""
        return (x != self.pad).sum(1)

    def __call__(self, batch: dict[str, Tensor]) -> Batch:
        x = batch["x"]
        longest = max(1, int(self.lengths(x).max())) if len(x) else x.shape[1]
        return {name: column[:, :longest] if column.dim() > 1 else column for name, column in batch.items()}


def with_tokenizer(source: Source, tokenizer: Tokenizer, sep: int = -1) -> Source:
    """The source with vocabulary size and padding token set, and with batches cut to their longest row."""
    test = None if source.test is None else Examples(source.test.columns, prepare=TrimPadding(tokenizer.pad))
    train = Examples(source.train.columns, prepare=TrimPadding(tokenizer.pad))
    return replace(source, train=train, test=test, tokens=tokenizer.size, pad=tokenizer.pad, sep=sep)


def load_tokenizer(data: Data, texts: Iterable[str]) -> Tokenizer:
    """Loads the tokenizer in the folder data.tokenizer, or makes one of the most frequent words of these texts."""
    if not data.tokenizer:
        counts = Counter(token for text in texts for token in tokenize(text, data.tokens))
        words = sorted(counts, key=lambda token: (-counts[token], token))[: data.vocabulary]
        return WordTokenizer({word: place for place, word in enumerate(words, len(RESERVED))}, data.tokens)
    folder = Path(data.tokenizer)
    if not folder.is_dir():
        raise InputError(
            f"data.tokenizer = '{data.tokenizer}' is not a folder; name one with {WORD_PIECES}, or leave it out"
        )
    return subword_tokenizer(folder)


def encode_row(tokenizer: Tokenizer, length: int, one: Sequence[int], two: Sequence[int] | None = None) -> list[int]:
    """The token ids of a row: one text or two, with separators. If they are too long, the longer one loses its end."""
    pair = two is not None
    room = length - len(tokenizer.start) - 1 - len(tokenizer.separator) * pair
    if room < 1 + pair:
        raise SettingsError(f"data.length = {length} leaves no room for a text; raise it")
    if two is None:
        return [*tokenizer.start, *one[:room], tokenizer.separator[0]]
    kept = min(len(one), max(room - len(two), -(-room // 2)))
    return [*tokenizer.start, *one[:kept], *tokenizer.separator, *two[: room - kept], tokenizer.separator[0]]
