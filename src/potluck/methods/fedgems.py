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

from potluck.core import (
    EMPTY,
    SERVER,
    Arrays,
    Device,
    Expected,
    Facts,
    Model,
    Plain,
    Reply,
    Round,
    Task,
    Zoo,
    on_client,
)
from potluck.learn import Guided, relied, told, with_columns
from potluck.methods.frames.averaging import classes
from potluck.methods.frames.exchange import ServerTaught, Taught, refuse_below, scored_rows, spoken_of


@dataclass(frozen=True)
class Remembering(Taught):
    """What the server keeps: its model, and its scores of rows that it once got right."""

    memory: Arrays = EMPTY
    """``kept``, a row of scores for each public row, and ``known``, whether it is one."""


@dataclass(frozen=True)
class FedGEMS(ServerTaught):
    """Selective fusion into a large server model, and back."""

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
        return Remembering(zoo.fresh(zoo.full, rng), nothing)

    def round(self, state: Any, now: Round) -> Any:
        about = self.about(now)
        answers = self.heard("train", now, about)
        if not answers:
            return state
        heard = torch.stack(list(answers.values()))
        rows = about.get("rows", torch.arange(now.zoo.public)).to(heard.device)
        memory = {name: tensor[rows] for name, tensor in state.memory.items()}
        reply = self.ask_server(state.model, now, {**about, **memory, "heard": heard})
        if reply is None:
            return state
        self.tell("follow", now, answers, {**about, "scores": reply.arrays["scores"]})
        kept = {name: state.memory[name].index_copy(0, rows, reply.arrays[name]) for name in memory}
        return replace(state, model=reply.models["model"], memory=kept)

    @on_client
    def learn(self, task: Task, device: Device) -> Reply:
        """The server's passes over the public rows."""
        public, model = spoken_of(task, device), task.models["model"]
        kept, known = task.arrays["kept"], task.arrays["known"]
        labels = public.column("y")
        ensemble = relied(task.arrays["heard"], labels, self.exclude)
        net, once = device.build(model), replace(self.local, epochs=1, steps=None)
        scores, metrics = device.predict(net, public), dict[str, Plain]()
        for _ in range(self.passes):
            teacher = torch.where(known[:, None], kept, ensemble) if self.select else ensemble
            fit = device.fit(net, with_columns(public, scores=teacher), once, Guided(self.share, self.select))
            scores, metrics = device.predict(net, public), dict(told(fit))
            right = scores.argmax(-1) == labels
            kept, known = torch.where(right[:, None], scores, kept), known | right
        arrays = {"scores": scores, "kept": kept, "known": known}
        return Reply({"model": Model(model.spec, device.rest(net))}, arrays, metrics=metrics)

    @on_client
    def follow(self, task: Task, device: Device) -> Reply:
        """A client learns the public rows, with the server as its teacher."""
        examples = with_columns(spoken_of(task, device), scores=task.arrays["scores"])
        return self.kept(task, device, *self.study(task, device, examples, self.lessons, Guided(self.share)))

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        found = super().expects(task, zoo)
        if task.to != SERVER:
            return found
        known = task.arrays["known"]
        scores = scored_rows(len(known), zoo)["scores"]
        return replace(found, arrays={"scores": scores, "kept": scores, "known": (tuple(known.shape), known.dtype)})
