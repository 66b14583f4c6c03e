"""FedGEMS: a large server model learns public rows from its own past, or from those clients that can be relied on.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion", 2021,
https://arxiv.org/abs/2110.11027. Clients train on their own data and upload scores of the labelled public rows. The
server passes over these: rows that it gets right have cross-entropy alone, and it remembers its scores of them; for
rows that it gets wrong it follows its memory or, where it has none, the clients' scores, each client by a softmax of
one over its entropy. Clients then learn the public rows with the server as their teacher.

What is right is decided batch by batch, by the scores at that moment; the memory is renewed once after each pass, with
the scores that the server then has. Divergences are KL from the teacher; the code that we know of swaps the two. Server
and clients train with the optimiser of [local], fresh in each pass.
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
"""The smallest entropy that is told from none."""


@dataclass(frozen=True)
class FedGEMSState(ServerModelState):
    """What the server keeps: its model, and its scores of rows that it once got right."""

    memory: Arrays = EMPTY
    """``kept``, a row of scores for each public row, and ``known``, whether it is one."""


@dataclass(frozen=True)
class FedGEMS(PublicLogitsWithServer):
    """Selective fusion into a large server model, and back."""

    contract = ContractSettings(
        why_not="models live on the clients, and only logits cross the wire", idle={"passes": 0}
    )

    share: float = 0.75  # epsilon in the paper
    """Of cross-entropy with the labels, where there is a teacher too."""
    select: bool = True
    """Choose a teacher row by row; False is FedGEM: always the clients, for every row."""
    exclude: bool = False
    """Leave clients out that are wrong about a row, unless all are; else they count as if they knew nothing."""
    passes: int = 5
    """The server's passes over the public rows in each round."""
    lessons: int | None = None
    """A client's epochs on the public rows in each round; None: as many as on its own data."""

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
        answers = self.collect_logits("train", now, about)
        if not answers:
            return state
        logits = torch.stack(list(answers.values()))
        rows = about.get("rows", torch.arange(now.zoo.public)).to(logits.device)
        memory = {name: tensor[rows] for name, tensor in state.memory.items()}
        returns = {**logits_shapes(len(rows), now.zoo), **shapes_of(memory)}
        reply = self.train_server(state.model, now, {**about, **memory, "heard": logits}, returns)
        if reply is None:
            return state
        self.send_to(answers, "follow", now, {**about, "scores": reply.arrays["scores"]})
        kept = {name: state.memory[name].index_copy(0, rows, reply.arrays[name]) for name in memory}
        return replace(state, model=reply.models["model"], memory=kept)

    @on_client
    def learn(self, task: Task, device: Device) -> ClientWork:
        """The server's passes over the public rows."""
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
        """A client learns the public rows, with the server as its teacher."""
        examples = with_columns(task_rows(task, device), scores=task.arrays["scores"])
        fit = yield self.distil_request(task, device, examples, self.lessons, TeacherLoss(self.share))
        return self.keep(task, device, fit)


def client_weights(entropy: Tensor, right: Tensor, exclude: bool = False) -> Tensor:
    """How much each network counts for each row, [networks, rows]: a softmax of one over its entropy.

    A network that is wrong about a row has zero there before the softmax, which is still a weight above zero; with
    `exclude` it has none, unless all are wrong.
    """
    reasons = torch.where(right, 1 / entropy.clamp(min=LEAST), 0.0)
    if exclude:
        reasons = torch.where(right | ~right.any(0), reasons, -torch.inf)
    return reasons.softmax(0)


def ensemble_logits(logits: Tensor, labels: Tensor, exclude: bool = False) -> Tensor:
    """The clients' logits, each weighted by how certain and right the client is."""
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
    return (client_weights(entropy, logits.argmax(-1) == labels, exclude)[..., None] * logits).sum(0)


@dataclass(frozen=True)
class TeacherLoss:
    """A share of cross-entropy with the labels, the rest KL divergence from a teacher's logits."""

    share: float
    selective: bool = False
    """Rows that the network already gets right have cross-entropy alone: the teacher is asked about the others."""
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
