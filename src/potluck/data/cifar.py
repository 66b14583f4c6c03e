"""CIFAR-10 and CIFAR-100 in their official binary layouts: per image, label bytes and 3072 bytes of channel planes.

- CIFAR-10: the folder `cifar-10-batches-bin` with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`; one
  label byte before each image.
- CIFAR-100: the folder `cifar-100-binary` with `train.bin` and `test.bin`; two label bytes, of which the second (the
  fine class) counts.

data.path is this folder, or the one that holds it. Inputs become (rows, 3, 32, 32).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from potluck.core import InputError
from potluck.data.safe_reading import existing_path, file_error, first_file, read_array
from potluck.data.settings import Data
from potluck.data.source import Array, InputScaling, Source, from_arrays

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarLayout:
    """The files of one of the two sets."""

    title: str
    folder: str
    train: tuple[str, ...]
    test: str
    labels: int
    """Label bytes before each image; the last one counts (the first of CIFAR-100 is the coarse class)."""
    classes: int
    most: int
    """The most images in a file."""
    scale: InputScaling
    names: tuple[str, ...] = ()


def _scale(mean: tuple[float, ...], std: tuple[float, ...]) -> InputScaling:
    return InputScaling(tuple(255 * value for value in mean), tuple(255 * value for value in std))


CIFAR10 = CifarLayout(
    "CIFAR-10", "cifar-10-batches-bin", tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin",
    labels=1, classes=10, most=10_000, scale=_scale((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)  # fmt: skip
CIFAR100 = CifarLayout(
    "CIFAR-100", "cifar-100-binary", ("train.bin",), "test.bin",
    labels=2, classes=100, most=50_000, scale=_scale((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
)  # fmt: skip


def read_cifar10(data: Data) -> Source:
    """Reads CIFAR-10: the folder cifar-10-batches-bin, or the folder that holds it."""
    return _read(data, CIFAR10)


def read_cifar100(data: Data) -> Source:
    """Reads CIFAR-100: the folder cifar-100-binary, or the folder that holds it."""
    return _read(data, CIFAR100)


def _read(data: Data, layout: CifarLayout) -> Source:
    """Reads one of the two sets; images stay bytes until a batch is made."""
    folder = existing_path(data.path, data.name)
    if (folder / layout.folder).is_dir():
        folder = folder / layout.folder
    if not folder.is_dir():
        raise InputError(f"{data.path}: a file; set data.path to the folder {layout.folder}")
    *train, test = (first_file(folder, name) for name in (*layout.train, layout.test))
    alike = [*train, test] if len(train) > 1 else train
    counts = [_count(path, layout) for path in alike]
    for path, count in zip(alike, counts, strict=True):
        if count != counts[0]:
            raise file_error(
                path, f"holds {count:,} images where {train[0].name} holds {counts[0]:,}; download it again"
            )
    x, y = _images(train, layout)
    x_test, y_test = _images([test], layout)
    scale = "standard" if data.scale == "standard" else layout.scale
    source = from_arrays(x, y, None, x_test, y_test, names=layout.names, size=data.size, scale=scale, name=str(folder))
    return replace(source, classes=layout.classes)


def _count(path: Path, layout: CifarLayout) -> int:
    size, record = path.stat().st_size, layout.labels + _PIXELS
    count, rest = divmod(size, record)
    if rest or not 1 <= count <= layout.most:
        raise file_error(
            path, f"{size:,} bytes are not 1 to {layout.most:,} images of {record:,} bytes each; download it again"
        )
    return count


def _images(paths: list[Path], layout: CifarLayout) -> tuple[Array, Array]:
    """The images and labels of these files, the same number in each."""
    count = _count(paths[0], layout)
    x = np.empty((len(paths), count, 3, 32, 32), np.uint8)
    y = np.empty((len(paths), count), np.uint8)
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            records = read_array(file, np.dtype(np.uint8), (count, layout.labels + _PIXELS), path)
        y[number] = records[:, layout.labels - 1]
        worst = int(y[number].max())
        if worst >= layout.classes:
            raise file_error(
                path, f"label {worst} is out of range; {layout.title} has labels 0 to {layout.classes - 1}"
            )
        x[number] = records[:, layout.labels :].reshape(count, 3, 32, 32)
    return x.reshape(-1, 3, 32, 32), y.reshape(-1)
