"""A source: a data set before it is divided among clients; in memory, or with inputs that stay in files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from potluck.core import Batch, Column, Examples, InputError, Prepare
from potluck.data.settings import Layout
from potluck.data.stored import MappedRows, Rows, StoredColumn, StoredRows, sample_rows

Array = NDArray[Any]

CLASSES = 100_000
"""The most classes; a higher label is a mistake in the data."""

IGNORED = -100
"""A label that no loss and no score counts, as in PyTorch: the tag of padding, for example."""

IMAGES_AT_ONCE = 1024
"""Images resized at a time; as floats they take four times the memory of bytes."""


@dataclass(frozen=True)
class InputScaling:
    """Normalises stored inputs to floats, one batch at a time: ``(x - mean) / std`` per channel.

    A single value counts for every channel. Both are in the units of the stored data, so bytes have means up to 255.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, batch: dict[str, Tensor]) -> Batch:
        x = batch["x"]
        mean, std = channel_values(self.mean, x.dim(), x.device), channel_values(self.std, x.dim(), x.device)
        return {**batch, "x": (x.to(torch.float32) - mean) / std}


@lru_cache(maxsize=64)
def channel_values(values: tuple[float, ...], dims: int, device: torch.device) -> Tensor:
    """A value for each channel, or one for all, as a tensor that broadcasts over a batch of this many dimensions."""
    return torch.tensor(values, dtype=torch.float32, device=device).view(1, -1, *(1 for _ in range(dims - 2)))


@dataclass(frozen=True)
class InputForm:
    """What files the inputs came from. A model that leaves Potluck is told this, to read such files itself."""

    kind: Literal["array", "picture", "table", "text", "tags", "stream"]
    """array: rows of numbers; table: columns of numbers; text: one text or two in a row; tags: a list of words; stream:
    text whose next token is predicted."""
    columns: tuple[str, ...] = ()
    """The names of the columns that hold the inputs, in order."""
    tokenizer: Mapping[str, Any] | None = None
    """How texts become token ids, as plain values (`plain_tokenizer`)."""


@dataclass(frozen=True, eq=False)
class Source:
    """A data set. Its columns are in memory; inputs may also stay in files (`StoredColumn`)."""

    name: str
    train: Examples
    test: Examples | None
    """The source's own test set; None if it has none."""
    classes: int
    """The number of classes; 0: the labels are numbers to regress on."""
    shape: tuple[int, ...]
    """The shape of one input."""
    users: Tensor | None = None
    """The user of each training row, counted from 0; -1: no user."""
    names: tuple[str, ...] = ()
    """The names of the classes, if known."""
    tokens: int = 0
    """The size of the vocabulary of the inputs; 0: they are not tokens, or the classes are the tokens."""
    pad: int = 0
    """The padding token."""
    sep: int = -1
    """The token that ends the first text of a row if rows may hold two texts; -1: they hold one."""
    tagged: bool = False
    """Whether the labels of a row are BIO tags of its tokens; `names` holds the tags."""
    form: InputForm | None = None
    """What files the inputs came from; None: not known."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every row, label and user, and how inputs are scaled. Names do not count.

        Of inputs that stay in files, it covers their number, shape and type and a sample of rows (`sample_rows`): to
        read all of them at every start would take hours.
        """
        total = hashlib.sha256(repr((self.classes, self.tokens, self.pad, self.sep, self.tagged)).encode())
        for name, column in self._columns():
            total.update(f"{name} {column.dtype} {tuple(column.shape)}".encode())
            total.update(np.ascontiguousarray(column.numpy()).reshape(-1).view(np.uint8).data)
        total.update(_scaling_text(self.train.prepare).encode())
        return total.hexdigest()

    def _columns(self) -> Iterator[tuple[str, Tensor]]:
        for split, examples in (("train", self.train), ("test", self.test)):
            if examples is not None:
                yield from (_hashed_column(examples, name, split) for name in sorted(examples.columns))
        if self.users is not None:
            yield "users", self.users


def _hashed_column(examples: Examples, name: str, split: str) -> tuple[str, Tensor]:
    """A column and its title, for the fingerprint; of a column in files, a sample of its rows."""
    column = examples.columns[name]
    if isinstance(column, Tensor):
        return f"{split} {name}", examples.column(name)
    rows = sample_rows(len(examples), math.prod(column.shape[1:]) * column.dtype.itemsize)
    return f"{split} {name} sampled from {len(examples)} rows", examples.pick(torch.from_numpy(rows)).column(name)


