"""The check by numbers: a narrow network computes what the whole does with the other units silenced.

A silenced unit neither speaks nor is heard: its entries are zero in every trained tensor. Both networks compute in
evaluation and in double precision, with random numbers; norms over units (layer and group norm) apply their affine
weights alone, since a mean over fewer units is another mean.
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
from potluck.models.carving import lengths
from potluck.models.graph import outputs
from potluck.models.options import ratio
from potluck.models.suitable import brief, refuse_unknown_groups
from potluck.models.wiring import raw
from potluck.parts import part
from potluck.parts.part import Part, Place

if TYPE_CHECKING:
    from potluck.models.trace import Traced

CLOSE = 1e-9
"""Of the largest value; double precision leaves about 1e-14, a wrong unit about 1."""
REASONS = (
    "a size written into forward (view, reshape, split), an order that forward makes itself (channel shuffle), "
    "or a count over units (mean, softmax or a norm by hand)"
)


def check(traced: Traced, width: float | Mapping[str, float], seed: int) -> None:
    """Compare the two at a width, for units drawn at random."""
    rng = torch.Generator().manual_seed(seed)
    units = {group: torch.randperm(size, generator=rng).tolist() for group, size in traced.sizes.items()}
    sizes = _sizes(traced, width)
    compare(traced, {group: units[group][: sizes[group]] for group in units}, rng, f"width {width}")


def compare(traced: Traced, units: Mapping[str, Sequence[int]], rng: torch.Generator, what: str) -> None:
    """Refuse the module unless the network of these units equals the whole with all others silenced."""
    cut = part(traced.axes, lambda axis: units[axis.group])
    numbers = _lively(traced.net, rng)
    narrow = traced.build({group: len(kept) for group, kept in units.items()})
    small = cut.take(numbers)
    for name, tensor in narrow.state_dict().items():
        if tensor.shape != small[name].shape:
            raise SettingsError(f"{what}: '{name}' is {list(tensor.shape)}, not {list(small[name].shape)}.")
    example = tuple(_drawn(tensor, rng) for tensor in traced.example)
    silent = _silenced(numbers, cut, {name for name, _ in traced.net.named_parameters()})
    reference = _seen(_ready(copy.deepcopy(traced.net), silent), example, what)
    mine = _seen(_ready(narrow, small), example, what, _loose(traced))
    if not _equal(mine.scores, reference.scores):
        raise SettingsError(
            f"{what}: the narrow network does not compute what the whole does with the other units silenced"
            f"{_first(traced, units, mine, reference)}. Usual causes: {REASONS}{_loose(traced)}."
        )


class Seen:
    """What came out of a network, and out of each layer on the way."""

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.layers: dict[str, Tensor] = {}
        self.within: list[str] = []


def _seen(net: nn.Module, example: tuple[Tensor, ...], what: str, loose: str = "") -> Seen:
    seen = Seen()

    def enter(path: str, module: nn.Module, inputs: Any) -> None:
        seen.within.append(path)

    def leave(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        seen.within.pop()
        if lengths(module) is not None and isinstance(output, Tensor):
            seen.layers.setdefault(path, output.clone())

    for path, module in net.named_modules():
        module.register_forward_pre_hook(partial(enter, path))
        module.register_forward_hook(partial(leave, path))
    try:
        with torch.no_grad():
            seen.scores = outputs(net(*example))
    except Exception as fault:  # a user's code may raise anything
        place = f"layer '{seen.within[-1]}'" if seen.within and seen.within[-1] else "forward"
        raise SettingsError(
            f"{what}: the narrow network fails in {place}: {brief(fault)}. Usual cause: a size written into forward "
            f"(view, reshape, split) or kept in an attribute{loose}."
        ) from fault
    return seen


def _first(traced: Traced, units: Mapping[str, Sequence[int]], mine: Seen, reference: Seen) -> str:
    """The first layer at which the two differ, in words."""
    for path, small in mine.layers.items():
        last = isinstance(traced.net.get_submodule(path), nn.Linear | nn.LayerNorm | nn.Embedding)
        large, dim = reference.layers[path], -1 if last else 1
        large = large.index_select(dim, _kept(traced.layers[path].outside, large.shape[dim], units))
        if not _equal([small], [large]):
            return f", first in layer '{path}' or just before it"
    return ""


def _kept(dimension: Dimension, length: int, units: Mapping[str, Sequence[int]]) -> Tensor:
    """The entries of a dimension that the narrow network has."""
    index = part({"": (dimension,)}, lambda axis: units[axis.group]).place("").dims
    return Place("", index).take(torch.arange(length))


def _sizes(traced: Traced, width: float | Mapping[str, float]) -> dict[str, int]:
    from potluck.models.specs import portion

    full = traced.sizes
    if isinstance(width, Mapping):
        refuse_unknown_groups(width, full)
        ratios = {group: ratio(f"width of '{group}'", width.get(group, 1.0)) for group in full}
    else:
        ratios = dict.fromkeys(full, ratio("width", width))
    return {group: portion(size, ratios[group]) for group, size in full.items()}


def _lively(net: nn.Module, rng: torch.Generator) -> Arrays:
    """Random numbers in every parameter and in the statistics of norms; other buffers as they are."""
    trained = {name for name, _ in net.named_parameters()}

    def drawn(name: str, tensor: Tensor) -> Tensor:
        values = torch.randn(tensor.shape, generator=rng, dtype=torch.float64)
        if name in trained:
            return values / math.sqrt(tensor[0].numel() if tensor.dim() > 1 else 1)
        if name.endswith("running_var"):
            return 0.5 + values.abs()
        return values if name.endswith("running_mean") else tensor

    return {name: drawn(name, tensor) for name, tensor in net.state_dict().items()}


def _drawn(tensor: Tensor, rng: torch.Generator) -> Tensor:
    """Another example of the same kind; whole numbers (tokens) are taken as they are."""
    if not tensor.is_floating_point():
        return tensor
    return torch.randn(tensor.shape, generator=rng, dtype=torch.float64)


def _silenced(whole: Arrays, cut: Part, trained: set[str]) -> Arrays:
    quiet = {name: tensor.clone() for name, tensor in whole.items()}
    for name in trained:
        for dim, index in enumerate(cut.place(name).dims):
            if index is not None:
                length = quiet[name].shape[dim]
                heard = torch.zeros(length, dtype=torch.float64)
                heard[Place("", (index,)).take(torch.arange(length))] = 1
                quiet[name] *= heard.view(-1, *[1] * (quiet[name].dim() - dim - 1))
    return quiet


def _ready(net: nn.Module, numbers: Arrays) -> nn.Module:
    net = net.double().cpu().eval()
    net.load_state_dict(dict(numbers))
    for module in net.modules():
        if isinstance(module, nn.LayerNorm | nn.GroupNorm):
            module.__dict__["forward"] = partial(_affine, module)
    return net


def _affine(norm: nn.LayerNorm | nn.GroupNorm, x: Tensor) -> Tensor:
    shape = (-1,) if isinstance(norm, nn.LayerNorm) else (-1,) + (1,) * (x.dim() - 2)
    weight = 1 if norm.weight is None else norm.weight.view(shape)
    return x * weight + (0 if norm.bias is None else norm.bias.view(shape))


def _equal(mine: Sequence[Tensor], reference: Sequence[Tensor]) -> bool:
    return len(mine) == len(reference) and all(
        one.shape == other.shape and bool((one - other).abs().max() <= CLOSE * other.abs().max() + 1e-30)
        for one, other in zip(mine, reference, strict=True)
    )


def _loose(traced: Traced) -> str:
    names = list(raw(traced.net))
    return f"; or '{names[0]}', a parameter that forward uses by itself instead of through a layer" if names else ""
