"""LotteryFL: every client looks for a winning ticket, a sparse network that suits its data, and shares where it can.

Li et al., "LotteryFL: Personalized and Communication-Efficient Federated Learning with Lottery Ticket Hypothesis on
Non-IID Datasets", 2020, https://arxiv.org/abs/2008.03371. A client whose network is good enough prunes its smallest
weights, tensor by tensor, and rewinds the others to their first values. Weights that a client has pruned stay zero and
do not travel, from the next round on: in the round itself it answers with what it was sent, and with the bits that say
what is left. Weights only, no biases. A weight that nobody holds keeps the server's value.

As in the released code the share that remains is reckoned, not counted: 0.8 to the number of prunings. The code tests a
client on its test split; here it is the validation split or, without one, the training examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from potluck.core import (
    EMPTY,
    Arrays,
    Device,
    Edit,
    Expected,
    Model,
    Reply,
    Round,
    Shapes,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.held import as_sent, filled, newcomer, packed, spread, unpacked
from potluck.methods.frames.masks import Personal, within
from potluck.methods.frames.merits import accuracy, prunable
from potluck.methods.frames.through import Only
from potluck.parts import Mask, OverlapMean


@dataclass(frozen=True)
class Raffle(Averaged):
    """What the server keeps: the averaged model, and the values that it was born with."""

    ticket: Arrays = EMPTY


@dataclass(frozen=True)
class LotteryFL(Personal):
    """Every client prunes its own network, weight by weight, and rewinds it."""

    keep: float = 0.5
    """Prune until this share of the weights remains, or less."""
    prune: float = 0.2
    """The share of the remaining weights that goes each time."""
    threshold: float = 0.2
    """Prune only a network that is more accurate than this."""

    def __post_init__(self) -> None:
        within(keep=self.keep, prune=self.prune)

    def init(self, zoo: Zoo, rng: torch.Generator) -> Raffle:
        model = super().init(zoo, rng).model
        return Raffle(model, ticket=model.arrays or {})

    def round(self, state: Raffle, now: Round) -> Raffle:
        whole, shown = state.model.arrays or {}, self.shown(now)
        mean = OverlapMean(whole)
        for reply in now.send(self.tasks(state, shown, now)):
            masks = filled(shown[reply.task.to])
            model = reply.models["model"]
            alive = {name: spread(bits, masks[name]) for name, bits in reply.arrays.items()}
            arrays = unpacked(model.arrays or {}, masks)
            reply = replace(reply, models={"model": Model(model.spec, arrays)})
            mean.add(arrays, Mask(alive), self.weigh(reply, now.zoo))
        arrays, slots = self.server(whole, mean, state.slots, self.buffers(now.zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def tasks(self, state: Raffle, shown: Mapping[str, Arrays], now: Round) -> Iterator[Task]:
        """To each client what it holds; to newcomers everything, and the first values, the same in round 0."""
        for id, held in shown.items():
            models = {"model": Model(state.model.spec, packed(state.model.arrays or {}, filled(held)))}
            if now.index and newcomer(held):
                models["ticket"] = Model(state.model.spec, state.ticket)
            yield Task("train", id, models=models)

    def bits(self, zoo: Zoo) -> Shapes:
        shapes = zoo.shapes(zoo.full)
        return {name: (shapes[name][0], torch.bool) for name in prunable(zoo.full, zoo)}

    def start(self, task: Task, device: Device) -> Model:
        """What was sent or, where it was good enough to prune, what is left of it, rewound."""
        sent, held = task.models["model"], self.held(device)
        model = Model(sent.spec, unpacked(sent.arrays or {}, filled(held)))
        if newcomer(held):
            device.memory["held"], device.memory["remaining"] = filled(held), 1.0
            device.memory["ticket"] = (task.models.get("ticket") or model).arrays
        remaining = device.memory["remaining"]
        if remaining <= self.keep or accuracy(device.build(model), device) <= self.threshold:
            return model
        masks = {name: pruned((model.arrays or {})[name], mask, self.prune) for name, mask in filled(held).items()}
        device.memory["held"], device.memory["remaining"] = masks, remaining * (1 - self.prune)
        return Model(sent.spec, Mask(masks).take(device.memory["ticket"]))

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        return (Only(device.memory["held"]),)

    @on_client
    def train(self, task: Task, device: Device) -> Reply:
        """Answers with values for all that was sent, and bits for what of it is left."""
        before = filled(self.held(device))
        reply = super().train(task, device)
        trained, after = reply.models["model"], device.memory["held"]
        arrays = trained.arrays or {}
        device.memory["model"] = Model(trained.spec, packed(arrays, after))
        left = {name: after[name][mask] for name, mask in before.items()}
        return replace(reply, models={"model": Model(trained.spec, packed(arrays, before))}, arrays=left)

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb != "train":
            return super().expects(task, zoo)
        sent = as_sent(task)
        return Expected({"model": sent}, {name: (sent[name][0], torch.bool) for name in self.bits(zoo)})

    def own(self, device: Device) -> Model:
        model = super().own(device)
        return Model(model.spec, unpacked(model.arrays or {}, device.memory["held"]))


def pruned(weights: Tensor, mask: Tensor, share: float) -> Tensor:
    """The mask without this share of its smallest weights: those below the percentile, as numpy has it."""
    size = weights.abs()
    return mask & (size >= float(np.percentile(size[mask].double().numpy(), 100 * share)))
