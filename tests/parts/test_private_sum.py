"""Private sums: numbers by hand, one clip of sensitivity for every tier, and the spread of the noise."""

import math

import pytest
import torch

from potluck.core import stream
from potluck.parts import WHOLE, OverlapMean, Part, Place, Sums, expected_holders, first_holders, privatise

NARROW = Part({"w": Place("w", ((slice(0, 2),),))})


def summed(start, *contributions):
    mean = OverlapMean(start)
    for arrays, part in contributions:
        mean.add(arrays, part, 1.0)
    mean.coverage()
    return mean.sums


def mean_of(start, sums):
    mean = OverlapMean(start)
    mean.add_block(sums, 0)
    return mean.value()


def test_the_sum_of_updates_is_divided_by_the_expected_holders_not_by_those_who_came():
    """Updates 1, 2, 3 (whole) and 4, 6 (narrow) on 10, 20, 30; four are expected on the first two entries, two on the
    third."""
    start = {"w": torch.tensor([10.0, 20.0, 30.0])}
    sums = summed(start, ({"w": torch.tensor([11.0, 22.0, 33.0])}, WHOLE), ({"w": torch.tensor([14.0, 26.0])}, NARROW))
    expected = {"w": torch.tensor([4.0, 4.0, 2.0], dtype=torch.float64)}
    found = privatise(sums, start, expected, 1.0, 0.0, stream(0, "x"))
    assert found.weights["w"].tolist() == [4.0, 4.0, 2.0]
    assert found.totals["w"].tolist() == [5.0 + 40.0, 8.0 + 80.0, 3.0 + 60.0]
    assert mean_of(start, found)["w"].tolist() == [11.25, 22.0, 31.5]


def test_expected_holders_add_up_over_the_tiers_that_hold_an_entry():
    start = {
        "w": torch.zeros(3),
        "count": torch.zeros(1, dtype=torch.int64),
        "mean": torch.zeros(2),
        "idle": torch.ones(1),
    }
    whole = Part({name: Place(name) for name in ("w", "count", "mean")})
    found = expected_holders(start, [(whole, 1.5), (NARROW, 3.0)], fixed={"mean"})
    assert {name: weight.tolist() for name, weight in found.items()} == {"w": [4.5, 4.5, 1.5]}
    assert expected_holders({"w": torch.zeros(3)}, [(WHOLE, 2.0), (WHOLE, 0.5)]) == {"w": 2.5}


def test_an_entry_keeps_the_number_of_holders_that_it_had_first():
    some = {"w": torch.tensor([[4.0], [0.0]]), "b": 2.0, "late": 0.0}
    later = {"w": torch.tensor([[9.0], [5.0]]), "b": 7.0, "late": 1.0, "new": 3.0}
    found = first_holders([some, later])
    assert found["w"].tolist() == [[4.0], [5.0]]
    assert {name: found[name] for name in ("b", "late", "new")} == {"b": 2.0, "late": 1.0, "new": 3.0}


def test_noise_comes_on_entries_that_nobody_sent_and_never_on_those_that_nobody_can_hold():
    start = {"w": torch.tensor([1.0, 2.0, 3.0]), "idle": torch.ones(2), "steps": torch.tensor([7])}
    expected = expected_holders(start, [(NARROW, 2.0)])
    found = mean_of(start, privatise(Sums(), start, expected, 1.0, 1.0, stream(1, "x")))
    assert found["w"][2] == 3.0
    assert all(found["w"][:2] != start["w"][:2])
    assert found["idle"].tolist() == [1.0, 1.0]
    assert found["steps"].tolist() == [7]


def test_noise_has_the_spread_of_noise_times_clip_on_the_sum_and_no_mean():
    start = {"w": torch.zeros(100_000), "b": torch.zeros(100_000)}
    found = privatise(Sums(), start, {"w": 10.0, "b": 4.0}, 0.5, 3.0, stream(2, "x"))
    for name in start:
        assert float(found.totals[name].mean()) == pytest.approx(0.0, abs=4 * 1.5 / math.sqrt(100_000))
        assert float(found.totals[name].std()) == pytest.approx(1.5, rel=0.01)
    assert float(torch.corrcoef(torch.stack([found.totals["w"], found.totals["b"]]))[0, 1]) == pytest.approx(
        0, abs=0.02
    )
    assert float(mean_of(start, found)["b"].std()) == pytest.approx(1.5 / 4, rel=0.01)


def test_noise_that_is_undone_is_the_noise_that_was_drawn_before_whoever_was_expected_then():
    start = {"a": torch.zeros(3), "w": torch.zeros(2)}
    first = privatise(Sums(), start, {"w": 1.0}, 1.0, 1.0, stream(3, "x")).totals["w"]
    second = privatise(Sums(), start, {"a": 1.0, "w": 1.0}, 1.0, 1.0, stream(4, "x")).totals["w"]
    undone = privatise(Sums(), start, {"a": 1.0, "w": 1.0}, 1.0, 1.0, stream(4, "x"), [stream(3, "x")]).totals["w"]
    assert undone.tolist() == pytest.approx((second - first).tolist())


@pytest.mark.parametrize("held", [WHOLE, NARROW], ids=["wide", "narrow"])
def test_one_client_moves_the_sum_by_no_more_than_its_clip_whatever_its_tier(held):
    """Two cohorts that differ in one client with an update of length 1; the others differ in tier."""
    generator = stream(5, "x")
    start = {"w": torch.randn(3, generator=generator)}
    others = [
        ({"w": start["w"] + torch.randn(3, generator=generator)}, WHOLE),
        ({"w": start["w"][:2] + torch.randn(2, generator=generator)}, NARROW),
    ]
    step = torch.randn(3 if held is WHOLE else 2, generator=generator)
    one = ({"w": held.take(start)["w"] + step / step.norm()}, held)
    expected = {"w": torch.tensor([2.0, 2.0, 1.0], dtype=torch.float64)}
    far = [
        privatise(summed(start, *cohort), start, expected, 1.0, 0.0, stream(6, "x")).totals["w"]
        for cohort in (others, [*others, one])
    ]
    assert float((far[1] - far[0]).norm()) == pytest.approx(1.0, rel=1e-6)
