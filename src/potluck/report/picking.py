"""Take values out of JSON that may lack them, hold null or hold something else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Json = Mapping[str, object]


def number(value: object) -> float | None:
    """A finite number, or nothing: a diverged loss is NaN, and a chart has no place for it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no limit, floats do
        return None


def whole(value: object) -> int | None:
    """A whole number, or nothing."""
    found = number(value)
    return None if found is None else int(found)


def text(value: object, otherwise: str = "") -> str:
    """Text as it stands, numbers as text; anything else counts as missing."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return otherwise
    # Half a surrogate pair is legal in JSON and in no file or terminal.
    return str(value).encode(errors="replace").decode() or otherwise


def mapping(value: object) -> Json:
    """A JSON object, empty when it is something else."""
    return value if isinstance(value, Mapping) else {}


def listing(value: object) -> Sequence[object]:
    """A JSON list, empty when it is something else."""
    return value if isinstance(value, list | tuple) else ()
