"""What a user hands over in Python, as settings: an experiment, own arrays, an own network, an own method.

A class at the top of a module or a notebook is named in the settings as ``module:Class``, so that a run can be resumed
without the object. One that is defined inside a function has to be handed over again.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from potluck.data import Source
    from potluck.run import Experiment

ARRAYS = ("x", "y", "user", "x_test", "y_test", "names", "size", "scale", "layout", "name")
"""What a mapping of arrays may hold, as in `potluck.data.from_arrays`."""


class Given(NamedTuple):
    """An experiment, and what goes with it as objects."""

    experiment: Experiment
    source: Source | None = None
    method: Any = None
    """A method that settings cannot name; else None."""

    @property
    def objects(self) -> dict[str, Any]:
        """The objects that a later call needs again."""
        return known_objects(source=self.source, method=self.method)


def known_objects(**objects: Any) -> dict[str, Any]:
    """Those of the objects that were given."""
    return {name: one for name, one in objects.items() if one is not None}


def gather(experiment: Any, *, data: Any, model: Any, method: Any, changes: Mapping[str, Any] | None) -> Given:
    """The experiment of a call, with all that was handed over in it; `changes` come last."""
    from potluck.run import config
    from potluck.run.session import with_own_data

    found = read_settings(experiment)
    told: dict[str, Any] = {}
    if model is not None:
        told["model"] = model_table(model)
    object_ = None
    if method is not None:
        table, object_ = method_table(method, found.method)
        told["method"] = table
    if told:
        found = config.experiment({**found.plain(), **told}, "settings")
    if changes:
        found = config.apply_changes(found, changes, "set")
    source = source_of(data)
    if source is not None:
        found = with_own_data(found, source)
    return Given(found, source, with_local(object_, found))


def read_settings(experiment: Any) -> Experiment:
    """The experiment of a TOML file, of a mapping with its keys, or the built-in one for None."""
    from potluck.core import SettingsError
    from potluck.run import Experiment, config

    if isinstance(experiment, Experiment):
        return experiment
    if experiment is None or isinstance(experiment, str | os.PathLike):
        return config.read_experiment(None if experiment is None else Path(experiment))
    if isinstance(experiment, Mapping):
        return config.experiment(experiment)
    raise SettingsError(
        f"an experiment is a path to a TOML file, a mapping with its keys, or None, not a {type(experiment).__name__}."
    )


def source_of(data: Any) -> Source | None:
    """Data of one's own: a Source, ``(x, y)`` or ``(x, y, user)``, a mapping with x, y and more, a torch Dataset, a
    pandas frame, a data set of Hugging Face."""
    from torch.utils.data import Dataset

    from potluck.core import InputError
    from potluck.data import Source, from_arrays, from_dataset, from_frame, from_hub

    if data is None or isinstance(data, Source):
        return data
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "columns"):
        _need_label(list(data.columns), "from_frame")
        return from_frame(data)
    if library == "datasets":
        train = data.get("train") if isinstance(data, Mapping) else data
        _need_label(list(getattr(train, "column_names", None) or ["label"]), "from_hub")
        return from_hub(data)
    if isinstance(data, Mapping):
        if odd := [str(name) for name in data if name not in ARRAYS]:
            raise InputError(f"data has no array '{odd[0]}'; there are {', '.join(ARRAYS)}.")
        if missing := [name for name in ("x", "y") if name not in data]:
            raise InputError(f"data lacks the array '{missing[0]}'; give x and y.")
        return from_arrays(**data)
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        return from_arrays(*data)
    if isinstance(data, Dataset):
        return from_dataset(data)
    raise InputError(
        "data is (x, y), (x, y, user), a mapping with x, y and more, a torch Dataset, a pandas frame, a data set of "
        f"Hugging Face or a Source; this is a {type(data).__name__}. "
        "A data set by name stands in the settings: set={'data.name': 'digits'}."
    )


def _need_label(columns: list[Any], function: str) -> None:
    """Refuses a table whose columns have to be named."""
    from potluck.core import InputError

    if "label" not in columns:
        raise InputError(
            f"data has no column 'label'; it has {', '.join(map(str, columns[:8]))}. Name the column to predict: "
            f"data=pl.{function}(data, label=...)."
        )


def model_table(model: Any) -> dict[str, Any]:
    """The settings of a network: a name, a table, or a class or function that makes one."""
    from potluck.core import SettingsError
    from potluck.models import register

    if isinstance(model, str):
        return {"name": model}
    table = dict(model) if isinstance(model, Mapping) else {"name": model}
    factory = table.get("name")
    if isinstance(factory, str):
        return table
    if not callable(factory) or _is_network(factory):
        raise SettingsError(
            "model is a name, a table with a name, or a class or function that makes a network; this is "
            f"{'a network itself: give its class' if callable(factory) else f'a {type(factory).__name__}'}."
        )
    name = own_name(factory) or str(getattr(factory, "__qualname__", type(factory).__name__))
    register(name, factory, replace=True)
    return {**table, "name": name}


def _is_network(factory: Any) -> bool:
    from torch import nn

    return isinstance(factory, nn.Module)


def method_table(method: Any, usual: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """The settings of a method, and the object itself if settings cannot name its class; else None.

    A name alone means the experiment's own settings of that method, `usual`, if it has them. A method object that was
    made without `local` trains as the experiment says.
    """
    from potluck.core import SettingsError

    if isinstance(method, str):
        return dict(usual) if usual.get("name") == method else {"name": method}, None
    table = dict(method) if isinstance(method, Mapping) else {}
    kind = table.get("name") if isinstance(method, Mapping) else method
    if isinstance(kind, str):
        return dict(usual) if table == {"name": usual.get("name")} else table, None
    if not dataclasses.is_dataclass(kind) and (isinstance(kind, type) or hasattr(kind, "round")):
        named = kind if isinstance(kind, type) else type(kind)
        raise SettingsError(
            f"the method {named.__name__} has to be a dataclass: write @dataclass(frozen=True) above its class. "
            "See docs/writing-a-method.md."
        )
    if not dataclasses.is_dataclass(kind):
        raise SettingsError(
            "a method is a name, a table with a name, a class or an object of one; "
            f"this is a {type(kind).__name__}. See docs/writing-a-method.md."
        )
    name = method_name(kind if isinstance(kind, type) else type(kind))
    if isinstance(kind, type):
        if name is None:
            raise SettingsError(
                f"{kind.__qualname__} is defined inside a function, where a run cannot find it again; hand over an "
                f"object, {kind.__name__}(...), or define it at the top of a file or notebook."
            )
        return {**table, "name": name}, None
    if name is None:
        return {"name": f"{type(kind).__module__}:{type(kind).__qualname__}"}, kind
    return {"name": name, **own_settings(kind)}, None


def with_local(method: Any, experiment: Experiment) -> Any:
    """A method object that was made without `local` with the experiment's local training; others as they are."""
    local = next((field for field in dataclasses.fields(method) if field.name == "local"), None) if method else None
    if local is None or method.local != _default(local):
        return method
    return dataclasses.replace(method, local=experiment.local)


