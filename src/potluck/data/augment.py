"""Random changes to training images, as the papers train on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from potluck.core import Batch


@dataclass(frozen=True)
class CropFlip:
    """Each image moved by up to `pad` pixels over a black border, and mirrored half of the time."""

    pad: int = 4

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """For each image: pixels down, pixels right, and whether it is mirrored."""
        moved = torch.randint(0, 2 * self.pad + 1, (count, 2), generator=rng)
        return torch.cat([moved, torch.randint(0, 2, (count, 1), generator=rng)], 1)

    def __call__(self, batch: Batch, drawn: Tensor) -> Batch:
        x = batch["x"]
        down, right, mirrored = drawn.to(x.device).unbind(1)
        height, width = x.shape[-2:]
        framed = functional.pad(x, [self.pad] * 4)
        across = torch.arange(width, device=x.device)
        columns = torch.where(mirrored[:, None] == 1, across.flip(0), across) + right[:, None]
        rows = torch.arange(height, device=x.device) + down[:, None]
        image = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
        channel = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
        return {**batch, "x": framed[image, channel, rows[:, None, :, None], columns[:, None, None, :]]}
