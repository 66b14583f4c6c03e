"""What trackers are told: settings, scores and costs as flat names and values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

SERVER = "server"
"""The server as a client of the ledger. Its work has totals of its own."""
LEFT_OUT = "track"
"""The section that trackers are not told: it says where they are."""
MEASURED = "seconds"
"""The one total that is measured: it differs whenever a round is done again, so trackers are not told."""
LONGEST = 80

Setting = str | bool | int | float | None


def flat_settings(plain: Mapping[str, Any]) -> dict[str, Setting]:
    """All settings by their path, such as "local.lr" or "tier.0.depth". A list of plain values is one text."""
    return dict(_settings({name: value for name, value in plain.items() if name != LEFT_OUT}, ""))


def _settings(value: Any, path: str) -> Iterator[tuple[str, Setting]]:
    if isinstance(value, Mapping) and value:
        for name, item in _cleaned(value.items()):
            yield from _settings(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        for number, item in enumerate(value):
            yield from _settings(item, f"{path}.{number}")
    else:
        yield path, json.dumps(value) if isinstance(value, Mapping | list | tuple) else value


def flat_scores(line: Mapping[str, Any]) -> dict[str, float]:
    """Every number of a line of scores.jsonl by its path, such as "tiers/phone/test/accuracy". Lists are left out."""
    return dict(_numbers({name: value for name, value in line.items() if name != "round"}, ""))


def flat_costs(totals: Mapping[str, float]) -> dict[str, float]:
    """What a run has cost so far, such as "cost/bytes_up"."""
    return dict(_numbers({"cost": {name: value for name, value in totals.items() if name != MEASURED}}, ""))


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for name, item in _cleaned(value.items()):
            yield from _numbers(item, f"{path}/{name}" if path else name)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield path, float(value)


def _cleaned(items: Iterable[tuple[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """The items with names that every tracker takes, each name once: tiers may be called anything."""
    seen: set[str] = set()
    for name, item in items:
        clean = first = re.sub(r"[^\w.-]+", "_", str(name)).strip(".")[:LONGEST] or "_"
        number = 1
        while clean in seen:
            number += 1
            clean = f"{first}-{number}"
        seen.add(clean)
        yield clean, item


class Costs:
    """The costs of a run so far, added up from the lines of its ledger as the run itself adds them."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds a line of the ledger."""
        if event.get("event") == "round":
            self._add(event, "device_seconds", "round_seconds")
        elif event.get("event") == "task":
            modelled, own = _mapping(event, "modelled"), event.get("client") == SERVER
            self._add(modelled, "flops", "joules", prefix="server_" if own else "")
            if not own:
                self._add(_mapping(event, "measured"), "bytes_down", "bytes_up")

    def _add(self, found: Mapping[str, Any], *names: str, prefix: str = "") -> None:
        for name in names:
            if isinstance(amount := found.get(name), int | float):
                self.totals[prefix + name] = self.totals.get(prefix + name, 0) + amount


def _mapping(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    return found if isinstance(found, Mapping) else {}
