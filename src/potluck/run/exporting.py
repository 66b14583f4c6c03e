"""Exports a trained model from a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from potluck.core import STORED, Client, InputError, Model, SettingsError, display_name, unpack
from potluck.engines import Dispatcher, Serial
from potluck.ledger import CheckpointError, RunFolder
from potluck.models import save
from potluck.run.assemble import Setup, assemble
from potluck.run.session import settings_of, state_of


def export(
    folder: Path | str, to: Path | str, tier: str | None = None, client: str | None = None, server: bool = False
) -> Model:
    """Writes the current model of a tier, a client or the server as ``model.safetensors`` and ``model.json``."""
    if sum([tier is not None, client is not None, server]) > 1:
        raise SettingsError("--tier, --client and --server: name one of them.")
    with RunFolder.open(Path(folder)) as opened:
        found = opened.checkpoints.latest(lambda text: None)
        if found is None:
            raise CheckpointError(f"{folder} holds no checkpoint yet; let it finish a round first")
        setup = assemble(settings_of(opened))
        state = _state_to_score(setup, state_of(setup, unpack(found[1], STORED)["state"]), found[0] - 1)
        kept = opened.memories.read(client) if client else None
    if server:
        model = _server_model(setup, state)
    else:
        model = _client_model(setup, state, client, kept) if client else _tier_model(setup, state, tier)
    save(Path(to), model)
    return model


def _state_to_score(setup: Setup, state: Any, index: int) -> Any:
    """The state as it is scored, for example with the batch norm statistics that clients gather."""
    if index < 0:
        return state
    session = Dispatcher(Serial(setup.context), setup.context.method, setup.context.zoo).open(index)
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
    context = setup.context
    served: Model | None = context.method.serve(state, who, context.zoo)
    memory = unpack(kept[1]) if kept else {}
    whole: Model | None = context.method.complete(served, memory, context.datasets.shard(id).labels, context.zoo)
    if whole is None or _lacks_tensors(whole, setup):
        raise InputError(f"client {id} has no model of its own in this run; it never trained.")
    return whole


def _lacks_tensors(model: Model, setup: Setup) -> bool:
    """Whether tensors are missing because clients keep a part of the model, such as its head, private."""
    return not setup.context.zoo.shapes(model.spec).keys() <= model.arrays.keys()
