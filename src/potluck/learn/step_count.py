"""Counts what one local step computes, with all that its loss computes beside the network.

A step runs once on two samples and once on three, on networks without numbers (PyTorch's meta device). Both counts grow
linearly with the batch, so these two tell every other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from potluck.core import Batch, Column, Loss, PassCount, Work, count_pass
from potluck.learn.losses import JointLoss, Turns
from potluck.learn.values import map_tensors

META = torch.device("meta")


@dataclass(frozen=True)
class StepCount:
    """FLOPs of local steps, and activations that they keep: so much for each step, and more for each sample."""

    flops: int
    flops_per_sample: int
    saved: int
    saved_per_sample: int

    @staticmethod
    def of(two: PassCount, three: PassCount) -> StepCount:
        """The count that fits a step on two samples and one on three."""
        more, more_saved = three.flops - two.flops, three.saved_bytes - two.saved_bytes
        return StepCount(two.flops - 2 * more, more, two.saved_bytes - 2 * more_saved, more_saved)

    def total_flops(self, steps: int, samples: int) -> int:
        """Of so many steps, on so many samples together."""
        return self.flops * steps + self.flops_per_sample * samples

    def activation_bytes(self, batch: int) -> int:
        """Of one step on a batch of this size."""
        return self.saved + self.saved_per_sample * batch


def step_count_of(work: Callable[[int], Work]) -> StepCount:
    """The count of a step whose loss computes nothing beside the network, from the network's work on a batch."""
    two, three = (PassCount(found.flops, found.forward_flops, found.activation_bytes) for found in map(work, (2, 3)))
    return StepCount.of(two, three)


def turns_of(loss: Loss) -> list[tuple[Loss, int]]:
    """The losses that take turns, and how many steps each has; one loss alone has all of them: 1."""
    if not isinstance(loss, Turns):
        return [(loss, 1)]
    return [(own, loss.order.count(number)) for number, own in enumerate(loss.losses)]


def without_numbers(loss: Loss, empty_net: Callable[[nn.Module], nn.Module]) -> Loss:
    """The loss with tensors on the meta device, and networks as `empty_net` makes them, in the same mode."""
    found: Loss = map_tensors(
        loss,
        lambda tensor: torch.empty_like(tensor, device=META),
        lambda net: empty_net(net).train(net.training),
    )
    return found


def count_step(
    probe: Callable[[int], tuple[nn.Module, Tensor]], columns: Mapping[str, Column], loss: Loss
) -> StepCount:
    """Counts a step with this loss (`without_numbers`).

    `probe` makes a network, and inputs for a number of samples; `columns` are those of the examples.
    """
    return StepCount.of(*(_count(*probe(samples), columns, loss, samples) for samples in (2, 3)))


def _count(net: nn.Module, x: Tensor, columns: Mapping[str, Column], loss: Loss, samples: int) -> PassCount:
    if x.device != META:
        raise ValueError("the network needs numbers")
    net.train()
    batch = {
        name: torch.empty(samples, *column.shape[1:], dtype=column.dtype, device=META)
        for name, column in columns.items()
    }
    batch["x"] = x
    if not isinstance(loss, JointLoss):
        return _count_gradient(net, batch, loss)
    main = _count_gradient(net, batch, loss.main)
    for name, weight in net.named_parameters():
        weight.requires_grad_(weight.requires_grad and name.startswith(loss.reach))
    aside = _count_gradient(net, batch, loss.aside)
    return PassCount(
        main.flops + aside.flops,
        main.forward_flops + aside.forward_flops,
        max(main.saved_bytes, aside.saved_bytes),
    )


def _count_gradient(net: nn.Module, batch: Batch, loss: Loss) -> PassCount:
    return count_pass(lambda: loss(net, batch), (*net.parameters(), *net.buffers()))
