"""What there is to choose from, as rows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def rows(what: str) -> list[dict[str, Any]]:
    """One row per thing; the first column is its name in settings."""
    return {
        "methods": _methods,
        "models": _models,
        "data": _data,
        "engines": _engines,
        "profiles": _profiles,
    }[what]()


def _methods() -> list[dict[str, Any]]:
    from potluck.core import settings
    from potluck.methods import METHODS

    return [
        {
            "name": name,
            "about": _first_line(kind),
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

    return [{"name": name, "about": _first_line(kind)} for name, kind in ENGINES.items()]


def _profiles() -> list[dict[str, Any]]:
    from potluck.fleet import PROFILES

    return [asdict(profile) for profile in PROFILES.values()]


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
