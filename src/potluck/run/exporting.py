"""Exports a trained model from a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.core import Client, InputError, Model, SettingsError, display_name
from potluck.data import Source
from potluck.engines import Dispatcher, Engine, Serial
from potluck.ledger import CheckpointError, RunFolder
from potluck.models import save
from potluck.run import data_record
from potluck.run.assemble import NeedsData, NoEngine, Setup, assemble, assemble_without_data
from potluck.run.data_record import DataRecord
from potluck.run.restoring import read_checkpoint, read_memory
from potluck.run.session import settings_of, state_of


def export(
    folder: Path | str,
    to: Path | str,
    tier: str | None = None,
    client: str | None = None,
    server: bool = False,
    *,
    source: Source | None = None,
    method: Any = None,
) -> Model:
    """Writes the current model of a tier, a client or the server as ``model.safetensors`` and ``model.json``.

    The manifest says what the data was, so most exports read none. If the export needs data of your own, or a method
    that was an object, an error asks for `source` or `method`.
    """
    if sum([tier is not None, client is not None, server]) > 1:
        raise SettingsError("--tier, --client and --server: name one of them.")
    with RunFolder.open(Path(folder)) as opened:
        found = opened.latest(lambda text: None)
        if found is None:
            raise CheckpointError(f"{folder} holds no checkpoint yet; let it finish a round first")
        if client is not None and "charter" in opened.manifest():
            raise InputError(
                f"--client {client}: what a node remembers is at the node. There: potluck export KIT --to {to}"
            )
        setup, state = _restore(opened, found, client is not None, source, method)
        kept = opened.memories.read(client, found[0]) if client else None
    if server:
        model = _server_model(setup, state)
    else:
        model = _client_model(setup, state, client, kept) if client else _tier_model(setup, state, tier)
    save(Path(to), model)
    return model


def _restore(
    opened: RunFolder, found: tuple[int, bytes], for_client: bool, source: Source | None, method: Any
) -> tuple[Setup, Any]:
    """The run as it was set up, without its data if that is not needed, and its state after the newest checkpoint."""
    experiment, told, path = settings_of(opened), opened.manifest(), opened.path
    record, fields, index = data_record.read(told, path), read_checkpoint(path, *found).state, found[0] - 1
    if record is not None and source is None and not for_client:
        setup = assemble_without_data(experiment, record, method)
        _refuse_other_method(setup, told, path)
        try:
            return setup, _state_to_score(setup, state_of(setup, fields), index, NoEngine())
        except NeedsData:
            if "charter" in told:
                raise InputError(
                    f"{path}: nodes complete the models of {display_name(setup.context.method)} with statistics of "
                    "their rows, and no node is asked here. Export at a node: potluck export KIT --to DIR"
                ) from None
    if record is not None and record.own and source is None:
        raise data_record.ask_for_source(record, path, f"potluck.run.export({str(path)!r}, ...")
    setup = assemble(experiment, source, method)
    _refuse_other_method(setup, told, path)
    _refuse_other_data(setup, record, told, path)
    return setup, _state_to_score(setup, state_of(setup, fields), index, Serial(setup.context))


def _refuse_other_method(setup: Setup, told: Mapping[str, Any], path: Path) -> None:
    """Refuses to take the method in the settings for another, which was handed over as an object."""
    label, name = str(told.get("label", "")), display_name(setup.context.method)
    if label and label.split(" (")[0] != name:
        raise SettingsError(
            f"{path}: its method was {label}, and its settings name {name}. "
            f"Hand it over in Python: potluck.run.export({str(path)!r}, ..., method=...)."
        )


def _refuse_other_data(setup: Setup, record: DataRecord | None, told: Mapping[str, Any], path: Path) -> None:
    if record is not None and setup.source is not None:
        data_record.refuse_other_data(record, setup.source, setup.public, path)
    elif told.get("classes", setup.classes) != setup.classes:  # a run of an older version, without a record
        raise InputError(
            f"{path} had {told['classes']} classes, and data '{setup.experiment.data.name}' has {setup.classes}. "
            f"Hand over its data in Python: potluck.run.export({str(path)!r}, ..., source=...)."
        )


def _state_to_score(setup: Setup, state: Any, index: int, engine: Engine) -> Any:
    """The state as it is scored, for example with the batch norm statistics that clients gather."""
    if index < 0:
        return state
    session = Dispatcher(engine, setup.context.method, setup.context.zoo).open(index)
    ready = setup.context.method.ready(state, setup.view(index, session))
    session.close()
    return ready


def _complete_model(setup: Setup, state: Any, who: Client) -> Model | None:
    """The model that this client would use now; None if the server does not have all of it."""
    model: Model | None = setup.context.method.serve(state, who, setup.context.zoo)
    return None if model is None or _lacks_tensors(model, setup) else model


def _server_model(setup: Setup, state: Any) -> Model:
    model = _complete_model(setup, state, setup.server)
    if model is None:
        raise InputError(f"{display_name(setup.context.method)} has no model of the server's own; try --client c0.")
    return model


def _tier_model(setup: Setup, state: Any, name: str | None) -> Model:
    tiers = {tier.name: tier for tier in setup.context.zoo.tiers}
    if name is not None and name not in tiers:
        raise SettingsError(f"--tier {name}: this run has the tiers {', '.join(tiers)}.")
    chosen = tiers[name] if name else setup.context.zoo.tiers[-1]
    model = _complete_model(setup, state, Client(f"any {chosen.name}", chosen))
    if model is None:
        kind, else_server = display_name(setup.context.method), _complete_model(setup, state, setup.server) is not None
        other = "--server" if else_server else "another tier"
        raise InputError(f"{kind} has no model for tier '{chosen.name}' on the server; try --client c0, or {other}.")
    return model


def _client_model(setup: Setup, state: Any, id: str, kept: tuple[int, bytes] | None) -> Model:
    try:
        who = setup.population.client(setup.population.index(id), 0)
    except ValueError as fault:
        raise SettingsError(f"--client {id}: {fault}.") from None
    if who.tier.absent:
        raise InputError(f"client {id} has no model: its tier '{who.tier.name}' is absent in this run.")
    context = setup.context
    served: Model | None = context.method.serve(state, who, context.zoo)
    memory = read_memory(id, kept[1]) if kept else {}
    whole: Model | None = context.method.complete(served, memory, context.datasets.shard(id).labels, context.zoo)
    if whole is None or _lacks_tensors(whole, setup):
        raise InputError(f"client {id} has no model of its own in this run; it never trained.")
    return whole


def _lacks_tensors(model: Model, setup: Setup) -> bool:
    """Whether tensors are missing because clients keep a part of the model, such as its head, private."""
    return not setup.context.zoo.shapes(model.spec).keys() <= model.arrays.keys()
