"""The family of a method: in what the devices may differ that it trains. Charts of many methods are split by it."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.json_values import Json, mapping, text
from potluck.report.records import RunRecord

FAMILIES = {
    "width": "Width",
    "depth": "Depth, layer by layer",
    "architecture": "Architecture",
    "masks": "Personal masks",
    "one": "One network",
    "references": "References",
    "others": "Others",
}
"""The families in the order of the charts, each with its title."""

REFERENCES = frozenset({"alllarge", "allsmall", "exclusivefl", "local"})
"""Methods to compare with, by the names that settings use for them."""


def family_of(method: str, facts: Json) -> str:
    """The family of a method, by its name in the settings and by what it declares about itself."""
    networks, public = text(facts.get("networks")), text(facts.get("public"), "none")
    if facts.get("bound") is True or method in REFERENCES:
        return "references"
    if networks == "any":  # without public rows nothing but equal layers can be averaged
        return "depth" if public == "none" else "architecture"
    if networks in ("one", "width") and facts.get("memory") is True and facts.get("sums") is False:
        return "masks"
    return networks if networks in FAMILIES else "others"


def family_of_runs(runs: Sequence[RunRecord]) -> str:
    """The family of the method that these runs share."""
    return family_of(runs[0].method.lower(), mapping(runs[0].manifest.get("facts"))) if runs else "others"
