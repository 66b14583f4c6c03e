"""FedRolex: every client trains a rolling sub-model: a window of every layer's units, which moves on each round.

Alam et al., "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022,
https://arxiv.org/abs/2212.01548. Every unit is trained equally often, so the server's model may be wider than any
client's. The window moves forward (Eq. 4); the released code moves it backward: ``direction = -1``. The paper rounds
widths down, its code rounds up (``rounding``). With attention heads, each head has its own window. In the code, once
the window has moved, one head of a sub-model covers parts of two server heads: ``head_mode = "code"``.

The code has four weightings: 1, the width, and either of them times the number of updates that an entry had before.
That number is the same for all clients that send the entry, so it cancels in their mean, and no counters are kept here.
In the code it does not quite cancel: after the first tensor, counters grow from client to client (c, c + 1, ...), so
that later clients count a little more. Norms, biases and the head are always weighted like this. The code's transformer
server discards the average that it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from potluck.core import Axis, Client, ContractSettings, Facts, Round, Spec, Zoo
from potluck.methods.bases.width import WidthTiers
from potluck.parts import Part, part


@dataclass(frozen=True)
class FedRolex(WidthTiers):
    """Narrow clients train a window of every layer's units, which moves each round."""

    contract = ContractSettings(as_fedavg={"weighting": "samples", "label_mask": False, "step": 0})

    direction: Literal[1, -1] = 1
    """Forward as in the paper, or backward as in its code."""
    step: int = 1
    """By how many units the window moves each round."""
    head_mode: Literal["per_head", "code"] = "per_head"
    """per_head: a window over each head's units; code: one window over the units of all heads together."""

    @property
    def facts(self) -> Facts:
        return replace(super().facts, larger=True)

    def cut(self, spec: Spec, whole: Spec, client: Client, now: Round) -> Part:
        return rolling(spec, whole, now.index * self.step * self.direction, self.head_mode, now.zoo)


@lru_cache(maxsize=64)
def rolling(spec: Spec, whole: Spec, start: int, head_mode: str, zoo: Zoo) -> Part:
    """The part in a window that starts at this unit of every group. All clients of a width have the same in a round."""

    def over_all_heads(axis: Axis) -> list[int]:
        rolled = window(axis.outer * axis.size, axis.outer * axis.size, start)
        heads = [rolled[head * axis.size : (head + 1) * axis.size] for head in range(axis.outer)]
        return [unit for head in heads for unit in head[: spec.sizes[axis.group]]]

    return part(
        zoo.axes(whole),
        lambda axis: window(axis.size, spec.sizes[axis.group], start),
        zoo.shapes(spec),
        over_all_heads if head_mode == "code" else None,
    )


def window(size: int, kept: int, start: int) -> list[int]:
    """The units in a cyclic window over a layer, in order."""
    return [(start + unit) % size for unit in range(kept)]
