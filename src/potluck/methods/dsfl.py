"""DS-FL: clients and server learn from the clients' mean answers on open, unlabelled rows, made more certain.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
Training with Non-IID Private Data", IEEE TMC 2021, https://arxiv.org/abs/2008.06180. Clients train on their own data,
upload softmax probabilities for the round's open rows, and get back one set of answers, from which they and the server
learn. ERA, entropy reduction, is a softmax of the mean *probabilities* over a low temperature; SA is their plain mean.
The server has a model of its own, which has seen nothing but these answers; labels of open rows are never used.

Answers are learned in the round that made them, and only clients of its cohort learn; server and clients do it with the
optimiser that clients train with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from potluck.core import Device, Examples, Model, Reply, Round, Task, on_client
from potluck.learn import SoftCrossEntropy, sharpened, told, with_columns
from potluck.methods.frames.exchange import ServerTaught, refuse_below, spoken_of


@dataclass(frozen=True)
class DSFL(ServerTaught):
    """Learn from sharpened mean answers."""

    called: ClassVar[str] = "DS-FL"
    aggregate: Literal["era", "sa"] = "era"
    """How answers are averaged: with less entropy, or simply."""
    temperature: float = 0.1
    """Of ERA: the lower, the more certain."""
    distils: int | None = None
    """Epochs on the answers, for clients and server; None: as many as on a client's own data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, distils=0)
        if not self.temperature > 0:
            raise ValueError(f"method.temperature = {self.temperature} must be above 0")

    def round(self, state: Any, now: Round) -> Any:
        about = self.about(now)
        answers = self.heard("train", now, about)
        if not answers:
            return state
        lesson = {**about, "answers": self.combined(torch.stack(list(answers.values())))}
        self.tell("distil", now, answers, lesson)
        reply = self.ask_server(state.model, now, lesson)
        return state if reply is None else replace(state, model=reply.models["model"])

    def combined(self, answers: Tensor) -> Tensor:
        """What is learned, of the clients' probabilities [clients, rows, classes]."""
        mean = answers.mean(0)
        return sharpened(mean, self.temperature) if self.aggregate == "era" else mean

    def says(self, net: nn.Module, task: Task, device: Device) -> Tensor:
        return super().says(net, task, device).softmax(-1)

    @on_client
    def distil(self, task: Task, device: Device) -> Reply:
        """A client learns the answers."""
        return self.kept(task, device, *self.study(task, device, _lesson(task, device), self.distils, _LOSS))

    @on_client
    def learn(self, task: Task, device: Device) -> Reply:
        """The server's model learns the answers."""
        net, fit = self.study(task, device, _lesson(task, device), self.distils, _LOSS)
        return Reply({"model": Model(task.models["model"].spec, device.rest(net))}, metrics=told(fit))


_LOSS = SoftCrossEntropy()


def _lesson(task: Task, device: Device) -> Examples:
    return with_columns(spoken_of(task, device), answers=task.arrays["answers"])
