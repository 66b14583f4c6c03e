"""Hugging Face's data sets: a folder that `save_to_disk` wrote, a `Dataset` in Python, or a name on the hub."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from potluck.core import InputError, ResourceError
from potluck.data import stored
from potluck.data.frames import (
    classes_of,
    column_of,
    first_line,
    no_numbers,
    other_columns,
    refuse_label_as_input,
    require_column,
    source_of,
)
from potluck.data.pictures import common_size, picture_bytes
from potluck.data.settings import Data
from potluck.data.source import Array, InputForm, Source, as_input_type, from_arrays
from potluck.data.stored import Rows, StoredRows, in_memory_or_stored

UNLABELLED = -1
"""The class of a row whose label is not given, in data sets of the hub."""

FLOAT = np.dtype(np.float32).itemsize


def read(data: Data) -> Source:
    """Reads a folder that `save_to_disk` wrote, or the data set of this name on the hub where there is a network."""
    library = _library()
    if not data.path:
        raise InputError(
            f"data.name = '{data.name}' reads a data set: set data.path to its folder, or to its name on the hub"
        )
    on_disk = Path(data.path).exists()
    if on_disk and data.subset:
        raise InputError(
            f"{data.path}: a folder; data.subset = '{data.subset}' is for data sets on the hub, leave it out"
        )
    try:
        found = library.load_from_disk(data.path) if on_disk else library.load_dataset(data.path, data.subset or None)
    except Exception as error:  # whatever the library, its readers and the network may raise
        raise InputError(f"{data.path}: no data set that can be read ({first_line(error)}); check data.path") from None
    return from_splits(found, data, data.path)


def from_hub(
    dataset: Any,
    label: str = "label",
    user: str = "",
    *,
    text: str = "",
    features: Iterable[str] = (),
    size: tuple[int, ...] = (),
    length: int = 20,
    scale: str = "auto",
    name: str = "",
) -> Source:
    """A source made of a Hugging Face `Dataset`, or of a `DatasetDict` with "train" and "test", by column names.

    Columns are as in `from_frame`. `features` may be one column of pictures; by default it is the one that there is.
    """
    columns = {"label_column": label, "user_column": user, "text_column": text, "feature_columns": tuple(features)}
    settings = replace(Data(length=length, scale=scale, size=size), **columns)  # type: ignore[arg-type]
    return from_splits(dataset, settings, name or "data set")


def from_splits(found: Any, data: Data, name: str) -> Source:
    """A source made of one split, or of the splits "train" and "test".

    "validation" takes the place of a test split that is not there, or whose labels are kept secret, as in GLUE.
    """
    if isinstance(found, Mapping):
        if "train" not in found:
            raise InputError(f"{name}: there is no split 'train'; {_listed(found)}")
        train = found["train"]
        test = _test_split(found, data, name)
    else:
        train, test = found, None
    if getattr(train, "features", None) is None or not hasattr(train, "__len__"):
        raise InputError(f"{name}: a stream has no rows that can be drawn by number; save it with save_to_disk first")
    if not len(train):
        raise InputError(f"{name}: no rows in it; give at least one")
    pictures = _picture_column(train, data)
    if pictures:
        return _pictures(train, test, pictures, data, name)
    refuse_label_as_input(data, name)
    features = () if data.text_column else _number_columns(train, data, name)
    if len(train) * len(features) * FLOAT > stored.IN_MEMORY:
        return _stored_numbers(train, test, features, data, name)
    return source_of(_frame(train, data, name), _test_frame(test, data, name), data, name)


def _test_split(found: Mapping[str, Any], data: Data, name: str) -> Any:
    """The split with the test rows; None: there is none with labels."""
    if data.test_split:
        if data.test_split not in found:
            raise InputError(f"{name}: there is no split '{data.test_split}' (data.test_split); {_listed(found)}")
        return found[data.test_split]
    splits = [found[each] for each in ("test", "validation") if each in found]
    return next((each for each in splits if _has_labels(each, data.label_column)), None)


def _listed(found: Mapping[str, Any]) -> str:
    return f"there are {', '.join(map(str, found))}"


def _library() -> Any:
    try:
        import datasets
    except ModuleNotFoundError:
        raise ResourceError("Hugging Face's data sets are read by datasets: pip install 'potluck[hub]'.") from None
    return datasets


def _picture_column(dataset: Any, data: Data) -> str:
    """The column of pictures that is the input; empty: there is none."""
    images = [name for name, kind in dataset.features.items() if type(kind).__name__ == "Image"]
    if data.text_column:
        return ""
    if data.feature_columns:
        return data.feature_columns[0] if list(data.feature_columns) == images[:1] else ""
    return images[0] if images else ""


def _has_labels(dataset: Any, label: str) -> bool:
    """Whether any row has a label; without such a column, too, so that an error names the column later."""
    if label not in dataset.column_names:
        return True
    found = dataset.select_columns([label]).to_pandas()[label]
    return not (found.isna() | (found == UNLABELLED)).all()


def _frame(dataset: Any, data: Data, name: str) -> Any:
    """The columns that are used, as a pandas frame; classes by name."""
    wanted = [data.label_column, data.user_column or "user", data.text_column, *data.feature_columns]
    all_of_them = not data.feature_columns and not data.text_column
    kept = [name for name in dataset.column_names if all_of_them or name in wanted]
    frame = dataset.select_columns(kept).to_pandas()
    names = getattr(dataset.features.get(data.label_column), "names", None)
    if names:
        frame[data.label_column] = _class_names(frame[data.label_column].to_numpy(), names, data.label_column, name)
    return frame


def _test_frame(dataset: Any, data: Data, name: str) -> Any:
    return None if dataset is None else _frame(dataset, data, f"{name}, test rows")


def _class_names(places: Array, names: list[str], label: str, name: str) -> list[str]:
    """The name of each row's class; an error for a row without one."""
    bad = ~((places >= 0) & (places < len(names)))  # NaN: the row holds nothing
    if bad.any():
        row = int(np.argmax(bad))
        found = "no value" if places[row] != places[row] else f"{int(places[row])}, which is no class"
        raise InputError(
            f"{name}: row {row} has no label (column '{label}' holds {found}); leave such rows out, "
            f"dataset.filter(lambda row: (row['{label}'] or 0) >= 0), or label them"
        )
    return [names[int(place)] for place in places]


