"""Federations of networks that say the same of everything, for methods that learn from what networks say.

Networks here are MLPs of two inputs and two classes whose weights are all zero but for the head's bias: whatever they
are shown, their scores are that bias.
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


def saying(method):
    """This method with clients that do not train: the model they send says what their data holds."""

    @dataclass(frozen=True)
    class Saying(type(method)):
        @on_client
        def train(self, task, device):
            return Reply({"model": biased(task.models["model"].spec, device.data.column("x")[0])}, weight=1.0)

    return Saying(**vars(method))


def biased(spec, scores):
    """A model that says this of everything."""
    shapes = ModelZoo(spec).shapes(spec)
    arrays = {name: torch.zeros(shape) for name, (shape, _) in shapes.items()}
    return Model(spec, {**arrays, "head.bias": torch.as_tensor(scores, dtype=torch.float32)})


class Speaking(Play):
    """A federation with four public rows, of class 0 unless said otherwise."""

    def __post_init__(self):
        labels = getattr(self.method, "public_labels", (0, 0, 0, 0))
        self.public = Examples({"x": torch.ones(4, 2), **({"y": torch.tensor(labels)} if labels else {})})
        self.zoo = replace(self.zoo, public=4)
        super().__post_init__()
        datasets = ClientDatasets(
            {id: Shard(train) for id, (_, train) in self.clients.items()} | {SERVER: Shard(self.public)}
        )
        datasets.public = self.public
        context = SimulationContext(self.method, self.zoo, datasets, Classify(2), self.seed)
        self.dispatcher = Dispatcher(Serial(context), self.method, self.zoo, recall=self.memories.get)

    def keep(self, **scores):
        """Clients that already have a model, which says this."""
        for client in self.everyone:
            if client.id in scores:
                self.memories[client.id] = (0, {"model": biased(client.tier.spec, scores[client.id])})

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


def net(*scores):
    """A live network that says this of everything."""
    spec = zoo(1).full
    return ModelZoo(spec).build(biased(spec, scores))


def value(loss, live, **batch):
    """A loss on a batch, of whose inputs nothing depends."""
    rows = len(next(iter(batch.values())))
    return loss(live, {"x": torch.ones(rows, 2), **batch}).item()


def close(*values):
    return pytest.approx(values, abs=1e-6)


def two(method, **kinds):
    """Two clients with four rows each, of tier d1 unless said otherwise."""
    clients = {"a": (kinds.get("a", "d1"), data(4)), "b": (kinds.get("b", "d1"), data(4))}
    return Speaking(method, zoo(1, 2), clients)
