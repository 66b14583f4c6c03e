"""Norm policies: which norm stands between a layer and its activation.

- ``static``: batch norm with affine weights and no running statistics; it always uses those of the batch.
- ``running``: ordinary batch norm; evaluation uses running statistics from training.
- ``counted``: batch norm whose statistics are the arithmetic means over all batches seen in training. A static network
  is loaded into a counted one to compute its statistics.
- ``group``: group norm; each example is normalised separately.
- ``none``: no norm; the layer before it has a bias instead.

Networks of tokens have ``layer`` and ``none`` only.

The affine weights have the same names under every policy. So a static network's weights fit into the counted one, which
adds running statistics and nothing else.
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
    """Batch norm of maps or vectors that also accepts a batch with one value per channel.

    One value has no variance to divide by. If there are running statistics, they are used and not changed; a static
    norm then only applies its affine weights.
    """

    def __init__(self, channels: Axis, policy: str) -> None:
        momentum = None if policy == "counted" else 0.1
        super().__init__(channels.length, momentum=momentum, track_running_stats=policy != "static")
        self.weight_axes: Dimensions = (channels,)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept maps and vectors."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() > x.shape[1]:
            return super().forward(x)
        if self.running_mean is None:
            return affine(x, self.weight, self.bias)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


class GroupNorm(nn.GroupNorm):
    """Group norm whose number of groups depends on the number of channels, so that it works at every width.

    The number is the largest divisor of the channels that is at most eight and leaves each group two channels. So a
    narrow network has other groups than the full one it was cut from. A single channel on a 1x1 map has no variance:
    there only the affine weights are applied.
    """

    def __init__(self, channels: Axis) -> None:
        super().__init__(group_count(channels.length), channels.length)
        self.weight_axes: Dimensions = (channels,)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:].numel() > self.num_groups:
            return super().forward(x)
        return affine(x, self.weight, self.bias)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the units of a group, in the last dimension.

    It normalises across units. So in a narrow network its mean and variance are those of fewer units.
    """

    def __init__(self, units: Axis, eps: float = 1e-5) -> None:
        super().__init__(units.length, eps)
        self.weight_axes: Dimensions = (units,)


def group_count(channels: int) -> int:
    """The number of groups of a group norm over this many channels.

    >>> [group_count(channels) for channels in (64, 12, 7, 1)]
    [8, 6, 1, 1]
    """
    most = max(1, min(MOST_GROUPS, channels // 2))
    return max(count for count in range(1, most + 1) if channels % count == 0)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Scale and shift each channel."""
    shape = (-1,) + (1,) * (x.dim() - 2)
    return x * weight.view(shape) + bias.view(shape)
