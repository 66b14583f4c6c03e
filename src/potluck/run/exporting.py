"""Exports a trained model from a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from potluck.core import Client, InputError, Model, Newborn, SettingsError, display_name, stream, suggestion
from potluck.data import Source
from potluck.engines import Dispatcher, Engine, Serial
from potluck.ledger import CheckpointError, RunFiles, RunFolder, read_run
from potluck.models import complete
from potluck.models.initialise import load_net
from potluck.run import data_record
from potluck.run.assemble import NeedsData, NoEngine, Setup, assemble, assemble_without_data
from potluck.run.data_record import DataRecord
from potluck.run.export_card import Kind, Written, card_of, known_data, sample_rows
from potluck.run.restoring import read_checkpoint, read_memory
from potluck.run.session import settings_of, state_of
from potluck.shipping import FORMATS, Figures, TrainingDiffers, figures, verify_device, write_bundle
from potluck.shipping.executorch import require_executorch
from potluck.shipping.formats import require_onnx

__all__ = ["Export", "TrainingDiffers", "export", "export_model", "live_model", "trained_model", "verify_device"]


@dataclass(frozen=True)
class Export:
    """A model that was written to a folder."""

    model: Model
    tiers: Mapping[str, Figures]
    """What each tier's network costs where it is used, and the written one if it is no tier's, by name."""
    written: str
    """The name of the written one among these."""
    notes: tuple[str, ...]
    """What to know of the folder, one line each."""


def export(
    folder: Path | str,
    to: Path | str,
    tier: str | None = None,
    client: str | None = None,
    server: bool = False,
    *,
    format: str = "safetensors",
    train: bool = False,
    source: Source | None = None,
    method: Any = None,
) -> Model:
    """Writes the current model of a tier, a client or the server into a folder that can be used without Potluck.

    `format` is "safetensors" (weights for `potluck.models.load`, and a graph of torch.export beside them), "pt2" (the
    graph alone), "onnx" or "executorch". The folder also holds scaling, class names, sample rows, a README and
    ``predict.py``. With `train`, the format executorch has a graph for training on devices too.

    The manifest says what the data was, so most exports read none. If the export needs data of your own, or a method
    that was an object, an error asks for `source` or `method`.
    """
    return export_model(
        folder, to, tier, client, server, format=format, train=train, source=source, method=method
    ).model


def export_model(
    folder: Path | str,
    to: Path | str,
    tier: str | None = None,
    client: str | None = None,
    server: bool = False,
    *,
    format: str = "safetensors",
    train: bool = False,
    source: Source | None = None,
    method: Any = None,
) -> Export:
    """As `export`; says also what networks cost, and what is missing in the folder."""
    check_format(format, train)
    found = _find(folder, tier, client, server, source, method, to)
    setup, model, written = found.setup, found.model, found.written
    known = known_data(setup, found.record, "charter" in found.files.manifest)
    card = card_of(found.files, written, setup, found.record, known)
    sample = sample_rows(model, card, known)
    net = live_model(model).cpu()
    name = written.name if written.kind == "tier" else written.title
    costs = _costs(setup, written, net, sample.inputs[:1])
    rows = setup.experiment.local.batch if train else 0
    notes = write_bundle(to, model, net, card, sample, costs[name], format, rows)
    return Export(model, costs, name, notes)


def trained_model(
    folder: Path | str,
    tier: str | None = None,
    client: str | None = None,
    server: bool = False,
    *,
    source: Source | None = None,
    method: Any = None,
    to: Path | str = "DIR",
) -> Model:
    """The current model of a tier, a client or the server, as `export` writes it; by default, of the largest tier."""
    return _find(folder, tier, client, server, source, method, to).model


def live_model(model: Model) -> nn.Module:
    """A model at rest as a network in evaluation mode, the same that `potluck.models.load` makes of an export."""
    return load_net(complete(model.spec), model.arrays).eval()


@dataclass(frozen=True)
class _Found:
    """A model of a run, and what is known of the run."""

    model: Model
    written: Written
    setup: Setup
    files: RunFiles
    record: DataRecord | None


def _find(
    folder: Path | str,
    tier: str | None,
    client: str | None,
    server: bool,
    source: Source | None,
    method: Any,
    to: Path | str,
) -> _Found:
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
        files, record = read_run(opened.path), data_record.read(opened.manifest(), opened.path)
    if server:
        model = _server_model(setup, state)
    else:
        model = _client_model(setup, state, client, kept) if client else _tier_model(setup, state, tier)
    kind: Kind = "server" if server else "client" if client else "tier"
    written = Written(kind, client or tier or setup.context.zoo.tiers[-1].name, found[0])
    return _Found(model, written, setup, files, record)


def check_format(format: str, train: bool = False) -> None:
    """Refuses a format that there is not, or whose packages are missing."""
    if format not in FORMATS:
        hint = suggestion(format, FORMATS, f"There are {', '.join(FORMATS)}.")
        raise SettingsError(f"--format {format}: there is no such format.{hint}")
    if train and format != "executorch":
        raise SettingsError(f"--train writes a training graph for ExecuTorch: use --format executorch, not {format}.")
    if format == "onnx":
        require_onnx()
    if format == "executorch":
        require_executorch()


def _costs(setup: Setup, written: Written, net: nn.Module, row: Tensor) -> dict[str, Figures]:
    """What each tier's network costs, and the written one if it is no tier's."""
    found: dict[str, Figures] = {}
    for tier in setup.context.zoo.tiers:
        this = written.kind == "tier" and tier.name == written.name
        blank = None if this else setup.context.zoo.build(Newborn(tier.spec), stream(0, "figures")).cpu().eval()
        found[tier.name] = figures(blank or net, row)
    return found if written.kind == "tier" else {**found, written.title: figures(net, row)}


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
        raise data_record.ask_for_source(record, path, f"pl.export({str(path)!r}, ...")
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
            f"Hand it over in Python: pl.export({str(path)!r}, ..., method=...)."
        )


def _refuse_other_data(setup: Setup, record: DataRecord | None, told: Mapping[str, Any], path: Path) -> None:
    if record is not None and setup.source is not None:
        data_record.refuse_other_data(record, setup.source, setup.public, path)
    elif told.get("classes", setup.classes) != setup.classes:  # a run of an older version, without a record
        raise InputError(
            f"{path} had {told['classes']} classes, and data '{setup.experiment.data.name}' has {setup.classes}. "
            f"Hand over its data in Python: pl.export({str(path)!r}, ..., data=...)."
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
