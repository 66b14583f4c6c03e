"""FedAvg: clients train the server's model on their own data, and the server averages the trained models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
https://arxiv.org/abs/1602.05629.

Batch-norm statistics are averaged like weights. What goes beyond the paper is in ``bases``: unequal networks (`share`),
label masks, static batch norm and private heads. Server rules other than the plain mean (`server`), and robust means
(`mean`), are in ``potluck.parts``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from potluck.core import EMPTY, Arrays, ContractSettings, Facts, Model, Reply, Round, SettingsError, Spec, Weight, Zoo
from potluck.methods.bases.label_mask import LabelMask
from potluck.methods.bases.static_norm import StaticBatchNorm
from potluck.methods.bases.unequal_networks import UnequalNetworks
from potluck.parts import MeanRule, OverlapMean, Part, Replace, Rule, Slots, Weighted


@dataclass(frozen=True)
class AveragedState:
    """The server's state: one model, and the optimiser state of the server rule (`slots`)."""

    model: Model
    slots: Slots = EMPTY
    statistics: Mapping[str, Arrays] = EMPTY
    """Batch-norm statistics, by the network's key. Present only while networks with static batch norm are scored."""


@dataclass(frozen=True)
class Averaging(StaticBatchNorm, LabelMask):
    """FedAvg's round, which every method that averages weights inherits.

    Clients train the server's network, or parts of it; the server averages the entries that overlap.
    """

    server: Rule = Replace()
    """How the mean moves the server's model."""

    def init(self, zoo: Zoo, rng: torch.Generator) -> Any:
        return AveragedState(self.initial_model(zoo, rng))

    def new_mean(self, whole: Arrays) -> OverlapMean:
        """A mean without contributions, for the clients' models."""
        return OverlapMean(whole)

    def round(self, state: Any, now: Round) -> Any:
        mean = self.new_mean(state.model.arrays)
        self.train_cohort(mean, state, now)
        return self.server_step(state, mean, now)

    def train_cohort(
        self, mean: OverlapMean, state: Any, now: Round, weigh: Callable[[Reply], Weight] | None = None
    ) -> tuple[Sequence[Reply], dict[str, Part]]:
        """Sends each client its part, and adds the replies to the mean. Returns the replies, and each client's part."""
        assigned = {client.id: self.assign(client, now) for client in self.pick(now)}
        where = next((tensor.device for tensor in mean.start.values()), torch.device("cpu"))
        moved = {id(part): part.on(where) for _, part in assigned.values()}
        parts = {client: moved[id(part)] for client, (_, part) in assigned.items()}
        uses = Counter(map(id, parts.values()))
        shared: dict[tuple[Spec, int], Model] = {}

        def cut(client: str) -> Model:
            """A client's model; clients with one and the same part share one copy."""
            spec, part = assigned[client][0], parts[client]
            model = shared.get((spec, id(part))) or Model(spec, part.take(mean.start))
            if uses[id(part)] > 1:
                shared[spec, id(part)] = model
            return model

        tasks = (self.train_task(client, cut(client), parts[client], state, now) for client in assigned)
        return now.fold(tasks, mean, parts, weigh), parts

    def server_step(self, state: Any, mean: OverlapMean, now: Round) -> Any:
        """The state after the server rule's step towards the mean."""
        rule = self.server_rule(state.model.spec, now.zoo)
        arrays, slots = rule(mean.start, mean, state.slots, self.buffers(now.zoo))
        return replace(state, model=Model(state.model.spec, arrays), slots=slots)

    def server_rule(self, spec: Spec, zoo: Zoo) -> Rule:
        """The server rule for this network, with the learning rate of the tier whose network it is."""
        rule: Any = self.server
        rates = {tier.spec: tier.server_lr for tier in zoo.tiers if tier.server_lr is not None}
        found: Rule = replace(rule, lr=rates[spec]) if spec in rates else rule
        return found

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        tier = next((tier for tier in zoo.tiers if tier.server_lr is not None), None)
        if tier is not None and isinstance(self.server, Replace):
            raise SettingsError(
                f"tier '{tier.name}' has server_lr = {tier.server_lr}, which needs a server rule with a learning rate; "
                '"replace" has none. Choose another method.server, or leave server_lr out.'
            )


@dataclass(frozen=True)
class RobustAveraging(Averaging):
    """Averaging with a choice of means, for methods in which the mean is all that the server takes from replies."""

    mean: MeanRule = Weighted()
    """Which mean of the clients' models. The others than "weighted" withstand some hostile clients; they ignore
    weights, keep all replies of a round in memory, and exclude secure aggregation. See docs/security.md."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, sums=self.mean.sums)

    def new_mean(self, whole: Arrays) -> OverlapMean:
        return self.mean.start(whole)


@dataclass(frozen=True)
class FedAvg(UnequalNetworks, RobustAveraging):
    """Average the clients' models."""

    contract = ContractSettings(as_fedavg={"mean": {"name": "weighted"}})
