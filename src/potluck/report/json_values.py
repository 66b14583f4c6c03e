"""Typed values out of JSON that may lack them, hold null or hold something else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Json = Mapping[str, object]
SAFE = 2**53
"""Integers up to here are floats without loss."""


def number(value: object) -> float | None:
    """A finite number, or None. A loss that diverged is NaN, and no chart can show it."""
    if type(value) is float:  # the usual cases first: a ledger has millions of values
        return value if math.isfinite(value) else None
    if type(value) is int and -SAFE < value < SAFE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON integers have no limit, floats do
        return None


def integer(value: object) -> int | None:
    """A number cut to an integer, or None."""
    found = number(value)
    return None if found is None else int(found)


def text(value: object, default: str = "") -> str:
    """A string as it is, a number as text; the default for everything else and for empty text."""
    if type(value) is str and value.isascii():
        return value or default
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return default
    # JSON may hold half a surrogate pair, which no file or terminal can show.
    return str(value).encode(errors="replace").decode() or default


def mapping(value: object) -> Json:
    """A JSON object; empty if the value is something else."""
    return value if type(value) is dict or isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[object]:
    """A JSON list; empty if the value is something else."""
    return value if isinstance(value, list | tuple) else ()
