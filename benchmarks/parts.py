"""Cutting and averaging sub-models: ours against the index-tensor and boolean-mask way, in one interleaved run.

    python benchmarks/parts.py [--network resnet18] [--units window|random] [--repeats 9]

Ten clients over the widths 1, 1/2, 1/4, 1/8, 1/16, a rolling window that wraps around (FedRolex), in attention heads
too (--network minilm-l6: widths 1, 7/8 and 3/4, so twelve heads of 32, 28 and 24 units); or units at random, each
client's own (Federated Dropout). The reference is what
HeteroFL's and FedRolex's released codes do: index tensors per axis, ``torch.meshgrid`` to take and to add, a count
tensor and a boolean mask to divide. Both must give the same model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from potluck.core import Arrays, Axis, Spec, stream
from potluck.models import ModelZoo, make_spec
from potluck.parts import OverlapMean, part

WIDTHS = {"resnet18": (1.0, 0.5, 0.25, 0.125, 0.0625) * 2, "minilm-l6": (1.0, 0.875, 0.75) * 3 + (1.0,)}
ROUND = 61
Units: TypeAlias = Callable[[Axis], list[int]]
"""The units of an axis group that a client holds."""


def window(spec: Spec, client: int, axis: Axis) -> list[int]:
    """FedRolex's window over a group's units, the same for all clients."""
    return [(unit + ROUND) % axis.size for unit in range(spec.sizes[axis.group])]


def at_random(spec: Spec, client: int, axis: Axis) -> list[int]:
    """Federated Dropout's units, drawn for each client and group."""
    order = torch.randperm(axis.size, generator=stream(client, axis.group))
    return sorted(order[: spec.sizes[axis.group]].tolist())


UNITS = {"window": window, "random": at_random}


def entries(units: Units, axis: Axis) -> torch.Tensor:
    """The units' entries of a dimension, in every copy (head)."""
    copies = torch.arange(axis.outer).unsqueeze(1) * axis.size
    return (copies + torch.tensor(units(axis))).flatten()


def parts(whole: Arrays, zoo: ModelZoo, clients: list[Units]) -> Arrays:
    """Ours: parts as slices or index lists, an overlap mean."""
    axes = zoo.axes(zoo.full)
    mean = OverlapMean(whole)
    for units in clients:
        held = part(axes, units)
        mean.add(held.take(whole), held)
    return mean.value()


def masks(whole: Arrays, zoo: ModelZoo, clients: list[Units]) -> Arrays:
    """The released codes' way: index tensors, meshgrid, count tensors, boolean masks."""
    axes = zoo.axes(zoo.full)
    held: list[dict[str, tuple[torch.Tensor, ...]]] = []
    sent: list[dict[str, torch.Tensor]] = []
    for units in clients:
        index, local = {}, {}
        for name, tensor in whole.items():
            cut = [a for a in axes[name] if isinstance(a, Axis)]
            if not cut:
                index[name] = ()
                local[name] = tensor.clone()
                continue
            lists = [
                entries(units, a) if isinstance(a, Axis) else torch.arange(tensor.shape[dim])
                for dim, a in enumerate(axes[name][:2])
            ]
            index[name] = tuple(torch.meshgrid(*lists, indexing="ij"))
            local[name] = tensor[index[name]].clone()
        held.append(index)
        sent.append(local)
    out = {}
    for name, tensor in whole.items():
        total = torch.zeros_like(tensor, dtype=torch.float32)
        count = torch.zeros_like(tensor, dtype=torch.float32)
        for index, local in zip(held, sent, strict=True):
            if index[name]:
                total[index[name]] += local[name]
                count[index[name]] += 1
            else:
                total += local[name]
                count += 1
        new = tensor.clone()
        mask = count > 0
        total[mask] = total[mask].div_(count[mask])
        new[mask] = total[mask].to(tensor.dtype)
        out[name] = new
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=WIDTHS, default="resnet18")
    parser.add_argument("--units", choices=UNITS, default="window")
    parser.add_argument("--repeats", type=int, default=9)
    told = parser.parse_args()
    repeats = told.repeats
    torch.set_num_threads(1)
    image = make_spec("resnet18", input=(3, 32, 32), classes=10, norm="static")
    zoo = ModelZoo(image if told.network == "resnet18" else make_spec(told.network, input=(48,), classes=2))
    whole = zoo.fresh(zoo.full, stream(0, "benchmark")).arrays or {}
    specs = [zoo.narrow(zoo.full, width) for width in WIDTHS[told.network]]
    clients: list[Units] = [partial(UNITS[told.units], spec, client) for client, spec in enumerate(specs)]
    ours, theirs = parts(whole, zoo, clients), masks(whole, zoo, clients)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in whole), "the two ways disagree"
    pairs = []
    for _ in range(repeats):
        times = []
        for way in (masks, parts):
            start = time.process_time()
            way(whole, zoo, clients)
            times.append(time.process_time() - start)
        pairs.append(times)
    slow, fast = (statistics.median(side) for side in zip(*pairs, strict=True))
    widths = len(set(WIDTHS[told.network]))
    print(f"cut and average {told.network} for ten clients over {widths} widths, CPU seconds, median of {repeats}")
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"index tensors and masks {slow:.3f}   parts {fast:.3f}   {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