def _scaling_text(prepare: Prepare | None) -> str:
    """How inputs are scaled, to six digits: the last bits of a mean differ from machine to machine."""
    if not isinstance(prepare, InputScaling):
        return "none" if prepare is None else type(prepare).__name__
    return " ".join(f"{value:.6g}" for value in (*prepare.mean, *prepare.std))


def from_arrays(
    x: ArrayLike | StoredRows,
    y: ArrayLike,
    user: ArrayLike | None = None,
    x_test: ArrayLike | StoredRows | None = None,
    y_test: ArrayLike | None = None,
    *,
    names: tuple[str, ...] = (),
    size: tuple[int, ...] = (),
    scale: InputScaling | str = "auto",
    layout: Layout = "auto",
    name: str = "arrays",
) -> Source:
    """A source made of your own arrays: x of (rows, ...), y of (rows,): names of classes, whole numbers from 0, or
    floats to regress on.

    `user` gives the user of each row, in any values that can be sorted; an empty name means no user. Arrays are shared
    if their type allows it and they can be written to, not copied. A memory map, ``numpy.load(path, mmap_mode="r")``,
    stays in its file, and rows are read when a batch needs them. `size` is as in `Data.size`; `scale` is an
    `InputScaling`, or "auto" or "standard" as in `Data.scale`; `layout` is as in `Data.layout`.
    """
    if (x_test is None) != (y_test is None):
        raise InputError(f"{name}: x_test and y_test go together; give both or neither")
    y, names, y_test = number_classes(y, names, y_test, name)
    inputs, labels = _inputs(x, f"{name}: x", size, layout), _labels(y, f"{name}: y")
    _check_equal_rows(name, x=inputs, y=labels)
    prepare = scale if isinstance(scale, InputScaling) else _scaling_for(inputs, scale)
    columns = [labels]
    test = None
    if x_test is not None and y_test is not None:
        other, answers = _inputs(x_test, f"{name}: x_test", size, layout), _labels(y_test, f"{name}: y_test")
        _check_equal_rows(name, x_test=other, y_test=answers)
        if other.shape[1:] != inputs.shape[1:] or other.dtype != inputs.dtype:
            raise InputError(
                f"{name}: x_test holds {other.dtype} of {other.shape[1:]}, x holds {inputs.dtype} of {inputs.shape[1:]}"
                "; give both the same type and shape"
            )
        test = _examples(other, answers, prepare)
        columns.append(answers)
    return Source(
        name=name,
        train=_examples(inputs, labels, prepare),
        test=test,
        classes=_classes(columns, names, name),
        shape=tuple(inputs.shape[1:]),
        users=None if user is None else _users(user, len(inputs), name),
        names=names,
        form=InputForm("array"),
    )


def _array(values: ArrayLike, what: str) -> Array:
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} is not an array: {error}") from None
    if found.dtype.hasobject:
        found = _strings(found, what)
    if found.ndim == 0 or len(found) == 0:
        raise InputError(f"{what} holds no rows; give at least one")
    return found


def _strings(found: Array, what: str) -> Array:
    """Python's strings as NumPy's, as pandas has them; an error for all other objects."""
    for each in found.reshape(-1).tolist():
        if each is None or each != each:
            raise InputError(f"{what} lacks values; fill them in, or leave the rows out")
        if not isinstance(each, str):
            raise InputError(f"{what} holds Python objects; give numbers")
    return found.astype(np.str_)


def number_classes(
    y: ArrayLike, names: tuple[str, ...], y_test: ArrayLike | None, name: str
) -> tuple[ArrayLike, tuple[str, ...], ArrayLike | None]:
    """Labels that are names, as numbers: places in `names`, or in alphabetical order if that is empty."""
    found = _array(y, f"{name}: y")
    if found.dtype.kind != "U":
        return found, names, y_test
    known = names or tuple(np.unique(found).tolist())
    answers = None if y_test is None else _places(_array(y_test, f"{name}: y_test"), known, f"{name}: y_test")
    return _places(found, known, f"{name}: y"), known, answers


