"""LotteryFL: every client searches for its own winning ticket, a sparse sub-network, by pruning and rewinding.

Li et al., "LotteryFL: Personalized and Communication-Efficient Federated Learning with Lottery Ticket Hypothesis on
Non-IID Datasets", 2020, https://arxiv.org/abs/2008.03371. If a client's network is accurate enough, the client prunes
its smallest weights, tensor by tensor, and rewinds the others to their initial values. Pruned weights stay zero. From
the next round on, they do not cross the wire; in the round itself, the client replies with values for all that it
received, and with bits for what is left. Only weights are pruned, no biases. A weight that no client holds keeps the
server's value.

As in the released code, the share that remains is computed, not counted: (1 - prune) to the power of the number of
prunings. The code tests a client on its test split; here it is the validation split or, without one, the training
examples.
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
    Client,
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
from potluck.methods.bases.personal_models import PersonalModels, all_if_new, is_newcomer, require_share, scatter
from potluck.methods.bases.unit_importance import MaskedGradients, prunable_weights, validation_score
from potluck.methods.fedavg import AveragedState
from potluck.parts import Mask, OverlapMean


@dataclass(frozen=True)
class LotteryState(AveragedState):
    """The server's state: the averaged model, and its initial values (`ticket`)."""

    ticket: Arrays = EMPTY


@dataclass(frozen=True)
class LotteryFL(PersonalModels):
    """Every client prunes its own network, weight by weight, and rewinds it."""

    contract = ContractSettings(
        as_fedavg={"threshold": 2.0, "weighting": "samples", "label_mask": False}, within=1e-6, tiers="width"
    )

    keep: float = 0.5
    """Prune until at most this share of the weights remains."""
    keep_by_tier: bool = False
    """Instead of `keep`, the share of the parameters that the network of the client's tier has, by its width."""
    prune: float = 0.2
    """The share of the remaining weights that one pruning removes."""
    threshold: float = 0.2
    """Prune only a network whose accuracy is above this."""

    def __post_init__(self) -> None:
        require_share(keep=self.keep, prune=self.prune)

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
        rule = self.server_rule(state.model.spec, now.zoo)
        arrays, slots = rule(whole, mean, state.slots, self.buffers(now.zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def tasks(self, state: LotteryState, shown: Mapping[str, Arrays], now: Round) -> Iterator[Task]:
        """Sends each client what it holds; newcomers get everything and, after round 0, the initial values too."""
        shares = {client.id: self.share(client, now.zoo) for client in now.cohort}
        for id, held in shown.items():
            models = {"model": Model(state.model.spec, pack_masked(state.model.arrays, all_if_new(held)))}
            if now.index and is_newcomer(held):
                models["ticket"] = Model(state.model.spec, state.ticket)
            sent = models["model"].shapes
            left = {name: (sent[name][0], torch.bool) for name in self.bits(now.zoo)}
            config = {"keep": shares[id]} if self.keep_by_tier else {}
            expects = Expected({"model": sent}, left, self.label_check(now.zoo.full))
            yield Task("train", id, models=models, config=config, expects=expects)

    def share(self, client: Client, zoo: Zoo) -> float:
        """The share of the weights that this client prunes down to."""
        if not self.keep_by_tier:
            return self.keep
        return zoo.cost(client.tier.spec, 1).parameters / zoo.cost(zoo.full, 1).parameters

    def bits(self, zoo: Zoo) -> Shapes:
        shapes = zoo.shapes(zoo.full)
        return {name: (shapes[name][0], torch.bool) for name in prunable_weights(zoo.full, zoo)}

    def start(self, task: Task, device: Device) -> Model:
        """The received model or, if it is accurate enough to prune, the pruned model with its initial values."""
        sent, held = task.models["model"], self.own_masks(device)
        model = Model(sent.spec, unpack_masked(sent.arrays, all_if_new(held)))
        if is_newcomer(held):
            device.memory["held"], device.memory["remaining"] = all_if_new(held), 1.0
            device.memory["ticket"] = (task.models.get("ticket") or model).arrays
        remaining, keep = device.memory["remaining"], task.config.get("keep", self.keep)
        assert isinstance(keep, float)
        if remaining <= keep or validation_score(model, device) <= self.threshold:
            return model
        masks = {name: prune_mask(model.arrays[name], mask, self.prune) for name, mask in all_if_new(held).items()}
        device.memory["held"], device.memory["remaining"] = masks, remaining * (1 - self.prune)
        return Model(sent.spec, Mask(masks).take(device.memory["ticket"]))

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        return (MaskedGradients(device.memory["held"]),)

    @on_client
    def train(self, task: Task, device: Device) -> ClientWork:
        """Reply with values for all that was received, and bits for what is left of it."""
        before = all_if_new(self.own_masks(device))
        reply = yield from super().train(task, device)
        trained, after = reply.models["model"], device.memory["held"]
        arrays = trained.arrays
        device.memory["model"] = Model(trained.spec, pack_masked(arrays, after))
        left = {name: after[name][mask] for name, mask in before.items()}
        return replace(reply, models={"model": Model(trained.spec, pack_masked(arrays, before))}, arrays=left)

    def complete(
        self, served: Model | None, memory: Mapping[str, Any], labels: Sequence[int], zoo: Zoo
    ) -> Model | None:
        """The client's own model, unpacked: its memory keeps only the weights under its masks."""
        packed = super().complete(served, memory, labels, zoo)
        return packed and Model(packed.spec, unpack_masked(packed.arrays, memory["held"]))

    def own(self, device: Device) -> Model:
        model = super().own(device)
        return Model(model.spec, unpack_masked(model.arrays, device.memory["held"]))


def prune_mask(weights: Tensor, mask: Tensor, share: float) -> Tensor:
    """The mask without this share of its smallest weights: those below numpy's percentile."""
    size = weights.abs()
    return mask & (size >= float(np.percentile(size[mask].double().numpy(), 100 * share)))


def pack_masked(arrays: Arrays, masks: Arrays) -> Arrays:
    """Only the entries under the masks, as a flat tensor; tensors without a mask whole."""
    return {name: tensor[masks[name]] if name in masks else tensor for name, tensor in arrays.items()}


def unpack_masked(arrays: Arrays, masks: Arrays) -> Arrays:
    """Undoes `pack_masked`: the entries at their places, zeros elsewhere."""
    return {name: scatter(tensor, masks[name]) if name in masks else tensor for name, tensor in arrays.items()}
