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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.core import (
    EMPTY,
    Arrays,
    ClientWork,
    ContractSettings,
    Device,
    Edit,
    Expected,
    Model,
    Round,
    Shapes,
    Task,
    Zoo,
    on_client,
)
from potluck.methods.bases.personal_models import PersonalModels, all_if_new, is_newcomer, scatter, within
from potluck.methods.bases.unit_importance import MaskedGradients, prunable_weights, validation_score
from potluck.methods.fedavg import AveragedState
from potluck.parts import Mask, OverlapMean


@dataclass(frozen=True)
class LotteryState(AveragedState):
    """What the server keeps: the averaged model, and the values that it was born with."""

    ticket: Arrays = EMPTY


@dataclass(frozen=True)
class LotteryFL(PersonalModels):
    """Every client prunes its own network, weight by weight, and rewinds it."""

    contract = ContractSettings(
        as_fedavg={"threshold": 2.0, "weighting": "samples", "label_mask": False}, within=1e-6, tiers="width"
    )

    keep: float = 0.5
    """Prune until this share of the weights remains, or less."""
    prune: float = 0.2
    """The share of the remaining weights that goes each time."""
    threshold: float = 0.2
    """Prune only a network that is more accurate than this."""

    def __post_init__(self) -> None:
        within(keep=self.keep, prune=self.prune)

    def init(self, zoo: Zoo, rng: torch.Generator) -> LotteryState:
        model = self.initial_model(zoo, rng)
        return LotteryState(model, ticket=model.arrays)

    def round(self, state: LotteryState, now: Round) -> LotteryState:
        whole, shown = state.model.arrays, self.ask_masks(now)
        mean = OverlapMean(whole)
        for reply in now.send(self.tasks(state, shown, now)):
            masks = all_if_new(shown[reply.task.to])
            model = reply.models["model"]
            alive = {name: scatter(bits, masks[name]) for name, bits in reply.arrays.items()}
            arrays = unpack_masked(model.arrays, masks)
            reply = replace(reply, models={"model": Model(model.spec, arrays)})
            mean.add(arrays, Mask(alive), self.weigh(reply, now.zoo))
        arrays, slots = self.server(whole, mean, state.slots, self.buffers(now.zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def tasks(self, state: LotteryState, shown: Mapping[str, Arrays], now: Round) -> Iterator[Task]:
        """To each client what it holds; to newcomers everything, and the first values, the same in round 0."""
        for id, held in shown.items():
            models = {"model": Model(state.model.spec, pack_masked(state.model.arrays, all_if_new(held)))}
            if now.index and is_newcomer(held):
                models["ticket"] = Model(state.model.spec, state.ticket)
            sent = models["model"].shapes
            left = {name: (sent[name][0], torch.bool) for name in self.bits(now.zoo)}
            yield Task("train", id, models=models, expects=Expected({"model": sent}, left))

    def bits(self, zoo: Zoo) -> Shapes:
        shapes = zoo.shapes(zoo.full)
        return {name: (shapes[name][0], torch.bool) for name in prunable_weights(zoo.full, zoo)}

    def start(self, task: Task, device: Device) -> Model:
        """What was sent or, where it was good enough to prune, what is left of it, rewound."""
        sent, held = task.models["model"], self.held(device)
        model = Model(sent.spec, unpack_masked(sent.arrays, all_if_new(held)))
        if is_newcomer(held):
            device.memory["held"], device.memory["remaining"] = all_if_new(held), 1.0
            device.memory["ticket"] = (task.models.get("ticket") or model).arrays
        remaining = device.memory["remaining"]
        if remaining <= self.keep or validation_score(device.build(model), device) <= self.threshold:
            return model
        masks = {name: prune_mask(model.arrays[name], mask, self.prune) for name, mask in all_if_new(held).items()}
        device.memory["held"], device.memory["remaining"] = masks, remaining * (1 - self.prune)
        return Model(sent.spec, Mask(masks).take(device.memory["ticket"]))

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        return (MaskedGradients(device.memory["held"]),)

    @on_client
    def train(self, task: Task, device: Device) -> ClientWork:
        """Answers with values for all that was sent, and bits for what of it is left."""
        before = all_if_new(self.held(device))
        reply = yield from super().train(task, device)
        trained, after = reply.models["model"], device.memory["held"]
        arrays = trained.arrays
        device.memory["model"] = Model(trained.spec, pack_masked(arrays, after))
        left = {name: after[name][mask] for name, mask in before.items()}
        return replace(reply, models={"model": Model(trained.spec, pack_masked(arrays, before))}, arrays=left)

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """The model in the client's memory, where only the weights under its masks are kept."""
        packed = super().complete(served, memory, labels, zoo)
        return packed and Model(packed.spec, unpack_masked(packed.arrays, memory["held"]))

    def own(self, device: Device) -> Model:
        model = super().own(device)
        return Model(model.spec, unpack_masked(model.arrays, device.memory["held"]))


def prune_mask(weights: Tensor, mask: Tensor, share: float) -> Tensor:
    """The mask without this share of its smallest weights: those below the percentile, as numpy has it."""
    size = weights.abs()
    return mask & (size >= float(np.percentile(size[mask].double().numpy(), 100 * share)))


def pack_masked(arrays: Arrays, masks: Arrays) -> Arrays:
    """Only the entries under the masks, one after the other; other tensors entire."""
    return {name: tensor[masks[name]] if name in masks else tensor for name, tensor in arrays.items()}


def unpack_masked(arrays: Arrays, masks: Arrays) -> Arrays:
    """The tensors of which these are the entries under the masks, with zeros elsewhere."""
    return {name: scatter(tensor, masks[name]) if name in masks else tensor for name, tensor in arrays.items()}
