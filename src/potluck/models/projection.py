"""A projection in front of a network's classifier, so that networks of unequal width have classifiers of one shape.

The spec of such a network has one more option. Families do not know it: they build the network without it, and its
classifier is replaced afterwards. So every family has projections, a user's own too.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from potluck.core import Dimensions, Spec

PROJECTION = "head.projection"
"""The option of a spec that holds the length of the projected features. It can be no argument of a user's factory."""


class ProjectedLinear(nn.Linear):
    """A linear layer that reads projected features. Its own tensors keep their names; the others are `projection`'s."""

    def __init__(self, layer: nn.Linear, features: int) -> None:
        where = layer.weight.device
        super().__init__(features, layer.out_features, layer.bias is not None, where)
        self.projection = nn.Linear(layer.in_features, features, device=where)
        nn.init.kaiming_normal_(self.projection.weight, nonlinearity="linear")
        nn.init.zeros_(self.projection.bias)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(self.projection(input))


def without_projection(spec: Spec) -> Spec:
    """The spec without its projection; without one, the same."""
    if PROJECTION not in spec.options:
        return spec
    return replace(spec, options={name: value for name, value in spec.options.items() if name != PROJECTION})


def classifier_path(net: nn.Module, classes: int) -> str:
    """The last linear layer of a network's ``head`` with an output for each class; empty: there is none."""
    linear = {path: layer for path, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    fitting = [path for path, layer in linear.items() if layer.out_features == classes]
    return next((path for path in reversed(fitting) if path.split(".")[0] == "head"), "")


def add_projection(net: nn.Module, spec: Spec) -> nn.Module:
    """The network with the projection that its spec asks for, in place; the net is that of the spec without it."""
    if PROJECTION not in spec.options:
        return net
    path = classifier_path(net, int(str(spec.options["classes"])))
    parent, _, name = path.rpartition(".")
    layer = net.get_submodule(path)
    assert isinstance(layer, nn.Linear)
    setattr(net.get_submodule(parent), name, ProjectedLinear(layer, int(str(spec.options[PROJECTION]))))
    return net


def projected_axes(axes: dict[str, Dimensions], path: str) -> dict[str, Dimensions]:
    """The axes of a network with a projection, from those without: now the projection reads the units."""
    outputs, inputs = axes[f"{path}.weight"]
    more: dict[str, Dimensions] = {f"{path}.projection.weight": (None, inputs), f"{path}.projection.bias": (None,)}
    return {**axes, f"{path}.weight": (outputs, None), **more}
