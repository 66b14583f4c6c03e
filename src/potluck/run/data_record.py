"""What a run's manifest says of its data: enough to build its networks again, and to know its rows again."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from potluck.core import InputError
from potluck.data import Source
from potluck.ledger import CheckpointError

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

    def plain(self) -> dict[str, Any]:
        """The record as plain values, for JSON."""
        return dataclasses.asdict(self) | {"shape": list(self.shape)}

    def __str__(self) -> str:
        return f"{self.name}: {self.rows} rows of {'x'.join(map(str, self.shape))}, {self.classes} classes"


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
    return InputError(f"{folder} ran on data of your own ({record}). Hand over the same: {call}, source=...).")


def refuse_other_data(record: DataRecord, source: Source, public: Source | None, folder: Path) -> None:
    """Refuses data that is not the run's, by its fingerprint."""
    if fingerprint(source, public) == record.sha256:
        return
    where = f" at {record.path}" if record.path else ""
    raise InputError(
        f"data '{source.name}'{where} is not the data of this run ({record}): {folder} began with other rows. "
        "Give it the same rows, or start a new run."
    )
