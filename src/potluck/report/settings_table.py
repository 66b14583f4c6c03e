"""The settings in which the runs of a comparison differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from potluck.report.html import COLOURS, Cell, Markup, RowName, TableCell, foldable, note, section, table
from potluck.report.json_values import number
from potluck.report.records import RunRecord
from potluck.report.run_settings import Settings, read_settings, written
from potluck.report.summary import group_by_method
from potluck.report.units import GAP

LEFT_OUT = ("seed", "name", "variant", "compare")
"""Settings that say which run it is, not how it trains; of the method's name and its variant, the label tells."""
MAX_TEXT = 48
"""Characters of a value in the table; the pointer shows all of them."""


def differing_settings(runs: Sequence[RunRecord]) -> dict[str, dict[str, str]]:
    """By method and then by setting, the values of all settings that are not the same in all runs.

    Seeds are left out. A method's own settings, which only it may have, are one entry: "method".
    """
    groups = {label: [read_settings(run.settings) for run in some] for label, some in group_by_method(runs).items()}
    every = [settings for some in groups.values() for settings in some]
    keys = dict.fromkeys(key for settings in every for key in settings if key not in LEFT_OUT)
    differ = [key for key in keys if len({written(settings.get(key)) for settings in every}) > 1]
    own = [key for key in differ if key.startswith("method.") and key != "method.name"]
    shared = [key for key in differ if not key.startswith("method.")]
    found: dict[str, dict[str, str]] = {}
    for label, some in groups.items():
        mine = {"method": _several(_own_settings(settings, own) for settings in some)} if own else {}
        found[label] = mine | {key: _several(written(settings.get(key)) for settings in some) for key in shared}
    return found


def _own_settings(settings: Settings, keys: Sequence[str]) -> str:
    return ", ".join(f"{key.removeprefix('method.')} = {written(settings[key])}" for key in keys if key in settings)


def _several(values: Iterator[str]) -> str:
    """The one value of all seeds, or the values of each."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else " / ".join(value or GAP for value in found)


def settings_section(runs: Sequence[RunRecord], keys: Mapping[str, str]) -> Markup | None:
    """A table of the settings that differ; None if no run has any. `keys` has the series of each method."""
    if not any(read_settings(run.settings) for run in runs):
        return None
    found = differing_settings(runs)
    heads = list(next(iter(found.values()), {}))
    title = "Settings that differ between runs"
    if not heads:
        return section(title, note("But for method and seed, all runs have the same settings."))
    rows = [[RowName(label, key=keys.get(label, "")), *map(_cell, values.values())] for label, values in found.items()]
    names = ["method", *("own settings" if head == "method" else head for head in heads)]
    shown = table(["", *names[1:]], rows, kind="words plain", names=names, title="settings that differ")
    words = note("From each run's settings; what is the same in all of them and seeds are left out.")
    if len(rows) <= COLOURS:
        return section(title, shown, words)
    listed = ", ".join(names[1:7]) + (", …" if len(names) > 7 else "")
    return foldable(f"{title}: {listed}", True, shown, words)


def _cell(value: str) -> TableCell:
    if not value:
        return GAP
    try:
        parsed = number(float(value))
    except ValueError:
        parsed = None
    short = value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"
    return Cell(short, parsed, tip=value if short != value else "")
