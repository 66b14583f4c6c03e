"""From texts to rows of token ids: a pre-trained encoder's tokenizer, or the words of the training texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

from torch import Tensor

from potluck.core import Batch, Examples, InputError, SettingsError
from potluck.data.bytepairs import VOCABULARY as PAIRS
from potluck.data.bytepairs import BytePairs
from potluck.data.settings import Data
from potluck.data.source import Source
from potluck.data.text import END, RESERVED, UNKNOWN, split
from potluck.data.wordpiece import VOCABULARY, WordPiece


class Tokenizer(Protocol):
    """Cuts texts into tokens that have numbers."""

    @property
    def size(self) -> int:
        """How many tokens there are."""

    @property
    def pad(self) -> int:
        """What fills a row up."""

    @property
    def unknown(self) -> int: ...

    @property
    def first(self) -> tuple[int, ...]:
        """What stands before a text, where a network reads what it makes of the whole."""

    @property
    def between(self) -> tuple[int, ...]:
        """What stands between two texts; the first of them also ends a row."""

    def __call__(self, text: str) -> list[int]: ...


@dataclass(frozen=True, eq=False)
class Words:
    """The most frequent words of some texts (or characters), as data.tokens says; ends stand around a text."""

    known: dict[str, int]
    tokens: str
    pad: int = 0
    unknown: int = UNKNOWN
    first: tuple[int, ...] = (END,)
    between: tuple[int, ...] = (END,)

    @property
    def size(self) -> int:
        return len(RESERVED) + len(self.known)

    def __call__(self, text: str) -> list[int]:
        return [self.known.get(token, self.unknown) for token in split(text, self.tokens)]


@dataclass(frozen=True)
class Trim:
    """Cuts a batch to its longest row: padding in common is not computed with."""

    pad: int
    steady: ClassVar[None] = None
    """What stands in for this where every batch must have one shape: nothing, for networks do not look at padding."""

    def __call__(self, batch: dict[str, Tensor]) -> Batch:
        x = batch["x"]
        longest = max(1, int((x != self.pad).sum(1).max())) if len(x) else x.shape[1]
        return {name: column[:, :longest] if column.dim() > 1 else column for name, column in batch.items()}


def trimmed(source: Source, cut: Tokenizer, sep: int = -1) -> Source:
    """The source with what a network must know of its tokens, and batches no longer than their longest row."""
    test = None if source.test is None else Examples(source.test.columns, prepare=Trim(cut.pad))
    train = Examples(source.train.columns, prepare=Trim(cut.pad))
    return replace(source, train=train, test=test, tokens=cut.size, pad=cut.pad, sep=sep)


def tokenizer(data: Data, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer of the folder data.tokenizer, or the words of these texts, the most frequent first."""
    if not data.tokenizer:
        counts = Counter(token for text in texts for token in split(text, data.tokens))
        words = sorted(counts, key=lambda token: (-counts[token], token))[: data.vocabulary]
        return Words({word: place for place, word in enumerate(words, len(RESERVED))}, data.tokens)
    folder = Path(data.tokenizer)
    if not folder.is_dir():
        raise InputError(
            f"data.tokenizer = '{data.tokenizer}' is no folder; name one with {VOCABULARY}, or leave it out"
        )
    return BytePairs(folder) if (folder / PAIRS).is_file() else WordPiece(folder)


def packed(cut: Tokenizer, length: int, one: Sequence[int], two: Sequence[int] | None = None) -> list[int]:
    """A row of one text or two, with what stands around them. From the longer text its end is cut off, if need be."""
    pair = two is not None
    room = length - len(cut.first) - 1 - len(cut.between) * pair
    if room < 1 + pair:
        raise SettingsError(f"data.length = {length} leaves no room for a text; raise it")
    if two is None:
        return [*cut.first, *one[:room], cut.between[0]]
    kept = min(len(one), max(room - len(two), -(-room // 2)))
    return [*cut.first, *one[:kept], *cut.between, *two[: room - kept], cut.between[0]]