def _number_columns(dataset: Any, data: Data, name: str) -> tuple[str, ...]:
    """The columns of inputs, if they are numbers."""
    taken = (data.label_column, data.user_column or "user")
    return data.feature_columns or other_columns(dataset.column_names, taken, name)


def _stored_numbers(train: Any, test: Any, features: tuple[str, ...], data: Data, name: str) -> Source:
    """A table whose inputs stay in the data set's files; labels and users are read at once."""
    user = data.user_column or ("user" if "user" in train.column_names else "")

    def column(dataset: Any, wanted: str, setting: str) -> Array:
        require_column(wanted, dataset.column_names, setting, name)
        frame = _frame(dataset.select_columns([wanted]), replace(data, feature_columns=()), name)
        return column_of(frame, wanted, setting, name)

    def numbers(dataset: Any) -> StoredRows:
        for each in features:
            require_column(each, dataset.column_names, "data.feature_columns", name)
            kind = str(getattr(dataset.features[each], "dtype", "other"))
            if not kind.startswith(("int", "uint", "float", "bool")):
                raise no_numbers(each, "texts" if "string" in kind else f"{kind} values", name)
        return StoredRows([HubNumbers(dataset.select_columns(list(features)), name, features)], as_input_type)

    labels, names, answers = classes_of(
        column(train, data.label_column, "data.label_column"),
        None if test is None else column(test, data.label_column, "data.label_column"),
        name,
    )
    found = from_arrays(
        numbers(train),
        labels,
        column(train, user, "data.user_column").astype(str) if user else None,
        None if test is None else numbers(test),
        answers,
        names=names,
        scale=data.scale,
        name=name,
    )
    return replace(found, form=InputForm("table", features))


def _pictures(train: Any, test: Any, column: str, data: Data, name: str) -> Source:
    others = replace(data, feature_columns=(), text_column="")
    label, user = data.label_column, data.user_column or ("user" if "user" in train.column_names else "")
    for wanted, setting in ((label, "data.label_column"), (user, "data.user_column")):
        if wanted:
            require_column(wanted, train.column_names, setting, name)
    frame = _frame(train.remove_columns([column]), others, name)
    other = None if test is None else _test_frame(test.remove_columns([column]), others, name)
    names = getattr(train.features.get(label), "names", None)
    size = data.size or common_size(
        (f"{name}: {what} {row}", _picture(each, row, column, name))
        for what, each in (("picture", train), ("test picture", test))
        for row in range(0 if each is None else len(each))
    )
    labels, known, answers = classes_of(
        column_of(frame, label, "data.label_column", name),
        None if other is None else column_of(other, label, "data.label_column", f"{name}, test rows"),
        name,
    )
    source = from_arrays(
        _picture_rows(train, column, size, name),
        labels,
        column_of(frame, user, "data.user_column", name).astype(str) if user else None,
        None if test is None else _picture_rows(test, column, size, f"{name}, test rows"),
        answers,
        names=tuple(names) if names else known,
        scale=data.scale,
        layout="channels_first",
        name=name,
    )
    return replace(source, form=InputForm("picture", (column,)))


def _picture(dataset: Any, row: int, column: str, name: str) -> Any:
    """A picture of Pillow's; an error for a row without one."""
    found = dataset[row][column]
    if found is None:
        raise InputError(f"{name}: row {row} has no picture (column '{column}'); leave such rows out")
    return found


def _picture_rows(dataset: Any, column: str, size: tuple[int, ...], name: str) -> Array | StoredRows:
    rows = HubPictures(dataset.select_columns([column]), name, column, size)
    return in_memory_or_stored(rows, math.prod(size))


@dataclass(frozen=True)
class _HubRows:
    """Rows of a data set whose files are mapped into memory."""

    dataset: Any
    name: str

    @property
    def path(self) -> Path:
        """What an error names."""
        return Path(self.name)

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass(frozen=True)
class HubPictures(_HubRows):
    """Pictures, decoded when they are asked for."""

    column: str
    size: tuple[int, ...]

    def read(self, rows: Rows) -> Array:
        """These pictures, as bytes of (rows, channels, height, width)."""
        out = np.empty((len(rows), *self.size), np.uint8)
        for place, row in enumerate(rows.tolist()):
            image = _picture(self.dataset, row, self.column, self.name)
            out[place] = picture_bytes(image, self.size, f"{self.name}: picture {row}")
        return out


@dataclass(frozen=True)
class HubNumbers(_HubRows):
    """Columns of numbers."""

    features: tuple[str, ...]

    def read(self, rows: Rows) -> Array:
        """These rows, as floats of (rows, columns); what has no value is NaN."""
        found = self.dataset.with_format("arrow")[rows.tolist()]
        columns = [found[each].to_numpy().astype(np.float32) for each in self.features]
        return np.stack(columns, axis=1)
