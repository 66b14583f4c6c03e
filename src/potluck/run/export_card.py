"""What an export says of a model besides its weights, and the rows on which it is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from potluck.core import SERVER, Examples, Model, UserError, display_name
from potluck.data import Federation, InputScaling, Source, load, load_public
from potluck.data.tokenizer import TrimPadding
from potluck.ledger import RunFiles
from potluck.models.families import FAMILIES
from potluck.run import data_record
from potluck.run.assemble import Setup, client_tiers
from potluck.run.data_record import DataRecord
from potluck.shipping import ModelCard, Sample

Kind = Literal["tier", "client", "server"]

CHECKED_ROWS = 64
"""The most rows on which a graph is compared with its network."""


@dataclass(frozen=True)
class KnownData:
    """The data of a run that is at hand again."""

    source: Source
    test: Examples


def known_data(setup: Setup, record: DataRecord | None, nodes: bool) -> KnownData | None:
    """The run's data: as handed over, or read again if its files are still there and the same."""
    if setup.source is not None:
        return KnownData(setup.source, setup.context.datasets.shard(SERVER).test)
    if record is None or record.own or nodes:
        return None
    data, seed = setup.experiment.data, setup.experiment.seed
    if data.path and not Path(data.path).exists():  # a name on the hub would be looked up
        return None
    try:
        source, public = load(data), load_public(data)
        if data_record.fingerprint(source, public) != record.sha256:
            return None
        return KnownData(source, Federation(source, data, seed, public, client_tiers(setup.experiment)).test)
    except (UserError, OSError):
        return None


@dataclass(frozen=True)
class Written:
    """Which model of a run is written: a tier's, a client's or the server's, after how many rounds."""

    kind: Kind
    name: str
    rounds: int

    @property
    def title(self) -> str:
        return "the server" if self.kind == "server" else f"{self.kind} {self.name}"


def card_of(
    run: RunFiles, written: Written, setup: Setup, record: DataRecord | None, known: KnownData | None
) -> ModelCard:
    """What the folder says of the model, from the run's records or, in old runs, from its data."""
    if known is not None:
        facts = data_record.input_facts(known.source)
        tokenizer = None if known.source.form is None else known.source.form.tokenizer
    else:
        facts = {} if record is None else {field: getattr(record, field) for field in data_record.INPUT_FACTS}
        tokenizer = None if record is None else data_record.read_vocabulary(record, run.path)
    kind, names = str(facts.get("form", "")), tuple(facts.get("names", ()))
    if kind == "stream" and tokenizer is not None:
        names = tuple(sorted(tokenizer["known"], key=tokenizer["known"].__getitem__))
    shape: Any = setup.context.zoo.full.options["input"]
    return ModelCard(
        title=written.title,
        method=str(run.manifest.get("label", "")) or display_name(setup.context.method),
        rounds=written.rounds,
        score=_score(run, written),
        problem=record.problem if record is not None else type(setup.context.problem).__name__.lower(),
        classes=setup.classes,
        shape=tuple(shape),
        names=names,
        kind=kind,
        columns=tuple(facts.get("columns", ())),
        dtype=str(facts.get("dtype", "")),
        mean=facts.get("mean"),
        std=facts.get("std"),
        tokenizer=tokenizer,
        missing=tuple(_missing(facts, kind, tokenizer is not None)),
    )


def _missing(facts: Mapping[str, Any], kind: str, tokens: bool) -> Iterator[str]:
    if not facts.get("dtype"):
        yield "how inputs are scaled is not recorded in this run; give rows as the network reads them"
    if kind in ("text", "tags", "stream") and not tokens:
        yield "the vocabulary is not in the run folder; give rows of token ids"


def _score(run: RunFiles, written: Written) -> str:
    """The score of this model in the run, after these rounds; empty if it was not scored then."""
    scored = [line for line in run.scores if line.get("round") == written.rounds]
    if not scored:
        return ""
    line, metric = scored[-1], str(scored[-1].get("metric"))
    if written.kind == "client":
        ids, values = (_inside(line, "clients", key) for key in ("ids", "values"))
        pairs = zip(ids, values, strict=False) if isinstance(ids, list) and isinstance(values, list) else ()
        value, where = next((value for id, value in pairs if id == written.name), None), "its own test rows"
    else:
        place = ("global",) if written.kind == "server" else ("tiers", written.name)
        value, where = _inside(line, *place, "test", metric), f"{_inside(line, *place, 'test', 'count')} test rows"
    return f"{metric} {value:.4f} on {where}" if isinstance(value, int | float) else ""


def _inside(found: Any, *keys: str) -> Any:
    """What lies under these keys; None if it is not there."""
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def sample_rows(model: Model, card: ModelCard, known: KnownData | None) -> Sample:
    """Rows to compare on: test rows if the data is at hand, else random ones."""
    if known is not None and len(known.test):
        picked = known.test.pick(torch.arange(min(CHECKED_ROWS, len(known.test))))
        rows = picked.column("x")
        cuts = isinstance(picked.prepare, TrimPadding) or picked.prepare is None  # a graph has rows of one length
        inputs = rows if cuts else picked.all()["x"]
        return Sample((rows if card.dtype else inputs).numpy(), inputs, real=True, labels=picked.column("y"))
    rng, size = np.random.default_rng(0), (CHECKED_ROWS, *card.shape)
    if FAMILIES[model.spec.family].tokens or card.dtype == "int64":
        options: Mapping[str, Any] = model.spec.options
        most = int(options.get("vocab", card.classes or 2))
        rows = torch.from_numpy(rng.integers(0, most, size))
    elif card.dtype == "uint8":
        rows = torch.from_numpy(rng.integers(0, 256, size, dtype=np.uint8))
    else:
        rows = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
    scaled = card.mean is not None and card.std is not None
    inputs = InputScaling(card.mean, card.std)({"x": rows})["x"] if scaled else rows  # type: ignore[arg-type]
    return Sample(rows.numpy(), inputs, real=False, labels=_made_up_labels(card, len(rows)))


def _made_up_labels(card: ModelCard, rows: int) -> torch.Tensor:
    """Labels of the form that the problem has: a number, a class, or a class for each token."""
    if card.problem == "regress":
        return torch.linspace(-1, 1, rows)
    shape = (rows, *card.shape) if card.problem in ("tag", "nexttoken") else (rows,)
    return torch.arange(torch.Size(shape).numel()).reshape(shape) % max(card.classes, 1)
