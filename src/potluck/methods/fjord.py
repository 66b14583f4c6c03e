"""FjORD: ordered dropout. Every mini-batch trains a prefix of the client's units, of a width drawn anew.

Horváth et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout", NeurIPS
2021, https://arxiv.org/abs/2102.13451. As in the authors' Flower baseline: widths are drawn from those up to the
client's own, one for the whole network and each batch; with self-distillation the client's full width learns from the
labels and the narrow one from the full width's answers; batch-norm statistics are kept apart for every width; clients
weigh by their samples. No scaler, no label masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from potluck.core import (
    Arrays,
    Client,
    Device,
    Expected,
    Facts,
    Model,
    Reply,
    Round,
    SettingsError,
    Skip,
    Spec,
    Task,
    Zoo,
    on_client,
)
from potluck.learn import AtWidth, Turns
from potluck.methods.frames.averaging import Averaged, Averaging
from potluck.methods.frames.width import prefix
from potluck.parts import WHOLE, OverlapMean, Part, Place


@dataclass(frozen=True)
class FjORD(Averaging):
    """Every batch trains a prefix of random width; narrow ones learn from the wide one."""

    widths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    """The widths that are drawn; a tier's own must be among them."""
    distill: bool = True
    """Train the client's full width on the labels, and the narrow one on its answers."""

    facts = Facts(networks="width")

    def init(self, zoo: Zoo, rng: torch.Generator) -> Averaged:
        born: Averaged = super().init(zoo, rng)
        arrays = dict(born.model.arrays or {})
        for spec in self.ladder(zoo.full, zoo):
            fresh = zoo.fresh(spec, rng).arrays or {}
            arrays |= {kept(name, spec, zoo): fresh[name] for name in zoo.buffers(spec) if spec != zoo.full}
        return Averaged(Model(zoo.full, arrays))

    def round(self, state: Averaged, now: Round) -> Averaged:
        mean = OverlapMean(state.model.arrays or {})
        for reply in self.train_cohort(mean, state, now)[0]:
            mean.add(reply.arrays, WHOLE, self.weigh(reply, now.zoo))
        moved: Averaged = self.server_step(state, mean, now)
        return moved

    def extra_payload(self, client: str, spec: Spec, part: Part, state: Averaged, now: Round) -> Arrays:
        return self.inner(spec, state.model.arrays or {}, now.zoo)

    def ladder(self, spec: Spec, zoo: Zoo) -> list[Spec]:
        """The networks of every width up to this one's, narrowest first."""
        rungs = {zoo.narrow(zoo.full, width): width for width in sorted(self.widths)}
        return [rung for rung in rungs if all(rung.sizes[group] <= size for group, size in spec.sizes.items())]

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        spec = client.tier.spec
        if spec == zoo.full:
            return spec, Part({name: Place(name) for name in zoo.shapes(spec)})
        places = prefix(spec, zoo.full, zoo).places
        return spec, Part({**places, **{name: Place(kept(name, spec, zoo)) for name in zoo.buffers(spec)}})

    def inner(self, spec: Spec, whole: Mapping[str, Tensor], zoo: Zoo) -> dict[str, Tensor]:
        """The batch-norm statistics of the widths below a client's own."""
        below = [rung for rung in self.ladder(spec, zoo) if rung != spec]
        names = (kept(name, rung, zoo) for rung in below for name in zoo.buffers(rung))
        return {name: whole[name] for name in names}

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        return frozenset(kept(name, spec, zoo) for spec in self.ladder(zoo.full, zoo) for name in zoo.buffers(spec))

    @on_client
    def train(self, task: Task, device: Device) -> Reply:
        """Train every batch at a width of its own."""
        if not len(device.data):
            raise Skip("no samples")
        model, zoo = task.models["model"], device.zoo
        net = device.build(model)
        nets = {rung: self.below(rung, task, device) for rung in self.ladder(model.spec, zoo) if rung != model.spec}
        losses = [AtWidth(nets.get(r), prefix(r, model.spec, zoo), self.distill) for r in self.ladder(model.spec, zoo)]
        loss = losses[0] if len(losses) == 1 else self.turns(losses, device)
        fit = device.fit(net, device.data, self.local, loss)
        seen = {
            kept(name, rung, zoo): tensor
            for rung, narrow in nets.items()
            for name, tensor in device.rest(narrow).items()
            if name in zoo.buffers(rung)
        }
        return replace(self.report(task, device, net, fit), arrays=seen)

    def turns(self, losses: list[AtWidth], device: Device) -> Turns:
        """A width for every batch, drawn before the first."""
        order = torch.randint(len(losses), (self.local.count(len(device.data)),), generator=device.rng)
        return Turns(tuple(losses), tuple(order.tolist()))

    def below(self, spec: Spec, task: Task, device: Device) -> nn.Module:
        """A narrower live network with statistics of its own; its weights are lent by the wide one, batch by batch."""
        model, zoo = task.models["model"], device.zoo
        arrays = dict(prefix(spec, model.spec, zoo).take(model.arrays or {}))
        arrays |= {name: task.arrays[kept(name, spec, zoo)] for name in zoo.buffers(spec)}
        return device.build(Model(spec, arrays)).train()  # whoever scored with it last left it in evaluation

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb != "train":
            return super().expects(task, zoo)
        shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in task.arrays.items()}
        return replace(super().expects(task, zoo), arrays=shapes)

    def check(self, zoo: Zoo) -> None:
        for tier in zoo.tiers:
            alien = tier.spec.family != zoo.full.family or tier.spec.sizes.keys() != zoo.full.sizes.keys()
            if alien or tier.depth is not None or (tier.width is not None and tier.width not in self.widths):
                raise SettingsError(
                    f"FjORD draws from [method] widths = {list(self.widths)}; tier '{tier.name}' has "
                    f"width = {tier.width}, depth = {tier.depth}. Give it one of these widths, no depth, and no model "
                    "of its own."
                )


def kept(name: str, spec: Spec, zoo: Zoo) -> str:
    """Under which name the server keeps a network's statistics: apart for every width."""
    return name if spec == zoo.full else f"{name} at {spec.key}"
