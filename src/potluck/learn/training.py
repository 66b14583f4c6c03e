"""The usual client: receive a model, train it, report it. Methods override a line of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from potluck.core import (
    Device,
    Edit,
    Examples,
    Expected,
    Fit,
    Local,
    Loss,
    Model,
    Plain,
    Reply,
    Shapes,
    Skip,
    Task,
    Zoo,
    on_client,
)


@dataclass(frozen=True)
class LocalTraining:
    """The client's half that most methods share: ``train`` and ``score``."""

    local: Local = Local()

    @on_client
    def train(self, task: Task, device: Device) -> Reply:
        """Start from what was sent, fit to the client's data, report."""
        lesson = self.lesson(task, device)
        return self.report(task, device, lesson[0], device.fit(*lesson))

    def lesson(self, task: Task, device: Device) -> tuple[nn.Module, Examples, Local, Loss, Sequence[Edit]]:
        """What to fit, to which examples, and how."""
        if not len(device.data):
            raise Skip("no samples")
        net = device.build(self.start(task, device))
        return net, device.data, self.local, self.loss(task, device), self.edits(task, device)

    def start(self, task: Task, device: Device) -> Model:
        """The model to train: as sent."""
        return task.models["model"]

    def loss(self, task: Task, device: Device) -> Loss:
        """What to descend: the problem's own loss."""
        return device.problem.loss

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        """Corrections to the gradient: none."""
        return ()

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        """What to send back: the trained model, weighed by its samples."""
        model = Model(task.models["model"].spec, device.rest(net))
        return Reply(models={"model": model}, weight=float(len(device.data)), metrics=told(fit))

    @on_client
    def score(self, task: Task, device: Device) -> Reply:
        """Tallies of the model that was sent, or of the client's own, on its validation and test splits.

        With ``masked`` in the task's config, classes that the client does not own are out of the running; with
        ``rows``, only rows from the first to before the second number are scored; with ``common``, the device has the
        server's splits in place of its own.
        """
        model = task.models.get("model") or self.own(device)
        net = device.build(model)
        owned = device.labels if task.config.get("masked") else None
        splits = {"validation": _among(device.validation, task), "test": _among(device.test, task)}
        return Reply(metrics={name: device.problem.tally(net, split, owned) for name, split in splits.items()})

    def own(self, device: Device) -> Model:
        """The model that lives on this device, where a method keeps one there."""
        raise Skip("no model of its own")

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        """A reply to ``train`` holds the models as they were sent; any other verb's reply only plain values."""
        if task.verb != "train":
            return Expected()
        return Expected({key: _shapes(model, zoo) for key, model in task.models.items()})


def _shapes(model: Model, zoo: Zoo) -> Shapes:
    """What a model holds as it was sent."""
    return zoo.shapes(model.spec) if model.arrays is None else model.shapes


def is_usual(method: object, verb: str) -> bool:
    """Whether what a client does under this verb is `LocalTraining.train`, as it stands above."""
    return verb == "train" and getattr(type(method), "train", None) is LocalTraining.train


def _among(examples: Examples, task: Task) -> Examples:
    """The rows that a task speaks of."""
    rows = task.config.get("rows")
    if not isinstance(rows, list | tuple):
        return examples
    start, end = (min(int(str(row)), len(examples)) for row in rows)
    if (start, end) == (0, len(examples)):
        return examples
    where = next(iter(examples.columns.values())).device
    return examples.pick(torch.arange(start, end, device=where))


def told(fit: Fit) -> Mapping[str, Plain]:
    """What the ledger learns of local training."""
    return {"loss": fit.loss, "steps": fit.steps}
