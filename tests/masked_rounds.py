"""Federations for methods whose clients keep masks: small networks, rows that teach something, rounds played."""

from dataclasses import dataclass

import torch
from made_round import Play, learning

from potluck.core import Local, Tier
from potluck.models import ModelZoo, make_spec, tier_spec

TRAINING = Local(lr=0.2, epochs=3, batch=4)
ON, OFF = True, False


def bits(*values):
    return torch.tensor([bool(value) for value in values])


def zoo(hidden=4, depth=1, family="mlp", **widths):
    """A network of two inputs and two classes; a tier for each width, or one without."""
    more = {"hidden": hidden} if family == "mlp" else {"width": hidden}
    shape = (2,) if family == "mlp" else (1, 4, 4)
    full = make_spec(family, input=shape, classes=2, depth=depth, norm="none", **more)
    tiers = [Tier(name, 1.0, width, None, tier_spec(full, width, None)) for name, width in widths.items()]
    return ModelZoo(full, tiers or [Tier("all", 1.0, None, None, full)])


def people(count, tier="all"):
    return {f"c{n}": (tier, learning(24 + 4 * n, n)) for n in range(count)}


def played(method, rounds, networks=None, clients=None):
    """A federation after so many rounds: the play, its last state, and what every round cost."""
    play = Play(method, networks or zoo(), clients or people(3))
    state, costs = play.init(), []
    for index in range(rounds):
        state = play.round(state, index)
        assert all(entry.verdict == "accepted" for entry in play.session.entries)
        costs.append({(e.task.verb, e.task.to): (e.cost.bytes_down, e.cost.bytes_up) for e in play.session.entries})
    return play, state, costs


def memory(play, client):
    return play.memories[client][1]


@dataclass
class Remembering:
    """As much of a device as a client's own model is made of."""

    memory: dict
