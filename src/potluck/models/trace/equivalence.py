"""The numeric check of a pruned network: it computes what the full one computes with the other units set to zero.

A unit is set to zero in every trained tensor, on the side of its inputs and of its outputs. Both networks compute in
evaluation mode and in double precision, with random weights. Norms over units (layer and group norm) only apply their
affine weights here, since a mean over fewer units is another mean.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from potluck.core import Arrays, Dimension, SettingsError
from potluck.models.options import check_ratio, error_line, portion, refuse_unknown
from potluck.models.trace.attention_scale import FIXED_SCALE, FixedScale
from potluck.models.trace.channel_groups import free_parameters
from potluck.models.trace.cut_attention import cut_attention
from potluck.models.trace.dependency_graph import output_tensors
from potluck.models.trace.pruning import channel_counts
from potluck.models.trace.unit_labels import without_fast_path
from potluck.parts import part
from potluck.parts.part import Part, Place

if TYPE_CHECKING:
    from potluck.models.trace.traced_module import TracedModule

TOLERANCE = 1e-9
"""Relative to the largest value. Double precision leaves an error of about 1e-14, a wrong unit one of about 1."""
CAUSES = (
    "a size written into forward (view, reshape, split), an order that forward makes itself (channel shuffle), "
    "or a count over units (mean, softmax or a norm by hand)"
)


def check_equivalence(traced: TracedModule, width: float | Mapping[str, float], seed: int) -> None:
    """Compare the two networks at a width, for units that are drawn at random."""
    rng = torch.Generator().manual_seed(seed)
    units = {group: torch.randperm(size, generator=rng).tolist() for group, size in traced.sizes.items()}
    sizes = _sizes(traced, width)
    compare_networks(traced, {group: units[group][: sizes[group]] for group in units}, rng, f"width {width}")


def compare_networks(
    traced: TracedModule, units: Mapping[str, Sequence[int]], rng: torch.Generator, label: str
) -> None:
    """Refuse the module unless the network of these units equals the full one with all others set to zero."""
    cut = part(traced.axes, lambda axis: units[axis.group])
    full = _random_arrays(traced.net, rng)
    narrow_net = traced.build({group: len(left) for group, left in units.items()})
    narrow = cut.take(full)
    for name, tensor in narrow_net.state_dict().items():
        if tensor.shape != narrow[name].shape:
            raise SettingsError(f"{label}: '{name}' is {list(tensor.shape)}, not {list(narrow[name].shape)}.")
    example = tuple(_random_example(tensor, rng) for tensor in traced.example)
    zeroed = _zero_other_units(full, cut, {name for name, _ in traced.net.named_parameters()})
    expected = _record(_prepare(copy.deepcopy(traced.net), zeroed), example, label)
    hint = _free_parameter_hint(traced) + _heads_hint(traced)
    found = _record(_prepare(narrow_net, narrow), example, label, hint)
    if not _are_close(found.scores, expected.scores):
        raise SettingsError(
            f"{label}: the narrow network does not compute what the full one computes with the other units set to zero"
            f"{_first_difference(traced, units, found, expected)}. Usual causes: {CAUSES}{hint}."
        )


def _sizes(traced: TracedModule, width: float | Mapping[str, float]) -> dict[str, int]:
    full = traced.sizes
    if isinstance(width, Mapping):
        refuse_unknown("the traced module", "axis group", width, full)
        ratios = {group: check_ratio(f"width of '{group}'", width.get(group, 1.0)) for group in full}
    else:
        ratios = dict.fromkeys(full, check_ratio("width", width))
    return {group: portion(size, ratios[group]) for group, size in full.items()}


class Activations:
    """What a network and each of its layers returned in one forward pass."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.layers: dict[str, Tensor] = {}
        self.running: list[str] = []
        """Paths of the modules whose forward has begun and not ended."""


