"""Rounds small enough for paper and pencil: real engines and networks, clients that send what they are told to."""

from dataclasses import dataclass, replace

import torch

from potluck.core import NOTHING, Client, Examples, Model, Reply, Round, Tier, on_client, stream
from potluck.engines import Dispatcher, Serial, SimulationContext
from potluck.learn import Classify
from potluck.models import ModelZoo, make_spec, tier_spec


@dataclass(frozen=True)
class Shard:
    train: Examples
    validation: Examples = NOTHING
    test: Examples = NOTHING
    labels: tuple[int, ...] = (0, 1)


class ClientDatasets:
    """Shards by client; the public set is empty."""

    public = NOTHING

    def __init__(self, shards):
        self.shards = shards

    def shard(self, client):
        return self.shards[client]


def zoo(*depths, norm="none", **more):
    """An MLP of two inputs, one unit a layer and two classes; a tier for each depth, named by it unless named here."""
    full = make_spec("mlp", input=(2,), classes=2, hidden=1, depth=max((*depths, *more.values())), norm=norm)
    named = {**{f"d{depth}": depth for depth in depths}, **more}
    tiers = [Tier(name, 1.0, None, depth, tier_spec(full, None, depth)) for name, depth in named.items()]
    return ModelZoo(full, tiers)


def data(samples, values=(0.0, 0.0)):
    """So many rows that all hold these two values."""
    return Examples({"x": torch.tensor([values] * samples).reshape(samples, 2), "y": torch.arange(samples) % 2})


def learning(count=12, seed=0):
    """Rows that teach something: the label says which of the two inputs is larger."""
    x = torch.randn(count, 2, generator=stream(seed, "rows"))
    rows = data(count)
    rows.columns.update(x=x, y=(x[:, 0] > x[:, 1]).long())
    return rows


def people(*tiers, count=12, more=3):
    """A client of each of these tiers, each with so many more rows than the one before."""
    return {f"c{n}": (tier, learning(count + more * n, n)) for n, tier in enumerate(tiers)}


def echoing(method):
    """This method with clients that do not train: every tensor they send holds the values of their data.

    A tensor of two entries (the head's bias) holds both values, any other only the first.
    """
    kind = type(method)

    @dataclass(frozen=True)
    class Echoing(kind):
        @on_client
        def train(self, task, device):
            values = device.data.column("x")[0]
            sent = task.models["model"]
            arrays = {name: filled(tensor, values) for name, tensor in sent.arrays.items()}
            return Reply({"model": Model(sent.spec, arrays)}, weight=float(len(device.data)))

    return Echoing(**vars(method))


def filled(tensor, values):
    value = values if tensor.shape == (2,) else values[0]
    return value.to(tensor.dtype).expand(tensor.shape).clone()


def zeros(state):
    """The same state with every number of the server's model at zero."""
    arrays = {name: torch.zeros_like(tensor) for name, tensor in state.model.arrays.items()}
    return replace(state, model=replace(state.model, arrays=arrays))


@dataclass
class Play:
    """A federation of hand-made clients: ``{"c1": ("d2", data(10)), ...}``."""

    method: object
    zoo: ModelZoo
    clients: dict
    seed: int = 0

    def __post_init__(self):
        tiers = {tier.name: tier for tier in self.zoo.tiers}
        self.everyone = [Client(id, tiers[tier]) for id, (tier, _) in self.clients.items()]
        datasets = ClientDatasets({id: Shard(train) for id, (_, train) in self.clients.items()})
        self.memories = {}
        context = SimulationContext(self.method, self.zoo, datasets, Classify(2), self.seed)
        self.dispatcher = Dispatcher(Serial(context), self.method, self.zoo, recall=self.memories.get)

    def init(self):
        return self.method.init(self.zoo, stream(self.seed, "init"))

    def round(self, state, index=0, only=None):
        """One committed round among these clients (all of them by default); the session stays to be looked at."""
        cohort = [client for client in self.everyone if only is None or client.id in only]

        def recruit(wanted):
            return [client for client in self.everyone if wanted(client)]

        self.session = self.dispatcher.open(index)
        now = Round(
            index, cohort, len(self.everyone), self.zoo, self.seed, self.session.send, self.session.fold, recruit
        )
        state = self.method.round(state, now)
        self.session.close()
        self.memories |= {client: (index, memory) for client, memory in self.session.staged.items()}
        return state

    def served(self, state, client):
        return self.method.serve(state, next(c for c in self.everyone if c.id == client), self.zoo)
