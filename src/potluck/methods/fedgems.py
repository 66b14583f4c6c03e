"""FedGEMS: a large server model learns public rows by selective knowledge fusion: from its own past or from clients.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion", 2021,
https://arxiv.org/abs/2110.11027. Clients train on their own data and upload logits of the labelled public rows. The
server makes several passes over these rows. A row that it gets right has cross-entropy alone, and the server remembers
its logits. For a row that it gets wrong, it learns from the logits that it remembers or, if it has none, from the
clients' logits; each client is weighted by a softmax of one over its entropy. Then the clients learn the public rows
with the server as their teacher.

Whether a row is right is decided batch by batch, by the logits at that moment. The memory is renewed once after each
pass, with the logits that the server then has. Divergences are KL from the teacher; the code that we know of swaps the
two. Server and clients train with the optimiser of [local], which starts fresh in each pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import (
    EMPTY,
    Arrays,
    Batch,
    ClientWork,
    ContractSettings,
    Device,
    Facts,
    FitRequest,
    Model,
    Plain,
    Reply,
    Round,
    Task,
    Zoo,
    on_client,
    shapes_of,
)
from potluck.learn import fit_metrics, kl_divergence, with_columns
from potluck.methods.bases.public_logits import (
    PublicLogitsWithServer,
    ServerModelState,
    logits_shapes,
    refuse_below,
    task_rows,
)
from potluck.methods.bases.submodels import classes

LEAST = 1e-6
"""Entropies below this count as this, so that one over the entropy is finite."""


@dataclass(frozen=True)
class FedGEMSState(ServerModelState):
    """The server's state: its model, and its logits of rows that it once got right."""

    memory: Arrays = EMPTY
    """``kept``: logits for each public row; ``known``: whether the server has any for this row."""


@dataclass(frozen=True)
class FedGEMS(PublicLogitsWithServer):
    """Selective knowledge fusion from clients into a large server model, and back."""

    contract = ContractSettings(
        why_not="models live on the clients, and only logits cross the wire", idle={"passes": 0}
    )
    ends_with_local_epochs = False

    share: float = 0.75  # epsilon in the paper
    """The share of cross-entropy with the labels in the loss, if there is a teacher too."""
    select: bool = True
    """Choose a teacher for each row; False is FedGEM: the clients teach every row."""
    exclude: bool = False
    """Leave out clients that get a row wrong, unless all do; if False, such a client has zero before the softmax."""
    passes: int = 5
    """The server's epochs on the public rows in each round."""
    lessons: int | None = None
    """A client's epochs on the public rows in each round; None: as many as the local epochs."""

    facts = Facts(networks="any", public="labels", memory=True, larger=True, sums=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, share=0, passes=0, lessons=0)
        if self.share > 1:
            raise ValueError(f"method.share = {self.share} is above 1")

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        nothing = {
            "kept": torch.zeros(zoo.public, classes(zoo.full)),
            "known": torch.zeros(zoo.public, dtype=torch.bool),
        }
        return FedGEMSState(zoo.fresh(zoo.full, rng), nothing)

    def round(self, state: Any, now: Round) -> Any:
        about = self.draw_rows(now)
        uploads = self.collect_logits("train", now, about)
        if not uploads:
            return state
        logits = torch.stack(list(uploads.values()))
        rows = about.get("rows", torch.arange(now.zoo.public)).to(logits.device)
        memory = {name: tensor[rows] for name, tensor in state.memory.items()}
        returns = {**logits_shapes(len(rows), now.zoo), **shapes_of(memory)}
        reply = self.train_server(state.model, now, {**about, **memory, "heard": logits}, returns)
        if reply is None:
            return state
        self.send_to(uploads, "follow", now, {**about, "scores": reply.arrays["scores"]})
        kept = {name: state.memory[name].index_copy(0, rows, reply.arrays[name]) for name in memory}
        return replace(state, model=reply.models["model"], memory=kept)

    @on_client
    def learn(self, task: Task, device: Device) -> ClientWork:
        """Train the server's model: several passes over the public rows."""
        public, model = task_rows(task, device), task.models["model"]
        kept, known = task.arrays["kept"], task.arrays["known"]
        labels = public.column("y")
        ensemble = ensemble_logits(task.arrays["heard"], labels, self.exclude)
        net, once = device.build(model), replace(self.local, epochs=1, steps=None)
        logits, metrics = device.predict(net, public), dict[str, Plain]()
        for _ in range(self.passes):
            teacher = torch.where(known[:, None], kept, ensemble) if self.select else ensemble
            loss = TeacherLoss(self.share, self.select)
            fit = yield FitRequest(net, with_columns(public, scores=teacher), once, loss)
            logits, metrics = device.predict(net, public), dict(fit_metrics(fit))
            right = logits.argmax(-1) == labels
            kept, known = torch.where(right[:, None], logits, kept), known | right
        arrays = {"scores": logits, "kept": kept, "known": known}
        return Reply({"model": Model(model.spec, device.snapshot(net))}, arrays, metrics=metrics)

    @on_client
    def follow(self, task: Task, device: Device) -> ClientWork:
        """Train the client's model on the public rows, with the server as its teacher."""
        examples = with_columns(task_rows(task, device), scores=task.arrays["scores"])
        fit = yield self.distil_request(task, device, examples, self.lessons, TeacherLoss(self.share))
        return self.keep(task, device, fit)


def client_weights(entropy: Tensor, right: Tensor, exclude: bool = False) -> Tensor:
    """The weight of each network for each row, [networks, rows]: a softmax of one over its entropy.

    A network that gets a row wrong has zero before the softmax, so its weight is still above zero. With `exclude` its
    weight is zero, unless all networks get the row wrong.
    """
    inverse = torch.where(right, 1 / entropy.clamp(min=LEAST), 0.0)
    if exclude:
        inverse = torch.where(right | ~right.any(0), inverse, -torch.inf)
    return inverse.softmax(0)


def ensemble_logits(logits: Tensor, labels: Tensor, exclude: bool = False) -> Tensor:
    """The mean of the clients' logits, weighted by `client_weights`."""
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    return (client_weights(entropy, logits.argmax(-1) == labels, exclude)[..., None] * logits).sum(0)


@dataclass(frozen=True)
class TeacherLoss:
    """A share of cross-entropy with the labels, the rest KL divergence from a teacher's logits."""

    share: float
    selective: bool = False
    """Rows that the network already gets right have cross-entropy alone; the others have the teacher too."""
    inputs: str = "x"
    labels: str = "y"
    target: str = "scores"

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        logits, labels = net(batch[self.inputs]), batch[self.labels]
        own = functional.cross_entropy(logits, labels, reduction="none")
        mixed = self.share * own + (1 - self.share) * kl_divergence(batch[self.target], logits)
        if not self.selective:
            return mixed.mean()
        return torch.where(logits.argmax(-1) == labels, own, mixed).mean()
