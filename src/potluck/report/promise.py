"""What was promised to clients whose updates got noise."""

from __future__ import annotations

from potluck.report.html import Markup, tag
from potluck.report.json_values import integer, mapping, number
from potluck.report.records import RunRecord


def promised(run: RunRecord) -> str:
    """The promise in a line; nothing where updates got no noise."""
    found = mapping(run.manifest.get("privacy"))
    each, delta, clip, noise = (number(found.get(key)) for key in ("epsilon_each", "delta", "clip", "noise"))
    if each is None or delta is None or clip is None or noise is None:
        return ""
    composed, uploads = number(found.get("epsilon")), integer(found.get("uploads"))
    one = f"ε = {each:.3g} for each upload"
    if composed is not None and uploads is not None:
        times = "once" if uploads == 1 else f"{uploads} times"
        one = f"ε = {composed:.3g} for all that a client uploaded ({times} at most), {one.removeprefix('ε = ')}"
    return f"{one}, at δ = {delta:g}; updates clipped to {clip:.3g}, with noise of {noise:.3g} times that"


def promise_note(run: RunRecord) -> Markup | None:
    """The promise as a note."""
    words = promised(run)
    local = "Local differential privacy, simulated; scores on clients' own examples are not part of it."
    return tag("p", f"Privacy: {words}. {local}", class_="note") if words else None
