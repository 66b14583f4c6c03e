"""Exports the model that a node uses, at the node: its memory never leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from potluck.core import STORED, InputError, MessageError, Model, SettingsError, display_name, unpack_array
from potluck.engines.remote.messages import mark_of
from potluck.federation.charter import Charter, blank_source
from potluck.federation.node_folder import NodeFolder, Served
from potluck.models import ModelZoo, save
from potluck.run.assemble import networks


def export_node(folder: Path, to: Path) -> Model:
    """Writes the model that this node would use: the one that the server last sent to be scored, completed with the
    node's memory of that time. The server is not asked."""
    kept = NodeFolder(folder)
    served = kept.served()
    if served is None:
        raise InputError(
            f"{folder}: no model has come yet. The server sends one after rounds that are scored (score.every, "
            "score.clients); the models of tiers can be exported at the server."
        )
    known = kept.agreement(served.charter)
    if not known:
        raise InputError(f"{folder}: the charter {served.charter[:12]} of its last model is missing or damaged.")
    charter = Charter(known["charter"])
    memory = kept.memory(charter).load(served.receipt, served.tier) if served.receipt else {}
    if memory is None:
        raise InputError(f"{folder}: its memory of round {served.round} is missing or damaged; it comes with rounds.")
    experiment, method = charter.experiment, charter.method
    zoo = ModelZoo(*networks(experiment, blank_source(experiment.nodes), 1))
    model: Model | None = method.complete(_served_model(kept, served), memory, tuple(served.labels), zoo)
    if model is None or not zoo.shapes(model.spec).keys() <= model.arrays.keys():
        raise InputError(f"{folder}: {display_name(method)} has no model for this node; it has not trained yet.")
    save(to, model)
    return model


def refuse_choices(
    tier: str | None, client: str | None, server: bool, format: str = "safetensors", train: bool = False
) -> None:
    """A node has one model, so there is nothing to choose."""
    if format != "safetensors":
        raise SettingsError(f"--format {format} is for run folders of the server; a node writes safetensors.")
    given = {"--tier": tier, "--client": client, "--server": server or None, "--train": train or None}
    if odd := [name for name, value in given.items() if value is not None]:
        raise SettingsError(f"{odd[0]} is for run folders of the server; a node has one model.")


def _served_model(kept: NodeFolder, served: Served) -> Model | None:
    if not served.model:
        return None
    part = np.frombuffer(kept.served_part(served), np.uint8)
    try:
        found = unpack_array(part, limits=STORED) if mark_of(part) == served.model else None
    except MessageError:
        found = None
    if not isinstance(found, Model):
        raise InputError(f"{kept.path}: the model that the server sent is damaged; the next scored round brings it.")
    return found
