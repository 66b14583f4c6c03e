"""Potluck: federated learning where every device brings what it can.

    >>> import potluck as pl
    >>> result = pl.run("experiments/digits.toml", set={"rounds": 10})
    >>> pl.compare(["fedavg", "fedprox"], seeds=[0, 1])

Names are loaded when they are used: torch takes seconds to import, and ``potluck --help`` needs none of it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import inspect

    from potluck import core, data, learn, methods, models
    from potluck.core import Local
    from potluck.data import Source, from_arrays, from_dataset, from_frame, from_hub
    from potluck.front import (
        ComparisonResult,
        compare,
        export,
        frame,
        list_methods,
        load,
        plot,
        report,
        resume,
        run,
        table,
        who_holds_what,
    )
    from potluck.run import Experiment, FailedRun, Interrupted, Result, Watch, read_experiment
    from potluck.run.contract import check_method
    from potluck.shipping import predict

    __version__: str

_HOMES = {
    **dict.fromkeys(("run", "report"), ""),
    **dict.fromkeys(("compare", "export", "frame", "list_methods", "load", "plot", "resume", "table"), "potluck.front"),
    **dict.fromkeys(("ComparisonResult", "who_holds_what"), "potluck.front"),
    **dict.fromkeys(("Experiment", "FailedRun", "Interrupted", "Result", "Watch", "read_experiment"), "potluck.run"),
    "check_method": "potluck.run.contract",
    "Local": "potluck.core",
    **dict.fromkeys(("Source", "from_arrays", "from_dataset", "from_frame", "from_hub"), "potluck.data"),
    "predict": "potluck.shipping",
    **dict.fromkeys(("core", "data", "learn", "methods", "models"), ""),
}
"""Where each public name is; an empty one is a package of the same name."""

__all__ = [
    "ComparisonResult", "Experiment", "FailedRun", "Interrupted", "Local", "Result", "Source", "Watch", "__version__",
    "check_method", "compare", "core", "data", "export", "frame", "from_arrays", "from_dataset", "from_frame",
    "from_hub", "learn", "list_methods", "load", "methods", "models", "plot", "predict", "read_experiment", "report",
    "resume", "run", "table", "who_holds_what",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads what is asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("potluck")
    if name not in _HOMES:
        raise AttributeError(f"module 'potluck' has no attribute '{name}'")
    home = _HOMES[name]
    return getattr(import_module(home), name) if home else import_module(f"potluck.{name}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__") and name not in __all__)])


class _CallablePackage(ModuleType):
    # `potluck.run` and `potluck.report` are packages, and functions too: ``pl.run(...)``, ``pl.report(...)``.

    def _function(self) -> Any:
        return getattr(import_module("potluck.front"), self.__name__.rpartition(".")[2])

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._function()(*given, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        import inspect

        return inspect.signature(self._function())

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return str(self._function().__doc__)


class _Package(ModuleType):
    """This package. Python sets the packages in it as attributes when they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("run", "report") and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
