"""What a run's manifest says of its data: enough to build its networks again, and to know its rows again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from potluck.core import InputError
from potluck.data import InputScaling, Source
from potluck.data.tokenizer import TrimPadding
from potluck.ledger import VOCABULARY, CheckpointError, LedgerError, read_regular

Count = Annotated[int, Field(ge=0, le=10**15)]


@dataclass(frozen=True)
class DataRecord:
    """The data of a run."""

    own: bool
    """Whether it was handed over in Python (`source=`) and not named by the settings."""
    name: str
    path: str
    problem: str
    rows: Count
    test_rows: Count
    """Rows of the source's own test set."""
    shape: tuple[Count, ...]
    """The shape of one input."""
    classes: Count
    """The number of classes; 0: numbers to regress on."""
    tokens: Count
    pad: int
    sep: int
    clients: Count
    samples: Count
    """Mean number of training rows per client, rounded up."""
    public: Count
    """Public rows that the server holds."""
    sha256: str
    """Over all rows, those of the public data set too if it is another."""
    names: tuple[str, ...] = ()
    """The names of the classes, if known; a vocabulary of tokens to predict is in the file."""
    form: Literal["", "array", "picture", "table", "text", "tags", "stream"] = ""
    """What files the inputs came from, as `InputForm.kind`; empty: not known."""
    columns: tuple[str, ...] = ()
    """The columns of those files that hold the inputs."""
    dtype: Literal["", "uint8", "int64", "float32"] = ""
    """The type of inputs before they are scaled; empty: not known."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """How inputs are scaled, ``(x - mean) / std`` per channel; null: they are not."""
    vocabulary: str = ""
    """SHA-256 of ``vocabulary.json`` in the run folder, which says how texts become tokens; empty: no texts."""

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std go together")
        if (
            self.mean is not None
            and self.std is not None
            and not len(self.mean) == len(self.std) in (1, *self.shape[:1])
        ):
            raise ValueError("mean and std have one value, or one for each channel")

    def plain(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.name}: {self.rows} rows of {'x'.join(map(str, self.shape))}, {self.classes} classes"


TOKENIZER_KEYS = {"kind", "known", "pad", "unknown", "start", "separator"}
INPUT_FACTS = ("names", "form", "columns", "dtype", "mean", "std", "vocabulary")
"""The fields of a record that say how inputs are read."""


def input_facts(source: Source) -> dict[str, Any]:
    """What the record says of how inputs are read, for models that leave the run; of other data sets nothing."""
    form, prepare, column = source.form, source.train.prepare, source.train.columns.get("x")
    if form is None or column is None or not isinstance(prepare, InputScaling | TrimPadding | None):
        return {"names": source.names}
    scaled = {"mean": prepare.mean, "std": prepare.std} if isinstance(prepare, InputScaling) else {}
    text = vocabulary_text(source)
    return {
        "names": () if form.kind == "stream" else source.names,
        "form": form.kind,
        "columns": form.columns,
        "dtype": str(column.dtype).removeprefix("torch."),
        "vocabulary": hashlib.sha256(text).hexdigest() if text else "",
        **scaled,
    }


def vocabulary_text(source: Source) -> bytes:
    """What ``vocabulary.json`` holds: how texts become tokens; empty if the inputs are no texts."""
    if source.form is None or source.form.tokenizer is None:
        return b""
    return json.dumps(source.form.tokenizer, separators=(",", ":")).encode() + b"\n"


def read_vocabulary(record: DataRecord, folder: Path) -> dict[str, Any] | None:
    """How texts become tokens, from a run folder; None if the inputs are no texts, or if the file is gone or other."""
    if not record.vocabulary:
        return None
    try:
        text = read_regular(folder / VOCABULARY)
        found = json.loads(text)
    except (OSError, LedgerError, ValueError, RecursionError):
        return None
    complete = isinstance(found, dict) and found.keys() >= TOKENIZER_KEYS and isinstance(found["known"], dict)
    return found if complete and hashlib.sha256(text).hexdigest() == record.vocabulary else None


def fingerprint(source: Source, public: Source | None) -> str:
    """SHA-256 over the rows of a run: those of its data, and of another data set for public rows."""
    if public is None:
        return source.fingerprint
    return hashlib.sha256(f"{source.fingerprint} {public.fingerprint}".encode()).hexdigest()


def read(manifest: Mapping[str, Any], folder: Path) -> DataRecord | None:
    """The record in a manifest; None in those from before there was one."""
    if "data" not in manifest:
        return None
    try:
        return TypeAdapter(DataRecord).validate_python(manifest["data"])
    except ValidationError:
        file = folder / "manifest.json"
        raise CheckpointError(
            f"{file} is damaged: what it says of the data makes no sense. Restore it from a backup."
        ) from None


def ask_for_source(record: DataRecord, folder: Path, call: str) -> InputError:
    """The error that asks for data that only its owner has; `call` is the function to hand it to."""
    return InputError(f"{folder} ran on data of your own ({record}). Hand over the same: {call}, data=...).")


def refuse_other_data(record: DataRecord, source: Source, public: Source | None, folder: Path) -> None:
    """Refuses data that is not the run's, by its fingerprint."""
    if fingerprint(source, public) == record.sha256:
        return
    where = f" at {record.path}" if record.path else ""
    raise InputError(
        f"data '{source.name}'{where} is not the data of this run ({record}): {folder} began with other rows. "
        "Give it the same rows, or start a new run."
    )
