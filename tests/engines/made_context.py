"""A small federation with hand-made shards, behind any engine; and methods whose clients misbehave on request."""

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from potluck.core import NOTHING, Client, Examples, Model, Newborn, Reply, Round, Skip, Tier, on_client, stream
from potluck.engines import ENGINES, Dispatcher, Gate, SimulationContext
from potluck.learn import Classify
from potluck.methods import FedAvg
from potluck.models import ModelZoo, make_spec, tier_spec

FULL = make_spec("mlp", input=(4,), classes=3, hidden=3, depth=2)
ZOO = ModelZoo(FULL, [Tier(f"d{depth}", 1.0, None, depth, tier_spec(FULL, None, depth)) for depth in (1, 2)])


@dataclass(frozen=True)
class Shard:
    train: Examples
    validation: Examples = NOTHING
    test: Examples = NOTHING
    labels: tuple[int, ...] = (0, 1, 2)


class ClientDatasets:
    """Client c<n> holds 5 + n rows, unless it is said to hold others."""

    public = NOTHING

    def __init__(self, special=None):
        self.special = special or {}

    def shard(self, client):
        return Shard(self.special[client] if client in self.special else rows(5 + int(client[1:]), client))


def rows(count, client="c0"):
    x = torch.randn(count, 4, generator=stream(0, "rows", client))
    return Examples({"x": x, "y": torch.arange(count) % 3})


@dataclass
class Federation:
    """A dispatcher and all that stands behind it; `cohort` clients, their tiers in turn."""

    dispatcher: Dispatcher
    cohort: list[Client]
    memories: dict = field(default_factory=dict)

    @property
    def method(self):
        return self.dispatcher.method

    def init(self):
        return self.method.init(self.dispatcher.zoo, stream(0, "init"))

    def round(self, state, index=0, without=()):
        """One committed round; the session stays to be looked at."""
        self.session = self.dispatcher.open(index)
        cohort = [client for client in self.cohort if client.id not in without]
        session, zoo = self.session, self.dispatcher.zoo
        now = Round(index, cohort, len(self.cohort), zoo, 0, session.send, session.fold, lambda wanted: cohort)
        state = self.method.round(state, now)
        self.session.close()
        self.commit()
        return state

    def commit(self):
        session = self.session
        self.memories |= {client: (session.index, memory) for client, memory in session.staged.items()}
        for client, count in session.strikes().items():
            self.dispatcher.strikes[client] = self.dispatcher.strikes.get(client, 0) + count

    def outcomes(self):
        return {entry.task.to: (entry.verdict, entry.reason) for entry in self.session.entries}


def made_context(method, special=None, zoo=ZOO, stack=0, **more):
    return SimulationContext(method, zoo, ClientDatasets(special), Classify(3), 0, stack=stack, **more)


@contextmanager
def federation(
    method, engine="serial", workers=2, count=5, gate=None, special=None, zoo=ZOO, stack=0, more=None, **dispatcher
):
    carrier = ENGINES[engine](made_context(method, special, zoo, stack, **(more or {})), workers)
    memories = {}
    dispatcher.setdefault("recall", memories.get)
    made = Dispatcher(carrier, method, zoo, gate or Gate(), **dispatcher)
    try:
        yield Federation(made, [Client(f"c{n}", zoo.tiers[n % len(zoo.tiers)]) for n in range(count)], memories)
    finally:
        carrier.close()


