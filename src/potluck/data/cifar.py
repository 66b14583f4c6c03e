"""CIFAR-10 in its official binary layout: one label byte, then 3072 bytes of channel planes, per image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.guard import fault, fill, found, plain
from potluck.data.settings import Data
from potluck.data.source import Array, Scale, Source, from_arrays

FOLDER = "cifar-10-batches-bin"
NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
USUAL = Scale(
    tuple(255 * mean for mean in (0.4914, 0.4822, 0.4465)), tuple(255 * std for std in (0.2470, 0.2435, 0.2616))
)
_RECORD = 1 + 3 * 32 * 32
_MOST = 10_000


def read(data: Data) -> Source:
    """The folder cifar-10-batches-bin, or the folder that holds it. Images stay bytes until a batch is gathered."""
    folder = found(data.path, data.name)
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    if not folder.is_dir():
        raise InputError(f"{data.path}: a file; set data.path to the folder {FOLDER}")
    paths = [plain(folder, f"data_batch_{number}.bin") for number in range(1, 6)]
    paths.append(plain(folder, "test_batch.bin"))
    counts = [_count(path) for path in paths]
    for path, count in zip(paths, counts, strict=True):
        if count != counts[0]:
            raise fault(path, f"holds {count:,} images where {paths[0].name} holds {counts[0]:,}; get it again")
    x, y = _images(paths[:-1], counts[0])
    test = _images(paths[-1:], counts[0])
    scale = "standard" if data.scale == "standard" else USUAL
    return from_arrays(x, y, None, *test, names=NAMES, scale=scale, name=str(folder))


def _count(path: Path) -> int:
    size = path.stat().st_size
    count, rest = divmod(size, _RECORD)
    if rest or not 1 <= count <= _MOST:
        raise fault(path, f"{size:,} bytes are not 1 to {_MOST:,} images of {_RECORD:,} bytes each; get it again")
    return count


def _images(paths: list[Path], count: int) -> tuple[Array, Array]:
    """The images and labels of these files, so many in each."""
    x = np.empty((len(paths), count, 3, 32, 32), np.uint8)
    y = np.empty((len(paths), count), np.uint8)
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            records = fill(file, np.dtype(np.uint8), (count, _RECORD), path)
        worst = int(records[:, 0].max())
        if worst >= len(NAMES):
            raise fault(path, f"label {worst} is out of range; CIFAR-10 has labels 0 to 9")
        y[number], x[number] = records[:, 0], records[:, 1:].reshape(count, 3, 32, 32)
    return x.reshape(-1, 3, 32, 32), y.reshape(-1)
