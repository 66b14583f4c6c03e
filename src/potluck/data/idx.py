"""IDX files, the format of MNIST and Fashion-MNIST: images and labels as bytes, plain or gzipped (.gz).

- `train-images-idx3-ubyte`: the images, (rows, height, width); they become (rows, 1, height, width).
- `train-labels-idx1-ubyte`: the labels, (rows,), from 0.
- `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, optional: the test rows.

A dot may stand in place of the hyphen before "idx".
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

from potluck.core import InputError
from potluck.data.safe_reading import (
    check_expansion,
    existing_path,
    file_error,
    first_file,
    looks_like_pickle,
    pickle_error,
    read_array,
)
from potluck.data.settings import Data
from potluck.data.source import Array, Source, from_arrays


def read(data: Data) -> Source:
    """Reads a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and, if present, the same of t10k."""
    folder = existing_path(data.path, data.name)
    if not folder.is_dir():
        raise InputError(f"{data.path}: a file; set data.path to the folder that holds train-images-idx3-ubyte")
    x, y = _pair(folder, "train")
    has_test = any(folder.glob("t10k-images*"))
    x_test, y_test = _pair(folder, "t10k") if has_test else (None, None)
    return from_arrays(x, y, None, x_test, y_test, size=data.size, scale=data.scale, name=str(folder))


def _pair(folder: Path, side: str) -> tuple[Array, Array]:
    images = read_idx(_file(folder, f"{side}-images", "idx3-ubyte"), 3)
    return images[:, None], read_idx(_file(folder, f"{side}-labels", "idx1-ubyte"), 1)


def _file(folder: Path, stem: str, kind: str) -> Path:
    return first_file(folder, f"{stem}-{kind}.gz", f"{stem}-{kind}", f"{stem}.{kind}.gz", f"{stem}.{kind}")


def read_idx(path: Path, dims: int) -> Array:
    """The bytes of one IDX file with `dims` dimensions."""
    compressed = path.suffix == ".gz"
    try:
        with cast("IO[bytes]", gzip.open(path, "rb")) if compressed else path.open("rb") as file:
            return _body(file, path, dims, compressed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise file_error(path, f"not a complete gzip file ({error}); download it again") from None


def _body(file: IO[bytes], path: Path, dims: int, compressed: bool) -> Array:
    head = file.read(4 + 4 * dims)
    if head[:4] != bytes((0, 0, 8, dims)) or len(head) < 4 + 4 * dims:
        if looks_like_pickle(head + file.read(4096)):
            raise pickle_error(path)
        raise file_error(
            path,
            f"not an IDX file of bytes in {dims} dimensions: starts with {head[:4].hex(' ')}, not 00 00 08 0{dims}",
        )
    shape = struct.unpack(f">{dims}I", head[4:])
    size = len(head) + math.prod(shape)
    if compressed:
        check_expansion(path, size)
    elif size != path.stat().st_size:
        raise file_error(
            path, f"names {size:,} bytes in its header and holds {path.stat().st_size:,}; download it again"
        )
    return read_array(file, np.dtype(np.uint8), shape, path)
