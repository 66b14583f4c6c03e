"""A folder of pictures: a folder for each class, and one for each user if you like; PNG, JPEG and the like.

    path/cat/1.png  path/dog/2.png                     folders = "class"
    path/anna/cat/1.png  path/ben/dog/2.png            folders = "user/class"
    path/train/cat/1.png  path/test/cat/2.png          with test pictures of its own, in either layout

Without a folder "test" the pictures in "val" ("valid", "validation") are the test pictures. Hidden files and folders do
not count.

Pictures that fit into memory are read at once, as bytes; more are read from their files whenever a batch needs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from potluck.core import InputError, ResourceError
from potluck.data.safe_reading import existing_path
from potluck.data.settings import Data
from potluck.data.source import Array, InputForm, Source, from_arrays, input_rows
from potluck.data.stored import Rows, StoredRows, in_memory_or_stored

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
"""What a picture may be, whatever its name says."""
TEST = ("test", "val", "valid", "validation")
"""Folders beside "train" whose pictures are test pictures; the first that there is."""
MOST_PIXELS = 100_000_000
"""The most pixels of a picture; a file that claims more is refused."""


@dataclass(frozen=True)
class Picture:
    """A file, whose it is, and what it shows."""

    path: Path
    label: str
    user: str


def read(data: Data) -> Source:
    """Reads a folder of pictures. x: bytes of (rows, channels, height, width); y: the names of the folders."""
    folder = existing_path(data.path, data.name)
    if not folder.is_dir():
        raise InputError(f"{data.path}: a file; set data.path to the folder that holds a folder for each class")
    parts = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    tests = [name for name in TEST if name in parts]
    split = bool(tests) and parts == {"train", *tests}
    train = _find(folder / "train" if split else folder, data.folders)
    test = _find(folder / tests[0], data.folders) if split else []
    names = tuple(sorted({picture.label for picture in train}))
    channels, *sides = data.size or common_size(_images([*train, *test]))
    users = np.array([picture.user for picture in train]) if data.folders != "class" else None
    found = from_arrays(
        _rows(train, channels, *sides),
        np.array([picture.label for picture in train]),
        users,
        _rows(test, channels, *sides) if test else None,
        np.array([picture.label for picture in test]) if test else None,
        names=names,
        scale=data.scale,
        layout="channels_first",
        name=str(folder),
    )
    return replace(found, form=InputForm("picture"))


def _find(folder: Path, folders: str) -> list[Picture]:
    """All pictures in a folder, in order of their names."""
    deep = "/" in folders
    found = []
    for path in sorted(folder.glob("*/*/*" if deep else "*/*")):
        if _is_picture(path, folder):
            inner, outer = path.parent.name, path.parent.parent.name
            label, user = (inner, outer) if folders == "user/class" else (outer, inner)
            found.append(Picture(path, label if deep else inner, user if deep else ""))
    if found:
        return found
    other = sorted(folder.glob("*/*" if deep else "*/*/*"))
    if any(_is_picture(path, folder) for path in other):
        _refuse_splits(folder)
        remedy = 'data.folders = "class"' if deep else 'data.folders = "user/class" or "class/user"'
        raise InputError(f"{folder}: its pictures are in other folders than data.folders says; set {remedy}")
    raise InputError(f"{folder}: no pictures ({', '.join(ENDINGS[:3])}, ...) in folders, one for each class")


def _is_picture(path: Path, folder: Path) -> bool:
    """Whether this is a picture by its name; what is hidden, such as macOS's "._1.png", is none."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return path.suffix.lower() in ENDINGS and not hidden and path.is_file()


def _refuse_splits(folder: Path) -> None:
    """Refuses folders such as "train" that are neither classes nor users."""
    parts = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if splits := [name for name in parts if name in ("train", *TEST)]:
        raise InputError(
            f"{folder}: there is a folder '{splits[0]}' of classes, among {', '.join(parts[:6])}; keep only 'train' "
            f"and one of {', '.join(TEST)}, or set data.path to the folder that holds a folder for each class"
        )


