"""Width: the frame that HeteroFL, Federated Dropout and FedRolex share. They differ in which units a client trains.

Each tier trains a sub-model with its share of the units of every axis group, cut out of the server's model and put back
entry by entry, all clients alike. Around it stand three devices of HeteroFL's (Diao et al., ICLR 2021): static batch
norm (``norm = "static"`` in [model]), whose statistics are asked of the clients before scoring; a scaler, which makes a
narrow layer speak as loudly as the wide one in training; and label masks, which keep a client from unlearning classes
that it does not have. The FedRolex code scores with the test batch's own statistics instead (``bn_eval = "batch"``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from potluck.core import (
    EMPTY,
    Arrays,
    Client,
    Device,
    Expected,
    Fit,
    Loss,
    Model,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Weight,
    Zoo,
    on_client,
)
from potluck.learn import MaskedCrossEntropy, truths
from potluck.methods.averaging import Averaged, Averaging
from potluck.parts import WHOLE, Choose, OverlapMean, Part, part


@dataclass(frozen=True)
class Narrowed(Averaged):
    """One model and, only while it is scored, the batch-norm statistics of every width of it."""

    statistics: Mapping[str, Arrays] = EMPTY
    """By the spec's key."""


@dataclass(frozen=True)
class Width(Averaging):
    """Devices train narrow parts of one server model, which may be wider than any of them."""

    weighting: Literal["uniform", "width", "samples"] = "uniform"  # type: ignore[assignment]
    """How much a client counts: all alike; by the units it has of a layer; by its samples."""
    rounding: Literal["ceil", "floor"] = "ceil"
    """Units of a group at a fraction: every released code rounds up, the FedRolex paper writes floor."""
    label_mask: bool = True
    """Scores of classes that a client does not own are zero in its loss, and its rows for them are left out."""
    scaler: bool = True
    """Divide by the width while training, where the network has places for it."""
    bn_eval: Literal["posthoc", "batch"] = "posthoc"
    """Static batch norm is scored with statistics that clients gather first, or with each test batch's own."""

    def init(self, zoo: Zoo, rng: torch.Generator) -> Narrowed:
        return Narrowed(super().init(zoo, rng).model)

    def choose(self, spec: Spec, client: Client, now: Round) -> Choose:
        """Which units of each group this client trains this round."""
        raise NotImplementedError

    def hand_out(self, client: Client, now: Round) -> tuple[Spec, Part]:
        spec, zoo = self.narrow(client, now.zoo), now.zoo
        axes = zoo.axes(zoo.shallow(zoo.full, client.tier.depth))
        held = part(axes, self.choose(spec, client, now), zoo.shapes(spec), self.heads(spec, client, now))
        return self.voiced(spec, client, zoo), held

    def heads(self, spec: Spec, client: Client, now: Round) -> Choose | None:
        """Which entries over all heads together, where heads are not cut each for itself."""
        return None

    def fitting(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        spec = self.narrow(client, zoo)
        return spec, prefix(spec, zoo.shallow(zoo.full, client.tier.depth), zoo)

    def narrow(self, client: Client, zoo: Zoo) -> Spec:
        """The network of this client's width, rounded as the settings say."""
        tier = client.tier
        if self.rounding == "ceil" or tier.width is None:
            return tier.spec
        whole = zoo.shallow(zoo.full, tier.depth).sizes
        ratios = tier.width if isinstance(tier.width, Mapping) else dict.fromkeys(whole, tier.width)
        sizes = {group: max(1, math.floor(size * ratios.get(group, 1.0) + 1e-9)) for group, size in whole.items()}
        return replace(tier.spec, sizes=sizes)

    def voiced(self, spec: Spec, client: Client, zoo: Zoo) -> Spec:
        """The network as it trains: with the scaler for its width."""
        width = client.tier.width
        if not self.scaler or not isinstance(width, int | float) or width == 1 or "scaler" not in spec.options:
            return spec
        return zoo.scaled(spec, float(width))

    def loss(self, task: Task, device: Device) -> Loss:
        if not self.label_mask:
            return device.problem.loss
        return MaskedCrossEntropy(truths(device.labels, classes(task.models["model"].spec)))

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply = super().report(task, device, net, fit)
        return replace(reply, metrics={**reply.metrics, "labels": list(device.labels)}) if self.label_mask else reply

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        spec, arrays = reply.models["model"].spec, reply.models["model"].arrays or {}
        weights: dict[str, float | Tensor] = {"": reply.weight if self.weighting == "samples" else 1.0}
        if self.weighting == "width":
            weights = {name: float(tensor.shape[0]) if tensor.dim() else 1.0 for name, tensor in arrays.items()}
        labels = reply.metrics.get("labels")
        if self.label_mask and isinstance(labels, list | tuple):
            mask = truths([int(str(label)) for label in labels], classes(spec)).to(torch.float64)
            for name in class_rows(spec, zoo):
                rows = mask.reshape(-1, *[1] * (arrays[name].dim() - 1))
                weights[name] = weights.get(name, weights.get("", 1.0)) * rows
        return weights

    def check(self, zoo: Zoo) -> None:
        for tier in zoo.tiers:
            base = zoo.shallow(zoo.full, tier.depth) if tier.spec.family == zoo.full.family else tier.spec
            if tier.spec.family != zoo.full.family or tier.spec.sizes.keys() != base.sizes.keys():
                raise SettingsError(
                    f"{type(self).__name__} cuts every tier's network out of [model]; tier '{tier.name}' has a model "
                    "of its own. Give it a width instead."
                )

    # Static batch norm: the statistics are asked of the cohort through `send`, so that they are priced and travel.

    def ready(self, state: Narrowed, now: Round) -> Narrowed:
        if self.bn_eval == "batch" or now.zoo.full.options.get("norm") != "static":
            return state
        networks = [(now.zoo.full, WHOLE), *(self.fitting(Client("", tier), now.zoo) for tier in now.zoo.tiers)]
        whole = state.model.arrays or {}
        found = {spec.key: self.asked(spec, held.take(whole), now) for spec, held in dict(networks).items()}
        return replace(state, statistics=found)

    def asked(self, spec: Spec, arrays: Arrays, now: Round) -> Arrays:
        """The mean of all clients' batch statistics for one network, every batch alike."""
        twin = now.zoo.counting(spec)
        fresh = now.zoo.fresh(twin, now.rng("statistics")).arrays or {}
        mean = OverlapMean({name: tensor for name, tensor in fresh.items() if name not in arrays})
        model = Model(twin, {**fresh, **arrays})
        for reply in now.send(Task("count", c.id, spec.key, models={"model": model}) for c in now.cohort):
            mean.add(reply.arrays, WHOLE, reply.weight)
        return mean.value()

    @on_client
    def count(self, task: Task, device: Device) -> Reply:
        """One pass over the client's data in training mode, without gradients, to gather batch statistics."""
        spec = task.models["model"].spec
        net = device.build(task.models["model"])
        batches = device.observe(net, device.data, self.local.batch)
        kept = device.zoo.buffers(spec)
        arrays = {name: tensor for name, tensor in device.rest(net).items() if name in kept}
        return Reply(arrays=arrays, weight=float(batches))

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb != "count":
            return super().expects(task, zoo)
        spec = task.models["model"].spec
        return Expected(arrays={name: zoo.shapes(spec)[name] for name in zoo.buffers(spec)})

    def serve(self, state: Narrowed, client: Client, zoo: Zoo) -> Model | None:
        spec, held = self.fitting(client, zoo)
        arrays, found = held.take(state.model.arrays or {}), state.statistics.get(spec.key)
        return Model(spec, arrays) if found is None else Model(zoo.counting(spec), {**arrays, **found})


@lru_cache(maxsize=256)
def prefix(spec: Spec, whole: Spec, zoo: Zoo) -> Part:
    """The first units of every group: what HeteroFL trains, and what every width method serves."""
    if spec == whole == zoo.full:
        return WHOLE
    return part(zoo.axes(whole), lambda axis: range(spec.sizes[axis.group]), zoo.shapes(spec))


@lru_cache(maxsize=256)
def class_rows(spec: Spec, zoo: Zoo) -> tuple[str, ...]:
    """Tensors whose rows stand for classes (or tokens): they are never cut, and there is one for each."""
    count, shapes = classes(spec), zoo.shapes(spec)
    return tuple(
        name
        for name, dimensions in zoo.axes(spec).items()
        if dimensions and dimensions[0] is None and shapes[name][0][0] == count
    )


def classes(spec: Spec) -> int:
    """How many classes (or tokens) a network tells apart."""
    return int(str(spec.options["classes"]))
