"""Data augmentation: random changes to training images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from potluck.core import Batch
from potluck.data.source import channel_values


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


@dataclass(frozen=True)
class CropFlipCutout:
    """Random crop and flip, then Cutout: a square around a random pixel is blank; what juts out is clipped.

    DeVries and Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017,
    https://arxiv.org/abs/1708.04552.
    """

    size: tuple[int, int]
    """Height and width of the images."""
    blank: tuple[float, ...]
    """The blank colour, a value for each channel (or one for all) in the units of the stored images. With the mean that
    scaling subtracts, a network sees zeros."""
    side: int = 16
    before: CropFlip = CropFlip()

    def draw(self, count: int, rng: torch.Generator) -> Tensor:
        """The numbers of crop and flip, then the row and the column of the centre of the square."""
        moves = self.before.draw(count, rng)
        return torch.cat([moves, *(torch.randint(0, length, (count, 1), generator=rng) for length in self.size)], 1)

    def __call__(self, batch: Batch, drawn: Tensor) -> Batch:
        batch = self.before(batch, drawn[:, :3])
        x, centres = batch["x"], drawn[:, 3:].to(batch["x"].device)
        rows, columns = (self._within(length, centres[:, axis]) for axis, length in enumerate(self.size))
        hole = rows[:, None, :, None] & columns[:, None, None, :]
        return {**batch, "x": torch.where(hole, channel_values(self.blank, x.dim(), x.device), x.to(torch.float32))}

    def _within(self, length: int, centre: Tensor) -> Tensor:
        """For each image, which positions along one side of it the square covers."""
        away = torch.arange(length, device=centre.device) - centre[:, None]
        return (away >= -(self.side // 2)) & (away < self.side // 2)
