"""The usual client: receive a model, train it, report it. Methods override a line of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from potluck.core import (
    ClientWork,
    Device,
    Edit,
    Examples,
    Fit,
    FitRequest,
    Local,
    Loss,
    Model,
    Plain,
    Reply,
    Round,
    Skip,
    Task,
    Zoo,
    on_client,
)


@dataclass(frozen=True)
class LocalTraining:
    """The client's half that most methods share (``train`` and ``score``), and a server's half that does nothing."""

    local: Local = Local()

    @on_client
    def train(self, task: Task, device: Device) -> ClientWork:
        """Start from what was sent, fit to the client's data, report."""
        fit = yield self.request(task, device)
        return self.report(task, device, fit)

    def request(self, task: Task, device: Device) -> FitRequest:
        """What to fit, to which examples, and how."""
        if not len(device.data):
            raise Skip("no samples")
        start = self.start(task, device)
        return FitRequest(start, device.data, self.local, self.loss(task, device), self.edits(task, device))

    def start(self, task: Task, device: Device) -> Model:
        """The model to train: as sent."""
        return task.models["model"]

    def loss(self, task: Task, device: Device) -> Loss:
        """What to minimise: the problem's own loss."""
        return device.problem.loss

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        """Corrections to the gradient: none."""
        return ()

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        """What to send back: the trained model, weighted by its samples."""
        model = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply(models={"model": model}, weight=float(len(device.data)), metrics=fit_metrics(fit))

    @on_client
    def score(self, task: Task, device: Device) -> Reply:
        """Tallies of the model that was sent, or of the client's own, on its validation and test splits.

        With ``masked`` in the task's config, classes that the client does not own cannot be predicted; with ``rows``,
        only rows from the first to before the second number are scored; with ``common``, the device has the server's
        splits in place of its own.
        """
        model = task.models.get("model") or self.own(device)
        net = device.build(model)
        owned = device.labels if task.config.get("masked") else None
        splits = {"validation": _pick_rows(device.validation, task), "test": _pick_rows(device.test, task)}
        return Reply(metrics={name: device.problem.tally(net, split, owned) for name, split in splits.items()})

    def own(self, device: Device) -> Model:
        """The model that lives on this device, where a method keeps one there."""
        raise Skip("no model of its own")

    def ready(self, state: Any, now: Round) -> Any:
        """The state to score: as it is."""
        return state

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """The model that a client uses: as the server serves it, or the one in its memory."""
        if served is not None:
            return served
        kept = memory.get("model")
        return kept if isinstance(kept, Model) else None

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that this method cannot train: none."""


def _pick_rows(examples: Examples, task: Task) -> Examples:
    """The rows that a task names; all, where it names none."""
    rows = task.config.get("rows")
    if not isinstance(rows, list | tuple):
        return examples
    start, end = (min(int(str(row)), len(examples)) for row in rows)
    if (start, end) == (0, len(examples)):
        return examples
    where = next(iter(examples.columns.values())).device
    return examples.pick(torch.arange(start, end, device=where))


def fit_metrics(fit: Fit) -> Mapping[str, Plain]:
    """What the ledger learns of local training."""
    return {"loss": fit.loss, "steps": fit.steps}
