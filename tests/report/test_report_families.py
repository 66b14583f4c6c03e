"""Families: where each method stands when there are too many for one chart."""

from __future__ import annotations

import dataclasses

import pytest

from potluck.core.facts import facts_of
from potluck.methods import METHODS
from potluck.report.families import family_of


def test_every_method_is_in_the_family_of_the_readme() -> None:
    told = {
        "width": ["fedrolex", "heterofl", "feddropout", "fjord"],
        "depth": ["inclusivefl", "fedin"],
        "architecture": ["moss", "feddf", "fedmd", "dsfl", "fedgems", "fedet"],
        "masks": ["lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel"],
        "one": ["fedavg", "fedprox", "scaffold", "fednova", "moon", "fedavgm", "fedadam", "fedyogi", "fedadagrad",
                "fedadamw"],
        "references": ["alllarge", "allsmall", "exclusivefl", "local"],
    }  # fmt: skip
    found: dict[str, list[str]] = {}
    for name, kind in METHODS.items():
        facts = facts_of(kind())
        assert facts
        found.setdefault(family_of(name, dataclasses.asdict(facts)), []).append(name)
    assert {family: sorted(names) for family, names in found.items()} == {
        family: sorted(names) for family, names in told.items()
    }


@pytest.mark.parametrize(
    ("facts", "family"),
    [
        ({"networks": "any", "public": "none"}, "depth"),
        ({"networks": "any", "public": "labels"}, "architecture"),
        ({"networks": "one", "memory": True, "sums": True}, "one"),
        ({"networks": "width", "bound": True}, "references"),
        ({"networks": "<b>"}, "others"),
        ({"networks": ["width"]}, "others"),
        ({}, "others"),
    ],
)
def test_a_method_of_ones_own_is_placed_by_what_it_declares(facts: dict[str, object], family: str) -> None:
    assert family_of("mine", facts) == family
