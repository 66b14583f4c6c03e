"""What work costs on a device, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from potluck.core import Cost, SettingsError, Work
from potluck.fleet import (
    PROFILES,
    Budget,
    Cut,
    Price,
    Profile,
    Requirements,
    fits,
    largest_that_fits,
    price,
    profile,
    requirements,
)

TOY = Profile("toy", memory=1000, flops=100.0, down=80.0, up=40.0, train_watts=3.0, radio_watts=2.0, source="modelled")


def test_a_task_costs_its_transfers_and_its_compute() -> None:
    # Down 8 * 100 / 80 = 10 s, up 8 * 50 / 40 = 10 s, compute 400 / 100 = 4 s; 2 W * 20 s + 3 W * 4 s = 52 J.
    assert price(Cost(bytes_down=100, bytes_up=50, flops=400), TOY) == Price(seconds=24.0, joules=52.0)


def test_measured_seconds_and_memory_have_no_part_in_the_modelled_price() -> None:
    assert price(Cost(seconds=99.0, memory=10**9), TOY) == Price(0.0, 0.0)


def test_a_round_needs_weights_gradients_slots_activations_and_two_transfers() -> None:
    work = Work(flops=50, forward_flops=20, parameter_bytes=100, activation_bytes=200, parameters=25)
    # (1 + 1 + 1) * 100 + 200 bytes; down 8 * 100 / 80 = 10 s, up 8 * 100 / 40 = 20 s, 4 * 50 / 100 = 2 s.
    assert requirements(work, TOY, Budget(steps=4, slots=1)) == Requirements(memory=500, seconds=32.0)
    assert requirements(work, TOY, Budget(steps=4, slots=2)).memory == 600


def test_training_fits_when_it_takes_no_more_than_its_share_of_the_memory() -> None:
    work = Work(flops=50, forward_flops=20, parameter_bytes=100, activation_bytes=200, parameters=25)
    assert fits(work, TOY, Budget(slots=1))  # 500, half of 1000
    assert not fits(work, TOY, Budget(slots=2))  # 600
    assert fits(work, TOY, Budget(slots=2, memory=0.6))


def test_training_fits_when_a_round_is_done_in_time() -> None:
    work = Work(flops=50, forward_flops=20, parameter_bytes=100, activation_bytes=200, parameters=25)
    assert fits(work, TOY, Budget(steps=4, seconds=32.0))
    assert not fits(work, TOY, Budget(steps=5, seconds=32.0))


def square(width: float) -> Work:
    """A network without activations, whose parameters and work grow with the square of its width."""
    size = round(1600 * width * width)
    return Work(flops=size, forward_flops=0, parameter_bytes=size, activation_bytes=0, parameters=size)


def fitting(budget: Budget, *widths: float) -> float | None:
    return largest_that_fits(
        [Cut(width) for width in widths], lambda cut: square(cut.width or 1), lambda _: TOY, budget
    ).width


def test_the_first_that_fits_is_chosen() -> None:
    # 3 * 1600 and 3 * 400 exceed half of 1000; 3 * 100 does not.
    assert fitting(Budget(), 1.0, 0.5, 0.25, 0.125) == 0.25
    # At 0.25: down 10 s, up 20 s, one step 1 s. At 0.125 a quarter of that.
    assert fitting(Budget(seconds=30.9), 1.0, 0.5, 0.25, 0.125) == 0.125


def test_where_nothing_fits_the_narrowest_is_priced() -> None:
    said = r"no width fits the profile 'toy': the narrowest, 0\.5, takes 0\.0 MB and 124\.0 s of 0\.0 MB and 9 s; add"
    with pytest.raises(SettingsError, match=said):
        fitting(Budget(seconds=9.0), 1.0, 0.5)


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (Cut(depth=2), r"no depth fits the profile 'toy': the shallowest, 2, takes .* MB; raise fleet"),
        (Cut(0.5, 2), r"no width and depth fit .*: the smallest, width 0\.5 and depth 2, takes"),
    ],
)
def test_where_no_depth_fits_the_shallowest_is_priced(cut: Cut, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        largest_that_fits([cut], lambda cut: square(1.0), lambda _: TOY, Budget())


def test_memory_that_was_measured_counts_in_place_of_the_modelled() -> None:
    work = Work(flops=50, forward_flops=20, parameter_bytes=100, activation_bytes=200, parameters=25)
    heavy = replace(TOY, memory_factor=1.5)
    assert requirements(work, heavy, Budget(slots=1)).memory == 750  # 1.5 * (3 * 100 + 200)
    assert fits(work, TOY, Budget(slots=1))
    assert not fits(work, heavy, Budget(slots=1))


def test_every_profile_says_that_it_is_modelled_and_is_of_a_sane_size() -> None:
    assert {"mate_x3", "pixel5", "tv", "laptop", "server"} <= set(PROFILES)
    for name, each in PROFILES.items():
        assert each.name == name
        assert each.source.startswith("modelled: ")
        assert min(each.memory, each.flops, each.down, each.up, each.train_watts, each.radio_watts) > 0
    order = [PROFILES[name] for name in ("tv", "pixel5", "mate_x3", "laptop", "server")]
    assert [each.flops for each in order] == sorted(each.flops for each in order)
    assert [each.memory for each in order] == sorted(each.memory for each in order)


def test_a_misspelt_profile_is_guessed() -> None:
    assert profile("tv") is PROFILES["tv"]
    with pytest.raises(SettingsError, match=r"'pixel' is not known\. Did you mean 'pixel5'\?"):
        profile("pixel")
