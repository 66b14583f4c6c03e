"""Federations of networks that predict the same for every input, for methods that distil predictions.

Networks here are MLPs of two inputs and two classes whose weights are all zero but for the head's bias: whatever the
input, their logits are that bias.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from made_round import ClientDatasets, Play, Shard, data, zoo

from potluck.core import SERVER, Examples, Local, Model, Reply, on_client
from potluck.engines import Dispatcher, Serial, SimulationContext
from potluck.learn import Classify
from potluck.models import ModelZoo

STILL = Local(lr=1.0, steps=0)
"""Clients that do not train on their own data; what they are taught has a learning rate of one."""


def echoing_logits(method):
    """This method with clients that do not train: the logits of the model they send are the first row of their data."""

    @dataclass(frozen=True)
    class Echoing(type(method)):
        @on_client
        def train(self, task, device):
            return Reply({"model": biased(task.models["model"].spec, device.data.column("x")[0])}, weight=1.0)

    return Echoing(**vars(method))


def biased(spec, logits):
    """A model with these logits for every input."""
    shapes = ModelZoo(spec).shapes(spec)
    arrays = {name: torch.zeros(shape) for name, (shape, _) in shapes.items()}
    return Model(spec, {**arrays, "head.bias": torch.as_tensor(logits, dtype=torch.float32)})


class PublicPlay(Play):
    """A federation with four public rows, of class 0 unless said otherwise."""

    def __post_init__(self):
        labels = getattr(self.method, "public_labels", (0, 0, 0, 0))
        rows = len(labels or range(4))
        self.public = Examples({"x": torch.ones(rows, 2), **({"y": torch.tensor(labels)} if labels else {})})
        self.zoo = replace(self.zoo, public=rows)
        super().__post_init__()
        datasets = ClientDatasets(
            {id: Shard(train) for id, (_, train) in self.clients.items()} | {SERVER: Shard(self.public)}
        )
        datasets.public = self.public
        context = SimulationContext(self.method, self.zoo, datasets, Classify(2), self.seed)
        self.dispatcher = Dispatcher(Serial(context), self.method, self.zoo, recall=self.memories.get)

    def keep(self, **logits):
        """Gives clients a model of their own with these logits."""
        for client in self.everyone:
            if client.id in logits:
                self.memories[client.id] = (0, {"model": biased(client.tier.spec, logits[client.id])})

    def bias(self, client):
        return self.memories[client][1]["model"].arrays["head.bias"].tolist()

    def entries(self, verb):
        return [entry for entry in self.session.entries if entry.task.verb == verb]


def unlabelled(method):
    """This method in a federation whose public rows have no labels."""

    @dataclass(frozen=True)
    class Unlabelled(type(method)):
        public_labels = None

    return Unlabelled(**vars(method))


def hundred_rows(method):
    """This method in a federation with a hundred public rows, all of class 0."""

    @dataclass(frozen=True)
    class HundredRows(type(method)):
        public_labels = (0,) * 100

    return HundredRows(**vars(method))


def net(*logits):
    """A live network with these logits for every input."""
    spec = zoo(1).full
    return ModelZoo(spec).build(biased(spec, logits))


def value(loss, live, **batch):
    """A loss on a batch whose inputs do not matter."""
    rows = len(next(iter(batch.values())))
    return loss(live, {"x": torch.ones(rows, 2), **batch}).item()


def close(*values):
    return pytest.approx(values, abs=1e-6)


def two_clients(method, **kinds):
    """Two clients with four rows each, of tier d1 unless said otherwise."""
    clients = {"a": (kinds.get("a", "d1"), data(4)), "b": (kinds.get("b", "d1"), data(4))}
    return PublicPlay(method, zoo(1, 2), clients)
