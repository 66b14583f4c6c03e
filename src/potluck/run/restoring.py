"""Checks that what a checkpoint or a memory holds is what a run saves. Its checksum says only that it is unchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from potluck.core import STORED, MessageError, Model, Newborn, unpack
from potluck.ledger import CheckpointError
from potluck.run.accounting import Progress

T = TypeVar("T")
_RESTORE = "Restore it from a backup, or start a new run with another --out."


class Saved(NamedTuple):
    """What a checkpoint holds."""

    progress: Progress
    state: Mapping[str, Any]
    """The fields of the method's state."""
    scores: dict[str, Any] | None


def read_checkpoint(folder: Path, round: int, payload: bytes) -> Saved:
    """What the payload of the checkpoint of this round holds."""
    try:
        found = _mapping(unpack(payload, STORED), "it")
        progress = _progress(found.get("progress"), round)
        scores = found["scores"]
        if scores is not None:
            scores = dict(_mapping(scores, "'scores'"))
        return Saved(progress, _mapping(found.get("state"), "'state'"), scores)
    except (MessageError, KeyError, TypeError, ValueError, RecursionError) as fault:
        raise CheckpointError(
            f"{folder}: the checkpoint of round {round} is unchanged, but holds no state of a run ({_brief(fault)}). "
            f"{_RESTORE}"
        ) from None


def restore_state(fresh: T, fields: Mapping[str, Any]) -> T:
    """A method's state with the fields of a checkpoint, in place of those that it has before the first round."""
    try:
        _compare(dict(vars(fresh)), fields)
    except (TypeError, ValueError) as fault:
        raise CheckpointError(
            f"the newest checkpoint is unchanged, but holds no state of this method: {_brief(fault)}. {_RESTORE}"
        ) from None
    restored: T = dataclasses.replace(fresh, **fields)  # type: ignore[type-var]
    return restored


def read_memory(client: str, payload: bytes) -> Mapping[str, Any]:
    """The memory of a client, from its bytes on the disk."""
    try:
        return _mapping(unpack(payload, STORED), "it")
    except (MessageError, TypeError, RecursionError) as fault:
        raise CheckpointError(
            f"the memory of client {client!a} is unchanged, but holds no memory ({_brief(fault)}). {_RESTORE}"
        ) from None


def _progress(found: object, round: int) -> Progress:
    """The progress of a checkpoint; what is a mapping or a list at the beginning must be one."""
    progress, empty = Progress(**_mapping(found, "'progress'")), Progress()
    for field in dataclasses.fields(Progress):
        kind = type(getattr(empty, field.name))
        if kind in (dict, list) and type(getattr(progress, field.name)) is not kind:
            raise TypeError(f"'{field.name}' is no {kind.__name__}")
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
