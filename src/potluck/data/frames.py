"""Tables with named columns: CSV and Parquet files, and pandas' frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from potluck.core import InputError, ResourceError, nearest_name
from potluck.data import stored
from potluck.data.safe_reading import existing_path, file_error
from potluck.data.sentences import LabelledText, from_texts
from potluck.data.settings import Data
from potluck.data.source import Array, InputForm, Source, from_arrays

if TYPE_CHECKING:
    import pandas

UNNAMED = ("Unnamed: ", "__index_level_")
"""How pandas calls a column without a name, and Arrow the row numbers of pandas."""

MOST = 2**31
"""Labels from here on are no classes."""
FLOAT_CLASSES = 100
"""Floats without a fraction are classes if there are at most so many of them; prices and years are more."""
NAMED_CLASSES = 1000
"""Whole numbers with gaps are the names of at most so many classes."""

ENDINGS = (".csv", ".tsv", ".parquet")


def read(data: Data) -> Source:
    """Reads a .csv, .tsv or .parquet file, with data.test_path another one of test rows."""
    path = existing_path(data.path, data.name)
    test = existing_path(data.test_path, data.name) if data.test_path else None
    return source_of(_read_file(path, data), None if test is None else _read_file(test, data), data, str(path))


def from_frame(
    frame: pandas.DataFrame,
    label: str | int = "label",
    user: str | int = "",
    *,
    text: str | int = "",
    features: Iterable[str | int] = (),
    test: pandas.DataFrame | None = None,
    length: int = 20,
    scale: str = "auto",
    name: str = "frame",
) -> Source:
    """A source made of a pandas frame, by the names of its columns.

    `label` is what to predict: names or whole numbers are classes, also up to 100 different ones that are written
    1.0 and 2.0; other numbers are to regress on. Whole numbers that are not 0, 1, 2 and so on without a gap are the
    names of their classes. `user` says whose row it is; by default the column "user", if there is one. Inputs are
    the columns `features`, by default all others; or a column of texts, `text`, of which each row keeps `length`
    tokens. `test` holds test rows.
    """
    data = Data(
        length=length,
        scale=scale,  # type: ignore[arg-type]
        label_column=str(label),
        user_column=str(user),
        text_column=str(text),
        feature_columns=tuple(map(str, features)),
    )
    return source_of(frame, test, data, name)


def source_of(frame: pandas.DataFrame, test: pandas.DataFrame | None, data: Data, name: str) -> Source:
    """A source made of frames, whose columns the settings name."""
    frame, test = (None if each is None else each.rename(columns=str) for each in (frame, test))
    assert frame is not None
    refuse_label_as_input(data, name)
    user = data.user_column or ("user" if "user" in frame.columns else "")
    users = column_of(frame, user, "data.user_column", name).astype(str) if user else None
    if data.text_column:
        return _texts(frame, test, data, name, users)
    features = data.feature_columns or other_columns(list(frame.columns), (data.label_column, user), name)
    if not features:
        raise InputError(f"{name}: no column is left for the inputs; there are {', '.join(map(str, frame.columns))}")
    label, names, answers = _labels(frame, test, data, name)
    found = from_arrays(
        _numbers(frame, features, name),
        label,
        users,
        None if test is None else _numbers(test, features, f"{name}, test rows"),
        answers,
        names=names,
        scale=data.scale,
        name=name,
    )
    return replace(found, form=InputForm("table", features))


def refuse_label_as_input(data: Data, name: str) -> None:
    """Refuses to learn the label from itself."""
    for setting, columns in (("feature_columns", data.feature_columns), ("text_column", (data.text_column,))):
        if data.label_column in columns:
            raise InputError(
                f"{name}: column '{data.label_column}' is the label (data.label_column) and also in data.{setting}; "
                "leave it out of one"
            )


def other_columns(columns: list[str], taken: tuple[str, ...], name: str) -> tuple[str, ...]:
    """All columns that are not taken; refuses one without a name, such as the row numbers that pandas writes."""
    found = tuple(each for each in columns if each not in taken)
    if odd := [each for each in found if not each or each.startswith(UNNAMED)]:
        raise InputError(
            f"{name}: column {columns.index(odd[0])} has no name ('{odd[0]}'), like row numbers of pandas; save "
            "the table without them, frame.to_csv(path, index=False), or name the columns to use in "
            "data.feature_columns"
        )
    return found


def classes_of(label: Array, test: Array | None, name: str) -> tuple[Array, tuple[str, ...], Array | None]:
    """Labels of training and test rows, and the names of the classes if labels are whole numbers with a gap."""
    columns = [label] if test is None else [label, test]
    if all(_are_whole(each) for each in columns):
        columns = [each.astype(np.int64) for each in columns]
    if any(each.dtype.kind not in "iu" or each.min() < 0 for each in columns):
        return label, (), test
    known = np.unique(np.concatenate(columns))
    if known[-1] == len(known) - 1:
        names: tuple[str, ...] = ()
    elif len(known) > NAMED_CLASSES:
        raise InputError(
            f"{name}: the label has {len(known)} different whole numbers with gaps, from {known[0]} to {known[-1]}: "
            "too many to be names of classes. To regress on them, write them as floats; else number the classes from 0"
        )
    else:
        names, columns = tuple(map(str, known.tolist())), [np.searchsorted(known, each) for each in columns]
    return columns[0], names, None if test is None else columns[1]


def _are_whole(column: Array) -> bool:
    """Whether these are numbers from 0 without a fraction, and few if they are written as floats."""
    if column.dtype.kind in "iu":
        return True
    whole = column.dtype.kind == "f" and bool(((column >= 0) & (column < MOST) & (column == np.floor(column))).all())
    return whole and len(np.unique(column)) <= FLOAT_CLASSES


def _texts(
    frame: pandas.DataFrame, test: pandas.DataFrame | None, data: Data, name: str, users: Array | None
) -> Source:
    """Texts with a label each, tokenised as those of .jsonl files."""

    def records(found: pandas.DataFrame, labels: Array, whose: Array | None) -> list[LabelledText]:
        texts = column_of(found, data.text_column, "data.text_column", name).astype(str)
        told = [known[label] for label in labels] if known else labels.tolist()
        owners = [""] * len(texts) if whose is None else whose.tolist()
        return [LabelledText(text, None, *each) for text, *each in zip(texts, told, owners, strict=True)]

    label, known, answers = _labels(frame, test, data, name)
    rows = None if test is None or answers is None else records(test, answers, None)
    return from_texts(records(frame, label, users), rows, data, name)


def _labels(
    frame: pandas.DataFrame, test: pandas.DataFrame | None, data: Data, name: str
) -> tuple[Array, tuple[str, ...], Array | None]:
    """As `classes_of`."""
    wanted, setting = data.label_column, "data.label_column"
    answers = None if test is None else column_of(test, wanted, setting, f"{name}, test rows")
    return classes_of(column_of(frame, wanted, setting, name), answers, name)


def _numbers(frame: pandas.DataFrame, features: Iterable[str], name: str) -> Array:
    """The columns of inputs, side by side."""
    found = [(each, column_of(frame, each, "data.feature_columns", name)) for each in features]
    for each, column in found:
        if column.dtype.kind not in "biuf":
            raise no_numbers(each, _kind(column), name)
    return np.stack([column.astype(np.float32) for _, column in found], axis=1)


def no_numbers(column: str, kind: str, name: str) -> InputError:
    """The error for a column that cannot be an input."""
    return InputError(
        f"{name}: column '{column}' holds {kind}, and inputs are numbers; turn it into numbers, or name the columns to "
        "use in data.feature_columns (texts: data.text_column)"
    )


def require_column(wanted: str, names: list[str], setting: str, name: str) -> None:
    """Refuses the name of a column that there is not."""
    if wanted not in names:
        near = nearest_name(wanted, names)
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(names[:12])}"
        raise InputError(f"{name}: there is no column '{wanted}' ({setting}); {hint}")


def column_of(frame: pandas.DataFrame, wanted: str, setting: str, name: str) -> Array:
    """A column without gaps, as an array of numbers or of strings."""
    require_column(wanted, [str(each) for each in frame.columns], setting, name)
    column = frame[wanted]
    if getattr(column, "ndim", 1) != 1:
        raise InputError(f"{name}: two columns are called '{wanted}'; rename one")
    if column.isna().any():
        row = int(np.argmax(column.isna().to_numpy()))
        raise InputError(f"{name}: column '{wanted}' has no value in row {row}; fill it in, or leave the row out")
    found: Array = column.to_numpy()
    if found.dtype.hasobject:
        values = found.tolist()
        if not all(isinstance(each, str | bool) for each in values):
            raise InputError(f"{name}: column '{wanted}' holds {_kind(found)}; give numbers or texts")
        found = np.array([str(each) for each in values])
    return found


def _kind(column: Array) -> str:
    return "texts" if column.dtype.kind == "U" else f"{type(column.reshape(-1)[0]).__name__} values"


def _read_file(path: Path, data: Data) -> pandas.DataFrame:
    if path.is_dir() or path.suffix.lower() not in ENDINGS:
        raise InputError(f"{path}: set data.path to a {', '.join(ENDINGS)} file")
    try:
        import pandas
    except ModuleNotFoundError:
        raise ResourceError("tables are read by pandas: pip install 'potluck[frames]'.") from None
    try:
        _refuse_large(path)
        if path.suffix.lower() == ".parquet":
            found = pandas.read_parquet(path)
        else:
            users = {data.user_column or "user": str}  # 007 and 7 are two
            found = pandas.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",", dtype=users)
    except ImportError:
        raise ResourceError("Parquet files are read by pyarrow: pip install 'potluck[hub]'.") from None
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise file_error(path, f"not a table that can be read ({first_line(error)}); save it again") from None
    if not len(found):
        raise InputError(f"{path}: no rows in it; give at least one")
    return found


def _refuse_large(path: Path) -> None:
    """Refuses a table that would fill the memory. Of Parquet files, which may be compressed, the values count."""
    size, call = path.stat().st_size, f"from_csv('{path}')"
    if path.suffix.lower() == ".parquet":
        from pyarrow.parquet import read_metadata

        found = read_metadata(path)
        size = max(size, found.num_rows * found.num_columns * np.dtype(np.float64).itemsize)
        call = f"from_parquet('{path}')"
    elif path.suffix.lower() == ".tsv":
        call = f"from_csv('{path}', sep='\\t')"
    if size > stored.IN_MEMORY:
        raise ResourceError(
            f"{path}: {size:,} bytes, and a table of more than {stored.IN_MEMORY:,} is not read into memory; save it "
            f"once, datasets.Dataset.{call}.save_to_disk('folder'), and set data.name = 'huggingface' and data.path = "
            "'folder': then rows are read on demand."
        )


def first_line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
