"""TailorFL: every client trains a sub-model of the units most important to its own data, as many as its width allows.

Deng et al., "TailorFL: Dual-Personalized Federated Learning under System and Data Heterogeneity", SenSys 2022,
https://doi.org/10.1145/3560905.3568503. No code is public: this is written from the abstract and general knowledge. The
first time it takes part, a client gets the whole model and computes each unit's importance, |weight x gradient| on its
data. It keeps the best units of each axis group, as many as its tier's width allows. Then it trains the narrow network
made of them.

Scaling: if a layer has only the share r of its inputs, its weights are divided by r in training, so that its outputs
have the same scale as in the whole network. They are multiplied by r before they are averaged. On the wire, weights
always have the server's scale. Tuning, off by default: every `tuning` rounds, a client swaps its least important tenth
for units that the three most similar clients of the round hold. Similarity is the Jaccard index of the held units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from potluck.core import (
    Arrays,
    Client,
    ContractSettings,
    Device,
    Expected,
    Fit,
    Model,
    Newborn,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
    on_client,
    stream,
)
from potluck.methods.bases.personal_models import SelectedUnits, choose_units, require_at_least, require_share
from potluck.methods.bases.unit_importance import prunable_weights, top_units
from potluck.methods.fedavg import AveragedState
from potluck.parts import OverlapMean, part

SIMILAR = 3
"""Number of similar clients whose units are recommended."""


@dataclass(frozen=True)
class TailorFL(SelectedUnits):
    """Narrow clients train the units that matter to their own data."""

    contract = ContractSettings(as_fedavg={"weighting": "samples"})

    tuning: int = 0
    """Rounds between two tunings by similar clients; 0: none."""
    swap: float = 0.1
    """The share of its units that a client swaps in a tuning."""

    def __post_init__(self) -> None:
        require_share(swap=self.swap)
        require_at_least(0, tuning=self.tuning)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        return client.tier.spec.sizes

    def frame(self, client: Client, zoo: Zoo) -> Spec:
        return zoo.shallow(zoo.full, client.tier.depth)

    def ask_masks(self, now: Round) -> dict[str, Arrays]:
        """The masks of each client; a client that can train all units holds all of them."""
        clients = {client.id: client for client in self.pick(now)}
        wide = {id for id, client in clients.items() if client.tier.spec.sizes == self.frame(client, now.zoo).sizes}
        held = super().ask_masks(now)
        return {
            id: {group: torch.ones_like(mask) for group, mask in units.items()} if id in wide else units
            for id, units in held.items()
        }

    def round(self, state: AveragedState, now: Round) -> AveragedState:
        zoo, whole = now.zoo, state.model.arrays
        clients = {client.id: client for client in self.pick(now)}
        held = self.tune_cohort(self.ask_selections(whole, now), now)
        specs = {id: clients[id].tier.spec for id in held}
        parts = {
            id: part(zoo.axes(self.frame(clients[id], zoo)), choose_units(units), zoo.shapes(specs[id]))
            for id, units in held.items()
        }
        mean = OverlapMean(whole)
        tasks = (self.train_task(id, Model(specs[id], parts[id].take(whole)), parts[id], state, now) for id in held)
        now.fold(tasks, mean, parts)
        rule = self.server_rule(state.model.spec, zoo)
        arrays, slots = rule(whole, mean, state.slots, self.buffers(zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def start(self, task: Task, device: Device) -> Model:
        """The received model, with weights scaled to the share of their inputs."""
        spec, arrays = task.models["model"].spec, task.models["model"].arrays
        scaled = {name: arrays[name] / r for name, r in input_shares(spec, device.zoo).items()}
        return Model(spec, {**arrays, **scaled})

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        device.memory["model"] = model = reply.models["model"]
        sent, before, after = (m.arrays for m in (task.models["model"], self.start(task, device), model))
        # Dividing and multiplying may round; a weight that did not move keeps its exact value.
        unscaled = {
            name: torch.where(after[name] == before[name], sent[name], after[name] * r)
            for name, r in input_shares(model.spec, device.zoo).items()
        }
        return replace(reply, models={"model": Model(model.spec, {**after, **unscaled})})

    def tune_cohort(self, held: dict[str, Arrays], now: Round) -> dict[str, Arrays]:
        """The clients' masks after a tuning, if one is due."""
        if not self.tuning or not now.index or now.index % self.tuning:
            return held
        narrow = [
            id for id, units in held.items() if not all(bool(mask.all() | ~mask.any()) for mask in units.values())
        ]
        replies = now.send(
            Task("tune", id, arrays=neighbour_counts(id, held), expects=Expected(arrays=self.bits(now.zoo)))
            for id in narrow
        )
        new = {reply.task.to: reply.arrays for reply in replies}
        return {id: new[id] if id in new and same_sizes(new[id], units) else units for id, units in held.items()}

    @on_client
    def tune(self, task: Task, device: Device) -> Reply:
        """Swap the least important units for units that similar clients hold."""
        importance, held = device.memory["importance"], self.own_masks(device)
        device.memory["held"] = {
            group: swap_units(units, importance[group], task.arrays[group], self.swap) if group in importance else units
            for group, units in held.items()
        }
        return Reply(arrays=device.memory["held"])

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        for tier in zoo.tiers:
            whole = zoo.shallow(zoo.full, tier.depth) if tier.spec.family == zoo.full.family else None
            if whole is None or tier.spec.sizes.keys() != whole.sizes.keys():
                raise SettingsError(
                    f"TailorFL cuts every tier's network out of [model]; tier '{tier.name}' has a model of its own. "
                    "Give it a width instead."
                )


