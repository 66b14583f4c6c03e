"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

GAP = "—"
"""Stands where nothing is known."""

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))
_ENERGIES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))
_COUNTS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

Units = tuple[tuple[float, str], ...]


def short(value: float | None) -> str:
    """Three significant digits, without a power of ten where it can be avoided."""
    if value is None:
        return GAP
    if value == 0:
        return "0"
    if 100 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share in [0, 1] as percent."""
    return GAP if value is None else f"{100 * value:.{digits}f} %"


def plus_minus(mean: float | None, sd: float | None) -> str:
    """A share in [0, 1] with its spread, both in percent."""
    if mean is None or sd is None:
        return percent(mean)
    return f"{100 * mean:.1f} ± {100 * sd:.1f} %"


def count(value: float | None) -> str:
    """A whole number with its thousands set apart."""
    return GAP if value is None else f"{value:,.0f}"


def reached(found: Sequence[float | None]) -> str:
    """When runs got somewhere, on average; how many of them did where not all did."""
    known = [value for value in found if value is not None]
    if not known:
        return GAP
    some = f" ({len(known)} of {len(found)} runs)" if len(known) < len(found) else ""
    return f"{short(sum(known) / len(known))}{some}"


def size(value: float | None) -> str:
    """Bytes, in powers of a thousand."""
    return _scaled(value, _SIZES)


def energy(value: float | None) -> str:
    """Joules."""
    return _scaled(value, _ENERGIES)


def work(value: float | None) -> str:
    """Floating-point operations."""
    return _scaled(value, tuple((factor, f"{unit}FLOP") for factor, unit in _COUNTS))


def duration(value: float | None) -> str:
    """Seconds; from two minutes on in two units."""
    if value is None or value < 120:
        return _scaled(value, _TIMES[3:])
    for (factor, unit), (smaller, rest) in pairwise(_TIMES):
        if value >= factor:
            whole, left = divmod(round(value / smaller), round(factor / smaller))
            return f"{whole} {unit} {left} {rest}" if left else f"{whole} {unit}"
    return _scaled(value, _TIMES)


def size_unit(most: float) -> tuple[float, str]:
    """What to divide by, and its name, for an axis of bytes that ends at `most`."""
    return _unit(most, _SIZES)


def time_unit(most: float) -> tuple[float, str]:
    """What to divide by, and its name, for an axis of seconds that ends at `most`."""
    return _unit(most, _TIMES[:4])


def energy_unit(most: float) -> tuple[float, str]:
    """What to divide by, and its name, for an axis of joules that ends at `most`."""
    return _unit(most, _ENERGIES)


def _unit(most: float, units: Units) -> tuple[float, str]:
    return next((pair for pair in units if most >= 2 * pair[0]), units[-1])


def _scaled(value: float | None, units: Units) -> str:
    if value is None:
        return GAP
    factor, unit = next((pair for pair in units if abs(value) >= pair[0]), units[-1])
    return f"{short(value / factor)} {unit}".strip() if value else f"0 {next(u for f, u in units if f == 1.0)}".strip()
