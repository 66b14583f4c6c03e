"""Who was there when: for each node of a federation a strip of cells, one for each round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

from potluck.report.html import Markup, note, section, tag
from potluck.report.node_log import SHORT_ID
from potluck.report.records import ANSWERED, AWAY, SILENT, THERE, UNKNOWN, NodeRecord, RunRecord
from potluck.report.units import format_bytes, format_count

STATES = {ANSWERED: "answered", SILENT: "asked, no answer", THERE: "there, not asked", AWAY: "away"}
"""What a node can be in a round, in the order in which a cell of several rounds stacks them, from the bottom."""
CLASSES = {ANSWERED: "answered", SILENT: "silent", THERE: "there", AWAY: "away"}
MAX_CELLS, MIN_CELLS, ALL_CELLS = 120, 30, 4000
"""The most cells of one strip: 120, fewer if many nodes share 4,000. If there are more rounds, a cell holds several."""
MAX_GAPS = 40
"""Of more rounds, the cells stand without gaps."""
MAX_NODES = 100
MAX_STRETCHES = 8
"""A strip with more changes than this is told to screen readers as counts."""
CELL_WIDTH = 28
"""The widest cell, in pixels."""


def presence_section(run: RunRecord) -> Markup | None:
    """One strip per node; None without nodes, or before the first round."""
    nodes = [node for node in run.nodes if node.presence]
    if not nodes:
        return None
    rounds, drawn = len(nodes[0].presence), nodes[:MAX_NODES]
    size = cell_size(rounds, len(drawn))
    strips = [_strip(node, size) for node in drawn]
    ends = [tag("span", "round 1"), tag("span", format_count(rounds)) if rounds > 1 else None]
    axis = tag("div", tag("span"), tag("div", *ends, style=_width(rounds)), class_="rounds")
    states = json.dumps(list(STATES.items()), separators=(",", ":"))
    frame = tag("figure", _legend(nodes), *strips, axis, class_="presence", data_states=states)
    return section("Who was there when", note(_how_to_read(size, len(nodes))), frame)


def _how_to_read(size: int, nodes: int) -> str:
    words = "One row per node, one cell per round."
    if size > 1:
        words = f"One row per node; each cell holds {size} rounds, stacked by what the node did in them."
    words += " A reply that was refused is an answer too."
    return words + (f" The first {MAX_NODES} nodes of {format_count(nodes)} are shown." if nodes > MAX_NODES else "")


def _legend(nodes: Sequence[NodeRecord]) -> Markup:
    entries = [tag("span", tag("i", class_=CLASSES[state]), words) for state, words in STATES.items()]
    blank = any(UNKNOWN in node.presence for node in nodes)
    entries += [tag("span", tag("i", class_="blank"), "had not joined")] if blank else []
    return tag("div", *entries, class_="states")


def _strip(node: NodeRecord, size: int) -> Markup:
    """The name and tier of a node, its cells, and how often it answered."""
    traffic = f"{format_bytes(node.bytes_down)} down, {format_bytes(node.bytes_up)} up"
    name = tag("b", node.name, data_tip=f"id {node.id[:SHORT_ID]}…: {traffic}")
    cells = tag(
        "svg",
        *_cell_paths(node.presence, size),
        viewBox=f"0 0 {len(node.presence)} 100",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{node.name}, tier {node.tier}: {describe_presence(node.presence)}",
        data_presence=_hover_json(node.presence, size),
        style=_width(len(node.presence)),
        class_="dense" if len(node.presence) > MAX_GAPS else None,
    )
    count = tag("span", f"answered {format_count(node.answered)} of {format_count(node.asked)}")
    return tag("div", tag("div", name, tag("span", node.tier)), cells, count, class_="node")


def _width(rounds: int) -> str:
    return f"max-width:{CELL_WIDTH * rounds}px"


def cell_size(rounds: int, nodes: int = 1) -> int:
    """How many rounds one cell holds, of so many rounds and nodes."""
    most = max(MIN_CELLS, min(MAX_CELLS, ALL_CELLS // nodes))
    return max(1, -(-rounds // most))


def count_states(presence: str, size: int) -> list[list[int]]:
    """For each cell, in how many of its rounds the node was in each state, in the order of `STATES`."""
    cells = (presence[start : start + size] for start in range(0, len(presence), size))
    return [[cell.count(state) for state in STATES] for cell in cells]


def describe_presence(presence: str) -> str:
    """The states of a node in words: stretch by stretch, or as counts if there are too many stretches."""
    stretches, start = [], 1
    for state, letters in groupby(presence):
        end = start + len(list(letters)) - 1
        which = f"round {start}" if start == end else f"rounds {start} to {end}"
        stretches.append(f"{which} {STATES.get(state, 'not joined')}")
        start = end + 1
    if len(stretches) <= MAX_STRETCHES:
        return "; ".join(stretches)
    return "; ".join(f"{words} in {presence.count(state)} rounds" for state, words in STATES.items())


def _hover_json(presence: str, size: int) -> str:
    """JSON for the page's script: rounds per cell, and the letter of each cell or its counts."""
    cells: object = presence if size == 1 else count_states(presence, size)
    return json.dumps({"rounds": len(presence), "size": size, "cells": cells}, separators=(",", ":"))


def _cell_paths(presence: str, size: int) -> list[Markup]:
    """One path per state. A cell of several rounds stacks their shares, beginning at the bottom."""
    paths = dict.fromkeys(STATES, "")
    for index, counts in enumerate(count_states(presence, size)):
        first, base = index * size, 100.0
        width = min(size, len(presence) - first)
        for state, count in zip(STATES, counts, strict=True):
            if count:
                height = 100 * count / width
                paths[state] += f"M{first} {base:.4g}v-{height:.4g}h{width}V{base:.4g}z"
                base -= height
    return [tag("path", d=path, class_=CLASSES[state]) for state, path in paths.items() if path]
