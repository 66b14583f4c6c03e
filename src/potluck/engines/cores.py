"""How many cores a run may use."""

from __future__ import annotations

import os
import re

from potluck.core import SettingsError

VARIABLE = "POTLUCK_CORES"


def usable_cores() -> int:
    """The cores that this process may use: all of the machine, or fewer if POTLUCK_CORES says so."""
    there, given = os.cpu_count() or 1, os.environ.get(VARIABLE, "")
    if not given:
        return there
    if not re.fullmatch(r"[1-9][0-9]{0,5}", given):
        raise SettingsError(f"{VARIABLE} = {given!r} is no number of cores; give a whole number from 1, or unset it.")
    return min(there, int(given))
