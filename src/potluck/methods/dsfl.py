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
from torch.nn import functional

from potluck.core import Batch, ClientWork, ContractSettings, Device, FitRequest, Model, Reply, Round, Task, on_client
from potluck.learn import fit_metrics, with_columns
from potluck.methods.bases.public_logits import PublicLogitsWithServer, refuse_below, task_rows


@dataclass(frozen=True)
class DSFL(PublicLogitsWithServer):
    """Learn from sharpened mean answers."""

    contract = ContractSettings(
        why_not="models live on the clients, and only answers cross the wire", idle={"distils": 0}
    )

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
        rows = self.draw_rows(now)
        answers = self.collect_logits("train", now, rows)
        if not answers:
            return state
        lesson = {**rows, "answers": self.combine(torch.stack(list(answers.values())))}
        self.send_to(answers, "distil", now, lesson)
        reply = self.train_server(state.model, now, lesson)
        return state if reply is None else replace(state, model=reply.models["model"])

    def combine(self, answers: Tensor) -> Tensor:
        """What is learned, of the clients' probabilities [clients, rows, classes]."""
        mean = answers.mean(0)
        return reduce_entropy(mean, self.temperature) if self.aggregate == "era" else mean

    def upload(self, net: nn.Module, task: Task, device: Device) -> Tensor:
        """A client uploads probabilities."""
        return super().upload(net, task, device).softmax(-1)

    @on_client
    def distil(self, task: Task, device: Device) -> ClientWork:
        """A client learns the answers."""
        fit = yield self.answers_request(task, device)
        return self.keep(task, device, fit)

    @on_client
    def learn(self, task: Task, device: Device) -> ClientWork:
        """The server's model learns the answers."""
        fit = yield self.answers_request(task, device)
        model = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply({"model": model}, metrics=fit_metrics(fit))

    def answers_request(self, task: Task, device: Device) -> FitRequest:
        """A fit of the device's model to the round's answers."""
        examples = with_columns(task_rows(task, device), answers=task.arrays["answers"])
        return self.distil_request(task, device, examples, self.distils, SoftCrossEntropy())


def reduce_entropy(probabilities: Tensor, temperature: float) -> Tensor:
    """ERA: a softmax of probabilities, not of logits, over a temperature."""
    return (probabilities / temperature).softmax(-1)


@dataclass(frozen=True)
class SoftCrossEntropy:
    """Cross-entropy with probabilities in place of labels."""

    inputs: str = "x"
    target: str = "answers"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(net(batch[self.inputs]), batch[self.target])
