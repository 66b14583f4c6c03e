"""Checks that what a checkpoint or a memory holds is what a run saves. Its checksum says only that it is unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from potluck.core import MessageError, Model, Newborn, unpack
from potluck.ledger import CheckpointError
from potluck.run.accounting import Progress


def read_checkpoint(
    folder: Path, round: int, payload: bytes, fresh: Any
) -> tuple[Progress, Mapping[str, Any], dict[str, Any] | None]:
    """The progress, the fields of the method's state and the last scores in a checkpoint of this round.

    `fresh` is the state before the first round, with which the fields are compared.
    """
    try:
        found = _mapping(unpack(payload), "it")
        progress = _progress(found.get("progress"), round)
        fields = _mapping(found.get("state"), "'state'")
        _compare(dict(vars(fresh)), fields)
        scores = found["scores"]
        return progress, fields, None if scores is None else dict(_mapping(scores, "'scores'"))
    except (MessageError, KeyError, TypeError, ValueError, RecursionError) as fault:
        raise CheckpointError(
            f"{folder}: the checkpoint of round {round} is unchanged, but holds no state of this run "
            f"({_brief(fault)}). Restore it from a backup, or start a new run with another --out."
        ) from None


def read_memory(client: str, payload: bytes) -> Mapping[str, Any]:
    """The memory of a client, from its bytes on the disk."""
    try:
        return _mapping(unpack(payload), "it")
    except (MessageError, TypeError, RecursionError) as fault:
        raise CheckpointError(
            f"the memory of client {client!a} is unchanged, but holds no memory ({_brief(fault)}). "
            "Restore memory/ from a backup, or start a new run with another --out."
        ) from None


def _progress(found: object, round: int) -> Progress:
    """The progress of a checkpoint; what is a mapping at the beginning must be one."""
    progress, empty = Progress(**_mapping(found, "'progress'")), Progress()
    for field in dataclasses.fields(Progress):
        if isinstance(getattr(empty, field.name), Mapping):
            _mapping(getattr(progress, field.name), f"'{field.name}'")
    if progress.done != round:
        raise ValueError(f"it says that {progress.done} rounds are done")
    return progress


def _compare(fresh: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises an error unless the fields have the names of a fresh state, and its models their tensors."""
    if fresh.keys() != found.keys():
        raise ValueError(f"its state has the fields {sorted(found)}, not {sorted(fresh)}")
    for name, before in fresh.items():
        after = found[name]
        for kind in (Model, Tensor, Mapping):
            if isinstance(before, kind) and not isinstance(after, kind):
                raise TypeError(f"'{name}' is no {kind.__name__.lower()}")
        if isinstance(before, Model) and before.spec == after.spec and _shapes(before) != _shapes(after):
            raise ValueError(f"'{name}' has other tensors than its network")


def _shapes(model: Model) -> dict[str, tuple[int, ...]] | None:
    if isinstance(model, Newborn):
        return None
    return {name: tuple(tensor.shape) for name, tensor in model.arrays.items()}


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is no mapping")
    return value


def _brief(fault: BaseException) -> str:
    text = f"{fault.args[0]!a} is missing" if isinstance(fault, KeyError) else str(fault)
    return " ".join(text.split())[:200]