def _places(found: Array, names: tuple[str, ...], what: str) -> Array:
    """The place of each label in the names."""
    places = {each: place for place, each in enumerate(names)}
    labels = found.reshape(-1).tolist()
    if odd := [label for label in labels if label not in places]:
        raise InputError(f"{what}: {odd[0]!r} is none of the classes {', '.join(names[:8])}")
    return np.array([places[label] for label in labels]).reshape(found.shape)


def _inputs(values: ArrayLike | StoredRows, what: str, size: tuple[int, ...], layout: Layout) -> Array | StoredRows:
    """The inputs of a source; stored rows have their type and size already."""
    if isinstance(values, StoredRows):
        refuse_channels_last(values.shape, what, layout)
        return values
    if isinstance(values, np.memmap) and values.ndim > 1 and len(values):

        def edit(rows: Array, file: str, numbers: Rows) -> Array:
            return input_rows(channels_first(rows, what, layout), what, size, numbers)

        return StoredRows([MappedRows(values)], edit)
    return input_rows(channels_first(_array(values, what), what, layout), what, size)


CHANNELS = 5
"""The most channels that pictures have: grey, colours, transparency, infrared."""


def channels_first(values: Array, what: str, layout: Layout) -> Array:
    """Pictures as (rows, channels, height, width)."""
    if layout == "channels_last" and values.ndim == 4:
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    refuse_channels_last(values.shape, what, layout)
    return values


def refuse_channels_last(shape: tuple[int, ...], what: str, layout: Layout) -> None:
    """Refuses what looks like pictures with their channels last, unless the settings say that it is not."""
    if layout != "auto" or len(shape) != 4:
        return
    _, first, second, last = shape
    if last <= CHANNELS and last < min(first, second) and not first < CHANNELS < second:
        raise InputError(
            f"{what} has the shape {tuple(shape)}, like pictures with their channels last; set data.layout (in Python: "
            'layout=) to "channels_last", or to "channels_first" if the second number is the channels'
        )


def input_rows(values: Array, what: str, size: tuple[int, ...], numbers: Rows | None = None) -> Array:
    """Inputs in their stored type: bytes stay bytes, integers become int64 (tokens), floats float32; images resized.

    `numbers` are the numbers of the rows for errors, if they are not all rows.
    """
    found = as_input_type(values, what, numbers)
    return resize_images(found, size, what) if size else found


def as_input_type(found: Array, what: str, numbers: Rows | None = None) -> Array:
    """Inputs in the type in which they are used; an error for NaN and infinity. `numbers` as in `input_rows`."""
    if found.ndim < 2:
        raise InputError(f"{what} has the shape {found.shape}; give (rows, ...), one row per sample")
    if found.dtype == np.uint8:
        return found
    if np.issubdtype(found.dtype, np.integer):
        return found.astype(np.int64, copy=False)
    if not np.issubdtype(found.dtype, np.floating):
        raise InputError(f"{what} holds {found.dtype}; give bytes, whole numbers or floats")
    with np.errstate(over="ignore"):
        return _require_finite(found.astype(np.float32, copy=False), what, numbers)


def _require_finite(values: Array, what: str, numbers: Rows | None = None) -> Array:
    good = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not good.all():
        row = int(np.argmin(good)) if numbers is None else int(numbers[~good].min())
        raise InputError(f"{what} holds NaN or infinity, first in row {row}; remove or repair such rows")
    return values


def _labels(values: ArrayLike, what: str) -> Array:
    found = _array(values, what)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found.reshape(-1)
    if np.issubdtype(found.dtype, np.floating):
        return _require_finite(found.astype(np.float32, copy=False), what)
    if found.dtype != np.bool_ and not np.issubdtype(found.dtype, np.integer):
        raise InputError(f"{what} holds {found.dtype}; give whole numbers from 0, or floats to regress on")
    low, high = int(found.min()), int(found.max())
    if high >= CLASSES or (low < 0 and not (found.ndim > 1 and low == IGNORED)):
        bad = high if high >= CLASSES else low
        row = int(np.argmax((found == bad).reshape(len(found), -1).any(axis=1)))
        raise InputError(f"{what}: label {bad} is out of range, first in row {row}; number the classes from 0")
    return found.astype(np.int64, copy=False)


