"""Pre-trained tokenizers in Hugging Face's layout, run by the library `tokenizers` (extra `text`).

WordPiece, of BERT (Devlin et al., https://arxiv.org/abs/1810.04805): vocab.txt, and what tokenizer_config.json says of
case. Byte pairs, of GPT-2 and RoBERTa (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019):
vocab.json and merges.txt. Files are read and checked here; the library gets tokens, never a path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from potluck.core import InputError, ResourceError

WORD_PIECES, CONFIG = "vocab.txt", "tokenizer_config.json"
BYTE_PAIRS, MERGES = "vocab.json", "merges.txt"

LARGEST = 64 << 20
"""The most bytes of a file; the largest vocabularies in use take some five million."""

MOST_TOKENS = 1 << 24
"""The most tokens; a higher number is a mistake, and would fill the memory with embeddings."""

LONGEST = 100
"""The most characters of a word that is cut into pieces; a longer word is unknown."""


@dataclass(frozen=True, eq=False)
class SubwordTokenizer:
    """A vocabulary of words and parts of words; what is not in it is cut into parts that are."""

    known: Mapping[str, int]
    how: Mapping[str, Any]
    """How texts are cut: the kind and its options, as plain values."""
    pad: int
    unknown: int
    start: tuple[int, ...]
    separator: tuple[int, ...]
    folder: Path

    @property
    def size(self) -> int:
        return max(self.known.values()) + 1

    def __call__(self, text: str) -> list[int]:
        return self._cut(text)

    @cached_property
    def _cut(self) -> Callable[[str], list[int]]:
        try:
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
        except ModuleNotFoundError:
            raise ResourceError("data.tokenizer needs the library tokenizers: pip install 'potluck[text]'.") from None
        known, how = dict(self.known), self.how
        try:
            if how["kind"] == "wordpiece":
                cutter = Tokenizer(models.WordPiece(known, unk_token="[UNK]", max_input_chars_per_word=LONGEST))
                cutter.normalizer = normalizers.BertNormalizer(lowercase=how["lower"], strip_accents=how["plain"])
                cutter.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            else:
                cutter = Tokenizer(models.BPE(known, [(a, b) for a, b in how["merges"]], unk_token="<unk>"))
                cutter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        except Exception as error:  # the library has no class of its own for what is wrong with a vocabulary
            what = (str(error).splitlines() or [""])[0][:120]
            raise InputError(f"{self.folder}: the library tokenizers refuses it ({what}); download it again") from None
        # The library takes no half of a surrogate pair, which JSON can hold: WordPiece drops it, bytes have a "?".
        errors = "ignore" if how["kind"] == "wordpiece" else "replace"

        def cut(text: str) -> list[int]:
            return list(cutter.encode(text.encode("utf-8", errors).decode("utf-8"), add_special_tokens=False).ids)

        return cut


def subword_tokenizer(folder: Path) -> SubwordTokenizer:
    """The tokenizer in a folder: byte pairs if there is a vocab.json, else WordPiece."""
    return _byte_pairs(folder) if (folder / BYTE_PAIRS).is_file() else _word_pieces(folder)


def _word_pieces(folder: Path) -> SubwordTokenizer:
    path = folder / WORD_PIECES
    if not path.is_file():
        raise InputError(f"data.tokenizer: {folder} holds no {WORD_PIECES}; name a folder with a BERT's tokenizer")
    known: dict[str, int] = {}
    for number, line in enumerate(_text(path).removesuffix("\n").split("\n")):
        token = line.rstrip("\r")
        if token and token in known:
            raise InputError(f"{path}: lines {known[token] + 1} and {number + 1} are the same token; download it again")
        known[token] = number
    _check_tokens(path, known, ("[PAD]", "[UNK]", "[CLS]", "[SEP]"), "BERT")
    config = _json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    config = config if isinstance(config, dict) else {}
    lower, plain = config.get("do_lower_case", True) is True, config.get("strip_accents")
    how = {"kind": "wordpiece", "lower": lower, "plain": lower if plain is None else plain is True}
    start, separator = (known["[CLS]"],), (known["[SEP]"],)
    return SubwordTokenizer(known, how, known["[PAD]"], known["[UNK]"], start, separator, folder)


def _byte_pairs(folder: Path) -> SubwordTokenizer:
    path, merges = folder / BYTE_PAIRS, folder / MERGES
    known = _json(path)
    if not isinstance(known, dict) or not all(type(place) is int and place >= 0 for place in known.values()):
        raise InputError(f"{path} holds no numbered tokens; download it again")
    _check_tokens(path, known, ("<s>", "<pad>", "</s>", "<unk>"), "RoBERTa")
    if not merges.is_file():
        raise InputError(f"data.tokenizer: {folder} holds {BYTE_PAIRS} but no {MERGES}; download it too")
    pairs = [line.split() for line in _text(merges).split("\n") if not line.startswith("#version")]
    how = {"kind": "byte_pairs", "merges": [pair for pair in pairs if len(pair) == 2]}
    start, separator = (known["<s>"],), (known["</s>"],) * 2
    return SubwordTokenizer(known, how, known["<pad>"], known["<unk>"], start, separator, folder)


def _check_tokens(path: Path, known: Mapping[str, int], needed: tuple[str, ...], encoder: str) -> None:
    for token in needed:
        if token not in known:
            raise InputError(
                f"{path} has no token {token}; name a folder with a {encoder}'s tokenizer in data.tokenizer"
            )
    if len(set(known.values())) < len(known):
        raise InputError(f"{path}: two tokens have the same number; download it again")
    if (last := max(known.values())) >= MOST_TOKENS:
        raise InputError(f"{path}: a token has the number {last}; {MOST_TOKENS:,} tokens are the most")


def _text(path: Path) -> str:
    try:
        return _body(path).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; download it again") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(_body(path))
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not JSON; download it again") from None


def _body(path: Path) -> bytes:
    with path.open("rb") as file:
        body = file.read(LARGEST + 1)
    if len(body) > LARGEST:
        raise InputError(f"{path} is larger than {LARGEST:,} bytes, and no vocabulary is; download it again")
    return body
