"""Taps of a network: the modules whose outputs are its features. No setting names them; one forward pass finds them.

In a convolutional network a tap is the last output at each spatial resolution. A convolution and the norm, activation
and pooling that follow it count as one; so do all convolutions at one resolution. A 1x1 convolution sees no neighbours:
by itself (for example the last expansion before global average pooling) it makes no tap. In a network of dense layers
the taps are the hidden activations, and the outputs of recurrent layers, one for each step. In a network that embeds
tokens they are the blocks of its body. Functions that are not modules, such as ``torch.relu``, cannot be tapped: the
tap is the module before them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from posixpath import commonpath
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

from potluck.core import Arrays, Spec, Zoo
from potluck.learn import forward_hooks

K = TypeVar("K")
DENSE_DIMS = (2, 3)
"""Dimensions of a dense layer's output: [batch, features] or, in networks of tokens, [batch, tokens, features]."""


@dataclass(frozen=True)
class Tap:
    """A tapped module, and the shape of its feature map."""

    name: str
    channels: int
    height: int
    width: int

    @property
    def positions(self) -> int:
        return self.height * self.width


class TappedNetwork:
    """A live network that returns its logits together with the feature maps at its taps."""

    def __init__(self, net: nn.Module, names: Sequence[str]) -> None:
        self.net, self.names = net, names
        self._scratch: dict[str, Tensor] = {}

    def __call__(
        self, x: Tensor, weights: Arrays | None = None, update_statistics: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits and feature maps, with these weights or its own. By default batch norm statistics do not change."""
        outputs: dict[str, Tensor] = {}

        def keep(name: str, module: nn.Module, inputs: object, output: object) -> None:
            found = features_of(module, output)
            assert found is not None
            outputs[name] = found

        buffers = {} if update_statistics else self._scratch_buffers()
        with forward_hooks(self.net, {name: partial(keep, name) for name in self.names}):
            logits: Tensor = functional_call(self.net, {**(weights or {}), **buffers}, (x,))
        return logits, [as_map(outputs[name]) for name in self.names]

    def _scratch_buffers(self) -> dict[str, Tensor]:
        """Copies of the buffers for the forward pass to write to. For CUDA graphs they stay at one place in memory."""
        own = dict(self.net.named_buffers())
        self._scratch = self._scratch or {name: torch.empty_like(buffer) for name, buffer in own.items()}
        with torch.no_grad():
            for dtype in sorted({buffer.dtype for buffer in own.values()}, key=str):
                names = [name for name, buffer in own.items() if buffer.dtype is dtype]
                torch._foreach_copy_([self._scratch[name] for name in names], [own[name] for name in names])
        return self._scratch


def features_of(module: nn.Module, output: object) -> Tensor | None:
    """The features in a module's output, batch first; of a recurrent layer those of every step. None: no tensor."""
    if isinstance(module, nn.RNNBase) and isinstance(output, tuple) and isinstance(output[0], Tensor):
        steps = output[0]
        return steps if module.batch_first or steps.dim() < 3 else steps.transpose(0, 1)
    return output if isinstance(output, Tensor) else None


def as_map(features: Tensor) -> Tensor:
    """Features as maps [batch, channels, height, width]: vectors become 1x1, a sequence of tokens one column."""
    if features.dim() == 3:
        features = features.transpose(1, 2)
    return features.reshape(*features.shape, *[1] * (4 - features.dim()))


@lru_cache(maxsize=256)
def tap_shapes(spec: Spec, zoo: Zoo) -> tuple[Tap, ...]:
    """The taps of a network, in forward order. Runs on the meta device, so no weights are needed."""
    net, x = zoo.probe(spec, 2)
    net.eval()
    text = not x.is_floating_point()  # it has no spatial maps, so its taps are the ends of its blocks
    names = (_block_names(spec, zoo) if text else ()) or tap_names(net, x)
    with torch.no_grad():
        _, maps = TappedNetwork(net, names)(x)
    return tuple(Tap(name, *map(int, features.shape[1:])) for name, features in zip(names, maps, strict=True))


def _block_names(spec: Spec, zoo: Zoo) -> tuple[str, ...]:
    """The modules that are blocks of the body, in forward order."""
    paths: dict[int, list[str]] = {}
    for name in zoo.shapes(spec):
        if (at := zoo.block(spec, name)) is not None:
            paths.setdefault(at, []).append(name.rpartition(".")[0].replace(".", "/"))
    return tuple(commonpath(paths[at]).replace("/", ".") for at in sorted(paths))


def tap_names(net: nn.Module, example: Tensor) -> tuple[str, ...]:
    """The names of the modules to tap, in forward order; `example` is a batch of inputs. The network is not changed."""
    calls = _module_calls(net, example)
    spatial = [call for call in calls if isinstance(call.module, _ConvNd) and max(call.module.kernel_size) > 1]
    if any(len(call.shape) == 4 for call in spatial):
        sizes = {call: call.map_size for call in spatial}
        last = {size: call for call, size in _outermost_modules(calls, sizes, (4,))}
        ends: dict[tuple[int, ...], ModuleCall] = {}
        for call in sorted(last.values(), key=lambda call: call.end, reverse=True):
            unused = [end for end in _with_followers(call, calls) if end.map_size not in ends]
            ends |= {end.map_size: end for end in unused[-1:]}
        return tuple(end.path for end in sorted(ends.values(), key=lambda call: call.end))
    layers = [call for call in calls if isinstance(call.module, nn.Linear | nn.RNNBase)]
    dense = {call: call.start for call in layers if len(call.shape) in DENSE_DIMS}
    classifier = max(dense.values(), default=0)
    modules = _outermost_modules(calls, dense, DENSE_DIMS)
    return tuple(_with_followers(call, calls)[-1].path for call, start in modules if start != classifier)


@dataclass(eq=False)
class ModuleCall:
    """One call of a module in a forward pass. `start` and `end` count the calls and returns before it."""

    path: str
    module: nn.Module
    start: int
    end: int = -1
    shape: tuple[int, ...] = ()
    """Of the output; empty where the output is not a tensor."""

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def map_size(self) -> tuple[int, ...]:
        """Height and width of a feature map."""
        return self.shape[2:]

    def contains(self, other: ModuleCall) -> bool:
        return self.start <= other.start and other.end <= self.end


def _module_calls(net: nn.Module, example: Tensor) -> list[ModuleCall]:
    """Every call of a module in one forward pass, in evaluation mode."""
    calls: list[ModuleCall] = []
    clock = count()

    def start(path: str, module: nn.Module, inputs: object) -> None:
        calls.append(ModuleCall(path, module, next(clock)))

    def end(path: str, module: nn.Module, inputs: object, output: object) -> None:
        call = next(call for call in reversed(calls) if call.path == path and call.end < 0)
        found = features_of(module, output)
        call.end, call.shape = next(clock), () if found is None else tuple(found.shape)

    paths = [path for path, _ in net.named_modules()]
    modes = {module: module.training for module in net.modules()}
    try:
        with (
            torch.no_grad(),
            forward_hooks(net, {p: partial(end, p) for p in paths}, {p: partial(start, p) for p in paths}),
        ):
            net.eval()(example)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return calls


def _outermost_modules(
    calls: Sequence[ModuleCall], layers: Mapping[ModuleCall, K], dims: Sequence[int]
) -> list[tuple[ModuleCall, K]]:
    """The outermost modules that contain layers of one kind only, with that kind, in the order in which they end.

    `layers` gives the kind of each layer. Only modules count whose output has one of these numbers of dimensions.
    """
    kind_of: dict[ModuleCall, K] = {}
    for call in calls:
        kinds = {kind for layer, kind in layers.items() if call.contains(layer)}
        if call.path and len(call.shape) in dims and len(kinds) == 1:
            (kind_of[call],) = kinds
    outer = [call for call in kind_of if not any(other is not call and other.contains(call) for other in kind_of)]
    return [(call, kind_of[call]) for call in sorted(outer, key=lambda call: call.end)]


def _with_followers(first: ModuleCall, calls: Sequence[ModuleCall]) -> list[ModuleCall]:
    """A module, and the norms, activations and poolings that follow it directly inside the same parent."""
    chain = [first]
    for call in sorted((call for call in calls if call.start > first.end), key=lambda call: call.start):
        leaf = next(call.module.children(), None) is None and sum(other.path == call.path for other in calls) == 1
        global_pooling = math.prod(call.map_size) == 1 < math.prod(chain[-1].map_size)
        if not leaf or call.parent != first.parent or isinstance(call.module, _ConvNd | nn.Linear | nn.RNNBase):
            break
        if call.shape[:2] != first.shape[:2] or len(call.shape) != len(first.shape) or global_pooling:
            break
        chain.append(call)
    return chain
