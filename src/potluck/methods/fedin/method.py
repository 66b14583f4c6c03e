"""FedIN: clients lend each other what enters and what leaves the middle of their networks.

Chan et al., "FedIN: Federated Intermediate Layers Learning for Model Heterogeneity", 2023,
https://arxiv.org/abs/2304.00759. A network is an extractor (the stem), an intermediate part (the body, as deep as the
tier is strong) and a classifier (the head). After training, a client uploads its model and, for one batch, the features
at both ends of its body; the server keeps each client's newest. Whoever trains next gets a batch of them and teaches
its body to map the ones to the others, beside FedProx on its own data.

The paper has no public code. Where it is silent: features are taken with the trained weights, from the rows of the last
local batch; all clients of a round get the same lent batch and use it in every step; lent features are normalised by
their own batch and leave no trace in running statistics. Until somebody has lent something, this is FedProx. Lent
features can tell more of a client's data than its weights do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from potluck.core import (
    EMPTY,
    Arrays,
    Client,
    ContractSettings,
    Device,
    Expected,
    Facts,
    Fit,
    Loss,
    Model,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
)
from potluck.learn import Blend, JointLoss
from potluck.methods.fedavg import AveragedState
from potluck.methods.fedin.features import (
    FeatureBank,
    LentFeatures,
    add_to_bank,
    body_features,
    body_shapes,
    draw_from_bank,
    feature_rows,
)
from potluck.methods.fedin.gradients import ProjectGradients, SumGradients
from potluck.methods.fedprox import FedProx
from potluck.parts import OverlapMean, Part


@dataclass(frozen=True)
class FedINState(AveragedState):
    """What the server keeps: the averaged models, and the features ``in`` and ``out`` that clients lent."""

    bank: FeatureBank = EMPTY


@dataclass(frozen=True)
class FedIN(FedProx):
    """FedProx whose networks also learn from features that others lent."""

    contract = ContractSettings(as_fedavg={"mu": 0.0, "lend": 0})

    share: Literal["whole", "layerwise", "per_arch"] = "layerwise"
    lend: int | None = None
    """Samples whose features a client uploads; None: a local batch of them; 0: none, which leaves FedProx."""
    draw: int | None = None
    """Lent samples that a client learns from in a round; None: a local batch of them."""
    fifo: int | None = None
    """Keep the last so many samples, whoever lent them; None: each client's newest."""
    exclude_self: bool = False
    """Give a client only what others lent, each its own draw; else all of a round get the same."""
    combine: Literal["sum", "project", "project_all", "steps"] = "sum"
    """How two gradients meet in the body: added (Eq. 14); the lent one projected where it points against the client's
    own (Eq. 13), for each tensor or for all as one; not at all, each takes a step of its own ("without Opt")."""
    keep: float = 0.5  # lambda / 2 in the paper
    """The share of the client's own gradient in Eq. 14."""
    outside: float = 0.5
    """Its share in stem and head, once something is lent: 0.5 is Eq. 14 to the letter. Adam hardly minds."""
    gather: bool = False
    """Let batch norms gather running statistics of lent features too."""

    def __post_init__(self) -> None:
        for name in ("lend", "draw", "fifo"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ValueError(f"method.{name} = {value} is below 0")

    @property
    def facts(self) -> Facts:
        told = super().facts
        return Facts("one" if told.networks == "one" else "depth", sums=False) if self.count_lent else told

    def init(self, zoo: Zoo, rng: torch.Generator) -> FedINState:
        return FedINState(self.initial_model(zoo, rng))

    def round(self, state: FedINState, now: Round) -> FedINState:
        mean = OverlapMean(state.model.arrays)
        replies, _ = self.train_cohort(mean, state, now)
        lent = {reply.task.to: reply.arrays for reply in replies if reply.arrays}
        stepped: FedINState = self.server_step(state, mean, now)
        return replace(stepped, bank=add_to_bank(state.bank, now.index, lent, self.fifo))

    def extra_payload(self, client: str, spec: Spec, part: Part, state: FedINState, now: Round) -> Arrays:
        return self.lent_to(client, state.bank, now)

    def lent_to(self, client: str, bank: FeatureBank, now: Round) -> Mapping[str, torch.Tensor]:
        """What a client gets of the bank; nothing while there is nothing."""
        count = self.local.batch if self.draw is None else self.draw
        if self.exclude_self:
            return draw_from_bank(bank, count, now.rng("lent", client), without=client)
        return draw_from_bank(bank, count, now.rng("lent"))

    @property
    def count_lent(self) -> int:
        """How many samples' features a client uploads."""
        return self.local.batch if self.lend is None else self.lend

    def loss(self, task: Task, device: Device) -> Loss:
        own = super().loss(task, device)
        if not task.arrays:
            return own
        return JointLoss(own, LentFeatures(task.arrays["in"], task.arrays["out"], self.gather), "body.", self.blend())

    def blend(self) -> Blend | None:
        """How the two gradients meet; None: not at all."""
        if self.combine == "sum":
            return SumGradients(self.keep, self.outside)
        return None if self.combine == "steps" else ProjectGradients(self.combine == "project_all", self.outside)

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        if not self.count_lent:
            return reply
        rows = feature_rows(fit.last, len(device.data), self.count_lent, device.rng)
        entering, leaving = body_features(fit.net, device.data[rows]["x"])
        return replace(reply, arrays={"in": entering, "out": leaving})

    def expected(self, model: Model, arrays: Arrays, now: Round) -> Expected:
        """The model, and features at both ends of its body."""
        ends = (body_shapes(model.spec, now.zoo) or {}) if self.count_lent else {}
        features = {end: ((self.count_lent, *shape), torch.float32) for end, shape in ends.items()}
        return Expected({"model": model.shapes}, features)

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        if not self.count_lent:
            return
        first, *others = (
            (tier.name, body_shapes(self.submodel_for(Client("", tier), zoo)[0], zoo)) for tier in zoo.tiers
        )
        for name, ends in (first, *others):
            if ends is None or ends != first[1]:
                raise SettingsError(
                    "FedIN lends what enters and leaves the body of a network between tiers, so all must have a stem, "
                    f"a body and a head, and features of the same shapes; tier '{name}' has {ends}, tier '{first[0]}' "
                    f"{first[1]}. Let tiers of one family differ in depth alone."
                )
