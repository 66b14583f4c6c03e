"""TailorFL: every device trains the units that its own data needs, as many as it can carry.

Deng et al., "TailorFL: Dual-Personalized Federated Learning under System and Data Heterogeneity", SenSys 2022,
https://doi.org/10.1145/3560905.3568503; written from the abstract and general knowledge, no code being public. A device
that is first met is sent the whole model once, scores every unit by |weight x gradient| on its data, and keeps the best
of each axis group, as many as its tier's width allows. Then it trains the narrow network made of them.

Scaling: a layer that has only the share r of its inputs works with its weights divided by r, so that it speaks as
loudly as the whole; they are multiplied back before they are averaged. On the wire they are always as the server has
them. Tuning, off by default: every so many rounds a device swaps its least important tenth for units that the three
most similar devices of the round hold, by the Jaccard index of what they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from torch import nn

from potluck.core import (
    Arrays,
    Client,
    Device,
    Expected,
    Fit,
    Model,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
    on_client,
    stream,
)
from potluck.methods.frames.averaging import Averaged
from potluck.methods.frames.held import chosen
from potluck.methods.frames.masks import Tailored, at_least, within
from potluck.methods.frames.merits import alike, popular, prunable, swapped
from potluck.parts import OverlapMean, part


@dataclass(frozen=True)
class TailorFL(Tailored):
    """Narrow clients train the units that matter to their own data."""

    tuning: int = 0
    """Rounds between two tunings by similar devices; 0: none."""
    swap: float = 0.1
    """The share of its units that a device swaps in a tuning."""

    def __post_init__(self) -> None:
        within(swap=self.swap)
        at_least(0, tuning=self.tuning)

    def budget(self, client: Client, zoo: Zoo) -> Mapping[str, int]:
        return client.tier.spec.sizes

    def frame(self, client: Client, zoo: Zoo) -> Spec:
        return zoo.shallow(zoo.full, client.tier.depth)

    def shown(self, now: Round) -> dict[str, Arrays]:
        """What each client holds; one that can carry all has nothing to choose."""
        clients = {client.id: client for client in self.pick(now)}
        wide = {id for id, client in clients.items() if client.tier.spec.sizes == self.frame(client, now.zoo).sizes}
        held = super().shown(now)
        return {
            id: {group: torch.ones_like(mask) for group, mask in units.items()} if id in wide else units
            for id, units in held.items()
        }

    def round(self, state: Averaged, now: Round) -> Averaged:
        zoo, whole = now.zoo, state.model.arrays or {}
        clients = {client.id: client for client in self.pick(now)}
        held = self.tuned(self.fitted(whole, now), now)
        specs = {id: clients[id].tier.spec for id in held}
        parts = {
            id: part(zoo.axes(self.frame(clients[id], zoo)), chosen(units), zoo.shapes(specs[id]))
            for id, units in held.items()
        }
        mean = OverlapMean(whole)
        tasks = (Task("train", id, models={"model": Model(specs[id], parts[id].take(whole))}) for id in held)
        now.fold(tasks, mean, parts, partial(self.weigh, zoo=zoo))
        arrays, slots = self.server(whole, mean, state.slots, self.buffers(zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def start(self, task: Task, device: Device) -> Model:
        """What was sent, as loud as the whole."""
        spec, arrays = task.models["model"].spec, task.models["model"].arrays or {}
        return Model(spec, {**arrays, **{name: arrays[name] / r for name, r in inputs(spec, device.zoo).items()}})

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply = super().report(task, device, net, fit)
        device.memory["model"] = model = reply.models["model"]
        sent, begun, after = (m.arrays or {} for m in (task.models["model"], self.start(task, device), model))
        # Dividing and multiplying may cost a bit; what did not move keeps all of them.
        quiet = {
            name: torch.where(after[name] == begun[name], sent[name], after[name] * r)
            for name, r in inputs(model.spec, device.zoo).items()
        }
        return replace(reply, models={"model": Model(model.spec, {**after, **quiet})})

    def tuned(self, held: dict[str, Arrays], now: Round) -> dict[str, Arrays]:
        """What clients hold after a tuning, where one is due."""
        if not self.tuning or not now.index or now.index % self.tuning:
            return held
        choosy = [
            id for id, units in held.items() if not all(bool(mask.all() | ~mask.any()) for mask in units.values())
        ]
        replies = now.send(Task("tune", id, arrays=popular(id, held)) for id in choosy)
        new = {reply.task.to: reply.arrays for reply in replies}
        return {id: new[id] if id in new and alike(new[id], units) else units for id, units in held.items()}

    @on_client
    def tune(self, task: Task, device: Device) -> Reply:
        """Swap the least important units for those that similar devices hold."""
        importance, held = device.memory["importance"], self.held(device)
        device.memory["held"] = {
            group: swapped(units, importance[group], task.arrays[group], self.swap) if group in importance else units
            for group, units in held.items()
        }
        return Reply(arrays=device.memory["held"])

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        return Expected(arrays=self.bits(zoo)) if task.verb == "tune" else super().expects(task, zoo)

    def check(self, zoo: Zoo) -> None:
        for tier in zoo.tiers:
            whole = zoo.shallow(zoo.full, tier.depth) if tier.spec.family == zoo.full.family else None
            if whole is None or tier.spec.sizes.keys() != whole.sizes.keys():
                raise SettingsError(
                    f"TailorFL cuts every tier's network out of [model]; tier '{tier.name}' has a model of its own. "
                    "Give it a width instead."
                )


@lru_cache(maxsize=256)
def inputs(spec: Spec, zoo: Zoo) -> Mapping[str, float]:
    """The share that each layer of a narrow network has of its inputs in the whole, where that is not all of them."""
    small, whole = zoo.shapes(spec), zoo.shapes(zoo.full)
    net = zoo.build(Model(spec), stream(0, "layers"))
    tables = {f"{place}.weight" for place, layer in net.named_modules() if isinstance(layer, nn.Embedding)}
    shares = {name: small[name][0][1] / whole[name][0][1] for name in prunable(spec, zoo) if name not in tables}
    return {name: share for name, share in shares.items() if share != 1}
