"""Which clients train which of the server's tensors, if networks are unequal (SCAFFOLD, FedNova)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from potluck.core import Client, Reply, Spec, Zoo
from potluck.methods.fedavg import Averaging
from potluck.parts import Part


def trained_tensors(spec: Spec, part: Part, zoo: Zoo) -> dict[str, str]:
    """The trainable tensors of a network, and their names on the server."""
    return {name: part.place(name).name for name in zoo.shapes(spec) if name not in zoo.buffers(spec)}


def owner_shares(method: Averaging, zoo: Zoo) -> dict[str, float]:
    """For each of the server's tensors, the share of all clients that train it; from the tiers' shares."""
    shares: dict[str, list[float]] = {}
    for tier in zoo.tiers:
        for name in trained_tensors(*method.submodel_for(Client("", tier), zoo), zoo).values():
            shares.setdefault(name, []).append(tier.share)
    total = math.fsum(tier.share for tier in zoo.tiers)
    return {name: math.fsum(found) / total for name, found in shares.items()}


def sum_arrays(replies: Iterable[Reply], parts: Mapping[str, Part]) -> dict[str, Tensor]:
    """The sums, in float64, of the arrays that replies hold beside the model, under the server's names."""
    sums: dict[str, Tensor] = {}
    for reply in replies:
        for name, tensor in reply.arrays.items():
            there = parts[reply.task.to].place(name).name
            sums[there] = sums[there] + tensor.double() if there in sums else tensor.double()
    return sums
