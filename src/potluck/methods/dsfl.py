"""DS-FL: clients and server learn from the clients' mean predictions on unlabelled public rows, with reduced entropy.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative
Training with Non-IID Private Data", IEEE TMC 2021, https://arxiv.org/abs/2008.06180. Clients train on their own data
and upload softmax probabilities for the round's public (open) rows. The server aggregates these, and clients and server
learn from the aggregate. ERA, entropy reduction aggregation, is a softmax of the mean *probabilities* with a low
temperature; SA is the plain mean. The server has its own model, which trains on nothing but these aggregates. Labels of
public rows are never used.

Clients and server learn an aggregate in the round that made it, and only clients of that cohort do; both use the
clients' optimiser.
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
    """Clients and server learn the clients' mean probabilities, with reduced entropy."""

    contract = ContractSettings(
        why_not="models live on the clients, and only probabilities cross the wire", idle={"distils": 0}
    )
    ends_with_local_epochs = False

    called: ClassVar[str] = "DS-FL"
    aggregate: Literal["era", "sa"] = "era"
    """How probabilities are aggregated: era, with reduced entropy; sa, the plain mean."""
    temperature: float = 0.1
    """The temperature of ERA: a lower one reduces entropy more."""
    distils: int | None = None
    """Distillation epochs of clients and server; None: as many as the local epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, distils=0)
        if not self.temperature > 0:
            raise ValueError(f"method.temperature = {self.temperature} must be above 0")

    def round(self, state: Any, now: Round) -> Any:
        rows = self.draw_rows(now)
        uploads = self.collect_logits("train", now, rows)
        if not uploads:
            return state
        targets = {**rows, "answers": self.combine(torch.stack(list(uploads.values())))}
        self.send_to(uploads, "distil", now, targets)
        reply = self.train_server(state.model, now, targets)
        return state if reply is None else replace(state, model=reply.models["model"])

    def combine(self, probabilities: Tensor) -> Tensor:
        """The aggregate of the clients' probabilities [clients, rows, classes]."""
        mean = probabilities.mean(0)
        return reduce_entropy(mean, self.temperature) if self.aggregate == "era" else mean

    def upload(self, net: nn.Module, task: Task, device: Device) -> Tensor:
        """A client uploads probabilities."""
        return super().upload(net, task, device).softmax(-1)

    @on_client
    def distil(self, task: Task, device: Device) -> ClientWork:
        """Train the client's model on the aggregated probabilities."""
        fit = yield self.answers_request(task, device)
        return self.keep(task, device, fit)

    @on_client
    def learn(self, task: Task, device: Device) -> ClientWork:
        """Train the server's model on the aggregated probabilities."""
        fit = yield self.answers_request(task, device)
        model = Model(task.models["model"].spec, device.snapshot(fit.net))
        return Reply({"model": model}, metrics=fit_metrics(fit))

    def answers_request(self, task: Task, device: Device) -> FitRequest:
        """A fit of the device's model to the round's aggregated probabilities."""
        examples = with_columns(task_rows(task, device), answers=task.arrays["answers"])
        return self.distil_request(task, device, examples, self.distils, SoftCrossEntropy())


def reduce_entropy(probabilities: Tensor, temperature: float) -> Tensor:
    """ERA: a softmax of probabilities, not of logits, with a temperature."""
    return (probabilities / temperature).softmax(-1)


@dataclass(frozen=True)
class SoftCrossEntropy:
    """Cross-entropy with probabilities in place of labels."""

    inputs: str = "x"
    target: str = "answers"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(net(batch[self.inputs]), batch[self.target])
