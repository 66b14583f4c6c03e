"""Features of a live network: what leaves its taps, as maps of channels x height x width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from posixpath import commonpath

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from potluck.core import Spec, Zoo
from potluck.learn.taps import taps


@dataclass(frozen=True)
class Tap:
    """A tap, and the shape of the map that leaves it."""

    name: str
    channels: int
    height: int
    width: int

    @property
    def places(self) -> int:
        return self.height * self.width


def as_map(features: Tensor) -> Tensor:
    """Features of a batch as maps: vectors become 1x1, a row of vectors (of tokens) a column."""
    if features.dim() == 3:
        features = features.transpose(1, 2)
    return features.reshape(*features.shape, *[1] * (4 - features.dim()))


class TappedNetwork(AbstractContextManager["TappedNetwork"]):
    """A live network that also tells what leaves its taps, while it is watched."""

    def __init__(self, net: nn.Module, names: Sequence[str]) -> None:
        self.net, self.names = net, names
        self._seen: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []
        self._spares: dict[str, Tensor] = {}

    def __call__(
        self, x: Tensor, weights: Mapping[str, Tensor] | None = None, gather: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Its scores and maps, under these weights or its own. Running statistics stay as they are unless gathered."""
        buffers = {} if gather else self._spared()
        scores: Tensor = functional_call(self.net, {**(weights or {}), **buffers}, (x,))
        return scores, [as_map(self._seen.pop(name)) for name in self.names]

    def _spared(self) -> dict[str, Tensor]:
        """Copies of running statistics, to be written to in their place; always the same ones, filled all at once."""
        own = dict(self.net.named_buffers())
        self._spares = self._spares or {name: torch.empty_like(buffer) for name, buffer in own.items()}
        with torch.no_grad():
            for kind in sorted({buffer.dtype for buffer in own.values()}, key=str):
                names = [name for name, buffer in own.items() if buffer.dtype is kind]
                torch._foreach_copy_([self._spares[name] for name in names], [own[name] for name in names])
        return self._spares

    def _note(self, name: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        self._seen[name] = output

    def __enter__(self) -> TappedNetwork:
        layers = {name: self.net.get_submodule(name) for name in self.names}
        self._hooks = [layer.register_forward_hook(partial(self._note, name)) for name, layer in layers.items()]
        return self

    def __exit__(self, *fault: object) -> None:
        for hook in self._hooks:
            hook.remove()


@lru_cache(maxsize=256)
def tap_shapes(spec: Spec, zoo: Zoo) -> tuple[Tap, ...]:
    """The taps of a network, in forward order, found without numbers."""
    net, x = zoo.probe(spec, 2)
    net.eval()
    text = not x.is_floating_point()  # token ids: there are no maps, so the ends of the blocks are tapped
    names = (_blocks(spec, zoo) if text else ()) or taps(net, x)
    with torch.no_grad(), TappedNetwork(net, names) as watched:
        _, maps = watched(x)
    return tuple(Tap(name, *map(int, found.shape[1:])) for name, found in zip(names, maps, strict=True))


def _blocks(spec: Spec, zoo: Zoo) -> tuple[str, ...]:
    """The modules that are blocks of the body, in forward order."""
    paths: dict[int, list[str]] = {}
    for name in zoo.shapes(spec):
        if (at := zoo.block(spec, name)) is not None:
            paths.setdefault(at, []).append(name.rpartition(".")[0].replace(".", "/"))
    return tuple(commonpath(paths[at]).replace("/", ".") for at in sorted(paths))
