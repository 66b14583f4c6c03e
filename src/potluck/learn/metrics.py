"""Scores other than accuracy, from counts that can be added over examples and devices.

The results are those of scikit-learn, seqeval and NumPy (docs/fidelity.md), which need the rows: zero divided by zero
is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Entity = tuple[str, int, int]
"""The kind of an entity, and the positions of its first and last word."""


def f1(right: float, seen: float, guessed: float) -> dict[str, float]:
    """F1, precision and recall, from the numbers of correct, true (`seen`) and predicted (`guessed`) items."""
    return {
        "f1": _share(2 * right, seen + guessed),
        "precision": _share(right, guessed),
        "recall": _share(right, seen),
    }


def class_f1(right: Sequence[int], seen: Sequence[int], guessed: Sequence[int]) -> dict[str, float]:
    """F1, precision and recall of class 1 if there are two classes; else their means over classes that occur."""
    each = [f1(*counts) for counts in zip(right, seen, guessed, strict=True) if counts[1] + counts[2]]
    if len(seen) == 2:
        return f1(right[1], seen[1], guessed[1])
    return {name: _share(sum(one[name] for one in each), len(each)) for name in f1(0, 0, 0)}


def matthews(right: Sequence[int], seen: Sequence[int], guessed: Sequence[int]) -> float:
    """Matthews' correlation of predictions and labels; for more than two classes, Gorodkin's generalisation."""
    count = sum(seen)
    together = sum(right) * count - sum(a * b for a, b in zip(seen, guessed, strict=True))
    apart = (count**2 - sum(a * a for a in seen)) * (count**2 - sum(a * a for a in guessed))
    return together / math.sqrt(apart) if apart else 0.0


def moments(said: Sequence[float], true: Sequence[float]) -> dict[str, float]:
    """Count, means, and sums of squares and products about the means, for a correlation."""
    return merge_moments({"count": 1, "said": a, "true": b} for a, b in zip(said, true, strict=True))


def merge_moments(all_: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The moments of several sets of pairs together (Chan et al., 1979: accurate also for large means)."""
    sums = dict.fromkeys(("count", "said", "true", "said_said", "true_true", "said_true"), 0.0)
    for each in all_:
        count = sums["count"] + each["count"]
        if not each["count"]:
            continue
        said, true = each["said"] - sums["said"], each["true"] - sums["true"]
        share = sums["count"] * each["count"] / count
        sums["said_said"] += each.get("said_said", 0.0) + share * said * said
        sums["true_true"] += each.get("true_true", 0.0) + share * true * true
        sums["said_true"] += each.get("said_true", 0.0) + share * said * true
        sums["said"] += said * each["count"] / count
        sums["true"] += true * each["count"] / count
        sums["count"] = count
    return sums


def pearson(sums: Mapping[str, float]) -> float | None:
    """Pearson's correlation of predictions and targets; 0 if either is constant.

    None for fewer than two pairs, or if the predictions are not finite.
    """
    spread = math.sqrt(sums["said_said"]) * math.sqrt(sums["true_true"])
    if sums["count"] < 2 or not math.isfinite(spread):
        return None
    return max(-1.0, min(1.0, sums["said_true"] / spread)) if spread else 0.0


def entities(tags: Sequence[str]) -> set[Entity]:
    """The entities that BIO tags mark. As in seqeval, an I tag that continues no entity begins one.

    >>> sorted(entities(["B-x", "I-x", "O", "I-y", "I-x"]))
    [('x', 0, 1), ('x', 4, 4), ('y', 3, 3)]
    """
    found = set()
    start, kind = 0, ""
    for place, tag in enumerate([*tags, "O"]):
        if kind and tag != f"I-{kind}":
            found.add((kind, start, place - 1))
            kind = ""
        if not kind and tag != "O":
            start, kind = place, tag[2:]
    return found


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
