"""FjORD: ordered dropout. Every mini-batch trains the first units of every layer, at a width drawn at random.

Horváth et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered Dropout", NeurIPS
2021, https://arxiv.org/abs/2102.13451. As in the authors' Flower baseline: each batch draws one width for the whole
network, among the widths up to the client's own. With self-distillation, the client's full width learns from the
labels, and the narrow width learns from the logits of the full width. Every width has its own batch-norm statistics.
Clients are weighted by their samples. There is no scaler, and there are no label masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from potluck.core import (
    Arrays,
    Batch,
    Client,
    ClientWork,
    ContractSettings,
    Device,
    Expected,
    Facts,
    FitRequest,
    Model,
    Round,
    SettingsError,
    Skip,
    Spec,
    Task,
    Zoo,
    on_client,
    shapes_of,
)
from potluck.learn import Turns, cross_entropy
from potluck.methods.bases.width import prefix
from potluck.methods.fedavg import AveragedState, Averaging
from potluck.parts import WHOLE, OverlapMean, Part, Place


@dataclass(frozen=True)
class FjORD(Averaging):
    """Every batch trains a sub-model of random width; narrow widths learn from the full width."""

    contract = ContractSettings(as_fedavg={"widths": [1.0], "distill": False})

    widths: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    """The widths to draw from; the width of every tier must be among them."""
    distill: bool = True
    """Self-distillation: the client's full width learns from the labels, the narrow one from its logits."""

    facts = Facts(networks="width")

    def init(self, zoo: Zoo, rng: torch.Generator) -> AveragedState:
        arrays = dict(self.initial_model(zoo, rng).arrays)
        for spec in self.widths_up_to(zoo.full, zoo):
            fresh = zoo.fresh(spec, rng).arrays
            arrays |= {statistics_name(name, spec, zoo): fresh[name] for name in zoo.buffers(spec) if spec != zoo.full}
        return AveragedState(Model(zoo.full, arrays))

    def round(self, state: AveragedState, now: Round) -> AveragedState:
        mean = OverlapMean(state.model.arrays)
        for reply in self.train_cohort(mean, state, now)[0]:
            mean.add(reply.arrays, WHOLE, self.weigh(reply, now.zoo))
        stepped: AveragedState = self.server_step(state, mean, now)
        return stepped

    def extra_payload(self, client: str, spec: Spec, part: Part, state: AveragedState, now: Round) -> Arrays:
        return self.narrow_statistics(spec, state.model.arrays, now.zoo)

    def widths_up_to(self, spec: Spec, zoo: Zoo) -> list[Spec]:
        """The networks of every width up to this one's, narrowest first."""
        specs = {zoo.narrow(zoo.full, width): width for width in sorted(self.widths)}
        return [narrow for narrow in specs if all(narrow.sizes[group] <= size for group, size in spec.sizes.items())]

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        spec = client.tier.spec
        if spec == zoo.full:
            return spec, Part({name: Place(name) for name in zoo.shapes(spec)})
        places = prefix(spec, zoo.full, zoo).places
        return spec, Part({**places, **{name: Place(statistics_name(name, spec, zoo)) for name in zoo.buffers(spec)}})

    def narrow_statistics(self, spec: Spec, whole: Mapping[str, Tensor], zoo: Zoo) -> dict[str, Tensor]:
        """The batch-norm statistics of all widths below the client's own."""
        below = [narrow for narrow in self.widths_up_to(spec, zoo) if narrow != spec]
        names = (statistics_name(name, narrow, zoo) for narrow in below for name in zoo.buffers(narrow))
        return {name: whole[name] for name in names}

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        widths = self.widths_up_to(zoo.full, zoo)
        return frozenset(statistics_name(name, spec, zoo) for spec in widths for name in zoo.buffers(spec))

    @on_client
    def train(self, task: Task, device: Device) -> ClientWork:
        """Train each batch at its own random width."""
        if not len(device.data):
            raise Skip("no samples")
        model, zoo = task.models["model"], device.zoo
        net = device.build(model)
        widths = self.widths_up_to(model.spec, zoo)
        nets = {narrow: self.build_narrow(narrow, task, device) for narrow in widths if narrow != model.spec}
        losses = [AtWidth(nets.get(spec), prefix(spec, model.spec, zoo), self.distill) for spec in widths]
        loss = losses[0] if len(losses) == 1 else self.turns(losses, device)
        fit = yield FitRequest(net, device.data, self.local, loss)
        seen = {
            statistics_name(name, narrow, zoo): tensor
            for narrow, net_below in nets.items()
            for name, tensor in device.snapshot(net_below).items()
            if name in zoo.buffers(narrow)
        }
        return replace(self.report(task, device, fit), arrays=seen)

    def turns(self, losses: list[AtWidth], device: Device) -> Turns:
        """A width for every batch; all are drawn before the first batch."""
        order = torch.randint(len(losses), (self.local.count(len(device.data)),), generator=device.rng)
        return Turns(tuple(losses), tuple(order.tolist()))

    def build_narrow(self, spec: Spec, task: Task, device: Device) -> nn.Module:
        """A narrow live network with its own statistics; in each batch it uses the weights of the wide one."""
        model, zoo = task.models["model"], device.zoo
        arrays = dict(prefix(spec, model.spec, zoo).take(model.arrays))
        arrays |= {name: task.arrays[statistics_name(name, spec, zoo)] for name in zoo.buffers(spec)}
        return device.build(Model(spec, arrays)).train()  # scoring may have left it in evaluation mode

    def expected_reply(self, model: Model, arrays: Arrays, now: Round) -> Expected:
        """The model, and the batch-norm statistics of all narrower widths."""
        return Expected({"model": model.shapes}, shapes_of(arrays))

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        for tier in zoo.tiers:
            alien = tier.spec.family != zoo.full.family or tier.spec.sizes.keys() != zoo.full.sizes.keys()
            if alien or tier.depth is not None or (tier.width is not None and tier.width not in self.widths):
                raise SettingsError(
                    f"FjORD draws from [method] widths = {list(self.widths)}; tier '{tier.name}' has "
                    f"width = {tier.width}, depth = {tier.depth}. Give it one of these widths, no depth, and no model "
                    "of its own."
                )


def statistics_name(name: str, spec: Spec, zoo: Zoo) -> str:
    """The server's name for a network's batch-norm statistics; it differs for every width."""
    return name if spec == zoo.full else f"{name} at {spec.key}"


@dataclass(frozen=True, eq=False)
class AtWidth:
    """The loss of one batch at one width; the labels teach, or the client's full width does."""

    narrow: nn.Module | None
    """None: the full width itself."""
    part: Part
    distill: bool

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        if self.narrow is None and not self.distill:
            return cross_entropy(net(batch["x"]), batch["y"])
        wide = net(batch["x"]) if self.distill else None
        small = wide if self.narrow is None and wide is not None else self.narrow_logits(net, batch["x"])
        if wide is None:
            return cross_entropy(small, batch["y"])
        return cross_entropy(wide, batch["y"]) + cross_entropy(small, batch["y"], teacher=wide.detach())

    def narrow_logits(self, net: nn.Module, x: Tensor) -> Tensor:
        """The narrow network's logits, computed with the wide network's weights."""
        assert self.narrow is not None
        live = dict(net.named_parameters())
        weights = {name: place.take(live[place.name]) for name, place in self.part.places.items() if name in live}
        logits: Tensor = functional_call(self.narrow, weights, (x,))
        return logits
