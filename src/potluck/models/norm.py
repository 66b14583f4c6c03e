"""Norm policies: what stands between a layer and its activation.

- ``static``: batch norm with affine weights and no running statistics; the batch's own statistics are always used.
- ``running``: ordinary batch norm; evaluation uses statistics gathered in training.
- ``counted``: batch norm whose statistics are the arithmetic means over all batches seen in training: the twin into
  which a static network is loaded to have its statistics counted.
- ``group``: group norm; each example is normalised by itself.
- ``none``: nothing; the layer in front has a bias instead.

Networks of tokens know ``layer`` and ``none`` alone.

The affine weights have the same names under every policy, so a network that was trained static can be loaded into its
counted twin, which adds its running statistics and nothing else.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from potluck.core import Axis, Dimensions

POLICIES = ("static", "running", "counted", "group", "none")
MOST_GROUPS = 8


def norm(policy: str, channels: Axis) -> nn.Module | None:
    """The norm over these channels; None under the policy ``none``."""
    if policy == "none":
        return None
    return GroupNorm(channels) if policy == "group" else BatchNorm(channels, policy)


class BatchNorm(nn.BatchNorm2d):
    """Batch norm of maps or vectors that survives a batch with one value per channel.

    One value has no spread to divide by. Running statistics stand in where there are some, and are left as they were;
    a static norm then applies its affine weights alone.
    """

    def __init__(self, channels: Axis, policy: str) -> None:
        momentum = None if policy == "counted" else 0.1
        super().__init__(channels.length, momentum=momentum, track_running_stats=policy != "static")
        self.sides: Dimensions = (channels,)

    def _check_input_dim(self, input: Tensor) -> None:
        """Maps and vectors alike."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() > x.shape[1]:
            return super().forward(x)
        if self.running_mean is None:
            return affine(x, self.weight, self.bias)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class GroupNorm(nn.GroupNorm):
    """Group norm whose number of groups follows the channels, so that every width is well-defined.

    The number is the largest divisor of the channels that is at most eight and leaves each group two channels. A
    narrow network is therefore normalised over other groups than the wide one it was cut from. A single channel on a
    1x1 map has no spread: its affine weights are applied alone.
    """

    def __init__(self, channels: Axis) -> None:
        super().__init__(groups(channels.length), channels.length)
        self.sides: Dimensions = (channels,)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:].numel() > self.num_groups:
            return super().forward(x)
        return affine(x, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the units of a group, which follow each other in the last dimension.

    It normalises across units, so a narrow network's units are normalised among fewer others than in the whole.
    """

    def __init__(self, units: Axis, eps: float = 1e-5) -> None:
        super().__init__(units.length, eps)
        self.sides: Dimensions = (units,)


def groups(channels: int) -> int:
    """Groups that a group norm makes of this many channels.

    >>> [groups(channels) for channels in (64, 12, 7, 1)]
    [8, 6, 1, 1]
    """
    most = max(1, min(MOST_GROUPS, channels // 2))
    return max(count for count in range(1, most + 1) if channels % count == 0)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Scale and shift each channel."""
    shape = (-1,) + (1,) * (x.dim() - 2)
    return x * weight.view(shape) + bias.view(shape)