def _check_equal_rows(name: str, **columns: Array | StoredRows) -> None:
    (left, a), (right, b) = columns.items()
    if len(a) != len(b):
        raise InputError(f"{name}: {left} holds {len(a)} rows, {right} holds {len(b)}; they must match")


def _classes(columns: list[Array], names: tuple[str, ...], name: str) -> int:
    if np.issubdtype(columns[0].dtype, np.floating):
        return 0
    count = max(int(column.max()) for column in columns) + 1
    if names and count > len(names):
        raise InputError(
            f"{name}: label {count - 1} is out of range; there are {len(names)} class names; add the missing ones"
        )
    return len(names) or count


def _users(values: ArrayLike, rows: int, name: str) -> Tensor | None:
    found = _array(values, f"{name}: user")
    if found.shape != (rows,):
        raise InputError(f"{name}: the user column has the shape {found.shape}; give one value for each of {rows} rows")
    known, which = np.unique(found, return_inverse=True)
    unnamed = int(known.dtype.kind == "U" and known[0] == "")  # sorted, it comes first
    return torch.from_numpy(which.astype(np.int64) - unnamed) if len(known) > unnamed else None


def _examples(x: Array | StoredRows, y: Array, prepare: Prepare | None) -> Examples:
    return Examples({"x": _column(x), "y": _column(y)}, prepare=prepare)


def _column(values: Array | StoredRows) -> Column:
    if isinstance(values, StoredRows):
        return StoredColumn(values)
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _scaling_for(x: Array | StoredRows, scale: str) -> InputScaling | None:
    """The scaling for inputs of this type; None: they stay as they are."""
    if x.dtype == np.int64:
        return None
    if scale == "standard":
        return standard_scaling(x)
    return InputScaling((0.0,), (255.0,)) if x.dtype == np.uint8 else None


def standard_scaling(x: Array | StoredRows) -> InputScaling:
    """The scaling that gives each channel of x mean 0 and standard deviation 1; a constant channel is only shifted.

    Inputs that stay in files are read twice. Pieces are of 1024 rows in either case, so the bits are the same.
    """
    total, squares = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    axes = (0, *range(2, x.ndim))
    # Two passes over slices: the one-pass formula loses digits, and a float64 copy of the whole set costs gigabytes.
    for start in range(0, len(x), 1024):
        total += x[start : start + 1024].sum(axis=axes, dtype=np.float64)
    mean = total * x.shape[1] / x.size
    centre = mean.reshape(1, -1, *(1 for _ in range(x.ndim - 2)))
    for start in range(0, len(x), 1024):
        squares += ((x[start : start + 1024] - centre) ** 2).sum(axis=axes)
    std = np.sqrt(squares * x.shape[1] / x.size)
    return InputScaling(tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))


def resize_images(x: Array, size: tuple[int, ...], what: str) -> Array:
    """Images as (channels, height, width) of this size; bytes stay bytes.

    Height and width are resized bilinearly, with antialiasing. Channels are repeated as a block, so that one grey
    channel becomes three. An image without a channel dimension has one channel.
    """
    images = x[:, None] if x.ndim == 3 else x
    if images.ndim != 4 or not (x.dtype == np.uint8 or np.issubdtype(x.dtype, np.floating)):
        raise InputError(f"{what} holds {x.dtype} of {x.shape[1:]}; data.size is for images, (channels, height, width)")
    channels, *sides = size
    times, left = divmod(channels, images.shape[1])
    if left or not times:
        raise InputError(
            f"{what} has {images.shape[1]} channels, which cannot become data.size = {list(size)}; give a multiple"
        )
    out = np.empty((len(images), *size), images.dtype)
    for start in range(0, len(images), IMAGES_AT_ONCE):
        part = slice(start, start + IMAGES_AT_ONCE)
        out[part] = np.tile(_resize_sides(images[part], sides), (1, times, 1, 1))
    return out


def _resize_sides(images: Array, sides: list[int]) -> Array:
    if list(images.shape[2:]) == sides:
        return images
    found = functional.interpolate(
        torch.from_numpy(images.astype(np.float32)), sides, mode="bilinear", align_corners=False, antialias=True
    ).numpy()
    return np.rint(found).clip(0, 255).astype(np.uint8) if images.dtype == np.uint8 else found