def common_size(images: Iterable[tuple[str, Any]]) -> tuple[int, int, int]:
    """The channels, height and width that all these pictures have; each comes with what an error calls it."""
    first, grey = None, True
    for what, image in images:
        refuse_mode(image, what)
        grey = grey and is_grey(image)
        sides = (image.height, image.width)
        if first is None:
            first = sides, what
        elif sides != first[0]:
            raise InputError(
                f"{what}: {sides[0]} x {sides[1]} pixels, and {first[1]} has {first[0][0]} x {first[0][1]}; "
                "set data.size to make all of one size, such as [3, 32, 32]"
            )
    assert first is not None
    return (1 if grey else 3, *first[0])


def _images(pictures: Sequence[Picture]) -> Iterator[tuple[str, Any]]:
    """The pictures, open, but not decoded."""
    for picture in pictures:
        with _opened(picture.path, load=False) as image:
            yield str(picture.path), image


def _rows(pictures: Sequence[Picture], channels: int, height: int, width: int) -> Array | StoredRows:
    files = PictureFiles(tuple(picture.path for picture in pictures), (channels, height, width))
    return in_memory_or_stored(files, channels * height * width)


@dataclass(frozen=True)
class PictureFiles:
    """Pictures that are read from their files when they are asked for."""

    paths: tuple[Path, ...]
    size: tuple[int, ...]
    """Channels, height and width; pictures of other sides are resized."""

    @property
    def path(self) -> Path:
        """What an error names."""
        return self.paths[0].parent

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Rows) -> Array:
        """These pictures, as bytes of (rows, channels, height, width)."""
        out = np.empty((len(rows), *self.size), np.uint8)
        for place, row in enumerate(rows.tolist()):
            with _opened(self.paths[row]) as image:
                out[place] = picture_bytes(image, self.size, str(self.paths[row]))
        return out


def picture_bytes(image: Any, size: tuple[int, ...], what: str) -> Array:
    """A picture of Pillow's as bytes of (channels, height, width); of 16 bits, the upper eight."""
    refuse_mode(image, what)
    if is_deep(image):
        pixels = (np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)
    else:
        pixels = np.asarray(image.convert("L" if size[0] == 1 else "RGB"))
    picture = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    row: Array = input_rows(picture[None], what, size)[0]
    return row


def is_grey(image: Any) -> bool:
    """Whether a picture of Pillow's has one channel."""
    return str(image.mode) in ("1", "L") or is_deep(image)


def is_deep(image: Any) -> bool:
    """Whether a picture is grey with 16 bits. Older versions of Pillow call such a PNG "I": PNG has no 32 bits."""
    return str(image.mode).startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def refuse_mode(image: Any, what: str) -> None:
    """Refuses pictures of whole numbers of 32 bits and of floats: nobody knows which of their values is white."""
    if image.mode in ("I", "F") and not is_deep(image):
        kind = "floats" if image.mode == "F" else "whole numbers of 32 bits"
        raise InputError(
            f"{what}: a picture of {kind} (Pillow's mode {image.mode}), whose range is not known; save it with 8 or 16 "
            "bits, or give arrays"
        )


def _opened(path: Path, load: bool = True) -> Any:
    """A picture that is open; an error if it is none, or claims to be huge."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ResourceError("pictures are read by Pillow: pip install 'potluck[pictures]'.") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a large picture, which is checked here
            image = Image.open(path, formats=FORMATS)
            if image.width * image.height > MOST_PIXELS:
                raise InputError(f"{path}: claims {image.width} x {image.height} pixels; make it smaller")
            if load:
                image.load()
            return image
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        reason = str(error).partition(" '")[0] or type(error).__name__
        raise InputError(f"{path}: not a picture that can be read ({reason}); remove or repair it") from None