def _record(net: nn.Module, example: tuple[Tensor, ...], label: str, hint: str = "") -> Activations:
    """Run the network on the example and record its activations."""
    activations = Activations()

    def enter(path: str, module: nn.Module, inputs: Any) -> None:
        activations.running.append(path)

    def leave(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        activations.running.pop()
        if channel_counts(module) is not None and isinstance(output, Tensor):
            activations.layers.setdefault(path, output.clone())

    for path, module in net.named_modules():
        module.register_forward_pre_hook(partial(enter, path))
        module.register_forward_hook(partial(leave, path))
    try:
        with torch.no_grad(), without_fast_path(), FixedScale():
            activations.scores = output_tensors(net(*example))
    except Exception as fault:  # a user's code may raise anything
        running = activations.running
        place = f"layer '{running[-1]}'" if running and running[-1] else "forward"
        raise SettingsError(
            f"{label}: the narrow network fails in {place}: {error_line(fault)}. Usual cause: a size written into "
            f"forward (view, reshape, split) or stored in an attribute{hint}."
        ) from fault
    return activations


def _first_difference(
    traced: TracedModule, units: Mapping[str, Sequence[int]], found: Activations, expected: Activations
) -> str:
    """The first layer at which the two networks differ, in words."""
    for path, small in found.layers.items():
        last = isinstance(traced.net.get_submodule(path), nn.Linear | nn.LayerNorm | nn.Embedding)
        large, dim = expected.layers[path], -1 if last else 1
        large = large.index_select(dim, _narrow_entries(traced.layers[path].outputs, large.shape[dim], units))
        if not _are_close([small], [large]):
            return f", first in layer '{path}' or just before it"
    return ""


def _narrow_entries(dimension: Dimension, length: int, units: Mapping[str, Sequence[int]]) -> Tensor:
    """The entries of a dimension that the narrow network has."""
    index = part({"": (dimension,)}, lambda axis: units[axis.group]).place("").dims
    return Place("", index).take(torch.arange(length))


def _random_arrays(net: nn.Module, rng: torch.Generator) -> Arrays:
    """Random numbers for every parameter and for the statistics of norms; other buffers as they are."""
    trained = {name for name, _ in net.named_parameters()}

    def draw(name: str, tensor: Tensor) -> Tensor:
        values = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
        if name in trained:
            return values / math.sqrt(tensor[0].numel() if tensor.dim() > 1 else 1)
        if name.endswith("running_var"):
            return 0.5 + values.abs()
        return values if name.endswith("running_mean") else tensor

    return {name: draw(name, tensor) for name, tensor in net.state_dict().items()}


def _random_example(tensor: Tensor, rng: torch.Generator) -> Tensor:
    """Another example of the same shape; token ids stay as they are."""
    if not tensor.is_floating_point():
        return tensor
    return torch.randn(tensor.shape, generator=rng, dtype=torch.float64)


def _zero_other_units(full: Arrays, cut: Part, trained: set[str]) -> Arrays:
    """The full network's arrays, with zero for every unit that the part does not hold."""
    arrays = {name: tensor.clone() for name, tensor in full.items()}
    for name in trained:
        for dim, index in enumerate(cut.place(name).dims):
            if index is not None:
                length = arrays[name].shape[dim]
                mask = torch.zeros(length, dtype=torch.float64)
                mask[Place("", (index,)).take(torch.arange(length))] = 1
                arrays[name] *= mask.view(-1, *[1] * (arrays[name].dim() - dim - 1))
    return arrays


def _prepare(net: nn.Module, arrays: Arrays) -> nn.Module:
    """Load the arrays in double precision; norms over units become affine."""
    net = net.double().cpu().eval()
    net.load_state_dict(dict(arrays))
    for module in net.modules():
        if isinstance(module, nn.MultiheadAttention):
            cut_attention(module).scale = FIXED_SCALE
        if isinstance(module, nn.LayerNorm | nn.GroupNorm):
            module.__dict__["forward"] = partial(_affine, module)
    return net


def _affine(norm: nn.LayerNorm | nn.GroupNorm, x: Tensor) -> Tensor:
    shape = (-1,) if isinstance(norm, nn.LayerNorm) else (-1,) + (1,) * (x.dim() - 2)
    weight = 1 if norm.weight is None else norm.weight.view(shape)
    return x * weight + (0 if norm.bias is None else norm.bias.view(shape))


def _are_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    return len(found) == len(expected) and all(
        one.shape == other.shape and bool((one - other).abs().max() <= TOLERANCE * other.abs().max() + 1e-30)
        for one, other in zip(found, expected, strict=True)
    )


def _free_parameter_hint(traced: TracedModule) -> str:
    names = list(free_parameters(traced.net))
    return f"; or '{names[0]}', a parameter that forward uses by itself instead of through a layer" if names else ""


def _heads_hint(traced: TracedModule) -> str:
    if not any(each.cut == "width" for each in traced.heads.values()):
        return ""
    return '; if a head must keep its width, set cut_heads = "whole" under [model]'