@dataclass(frozen=True)
class Echo:
    """Clients that repeat, fail, skip or remember what they are told."""

    @on_client
    def echo(self, task, device):
        return Reply(metrics={"said": task.config.get("say", "")}, arrays=task.arrays)

    @on_client
    def fail(self, task, device):
        device.memory["log"] = ["failed"]
        raise ValueError("boom")

    @on_client
    def skip(self, task, device):
        raise Skip("nothing to do")

    @on_client
    def note(self, task, device):
        device.memory["log"] = [*device.memory.get("log", []), task.key or task.round]
        return Reply(metrics={"log": device.memory["log"], "version": task.memory})

    @on_client
    def look(self, task, device):
        return Reply(metrics={"log": device.memory.get("log"), "version": task.memory})

    @on_client
    def lie(self, task, device):
        device.memory["log"] = ["lied"]
        return Reply(weight=float("nan"))

    @on_client
    def smuggle(self, task, device):
        return Reply(metrics={"thing": object()})

    @on_client
    def die(self, task, device):
        os.kill(os.getpid(), signal.SIGKILL)

    @on_client
    def draw(self, task, device):
        return Reply(metrics={"drawn": torch.randint(0, 10**9, (2,), generator=device.rng).tolist()})

    draw_too = on_client(lambda self, task, device: self.draw(task, device))

    @on_client
    def hang(self, task, device):
        signal.pause()

    @on_client
    def hang_once(self, task, device):
        """Hangs, or dies, at the first calls: as many as `times`, counted by files in `folder`."""
        file = Path(task.config["folder"]) / f"{task.to}{task.key}"
        done = len(file.read_text()) if file.exists() else 0
        if done < task.config.get("times", 1):
            file.write_text("x" * (done + 1))
            signal.pause() if task.config.get("hang") else os.kill(os.getpid(), signal.SIGKILL)
        return Reply(metrics={"calls": done + 1})

    @on_client
    def where(self, task, device):
        return Reply(metrics={"pid": os.getpid()})


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg with fractional weights, whose client `who` does to its reply what `ODDITIES` says."""

    odd: str = ""
    who: tuple[str, ...] = ("c1",)

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        reply = replace(reply, weight=reply.weight / 7 + 0.1)
        return ODDITIES[self.odd](reply) if self.odd and device.client in self.who else reply


def altered(**tensors):
    """Replaces tensors (their dots written as double underscores) by what functions make of them."""

    def alter(reply):
        model = reply.models["model"]
        changed = {name.replace("__", "."): make for name, make in tensors.items()}
        arrays = {name: changed[name](t) if name in changed else t for name, t in model.arrays.items()}
        return replace(reply, models={"model": Model(model.spec, arrays)})

    return alter


def with_entry(value):
    def make(tensor):
        out = tensor.clone()
        out.view(-1)[-1] = value
        return out

    return altered(head__weight=make)


def weighing(weight):
    return lambda reply: replace(reply, weight=weight)


def missing(reply):
    model = reply.models["model"]
    arrays = {name: tensor for name, tensor in model.arrays.items() if name != "head.bias"}
    return replace(reply, models={"model": Model(model.spec, arrays)})


def extra(reply):
    model = reply.models["model"]
    return replace(reply, models={"model": Model(model.spec, {**model.arrays, "head.extra": torch.zeros(1)})})


def of_another_spec(reply):
    return replace(reply, models={"model": Model(ZOO.tiers[0].spec, reply.models["model"].arrays)})


def of_another_tier(reply):
    return replace(reply, models={"model": ZOO.fresh(ZOO.tiers[0].spec, stream(0, "other"))})


def boom(reply):
    raise ValueError("boom")


def bye(reply):
    os.kill(os.getpid(), signal.SIGKILL)


ODDITIES = {
    "shape": altered(head__weight=lambda t: torch.zeros(3, 4)),
    "transposed": altered(head__weight=lambda t: t[:, :2]),
    "one number": altered(head__weight=lambda t: torch.tensor(1.0)),
    "huge and empty": altered(head__weight=lambda t: torch.empty(0, 10**15)),
    "float64": altered(head__weight=lambda t: t.double()),
    "half": altered(head__weight=lambda t: t.half()),
    "complex": altered(head__weight=lambda t: t.to(torch.complex64)),
    "int": altered(head__weight=lambda t: t.long()),
    "bool": altered(head__weight=lambda t: t > 0),
    "text": altered(head__weight=lambda t: "weights"),
    "numbers": altered(head__weight=lambda t: t.tolist()),
    "nothing": altered(head__weight=lambda t: None),
    "missing": missing,
    "extra": extra,
    "no arrays": lambda reply: replace(reply, models={"model": Newborn(reply.models["model"].spec)}),
    "no model": lambda reply: replace(reply, models={}),
    "two models": lambda reply: replace(reply, models={**reply.models, "more": reply.models["model"]}),
    "loose arrays": lambda reply: replace(reply, arrays={"gift": torch.zeros(1)}),
    "spec": of_another_spec,
    "tier": of_another_tier,
    "nan": with_entry(float("nan")),
    "inf": with_entry(float("inf")),
    "-inf": with_entry(-float("inf")),
    "1e30": with_entry(1e30),
    "weight 0": weighing(0.0),
    "weight -5": weighing(-5.0),
    "weight nan": weighing(float("nan")),
    "weight inf": weighing(float("inf")),
    "weight 1e18": weighing(1e18),
    "weight true": weighing(True),
    "weight text": weighing("12"),
    "weight none": weighing(None),
    "boom": boom,
    "bye": bye,
}
