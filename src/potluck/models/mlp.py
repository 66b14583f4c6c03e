"""Multi-layer perceptron, for any input."""

from __future__ import annotations

import math
from itertools import pairwise

from torch import nn

from potluck.core import Axis, Depth, FrozenDict, Spec
from potluck.models.family import Base, Family
from potluck.models.layers import Linear, Net, dense
from potluck.models.options import SCALER, Option, Options, norm_option


class MLP(Family):
    """A first hidden layer on the flattened input (the stem), `depth` further ones (the body), and a linear head.

    Each hidden layer is an axis group: ``hidden0`` is the stem, ``hidden1`` the first block, and so on.
    """

    name = "mlp"
    about = "Multi-layer perceptron: equal hidden layers on a flattened input"
    depth = 2
    base = FrozenDict({"hidden": Option(64, "units in each hidden layer")})
    options = FrozenDict({"norm": norm_option("none"), "scaler": SCALER})
    maps = False

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        assert isinstance(depth, int)
        return {f"hidden{index}": base["hidden"] for index in range(depth + 1)}

    def net(self, spec: Spec) -> nn.Module:
        options: Options = spec.options
        hidden = [Axis(f"hidden{index}", spec.sizes[f"hidden{index}"]) for index in range(len(spec.sizes))]
        return Net(
            stem=dense(math.prod(options["input"]), hidden[0], options, flatten=True),
            body=nn.Sequential(*(dense(*pair, options) for pair in pairwise(hidden))),
            head=Linear(hidden[-1], options["classes"]),
        )
