"""The zoo: every network of a federation, and how to build, cut and price it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from potluck.core import Depth, Dimensions, Model, Newborn, Spec, Tier, Work
from potluck.models import initialise, meta_device, specs


@dataclass(frozen=True)
class ModelZoo:
    """The networks of a federation: the server's full one, and one for each tier (smallest first)."""

    full: Spec
    tiers: Sequence[Tier] = ()
    public: int = 0
    """Rows of the public set."""
    hardware: str = "cpu"
    """Where new models rest: the name of a PyTorch device."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "full", specs.complete(self.full))
        object.__setattr__(self, "tiers", tuple(sorted(self.tiers, key=self._parameters)))

    def build(self, model: Model, rng: torch.Generator | None = None) -> nn.Module:
        """A live network with a copy of the model's arrays; if it has none, with random weights from the generator."""
        spec = specs.complete(model.spec)
        if not isinstance(model, Newborn):
            return initialise.load_net(spec, model.arrays)
        if rng is None:
            raise ValueError(f"a {spec.family} without arrays needs a generator for its random weights")
        return initialise.random_net(spec, rng)

    def fresh(self, spec: Spec, rng: torch.Generator) -> Model:
        """A new model at rest: random, or pre-trained if its spec says so."""
        model = initialise.initial_model(specs.complete(spec), rng)
        if self.hardware == "cpu":
            return model
        return Model(model.spec, {name: tensor.to(self.hardware) for name, tensor in model.arrays.items()})

    def probe(self, spec: Spec, batch: int) -> tuple[nn.Module, Tensor]:
        """The network and a batch of inputs on the meta device: a forward pass gives shapes, and computes nothing."""
        return meta_device.probe(specs.complete(spec), batch)

    def axes(self, spec: Spec) -> Mapping[str, Dimensions]:
        """What each dimension of each tensor counts."""
        return meta_device.axes(specs.complete(spec))

    def shapes(self, spec: Spec) -> Mapping[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each tensor, buffers included."""
        return meta_device.shapes(specs.complete(spec))

    def buffers(self, spec: Spec) -> frozenset[str]:
        """Names of tensors that are not trained."""
        return meta_device.buffers(specs.complete(spec))

    def class_rows(self, spec: Spec) -> tuple[str, ...]:
        """Names of the tensors with one row for each class (or token); these rows are never cut."""
        return meta_device.class_rows(specs.complete(spec))

    def narrow(self, spec: Spec, width: float | Mapping[str, float]) -> Spec:
        """The spec with this share of the units, of all groups or of each that is named; rounded up, at least one."""
        return specs.narrow(spec, width)

    def shallow(self, spec: Spec, depth: Depth) -> Spec:
        """The spec with the first blocks only (of each stage)."""
        return specs.shallow(spec, depth)

    def scaled(self, spec: Spec, ratio: float | Mapping[str, float]) -> Spec:
        """The spec with scalers for this ratio of its width (or of each group's) to the full one's.

        It is refused if its family has no scalers.
        """
        return specs.with_scaler(spec, ratio)

    def counting(self, spec: Spec) -> Spec:
        """The spec whose static norms instead average their statistics over batches; without such norms, the same."""
        return specs.with_counted_norms(spec)

    def classifier(self, spec: Spec) -> str:
        """The last linear layer of the network's head; empty: it has none."""
        return meta_device.classifier(specs.complete(spec))

    def projected(self, spec: Spec, features: int) -> Spec:
        """The spec whose classifier reads this many features: its own if it has as many, else a projection of them."""
        return specs.with_projection(spec, features)

    def block(self, spec: Spec, name: str) -> int | None:
        """The body block of a tensor, counted in forward order; None: it is there at every depth."""
        return meta_device.block_indices(specs.complete(spec))[name]

    def cost(self, spec: Spec, batch: int) -> Work:
        """FLOPs and memory of one training step on a batch of this size."""
        return meta_device.cost(specs.complete(spec), batch)

    def _parameters(self, tier: Tier) -> int:
        return self.cost(tier.spec, 1).parameters
