"""Images of one size made another: sides resized, channels repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from potluck.core import InputError

SLICE = 1024
"""Images resized at a time: as floats they take four times the room of bytes."""


def resized(x: NDArray[Any], size: tuple[int, ...], what: str) -> NDArray[Any]:
    """Each image as (channels, height, width) of this size; bytes stay bytes.

    Sides are resized bilinearly, and averaged where they shrink. Channels are repeated as a whole, so that one grey
    channel serves for three. Images without channels have one.
    """
    images = x[:, None] if x.ndim == 3 else x
    if images.ndim != 4 or not (x.dtype == np.uint8 or np.issubdtype(x.dtype, np.floating)):
        raise InputError(f"{what} holds {x.dtype} of {x.shape[1:]}; data.size is for images, (channels, height, width)")
    channels, *sides = size
    times, left = divmod(channels, images.shape[1])
    if left or not times:
        raise InputError(f"{what} has {images.shape[1]} channels, which cannot be repeated to data.size = {list(size)}")
    out = np.empty((len(images), *size), images.dtype)
    for start in range(0, len(images), SLICE):
        part = slice(start, start + SLICE)
        out[part] = np.tile(_sides(images[part], sides), (1, times, 1, 1))
    return out


def _sides(images: NDArray[Any], sides: list[int]) -> NDArray[Any]:
    if list(images.shape[2:]) == sides:
        return images
    found = functional.interpolate(
        torch.from_numpy(images.astype(np.float32)), sides, mode="bilinear", align_corners=False, antialias=True
    ).numpy()
    return np.rint(found).clip(0, 255).astype(np.uint8) if images.dtype == np.uint8 else found
