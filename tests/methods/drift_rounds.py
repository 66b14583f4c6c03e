"""Rounds under losses with known gradients, for methods against client drift, and what they are compared by."""

from dataclasses import dataclass, replace

import made_round
import torch
from made_round import Play, zoo

from potluck.core import Local

SHARES = ["whole", "layerwise", "per_arch"]
TRAINING = Local(lr=0.2, epochs=3, batch=4)


@dataclass(frozen=True)
class Slope:
    """A loss whose gradient is the first value of a client's rows, for every weight and wherever it is."""

    def __call__(self, net, batch):
        return batch["x"][:, 0].mean() * sum(weight.sum() for weight in net.parameters())


@dataclass(frozen=True)
class Bowl:
    """a / 2 * (w - b)^2 for every weight; a and b are the two values of a client's rows."""

    def __call__(self, net, batch):
        steep, bottom = batch["x"].mean(0)
        return steep / 2 * sum((weight - bottom).square().sum() for weight in net.parameters())


def descending(method, loss):
    """This method with another loss."""
    kind = type(method)

    @dataclass(frozen=True)
    class Descending(kind):
        def loss(self, task, device):
            return loss

    return Descending(**vars(method))


def at(state, value):
    """The same state with every number of the server's model at a value."""
    arrays = {name: torch.full_like(tensor, value) for name, tensor in state.model.arrays.items()}
    return replace(state, model=replace(state.model, arrays=arrays))


def everywhere(arrays):
    """The value that all entries of all tensors have."""
    (value,) = {round(value, 5) for tensor in arrays.values() for value in tensor.flatten().tolist()}
    return value


def people(*tiers):
    """A client of each of these tiers: 12 rows, 17, 22 and so on."""
    return made_round.people(*tiers, more=5)


def after(method, rounds, *tiers, networks=None):
    """The server's tensors after so many rounds."""
    play = Play(method, networks or zoo(2), people(*(tiers or ("d2", "d2", "d2"))))
    state = play.init()
    for index in range(rounds):
        state = play.round(state, index)
    return state.model.arrays


def near(ours, theirs, within=1e-6):
    return all(torch.allclose(ours[name], tensor, rtol=0, atol=within) for name, tensor in theirs.items())
