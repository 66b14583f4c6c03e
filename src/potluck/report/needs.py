"""What methods need of a federation and what they allow, as they declare it themselves."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.report.html import Markup, join, table, tag
from potluck.report.json_values import Json, mapping, text
from potluck.report.records import RunRecord
from potluck.report.units import GAP

NEEDS = ("networks", "public", "memory", "larger", "secure")
"""Headings, in the order of `needed`."""
KEY = (
    "networks that devices may train: one for all, parts of one in width or depth, any   public: rows needed\n"
    "memory: clients keep some   larger: a server model may outgrow the clients'   secure: sums of uploads suffice"
)
"""What they mean, in short."""
MEANING = (
    "Networks that devices may train: one for all, parts of one that differ in width or depth, or any. Public rows "
    "that are needed: inputs, or labels too. Memory: clients keep something from round to round. Larger: the server's "
    "model may outgrow every client's. Secure: sums over clients suffice, as secure aggregation gives."
)


def facts(runs: Sequence[RunRecord]) -> Json:
    """What the method of these runs declares; nothing where they differ or it declares nothing."""
    first, *others = (mapping(run.manifest.get("facts")) for run in runs)
    return first if all(other == first for other in others) else {}


def needed(declared: object) -> list[str]:
    """A method's facts under `NEEDS`; gaps where they are unknown."""
    found = mapping(declared)
    public = text(found.get("public"))
    said = [text(found.get("networks")) or GAP, public if public != "none" else ""]
    said += ["yes" if found.get(key) is True else "" for key in ("memory", "larger", "sums")]
    return said if found else [GAP] * len(NEEDS)


def in_words(declared: object) -> str:
    """A method's facts as a list of words."""
    networks, public, *others = needed(declared)
    kinds = {"one": "one network", "width": "widths of one network", "depth": "depths of one network"}
    flags = zip(("memory", "larger server", "secure sums"), others, strict=True)
    words = [kinds.get(networks, f"{networks} networks"), f"public {public}" if public else ""]
    return ", ".join([word for word in words if word] + [name for name, flag in flags if flag == "yes"])


def needs_section(rows: Sequence[Json]) -> Markup | None:
    """A table of every method's facts; nothing where none declares any."""
    if not any(mapping(row.get("facts")) for row in rows):
        return None
    lines = [[text(row.get("label")), *needed(row.get("facts"))] for row in rows]
    head = tag("h2", "What methods need and allow")
    return join(head, table(["", *NEEDS], lines, kind="words"), tag("p", MEANING, class_="note"))