def method_name(kind: type) -> str | None:
    """The name of a method's class in settings; None if settings cannot name it."""
    from potluck.methods import METHODS

    ours = next((name for name, one in METHODS.items() if one is kind), None)
    return ours or own_name(kind)


def own_settings(method: Any) -> dict[str, Any]:
    """The settings of a method object that differ from those of its class."""
    from potluck.core import settings

    plain = settings(method)
    return {
        field.name: plain[field.name]
        for field in dataclasses.fields(method)
        if getattr(method, field.name) != _default(field)
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def own_name(thing: Any) -> str | None:
    """Where a class or function is: ``module:name``; None if it is not at the top of its module."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not isinstance(module, str) or getattr(sys.modules.get(module), name, None) is not thing:
        return None
    return f"{module}:{name}"


def short_label(label: str) -> str:
    """A method's label without the module that its class is in."""
    head, colon, rest = label.partition(":")
    return rest if colon and head.replace(".", "").replace("_", "").isalnum() else label


def as_paths(runs: Any) -> list[Path]:
    """The folders of runs: a path, a result, a comparison, or several of these."""
    if isinstance(runs, str | os.PathLike):
        return [Path(runs)]
    if hasattr(runs, "folders"):
        return list(runs.folders)
    if hasattr(runs, "folder"):
        return [runs.folder]
    if isinstance(runs, Iterable):
        return [path for one in runs for path in as_paths(one)]
    from potluck.core import InputError

    raise InputError(f"runs are paths, results or a comparison; this is a {type(runs).__name__}.")
