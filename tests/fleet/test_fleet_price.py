"""What work costs on a device, by hand."""

from __future__ import annotations

import pytest

from potluck.core import Cost, SettingsError, Work
from potluck.fleet import PROFILES, Price, Profile, fits, price, profile

TOY = Profile("toy", memory=1000, flops=100.0, down=80.0, up=40.0, train_watts=3.0, radio_watts=2.0, source="modelled")


def test_a_task_costs_its_transfers_and_its_compute() -> None:
    # Down 8 * 100 / 80 = 10 s, up 8 * 50 / 40 = 10 s, compute 400 / 100 = 4 s; 2 W * 20 s + 3 W * 4 s = 52 J.
    assert price(Cost(bytes_down=100, bytes_up=50, flops=400), TOY) == Price(seconds=24.0, joules=52.0)


def test_measured_seconds_and_memory_have_no_part_in_the_modelled_price() -> None:
    assert price(Cost(seconds=99.0, memory=10**9), TOY) == Price(0.0, 0.0)


def test_training_fits_when_weights_gradients_slots_and_activations_do() -> None:
    work = Work(flops=50, parameter_bytes=100, activation_bytes=200, parameters=25)
    assert fits(work, TOY)  # (1 + 1 + 1) * 100 + 200 = 500, half of 1000
    assert not fits(work, TOY, slots=2)  # 600
    assert fits(work, TOY, slots=2, share=0.6)


def test_training_fits_when_its_steps_are_done_in_time() -> None:
    work = Work(flops=50, parameter_bytes=0, activation_bytes=0, parameters=0)
    assert fits(work, TOY, steps=4, seconds=2.0)
    assert not fits(work, TOY, steps=5, seconds=2.0)


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
