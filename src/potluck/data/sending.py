"""A data set as a message, to send it to other machines."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from potluck.core import STORED, Bytes, Examples, Prepare, SettingsError, pack_array, unpack_array
from potluck.data.source import InputScaling, Source
from potluck.data.tokenizer import TrimPadding

PREPARES: dict[str, type[InputScaling | TrimPadding]] = {"scaling": InputScaling, "padding": TrimPadding}
PLAIN = ("name", "classes", "shape", "names", "tokens", "pad", "sep", "tagged")


def pack_sources(*sources: Source | None) -> Bytes:
    """Data sets as one message."""
    return pack_array([None if source is None else _fields(source) for source in sources])


def unpack_sources(data: Bytes) -> list[Source | None]:
    """The data sets of a message. Their columns are views of it, so processes of one machine can share them."""
    found = unpack_array(data, views=True, limits=STORED)
    return [None if fields is None else _source(fields) for fields in found]


def _fields(source: Source) -> dict[str, Any]:
    plain = {name: getattr(source, name) for name in PLAIN}
    test = None if source.test is None else _examples_fields(source.test, source.name)
    return {**plain, "train": _examples_fields(source.train, source.name), "test": test, "users": source.users}


def _examples_fields(examples: Examples, name: str) -> dict[str, Any]:
    if not all(isinstance(column, Tensor) for column in examples.columns.values()):
        raise SettingsError(
            f"data '{name}' stays in its files and is not sent; set data.path to a folder that all machines see."
        )
    columns = {column: examples.column(column) for column in examples.columns}
    return {"columns": columns, "prepare": _prepare_fields(examples.prepare, name)}


def _prepare_fields(prepare: Prepare | None, name: str) -> dict[str, Any] | None:
    if prepare is None:
        return None
    for kind, known in PREPARES.items():
        if isinstance(prepare, known):
            return {"kind": kind, **asdict(prepare)}
    raise SettingsError(f"data '{name}' prepares its inputs by {type(prepare).__name__}, which cannot be sent.")


def _source(fields: dict[str, Any]) -> Source:
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value := fields[name], list) else value for name in PLAIN}
    test = None if fields["test"] is None else _examples(fields["test"])
    return Source(train=_examples(fields["train"]), test=test, users=fields["users"], **plain)


def _examples(fields: dict[str, Any]) -> Examples:
    told = fields["prepare"]
    if told is None:
        return Examples(fields["columns"])
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in told.items() if name != "kind"
    }
    prepare: Any = PREPARES[told["kind"]](**values)
    return Examples(fields["columns"], prepare=prepare)
