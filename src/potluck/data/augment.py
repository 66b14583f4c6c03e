"""Data augmentation: random changes to training images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from potluck.core import Batch


@dataclass(frozen=True)
class CropFlip:
    """Random crop and flip: each image is shifted by up to `pad` pixels over a black border; half are mirrored."""

    pad: int = 4

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """For each image: pixels down, pixels right, and whether it is mirrored."""
        shifts = torch.randint(0, 2 * self.pad + 1, (count, 2), generator=rng)
        return torch.cat([shifts, torch.randint(0, 2, (count, 1), generator=rng)], 1)

    def __call__(self, batch: Batch, drawn: Tensor) -> Batch:
        x = batch["x"]
        down, right, mirrored = drawn.to(x.device).unbind(1)
        height, width = x.shape[-2:]
        padded = functional.pad(x, [self.pad] * 4)
        across = torch.arange(width, device=x.device)
        columns = torch.where(mirrored[:, None] == 1, across.flip(0), across) + right[:, None]
        rows = torch.arange(height, device=x.device) + down[:, None]
        image = torch.arange(len(x), device=x.device).view(-1, 1, 1, 1)
        channel = torch.arange(x.shape[1], device=x.device).view(-1, 1, 1)
        return {**batch, "x": padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]}
