"""The round that every weight-averaging method shares: hand parts out, train, put them back together.

Two habits of HeteroFL's (Diao et al., ICLR 2021) are open to all of them. Static batch norm (``norm = "static"`` in
[model]) keeps no running statistics in training; before scoring, the last cohort is asked for them, every batch alike.
Label masks keep a client from unlearning classes that it does not have: their scores are zero in its loss, and its rows
of the head do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from potluck.core import (
    EMPTY,
    SERVER,
    Arrays,
    Client,
    Device,
    Expected,
    Facts,
    Fit,
    Loss,
    Model,
    Reply,
    Round,
    Skip,
    Spec,
    Task,
    Tier,
    Weight,
    Zoo,
    on_client,
)
from potluck.learn import LocalTraining, MaskedCrossEntropy, truths
from potluck.parts import WHOLE, OverlapMean, Part, Replace, Rule, Slots


@dataclass(frozen=True)
class Averaged:
    """The server's half of a round: one model, and what the server rule remembers."""

    model: Model
    slots: Slots = EMPTY
    statistics: Mapping[str, Arrays] = EMPTY
    """Batch-norm statistics by the network's key: only while a static network is scored."""


@dataclass(frozen=True)
class Averaging(LocalTraining):
    """Clients train the server's network, or parts of it; the server averages whatever overlaps."""

    weighting: Literal["samples", "uniform"] = "samples"
    """How much a client counts: by its samples, or all alike."""
    label_mask: bool = False
    """Leave classes that a client does not own out of its loss and of its share in the head."""
    bn_eval: Literal["posthoc", "batch"] = "posthoc"
    """Static batch norm is scored with statistics that clients gather first, or with each test batch's own."""
    server: Rule = Replace()
    """How the mean moves the server's model."""

    @property
    def facts(self) -> Facts:
        """What this method needs and allows: one network for all, and no more than sums."""
        return Facts()

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        return Averaged(Model(self.target(zoo), zoo.fresh(self.target(zoo), rng).arrays))

    def round(self, state: Any, now: Round) -> Any:
        mean = OverlapMean(state.model.arrays or {})
        self.train_cohort(mean, state, now)
        return self.server_step(state, mean, now)

    def train_cohort(
        self, mean: OverlapMean, state: Any, now: Round, weigh: Callable[[Reply], Weight] | None = None
    ) -> tuple[Sequence[Reply], dict[str, Part]]:
        """Hands everyone their part, and folds what they make of it into the mean; the replies, and who had which."""
        held = {client.id: self.assign(client, now) for client in self.pick(now)}
        where = next((tensor.device for tensor in mean.start.values()), torch.device("cpu"))
        parts = {id: part.on(where) for id, (_, part) in held.items()}
        whole = {spec: Model(spec, mean.start) for spec, part in held.values() if part.entire}  # one for everybody
        tasks = (
            Task(
                "train",
                id,
                models={"model": whole.get(spec) or Model(spec, parts[id].take(mean.start))},
                arrays=self.extra_payload(id, spec, parts[id], state, now),
            )
            for id, (spec, _) in held.items()
        )
        return now.fold(tasks, mean, parts, weigh or partial(self.weigh, zoo=now.zoo)), parts

    def extra_payload(self, client: str, spec: Spec, part: Part, state: Any, now: Round) -> Arrays:
        """What a client is sent besides its model: nothing."""
        return EMPTY

    def server_step(self, state: Any, mean: OverlapMean, now: Round) -> Any:
        """The state after the server's step towards a mean."""
        arrays, slots = self.server(mean.start, mean, state.slots, self.buffers(now.zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def target(self, zoo: Zoo) -> Spec:
        """The server's network."""
        return zoo.full

    def pick(self, now: Round) -> Sequence[Client]:
        """Who takes part: the cohort."""
        return now.cohort

    def assign(self, client: Client, now: Round) -> tuple[Spec, Part]:
        """The network a client trains this round, and which part of the server's model that is."""
        return self.submodel_for(client, now.zoo)

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        """The network that fits this client on any day, and which part of the server's model that is."""
        return self.target(zoo), WHOLE

    def loss(self, task: Task, device: Device) -> Loss:
        if not self.label_mask:
            return device.problem.loss
        return MaskedCrossEntropy(truths(device.labels, classes(task.models["model"].spec)))

    def report(self, task: Task, device: Device, net: nn.Module, fit: Fit) -> Reply:
        reply = super().report(task, device, net, fit)
        return replace(reply, metrics={**reply.metrics, "labels": list(device.labels)}) if self.label_mask else reply

    def weigh(self, reply: Reply, zoo: Zoo) -> Weight:
        """How much a reply counts: a number or, with label masks, one for each row of the head."""
        return self.masked(reply.weight if self.weighting == "samples" else 1.0, reply, zoo)

    def masked(self, weight: float | Mapping[str, float], reply: Reply, zoo: Zoo) -> Weight:
        """A weight in which rows of classes that the client does not own count nothing."""
        labels = reply.metrics.get("labels")
        if not self.label_mask or not isinstance(labels, list | tuple):
            return weight
        spec, arrays = reply.models["model"].spec, reply.models["model"].arrays or {}
        weights: dict[str, float | Tensor] = dict(weight) if isinstance(weight, Mapping) else {"": weight}
        mask = truths([int(str(label)) for label in labels], classes(spec)).to(torch.float64)
        for name in class_rows(spec, zoo):
            rows = mask.reshape(-1, *[1] * (arrays[name].dim() - 1))
            weights[name] = weights.get(name, weights.get("", 1.0)) * rows
        return weights

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        """The server's tensors that no gradient trains: they take the plain mean under every server rule."""
        return zoo.buffers(self.target(zoo))

    def ready(self, state: Any, now: Round) -> Any:
        """Before scoring: the statistics of static batch norms, asked of the cohort, so that they are priced."""
        if self.bn_eval == "batch" or now.zoo.counting(now.zoo.full) == now.zoo.full:
            return state
        everyone = [Client(SERVER, Tier("server", spec=now.zoo.full)), *(Client("", tier) for tier in now.zoo.tiers)]
        networks = dict(self.submodel_for(client, now.zoo) for client in everyone)
        whole = state.model.arrays or {}
        found = {spec.key: self.asked(spec, held.take(whole), now) for spec, held in networks.items()}
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
        if not len(device.data):
            raise Skip("no samples")
        net = device.build(task.models["model"])
        batches = device.observe(net, device.data, self.local.batch)
        kept = device.zoo.buffers(task.models["model"].spec)
        arrays = {name: tensor for name, tensor in device.rest(net).items() if name in kept}
        return Reply(arrays=arrays, weight=float(batches))

    def expects(self, task: Task, zoo: Zoo) -> Expected:
        if task.verb != "count":
            return super().expects(task, zoo)
        spec = task.models["model"].spec
        return Expected(arrays={name: zoo.shapes(spec)[name] for name in zoo.buffers(spec)})

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today."""
        spec, held = self.submodel_for(client, zoo)
        arrays, found = held.take(state.model.arrays or {}), state.statistics.get(spec.key)
        return Model(spec, arrays) if found is None else Model(zoo.counting(spec), {**arrays, **found})

    def check(self, zoo: Zoo) -> None:
        """Refuses, before round 0, a federation that this method cannot train."""


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
