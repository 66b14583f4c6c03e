"""The data sets that ``data.name`` can name, and the reader of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType

import numpy as np

from potluck.core import InputError, ResourceError, SettingsError, suggestion
from potluck.data import cifar, frames, hub, idx, npy, npz, pictures, sentences, tags, text
from potluck.data.settings import OWN, Data
from potluck.data.source import Source, from_arrays


def _digits(data: Data) -> Source:
    """scikit-learn's handwritten digits: 1,797 images of 8 by 8, ten classes; needs no files."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = (found.images / 16).astype(np.float32)[:, None]
    return from_arrays(x, found.target, names=tuple("0123456789"), size=data.size, scale=data.scale, name="digits")


READERS: Mapping[str, Callable[[Data], Source]] = MappingProxyType(
    {
        "digits": _digits,
        "cifar10": cifar.read_cifar10,
        "cifar100": cifar.read_cifar100,
        "huggingface": hub.read,
        "idx": idx.read,
        "npy": npy.read,
        "npz": npz.read,
        "pictures": pictures.read,
        "sentences": sentences.read,
        "table": frames.read,
        "tags": tags.read,
        "text": text.read,
    }
)
"""The function that reads each; the docstring of its module says what the files hold."""
_ABOUT: Mapping[str, str] = MappingProxyType(
    {
        "digits": "scikit-learn's handwritten digits: 1,797 images of 8 x 8 in 10 classes; needs no files",
        "cifar10": "CIFAR-10: a folder cifar-10-batches-bin in the official binary layout",
        "cifar100": "CIFAR-100, its fine classes: a folder cifar-100-binary in the official binary layout",
        "huggingface": "a data set of Hugging Face: a folder that save_to_disk wrote, or its name on the hub",
        "idx": "IDX files, such as MNIST and Fashion-MNIST: a folder with train-images-idx3-ubyte(.gz) and so on",
        "npy": "a folder of x.npy, y.npy, user.npy, ... or shards x-00000.npy, ...; rows of x are read when needed",
        "npz": "a NumPy file with x, y and optionally user (or subject, speaker), classes, x_test, y_test, off",
        "pictures": "a folder of pictures (PNG, JPEG, ...), in a folder for each class, or for each user and class",
        "sentences": 'texts or pairs with a label, as in GLUE: a .jsonl file of {"s1": ..., "s2": ..., "label": ...}',
        "table": "a CSV, TSV or Parquet file with named columns: features or texts, a label, a user",
        "tags": 'words with BIO tags: .jsonl of {"tokens": [...], "tags": [...]}; in a folder, every file is a user',
        "text": 'text by user, for the next word or character: a .jsonl file of {"user": ..., "lines": [...]}',
    }
)


def sources() -> Mapping[str, str]:
    """Every data set that ``data.name`` can name, with one line about it."""
    return _ABOUT


def load(data: Data) -> Source:
    """Reads the data set that these settings name: into memory, except for the inputs of "npy"."""
    if data.name == OWN:
        raise SettingsError(
            f"data.name = '{OWN}' stands for data of your own; hand it over in Python: pl.run(data=...)."
        )
    if data.name not in READERS:
        hint = suggestion(data.name, READERS, f"There are {', '.join(READERS)}.")
        raise SettingsError(f"data.name = '{data.name}' is not known.{hint}")
    try:
        return READERS[data.name](data)
    except OSError as error:
        raise InputError(f"{error.filename or data.path}: {error.strerror or error}; check data.path") from None
    except MemoryError:
        raise ResourceError(f"{data.path}: is too large for the memory of this machine; use a smaller file") from None


def load_public(data: Data) -> Source | None:
    """Reads the other data set for public rows; None if the settings name none."""
    if not data.public_from.name:
        return None
    try:
        return load(Data(**asdict(data.public_from)))
    except (InputError, SettingsError) as error:
        raise type(error)(f"data.public_from: {error}") from None
