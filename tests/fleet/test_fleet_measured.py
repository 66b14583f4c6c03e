"""What a measured profile says of steps that were measured, of other sizes of the network, and of other networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from potluck.fleet import MeasuredProfile, MeasuredStep, StepSize
from potluck.fleet.measured import _fit, best_block

SIZES = [StepSize(4, flops, aligned, flops // 10, flops // 5) for flops, aligned in
         ((1000, 1600), (2500, 3200), (5000, 6400), (10_000, 12_800), (20_000, 25_600), (40_000, 40_000))]  # fmt: skip


def seconds(size: StepSize) -> float:
    """A machine with an overhead of 2 us a step, that takes 3 ns for each of the FLOPs of whole blocks."""
    return 2e-6 + 3e-9 * size.aligned_flops


def step(size: StepSize, network: str = "mine", memory: int = 0) -> MeasuredStep:
    counted = (size.layers, size.flops, size.aligned_flops, size.parameter_bytes, size.activation_bytes)
    return MeasuredStep(network, 8, seconds(size), memory or 100 + 3 * size.bytes(1), *counted)


def made(*steps: MeasuredStep, **changes: object) -> MeasuredProfile:
    facts = {"threads": 1, "slots": 1, "block": 16, "memory": 10**9, **changes}
    return MeasuredProfile("a processor", "today", "2.0", "mlp", step=steps, **facts)  # type: ignore[arg-type]


PROFILE = made(*map(step, SIZES))


def test_a_step_that_was_measured_takes_what_it_took() -> None:
    slow = replace(step(SIZES[0]), seconds=0.5)
    assert made(slow, *map(step, SIZES[1:])).seconds("mine", SIZES[0]) == (0.5, "measured")


def test_other_sizes_of_the_network_follow_from_a_fit() -> None:
    size = StepSize(4, 7000, 8000, 700, 1400)
    found, basis = PROFILE.seconds("mine", size)
    assert basis == "fitted"
    assert found == pytest.approx(2e-6 + 3e-9 * 8000, rel=0.01)


def test_another_network_takes_its_flops_at_the_rate_of_those_measured() -> None:
    # Two steps: 1,000 FLOPs in 6.8 us and 2,500 in 11.6 us make 3,500 FLOPs in 18.4 us.
    profile = made(*map(step, SIZES[:2]))
    assert profile.rate == pytest.approx(3500 / 18.4e-6)
    assert profile.seconds("another", SIZES[5]) == (pytest.approx(40_000 / 3500 * 18.4e-6), "other network")
    assert PROFILE.seconds("another", SIZES[5])[1] == "other network"


def test_too_few_sizes_of_a_network_make_no_fit() -> None:
    assert made(*map(step, SIZES[:3])).seconds("mine", SIZES[5])[1] == "other network"


def test_the_profile_at_a_network_is_a_device_with_the_flops_that_it_reaches_there() -> None:
    device = made(*map(step, SIZES), down=5.0).at("my.toml", "mine", SIZES[0])
    assert device.flops == pytest.approx(1000 / 6.8e-6)
    assert (device.name, device.memory, device.basis) == ("my.toml", 10**9, "measured")
    assert (device.down, device.up) == (5e6, 100e6)  # given; the laptop's
    assert device.source.startswith("measured: a processor, 1 threads, today")


def test_memory_follows_from_the_measured_peaks() -> None:
    # Peaks are 100 bytes more than three times the modelled ones, which are 3 * 100 + 200 for 1,000 FLOPs.
    assert PROFILE.peak("mine", SIZES[0]) == 1600 / 500
    size = StepSize(4, 7000, 8000, 700, 1400)
    assert PROFILE.peak("mine", size) == pytest.approx((100 + 3 * 3500) / 3500, rel=0.01)
    unknown = made(*(replace(step(size), memory=0) for size in SIZES))
    assert unknown.peak("mine", SIZES[0]) == 1.0


def test_the_block_that_explains_the_seconds_is_found() -> None:
    steps = [step(size) for size in SIZES]
    plain = [each.flops for each in steps]
    assert best_block(steps, {1: plain, 16: [each.aligned_flops for each in steps]}) == 16
    even = [replace(each, seconds=2e-6 + 3e-9 * each.flops) for each in steps]
    assert best_block(even, {1: plain, 16: [each.aligned_flops for each in steps]}) == 1


def test_no_factor_of_a_fit_is_below_0() -> None:
    """A straight line through these falls; without negative factors only the constant is left."""
    terms = [np.array([1.0, size]) for size in (1, 2, 3)]
    # The constant with the least squares of c/3 - 1, c/2 - 1 and c - 1: (1/3 + 1/2 + 1) / (1/9 + 1/4 + 1) = 66 / 49.
    assert _fit(terms, [3.0, 2.0, 1.0]).tolist() == pytest.approx([66 / 49, 0.0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seconds": 0.0}, "step.seconds = 0.0 must be above 0"),
        ({"flops": 0}, "step.flops = 0 is below 1"),
        ({"memory": -1}, "step.memory = -1 is below 0"),
    ],
)
def test_a_step_without_sense_is_refused(change: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(step(SIZES[0]), **change)


def test_a_profile_without_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="from 1 to 10000"):
        made()
    with pytest.raises(ValueError, match="down = 0 must be above 0"):
        made(step(SIZES[0]), down=0)
