"""Graphs for ExecuTorch: one that predicts, and one that trains (forward, loss, backward). Both are .pte files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core import require_library
from potluck.shipping.standalone import silenced

MISSING_OPERATOR = re.compile(r"Missing operator: \[\d+\] (?:\w+::)?(\w+)")


def require_executorch() -> None:
    """Refuses to go on without ExecuTorch."""
    require_library("executorch", "executorch", "--format executorch")


def write_pte(net: nn.Module, x: Tensor, path: Path) -> None:
    """Writes the graph of a network for one row at a time; XNNPACK computes what it can of it."""
    require_executorch()
    with silenced():
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower

        program = torch.export.export(net, (x[:1],))
        lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        path.write_bytes(lowered.to_executorch().buffer)


def write_training_pte(program: torch.export.ExportedProgram, path: Path) -> None:
    """Writes the training graph of an exported module whose output is a loss, with its weights."""
    require_executorch()
    with silenced():
        from executorch.exir import to_edge
        from torch.export.experimental import _export_forward_backward

        path.write_bytes(to_edge(_export_forward_backward(program)).to_executorch().buffer)


class CannotTrain(Exception):
    """The runtime cannot run a training graph; says why in a few words."""


@dataclass
class DeviceTrainer:
    """Trains a training graph with ExecuTorch's runtime and its SGD, as a device would."""

    path: Path
    rate: float
    _runtime: Any = field(init=False)
    _optimiser: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        require_executorch()
        with _named_fault():
            from executorch.extension.training import _load_for_executorch_for_training

            self._runtime = _load_for_executorch_for_training(str(self.path))

    def step(self, x: Tensor, y: Tensor) -> float:
        """One step on a batch; returns the loss before it."""
        with _named_fault():
            from executorch.extension.training import get_sgd_optimizer

            loss = float(self._runtime.forward_backward("forward", (x, y))[0])
            if self._optimiser is None:
                self._optimiser = get_sgd_optimizer(self._runtime.named_parameters(), self.rate, 0, 0, 0, False)
            self._optimiser.step(self._runtime.named_gradients())
        return loss

    def parameters(self) -> Mapping[str, Tensor]:
        """The parameters after the steps so far, at least one, by name."""
        return {name: tensor.detach().clone() for name, tensor in self._runtime.named_parameters().items()}


@contextmanager
def _named_fault() -> Iterator[None]:
    """Names the operators that the runtime lacks; it says so in its log only."""
    with tempfile.TemporaryFile() as log:
        try:
            with silenced(log.fileno()):
                yield
        except RuntimeError as fault:
            log.seek(0)
            found = MISSING_OPERATOR.findall(log.read().decode(errors="replace"))
            lacking = ", ".join(sorted(set(found)))
            raise CannotTrain(f"its runtime lacks {lacking}" if lacking else str(fault).splitlines()[0]) from None
