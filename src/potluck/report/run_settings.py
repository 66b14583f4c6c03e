"""The settings of runs by their full names, and in which of them two runs differ."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from potluck.report.json_values import mapping, sequence, text

Settings = Mapping[str, object]

NO_PART = ("seed", "name", "variant", "rounds", "run", "compare", "score", "nodes", "track")
"""Settings that runs of one method may differ in: which run it is, how long, how it is carried out and looked at."""
AS_GIVEN = "model."
"""The settings of a network are written as they were given; all others with every default."""


@lru_cache(maxsize=1024)
def read_settings(toml: str) -> Settings:
    """All settings of a run by their full names, such as "local.lr" or "tier.phone.share"; empty if they are broken."""
    try:
        return {key: value for key, value in _flatten(tomllib.loads(toml)) if not key.startswith("compare.")}
    except (ValueError, RecursionError):
        return {}


def _flatten(table: Settings, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        entries = sequence(value)
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        elif entries and all(isinstance(one, Mapping) for one in entries):
            for place, one in enumerate(map(mapping, entries)):
                yield from _flatten(one, f"{prefix}{key}.{text(one.get('name'), str(place))}.")
        else:
            yield f"{prefix}{key}", value


def settings_that_differ(one: Settings, other: Settings) -> list[str]:
    """In which settings two runs of one method differ, apart from their seeds.

    A setting that only one of them has is no difference: the other may be from a version that did not know it yet.
    """
    if not one or not other:
        return []
    keys = dict.fromkeys([*one, *other])
    counted = [key for key in keys if key.partition(".")[0] not in NO_PART]
    return [
        key
        for key in counted
        if one.get(key) != other.get(key) and (key.startswith(AS_GIVEN) or (key in one and key in other))
    ]


def written(value: object) -> str:
    """A value as text: empty if the run does not have the setting."""
    if value is None:
        return ""
    return text(value) or json.dumps(value, ensure_ascii=False, default=str)
