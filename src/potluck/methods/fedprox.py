"""FedProx: FedAvg with a proximal term, which pulls clients back to the model they received.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, https://arxiv.org/abs/1812.06127.
The proximal term is (mu / 2) * ||w - received||^2, over every trainable weight and no buffer. The paper's partial work
(slow clients train less) is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.core import ContractSettings, Device, Edit, Task
from potluck.learn import ProximalTerm
from potluck.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    contract = ContractSettings(as_fedavg={"mu": 0.0})

    mu: float = 0.1
    """The strength of the proximal term, which holds a client near the model that it got; 0: none."""

    def edits(self, task: Task, device: Device) -> Sequence[Edit]:
        return (ProximalTerm(self.start(task, device).arrays, self.mu),) if self.mu else ()
