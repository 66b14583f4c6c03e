"""The rows that `potluck list` prints: methods, models, data sets, engines and device profiles."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def rows(topic: str) -> list[dict[str, Any]]:
    """One row for each item of a topic; the first column is the name to use in settings."""
    return {
        "methods": _methods,
        "models": _models,
        "data": _data,
        "engines": _engines,
        "profiles": _profiles,
    }[topic]()


def _methods() -> list[dict[str, Any]]:
    from potluck.core import facts_of, settings
    from potluck.methods import METHODS

    return [
        {
            "name": name,
            "about": _first_line(kind),
            "facts": asdict(facts) if (facts := facts_of(kind())) else {},
            "settings": {k: v for k, v in settings(kind()).items() if k != "local"},
        }
        for name, kind in METHODS.items()
    ]


def _models() -> list[dict[str, Any]]:
    from potluck.models import families

    return [{"name": name, "about": about} for name, about in families().items()]


def _data() -> list[dict[str, Any]]:
    from potluck.data import sources

    return [{"name": name, "about": about} for name, about in sources().items()]


def _engines() -> list[dict[str, Any]]:
    from potluck.engines import ENGINES
    from potluck.engines.remote import Remote

    known = {**ENGINES, "remote": Remote}  # not for `potluck run`: it needs nodes
    return [{"name": name, "about": _first_line(kind)} for name, kind in known.items()]


def _profiles() -> list[dict[str, Any]]:
    from potluck.fleet import PROFILES

    return [asdict(profile) for profile in PROFILES.values()]


def table_rows(topic: str, found: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The rows as text, with figures in readable units."""
    if topic == "methods":
        return [_method_row(row) for row in found]
    if topic != "profiles":
        return [{key: _cell(value) for key, value in row.items()} for row in found]
    return [
        {
            "name": row["name"],
            "memory": f"{row['memory'] / 1e9:.3g} GB",
            "training": f"{row['flops'] / 1e9:.3g} GFLOP/s",
            "down / up": f"{row['down'] / 1e6:.0f} / {row['up'] / 1e6:.0f} Mbit/s",
            "watts": f"{row['train_watts']:g} + {row['radio_watts']:g} radio",
        }
        for row in found
    ]


def _method_row(row: dict[str, Any]) -> dict[str, str]:
    from potluck.report import format_needs

    return {**{key: _cell(value) for key, value in row.items()}, "facts": format_needs(row["facts"])}


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_brief(item)}" for key, item in value.items())
    return str(value)


def _brief(value: Any) -> str:
    """A setting as text; a nested table is shown by its name."""
    return str(value.get("name", "{…}")) if isinstance(value, dict) else str(value)


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
