"""What a network costs where it is used: size and work are counted, latency is measured on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

PASSES, FEWEST, ENOUGH = 21, 3, 2.0
"""The most and the fewest passes of a measurement, which ends after about this many seconds."""


@dataclass(frozen=True)
class Figures:
    """The size of a network, and the cost of one forward pass for one row."""

    parameters: int
    bytes: int
    """Of all tensors: parameters and the statistics of norms."""
    flops: int
    """Of matrix products and convolutions."""
    memory: int
    """Modelled: all tensors, and the inputs and outputs of the operation that has most of both."""
    seconds: float
    """Measured on this machine: the median of some passes."""


def figures(net: nn.Module, row: Tensor) -> Figures:
    """The figures of a network that is in evaluation mode, for this row."""
    own = {id(tensor): tensor.nbytes for tensor in (*net.parameters(), *net.buffers())}
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        net(row)
    with torch.inference_mode(), _LargestOperation(own) as largest:
        net(row)
    return Figures(
        parameters=sum(tensor.numel() for tensor in net.parameters()),
        bytes=sum(own.values()),
        flops=counter.get_total_flops(),
        memory=sum(own.values()) + largest.bytes,
        seconds=_median_seconds(net, row),
    )


class _LargestOperation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, and keeps the most bytes that one has read and written besides the network's tensors."""

    def __init__(self, own: Iterable[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = frozenset(own)
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        seen = {id(leaf): leaf for leaf in tree_leaves([args, found]) if isinstance(leaf, Tensor)}
        self.bytes = max(self.bytes, sum(leaf.nbytes for key, leaf in seen.items() if key not in self._own))
        return found


def _median_seconds(net: nn.Module, row: Tensor) -> float:
    taken = []
    with torch.inference_mode():
        for _ in range(PASSES):
            start = time.perf_counter()
            net(row)
            taken.append(time.perf_counter() - start)
            if len(taken) >= FEWEST and sum(taken) > ENOUGH:
                break
    return statistics.median(taken)
