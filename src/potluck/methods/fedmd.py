"""FedMD: clients learn the mean of their logits on public rows (the consensus), then train on their own data.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019, https://arxiv.org/abs/1910.03581.
Before its first round a client trains on the public rows with their labels, then on its own. In each round clients
upload logits of public rows, and the server takes the plain mean. Clients *digest* it (mean absolute error) and
*revisit* their own data. Networks need nothing in common but the classes. The server has no model.

The warm-up is a fixed number of epochs; the paper trains until convergence. Warm-up and digest use the clients' own
optimiser (the authors: Adam at 0.001 throughout) and batch size (the authors' digest: 256, some 20 steps on 5000 rows,
which would be one step on a hundred). A client that is first sampled in a later round warms up then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import (
    Batch,
    ClientWork,
    ContractSettings,
    Device,
    Facts,
    FitRequest,
    Newborn,
    Reply,
    Round,
    Skip,
    Task,
    on_client,
)
from potluck.learn import mean_logits, with_columns
from potluck.methods.bases.public_logits import PublicLogits, refuse_below, task_rows
from potluck.methods.local import EmptyState


@dataclass(frozen=True)
class FedMD(PublicLogits):
    """Clients learn a consensus of logits on public rows, then train on their own data."""

    contract = ContractSettings(why_not="models live on the clients, and only logits cross the wire")

    warm_public: int = 5
    """Epochs on the public rows before a client's first round."""
    warm_private: int = 5
    """Epochs on its own rows after that."""
    digests: int = 1
    """Epochs on the consensus in each round."""
    batch: int | None = None
    """Batch size of the digest; None: that of local training. The authors' code has 256, for 5000 rows a round."""

    facts = Facts(networks="any", public="labels", memory=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, warm_public=0, warm_private=0, digests=0, batch=1)

    def round(self, state: EmptyState, now: Round) -> EmptyState:
        rows = self.draw_rows(now)
        logits = self.collect_logits("answer", now, rows)
        if logits:
            consensus = mean_logits(torch.stack(list(logits.values())))
            self.send_to(logits, "digest", now, {**rows, "scores": consensus})
        return state

    @on_client
    def answer(self, task: Task, device: Device) -> ClientWork:
        """The client's logits of public rows; a new client trains first (warm-up)."""
        if not len(device.data):
            raise Skip("no samples")
        start = self.start(task, device)
        net = device.build(start)
        if isinstance(start, Newborn):
            yield FitRequest(net, device.public, replace(self.local, epochs=self.warm_public, steps=None))
            fit = yield FitRequest(net, device.data, replace(self.local, epochs=self.warm_private, steps=None))
            return self.report(task, device, fit)
        return Reply(arrays={"scores": self.upload(net, task, device)})

    @on_client
    def digest(self, task: Task, device: Device) -> ClientWork:
        """Learn the consensus (digest), then train on the client's own data (revisit)."""
        examples = with_columns(task_rows(task, device), scores=task.arrays["scores"])
        local = replace(self.local, epochs=self.digests, steps=None, batch=self.batch or self.local.batch)
        digested = yield FitRequest(self.start(task, device), examples, local, LogitsError())
        fit = yield FitRequest(digested.net, device.data, self.local)
        return self.keep(task, device, fit)


@dataclass(frozen=True)
class LogitsError:
    """Mean absolute error of logits against the consensus."""

    inputs: str = "x"
    target: str = "scores"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        return functional.l1_loss(net(batch[self.inputs]), batch[self.target])
