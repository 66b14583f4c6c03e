"""The default client side: receive a model, train it, send it back. Methods override single functions."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from potluck.core import (
    Client,
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
from potluck.learn.stages import stage_features


@dataclass(frozen=True)
class LocalTraining:
    """The client side that most methods share (``train`` and ``score``), and defaults for the server side."""

    local: Local = Local()
    """How clients train, where it differs from [local]: `local = {lr = 0.05}`."""

    @on_client
    def train(self, task: Task, device: Device) -> ClientWork:
        """Trains the model that was sent on the client's data, and reports the result."""
        fit = yield self.request(task, device)
        return self.report(task, device, fit)

    def request(self, task: Task, device: Device) -> FitRequest:
        """What to train, on which examples, and how."""
        if not len(device.data):
            raise Skip("no samples")
        start = self.start(task, device)
        return FitRequest(start, device.data, self.local, self.loss(task, device), self.edits(task, device))

    def start(self, task: Task, device: Device) -> Model:
        """The model to train; by default, the one that was sent."""
        return task.models["model"]

    def loss(self, task: Task, device: Device) -> Loss:
        """The training loss; by default, the loss of the problem."""
        return device.problem.loss

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        """Gradient corrections; by default, none."""
        return ()

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        """The reply; by default, the trained model, weighted by the number of samples."""
        model = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply(models={"model": model}, weight=float(len(device.data)), metrics=fit_metrics(fit))

    @on_client
    def score(self, task: Task, device: Device) -> Reply:
        """Tallies of the model that was sent, or else of the client's own model, on its validation and test splits.

        Options in the task's config: with ``masked``, the logits of classes that the client does not own are zero; with
        ``rows = [start, end]``, only these rows are scored; with ``common``, the device uses the server's splits, not
        its own.
        """
        model = task.models.get("model") or self.own(device)
        net = device.build(model)
        owned = device.labels if task.config.get("masked") else None
        splits = {"validation": _pick_rows(device.validation, task), "test": _pick_rows(device.test, task)}
        return Reply(metrics={name: device.problem.tally(net, split, owned) for name, split in splits.items()})

    ends_with_local_epochs: ClassVar[bool] = True
    """Whether the model that a client keeps is as its local epochs left it, and not distilled after them."""

    @on_client
    def personalise(self, task: Task, device: Device) -> ClientWork:
        """Tallies of the client's model after its local epochs, on the common test rows and on its own."""
        net = yield from self._after_local_epochs(task, device)
        counts = device.problem.label_counts(device.data)
        splits = {"common": device.common_test, "own": device.test}
        tallies = {name: device.problem.tally(net, split) for name, split in splits.items()}
        return Reply(metrics={**tallies, "labels": list[Plain](counts)})

    @on_client
    def show_features(self, task: Task, device: Device) -> ClientWork:
        """What the stages of the client's model say, after its local epochs, of the common test rows that are named.

        For a simulation's report alone: real nodes have no common test rows, and [secure] lets no such reply out.
        """
        net = yield from self._after_local_epochs(task, device)
        rows, pad = (task.config.get(name) for name in ("rows", "pad"))
        if not isinstance(rows, list | tuple):
            raise Skip("no rows were named")
        examples = device.common_test
        where = next(iter(examples.columns.values())).device
        picked = examples.pick(torch.tensor([int(str(row)) for row in rows], device=where))
        found = stage_features(net, picked, pad if isinstance(pad, int) else None)
        return Reply(arrays={name: features.float() for name, features in found.items()})

    def _after_local_epochs(self, task: Task, device: Device) -> Generator[FitRequest, Fit, nn.Module]:
        """The network of the client's model after its local epochs.

        A model that is sent is trained first, with the settings of [local] and the loss of the problem. A model that
        the client keeps is as its local epochs left it. Nothing of this is kept.
        """
        kept = "model" not in task.models
        model = self.own(device) if kept else self.personal_start(task, device)
        if kept and self.ends_with_local_epochs:
            return device.build(model)
        if not len(device.data):
            raise Skip("no samples")
        fit = yield FitRequest(model, device.data, self.local, self.personal_loss(model, device))
        return self.personal_net(model, fit, device)

    def personal_start(self, task: Task, device: Device) -> Model:
        """The model that the local epochs before a client's score begin with; by default, as in training."""
        return self.start(task, device)

    def personal_loss(self, model: Model, device: Device) -> Loss:
        """The loss of the local epochs before a client's model is scored; by default, the loss of the problem."""
        return device.problem.loss

    def personal_net(self, model: Model, fit: Fit, device: Device) -> nn.Module:
        """The network to score after a client's local epochs; by default, as they left it."""
        return fit.net

    def own(self, device: Device) -> Model:
        """The client's own model, if the method keeps one on the device."""
        raise Skip("no model of its own")

    def ready(self, state: Any, now: Round) -> Any:
        """The state to score; by default, unchanged."""
        return state

    def can_train(self, client: Client, zoo: Zoo) -> bool:
        """Whether this client can train the model that it is served; by default, every client can."""
        return True

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """The model that a client uses: the served one, or else the one in its memory."""
        if served is not None:
            return served
        kept = memory.get("model")
        return kept if isinstance(kept, Model) else None

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that this method cannot train; by default, accepts all."""


def _pick_rows(examples: Examples, task: Task) -> Examples:
    """The rows that a task names, or all rows if it names none."""
    rows = task.config.get("rows")
    if not isinstance(rows, list | tuple):
        return examples
    start, end = (min(int(str(row)), len(examples)) for row in rows)
    if (start, end) == (0, len(examples)):
        return examples
    where = next(iter(examples.columns.values())).device
    return examples.pick(torch.arange(start, end, device=where))


def fit_metrics(fit: Fit) -> Mapping[str, Plain]:
    """What the ledger records about local training."""
    return {"loss": fit.loss, "steps": fit.steps}
