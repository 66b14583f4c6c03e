"""FedIN: clients lend each other intermediate features: the input and the output of their networks' body.

Chan et al., "FedIN: Federated Intermediate Layers Learning for Model Heterogeneity", 2023,
https://arxiv.org/abs/2304.00759. A network is an extractor (the stem), an intermediate part (the body; stronger tiers
have deeper ones) and a classifier (the head). After training, a client uploads its model and, for one batch, the
features at both ends of its body. The server keeps each client's newest features. Clients that train later get a batch
of them, and train their bodies to map the inputs to the outputs, beside FedProx on their own data.

The paper has no public code. Where it is silent: features are computed with the trained weights, from the rows of the
last local batch. All clients of a round get the same lent batch and use it in every step. Lent features are normalised
by their own batch, and do not change running statistics. Until a client has lent features, this is FedProx. Lent
features can reveal more about a client's data than its weights do.
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
from potluck.parts import OverlapMean, Part, Weighted


@dataclass(frozen=True)
class FedINState(AveragedState):
    """The server's state: the averaged models, and the features ``in`` and ``out`` that clients lent."""

    bank: FeatureBank = EMPTY


@dataclass(frozen=True)
class FedIN(FedProx):
    """FedProx in which networks also learn from features that other clients lend."""

    contract = ContractSettings(as_fedavg={"mu": 0.0, "lend": 0})

    share: Literal["whole", "layerwise", "per_arch"] = "layerwise"
    lend: int | None = None
    """Number of samples whose features a client uploads; None: the local batch size; 0: none, which is FedProx."""
    draw: int | None = None
    """Number of lent samples that a client learns from in a round; None: the local batch size."""
    fifo: int | None = None
    """Keep this many of the newest samples, from any client; None: the newest of each client."""
    exclude_self: bool = False
    """Each client gets its own draw, of other clients' features only; if False, all of a round get the same."""
    combine: Literal["sum", "project", "project_all", "steps"] = "sum"
    """How the body combines two gradients. sum: added (Eq. 14); project: the lent one is projected where it points
    against the client's own (Eq. 13), for each tensor, or for all as one (project_all); steps: each gradient takes its
    own step ("without Opt")."""
    keep: float = 0.5  # lambda / 2 in the paper
    """The share of the client's own gradient in Eq. 14."""
    outside: float = 0.5
    """Its share in stem and head, if there are lent features: 0.5 is exactly Eq. 14. Under Adam it matters little."""
    mean: Weighted = Weighted()
    """Weighted: clients also lend features to one another, so a robust mean alone would protect nothing."""
    gather: bool = False
    """Lent features also update the running statistics of batch norm."""

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
        """The features from the bank that a client gets; none while the bank is empty."""
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
        """How the two gradients are combined; None: they are not, each takes its own step."""
        if self.combine == "sum":
            return SumGradients(self.keep, self.outside)
        return None if self.combine == "steps" else ProjectGradients(self.combine == "project_all", self.outside)

    def report(self, task: Task, device: Device, fit: Fit) -> Reply:
        reply = super().report(task, device, fit)
        if not self.count_lent:
            return reply
        rows = feature_rows(fit.last, len(device.data), self.count_lent, device.rng)
        entering, leaving = body_features(fit.net, device.data[rows]["x"])
        device.charge(device.zoo.cost(task.models["model"].spec, 1).forward_flops * len(rows), 0)
        return replace(reply, arrays={"in": entering, "out": leaving})

    def expected_reply(self, model: Model, arrays: Arrays, now: Round) -> Expected:
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
                    "FedIN lends the input and output of a network's body between tiers, so all must have a stem, "
                    f"a body and a head, and features of the same shapes; tier '{name}' has {ends}, tier '{first[0]}' "
                    f"{first[1]}. Give all tiers one family, and let them differ in depth alone."
                )