@lru_cache(maxsize=256)
def input_shares(spec: Spec, zoo: Zoo) -> Mapping[str, float]:
    """For each layer of a narrow network, the share of the whole layer's inputs that it has; left out where it is 1."""
    small, whole = zoo.shapes(spec), zoo.shapes(zoo.full)
    net = zoo.build(Newborn(spec), stream(0, "layers"))
    tables = {f"{place}.weight" for place, layer in net.named_modules() if isinstance(layer, nn.Embedding)}
    shares = {name: small[name][0][1] / whole[name][0][1] for name in prunable_weights(spec, zoo) if name not in tables}
    return {name: share for name, share in shares.items() if share != 1}


def neighbour_counts(id: str, held: Mapping[str, Arrays]) -> Arrays:
    """For each unit, how many of the clients most similar to this one hold it."""
    others = sorted(
        (other for other in held if other != id), key=lambda other: (-jaccard(held[id], held[other]), other)
    )
    return {
        group: sum((held[other][group].to(torch.uint8) for other in others[:SIMILAR]), torch.zeros_like(units.byte()))
        for group, units in held[id].items()
    }


def jaccard(ours: Arrays, theirs: Arrays) -> float:
    """The Jaccard index: units that both hold, divided by units that either holds."""
    both = sum(int((units & theirs[group]).sum()) for group, units in ours.items())
    return both / max(1, sum(int((units | theirs[group]).sum()) for group, units in ours.items()))


def swap_units(units: Tensor, importance: Tensor, wanted: Tensor, share: float) -> Tensor:
    """These units, with the least important ones (this share) replaced by the most wanted others."""
    count = min(math.ceil(share * int(units.sum()) - 1e-9), int(((wanted > 0) & ~units).sum()))
    leaving = top_units(torch.where(units, -importance, -torch.inf), count)
    return (units & ~leaving) | top_units(torch.where(units, -1.0, wanted.float()), count)


def same_sizes(ours: Arrays, theirs: Arrays) -> bool:
    """Whether both masks hold the same number of units in every group."""
    return all(int(units.sum()) == int(theirs[group].sum()) for group, units in ours.items())
