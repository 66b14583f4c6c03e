"""Imports a user's own modules, which settings name as ``module:Class``."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from types import ModuleType


def import_own(module: str) -> ModuleType:
    """Imports a module that the user asked for. The current folder is the last place to look in.

    Last, so that a file there never replaces a library. Only here, so that no file there runs unless it is asked for.
    """
    with suppress(OSError):  # the current folder may have been removed
        here = os.getcwd()
        if "" not in sys.path and here not in sys.path:
            sys.path.append(here)
    return importlib.import_module(module)
