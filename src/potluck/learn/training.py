"""The usual client: receive a model, train it, report it. Methods override a line of this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from potluck.core import (
    Device,
    Edit,
    Expected,
    Fit,
    Local,
    Loss,
    Model,
    Plain,
    Reply,
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
        if not len(device.data):
            raise Skip("no samples")
        net = device.build(self.start(task, device))
        fit = device.fit(net, device.data, self.local, self.loss(task, device), self.edits(task, device))
        return self.report(task, device, net, fit)

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

        With ``masked`` in the task's config, classes that the client does not own are out of the running.
        """
        model = task.models.get("model") or self.own(device)
        net = device.build(model)
        owned = device.labels if task.config.get("masked") else None
        splits = {"validation": device.validation, "test": device.test}
        return Reply(metrics={name: device.problem.tally(net, split, owned) for name, split in splits.items()})

    def own(self, device: Device) -> Model:
        """The model that lives on this device, where a method keeps one there."""
        raise Skip("no model of its own")

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        """A reply to ``train`` holds the models as they were sent; any other verb's reply only plain values."""
        if task.verb != "train":
            return Expected()
        return Expected(
            {
                key: zoo.shapes(model.spec)
                if model.arrays is None
                else {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in model.arrays.items()}
                for key, model in task.models.items()
            }
        )


def told(fit: Fit) -> Mapping[str, Plain]:
    """What the ledger learns of local training."""
    return {"loss": fit.loss, "steps": fit.steps}
