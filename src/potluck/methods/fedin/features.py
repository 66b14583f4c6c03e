"""Intermediate features that clients lend each other: the input and the output of a network's body.

The server keeps them in a bank. Clients add to it in a round, and others draw from it in later rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from potluck.core import EMPTY, Arrays, Batch, Spec, Zoo
from potluck.learn import forward_hooks

FeatureBank: TypeAlias = Mapping[str, Arrays]
"""Arrays with a row for each sample, under ``<round> <client>``; the oldest first."""


@dataclass(frozen=True, eq=False)
class LentFeatures:
    """The mean squared error of a body's output on lent inputs, against the lent outputs.

    The mean is over samples and entries. Gradients reach only the body.
    """

    entering: Tensor
    leaving: Tensor
    gather: bool = False
    """Lent features also update the running statistics of batch norm; if False, they are only normalised."""

    def __call__(self, net: nn.Module, batch: Batch) -> Tensor:
        body = net.get_submodule("body")
        made = body(self.entering) if self.gather else without_updates(body, self.entering)
        return functional.mse_loss(made, self.leaving)


def without_updates(net: nn.Module, x: Tensor) -> Tensor:
    """A network's output; its buffers stay unchanged."""
    out: Tensor = functional_call(net, copy_tensors(dict(net.named_buffers())), (x,))
    return out


def copy_tensors(tensors: Arrays) -> dict[str, Tensor]:
    """Copies of tensors, in one operation for each dtype: a network has many small buffers."""
    kinds: dict[torch.dtype, list[str]] = {}
    for name, tensor in tensors.items():
        kinds.setdefault(tensor.dtype, []).append(name)
    copies: dict[str, Tensor] = {}
    for dtype, names in kinds.items():
        some = [tensors[name].detach() for name in names]
        # A bool times 1 would be an integer.
        same = [one.clone() for one in some] if dtype is torch.bool else torch._foreach_mul(some, 1)
        copies |= dict(zip(names, same, strict=True))
    return copies


def body_features(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The input and the output of the body, normalised as in training, without dropout and gradients."""
    net.train()
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.eval()
    with torch.no_grad():
        entering = without_updates(net.get_submodule("stem"), x)
        leaving = without_updates(net.get_submodule("body"), entering)
    net.train()
    return entering, leaving


def feature_rows(last: Tensor, samples: int, count: int, rng: torch.Generator) -> Tensor:
    """`count` of a client's rows: those of its last batch, then others; repeated if it has too few."""
    order = torch.randperm(samples, generator=rng)
    rows = torch.cat([last.cpu(), order[~torch.isin(order, last.cpu())]])[:count]
    return rows[torch.arange(count) % len(rows)]


@lru_cache(maxsize=256)
def body_shapes(spec: Spec, zoo: Zoo) -> Mapping[str, tuple[int, ...]] | None:
    """The shapes of the body's input (``in``) and output (``out``); None: the network is not stem, body, head.

    Forward hooks record them, on a network without weights.
    """
    net, x = zoo.probe(spec, 1)
    parts = dict(net.eval().named_children())
    if not {"stem", "body", "head"} <= parts.keys():
        return None
    passed: list[Tensor] = []

    def note(part: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        passed.extend((given[0], made))

    with forward_hooks(net, after=dict.fromkeys(("stem", "body", "head"), note)):
        logits = net(x)
    chain = [x, *passed, logits]
    if len(chain) != 8 or any(one is not other for one, other in zip(chain[::2], chain[1::2], strict=True)):
        return None
    return {"in": tuple(chain[2].shape[1:]), "out": tuple(chain[4].shape[1:])}


def add_to_bank(bank: FeatureBank, index: int, lent: Mapping[str, Arrays], most: int | None = None) -> FeatureBank:
    """The bank after a round in which these clients lent features.

    It holds only the newest features of each client or, with `most`, that many of the newest samples. Within a round,
    clients are sorted by name, so that the order of replies does not matter.
    """
    new = {f"{index} {client}": lent[client] for client in sorted(lent)}
    if most is None:
        return {**{key: arrays for key, arrays in bank.items() if _lender(key) not in lent}, **new}
    kept: dict[str, Arrays] = {}
    for key, arrays in reversed([*bank.items(), *new.items()]):
        most -= _samples(arrays)
        if most < 0:
            break
        kept[key] = arrays
    return dict(reversed(kept.items()))


def draw_from_bank(bank: FeatureBank, count: int, rng: torch.Generator, without: str | None = None) -> Arrays:
    """`count` samples of the bank, drawn uniformly without replacement; none that the client `without` lent."""
    samples = [
        (arrays, row)
        for key, arrays in bank.items()
        if without is None or _lender(key) != without
        for row in range(_samples(arrays))
    ]
    chosen = [samples[at] for at in torch.randperm(len(samples), generator=rng)[:count].tolist()]
    names = chosen[0][0] if chosen else EMPTY
    return {name: torch.stack([arrays[name][row] for arrays, row in chosen]) for name in names}


def _lender(key: str) -> str:
    return key.partition(" ")[2]


def _samples(arrays: Arrays) -> int:
    return min((len(tensor) for tensor in arrays.values()), default=0)
