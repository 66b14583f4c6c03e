"""Static batch norm: no running statistics in training; before scoring, clients compute the statistics.

It comes from HeteroFL (Diao et al., ICLR 2021). Every method that averages weights can use it, with
``norm = "static"`` in [model]. Every batch of every client has the same weight in the statistics. HeteroFL's code takes
them from the whole training set (``bn_eval = "everyone"``), FedRolex's from each test batch (``"batch"``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from potluck.core import (
    SERVER,
    Arrays,
    Client,
    Device,
    Expected,
    Fit,
    Model,
    Reply,
    Round,
    Skip,
    Spec,
    Task,
    Tier,
    Zoo,
    on_client,
)
from potluck.methods.bases.submodels import SubmodelAssignment
from potluck.parts import WHOLE, OverlapMean


@dataclass(frozen=True)
class StaticBatchNorm(SubmodelAssignment):
    """Gathers batch-norm statistics before scoring, if networks keep none in training."""

    bn_eval: Literal["posthoc", "everyone", "batch"] = "posthoc"
    """Whose statistics score static batch norm. posthoc: the last cohort's; everyone: all clients', which costs a pass
    over all their data for each scoring; batch: each test batch's own, and no client is asked."""

    def ready(self, state: Any, now: Round) -> Any:
        """Before scoring, asks clients for the statistics of static batch norm; these tasks are priced too."""
        if self.bn_eval == "batch" or now.zoo.counting(now.zoo.full) == now.zoo.full:
            return state
        kinds = [Client(SERVER, Tier("server", spec=now.zoo.full)), *(Client("", tier) for tier in now.zoo.tiers)]
        networks = dict(self.submodel_for(client, now.zoo) for client in kinds)
        whole = state.model.arrays
        found = {spec.key: self.statistics(spec, part.take(whole), now) for spec, part in networks.items()}
        return replace(state, statistics=found)

    def statistics(self, spec: Spec, arrays: Arrays, now: Round) -> Arrays:
        """The mean of the clients' batch-norm statistics for one network."""
        twin = now.zoo.counting(spec)
        fresh = now.zoo.fresh(twin, now.rng("statistics")).arrays
        mean = OverlapMean({name: tensor for name, tensor in fresh.items() if name not in arrays})
        model, shapes = Model(twin, {**fresh, **arrays}), now.zoo.shapes(twin)
        expects = Expected(arrays={name: shapes[name] for name in now.zoo.buffers(twin)})
        asked = now.everyone() if self.bn_eval == "everyone" else now.cohort
        tasks = (Task("count", c.id, spec.key, models={"model": model}, expects=expects) for c in asked)
        for reply in now.send(tasks):
            mean.add(reply.arrays, WHOLE, reply.weight)
        return mean.value()

    @on_client
    def count(self, task: Task, device: Device) -> Reply:
        """One pass over the client's data in training mode, without gradients, to gather batch-norm statistics."""
        if not len(device.data):
            raise Skip("no samples")
        net = device.build(task.models["model"])
        batches = device.gather_statistics(net, device.data, self.local.batch)
        kept = device.zoo.buffers(task.models["model"].spec)
        arrays = {name: tensor for name, tensor in device.snapshot(net).items() if name in kept}
        return Reply(arrays=arrays, weight=float(batches))

    def personal_start(self, task: Task, device: Device) -> Model:
        """The model that was sent, without the gathered statistics: clients train static batch norm."""
        model = super().personal_start(task, device)
        if model.spec.options.get("norm") != "counted":
            return model
        kept, static = device.zoo.buffers(model.spec), {**model.spec.options, "norm": "static"}
        arrays = {name: tensor for name, tensor in model.arrays.items() if name not in kept}
        return Model(replace(model.spec, options=static), arrays)

    def personal_net(self, model: Model, fit: Fit, device: Device) -> nn.Module:
        """The trained network, with batch-norm statistics of the client's own data."""
        twin = device.zoo.counting(model.spec)
        if self.bn_eval == "batch" or twin == model.spec:
            return super().personal_net(model, fit, device)
        fresh = device.zoo.fresh(twin, device.rng).arrays
        net = device.build(Model(twin, {**fresh, **device.snapshot(fit.net)}))
        device.gather_statistics(net, device.data, self.local.batch)
        return net

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The model this client would use today, with the gathered batch-norm statistics."""
        model = super().serve(state, client, zoo)
        found = None if model is None else state.statistics.get(model.spec.key)
        if model is None or found is None:
            return model
        return Model(zoo.counting(model.spec), {**model.arrays, **found})
