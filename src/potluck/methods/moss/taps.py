"""Taps of any network: modules whose outputs are its features, found by watching one forward pass.

Where a network convolves, a tap is the last output at each spatial resolution. A convolution and the norm, activation
and pooling that follow it count as one; so do all convolutions that work at one resolution. Convolutions of 1x1 see no
neighbours: by themselves (as a last widening before a global average) they make no tap. Of networks that only have
dense layers the taps are their hidden activations. Functions that are not modules, such as ``torch.relu``, go unseen:
what enters them is tapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

K = TypeVar("K")
ROWS = (2, 3)
"""Dimensions of what dense layers return: a vector for each row or, of texts, for each token of each row."""


@dataclass(eq=False)
class Call:
    """One call of a module in a forward pass."""

    path: str
    module: nn.Module
    began: int
    ended: int = -1
    shape: tuple[int, ...] = ()
    """Of what it returned; nothing where that is not a tensor."""

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def places(self) -> tuple[int, ...]:
        """Height and width of a map."""
        return self.shape[2:]

    def holds(self, other: Call) -> bool:
        return self.began <= other.began and other.ended <= self.ended


def taps(net: nn.Module, example: Tensor) -> tuple[str, ...]:
    """The names of the modules to tap, in forward order; `example` is a batch of inputs. The network is not changed."""
    calls = _watched(net, example)
    seeing = [call for call in calls if isinstance(call.module, _ConvNd) and max(call.module.kernel_size) > 1]
    if any(len(call.shape) == 4 for call in seeing):
        last = {at: part for part, at in _parts(calls, {call: call.places for call in seeing}, (4,))}
        ends: dict[tuple[int, ...], Call] = {}
        for part in sorted(last.values(), key=lambda part: part.ended, reverse=True):
            free = [end for end in _chain(part, calls) if end.places not in ends]
            ends |= {end.places: end for end in free[-1:]}
        return tuple(end.path for end in sorted(ends.values(), key=lambda end: end.ended))
    dense = {call: call.began for call in calls if isinstance(call.module, nn.Linear) and len(call.shape) in ROWS}
    scores = max(dense.values(), default=0)
    return tuple(_chain(part, calls)[-1].path for part, at in _parts(calls, dense, ROWS) if at != scores)


def _parts(calls: Sequence[Call], layers: Mapping[Call, K], dims: Sequence[int]) -> list[tuple[Call, K]]:
    """The outermost modules whose layers all are of one kind, and that kind, in the order in which they end.

    Only modules count that return a tensor of as many dimensions as one of these.
    """
    found: dict[Call, K] = {}
    for call in calls:
        kinds = {kind for layer, kind in layers.items() if call.holds(layer)}
        if call.path and len(call.shape) in dims and len(kinds) == 1:
            (found[call],) = kinds
    outer = [call for call in found if not any(other is not call and other.holds(call) for other in found)]
    return [(call, found[call]) for call in sorted(outer, key=lambda call: call.ended)]


def _chain(part: Call, calls: Sequence[Call]) -> list[Call]:
    """A part, and the norms, activations and poolings that follow where it stands."""
    chain = [part]
    for call in sorted((call for call in calls if call.began > part.ended), key=lambda call: call.began):
        leaf = next(call.module.children(), None) is None and sum(other.path == call.path for other in calls) == 1
        pooled_away = math.prod(call.places) == 1 < math.prod(chain[-1].places)
        if not leaf or call.parent != part.parent or isinstance(call.module, _ConvNd | nn.Linear):
            break
        if call.shape[:2] != part.shape[:2] or len(call.shape) != len(part.shape) or pooled_away:
            break
        chain.append(call)
    return chain


def _watched(net: nn.Module, example: Tensor) -> list[Call]:
    """Every call of a module as the network looks at an example, in evaluation."""
    calls: list[Call] = []
    clock = count()

    def began(path: str, module: nn.Module, inputs: object) -> None:
        calls.append(Call(path, module, next(clock)))

    def ended(path: str, module: nn.Module, inputs: object, output: object) -> None:
        call = next(call for call in reversed(calls) if call.path == path and call.ended < 0)
        call.ended, call.shape = next(clock), tuple(output.shape) if isinstance(output, Tensor) else ()

    handles = []
    for path, module in net.named_modules():
        handles.append(module.register_forward_pre_hook(partial(began, path)))
        handles.append(module.register_forward_hook(partial(ended, path)))
    modes = {module: module.training for module in net.modules()}
    try:
        with torch.no_grad():
            net.eval()(example)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode
    return calls
