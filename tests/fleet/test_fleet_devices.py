"""Fleets fitted to lists: by hand, and as pure functions of seed, client and round."""

from __future__ import annotations

import math
import statistics
import tracemalloc
from dataclasses import replace

import pytest

from potluck.core import Tier
from potluck.fleet import PROFILES, DeviceFit, DeviceList, Fleet, Population, fit_devices
from potluck.fleet.devices import ListedDevice, Trace
from potluck.fleet.population import tier_bands

LIKE = PROFILES["pixel5"]
FIT = DeviceFit("a list", 10, 4.0, 0.5, 10.0, 0.8, 0.6)
DAY = 86400.0


def listed(*devices: tuple[float, float], **more: object) -> DeviceList:
    return DeviceList("a list", tuple(ListedDevice(*each) for each in devices), **more)  # type: ignore[arg-type]


def test_memory_and_speed_are_fitted_by_their_logarithms() -> None:
    # 2 and 8 GB: the mean of the logarithms is that of 4, the deviation ln 2. The scores 100 and 900: 300, ln 3.
    fit = fit_devices(listed((2, 100), (8, 900)), LIKE)
    assert (fit.memory_gb, fit.memory_spread) == pytest.approx((4.0, math.log(2)))
    assert (fit.gflops, fit.gflops_spread) == pytest.approx((16.0, math.log(3)))  # the median is a Pixel 5
    assert fit.correlation == pytest.approx(1.0)
    assert (fit.devices, fit.source, fit.speed_from, fit.available) == (2, "a list", "pixel5", ())


def test_a_score_may_stand_for_the_profile() -> None:
    assert fit_devices(listed((2, 100), (8, 900)), LIKE, score=150).gflops == pytest.approx(32.0)


def test_devices_count_as_often_as_there_are() -> None:
    many = DeviceList("a list", (ListedDevice(2, 100, count=3), ListedDevice(32, 100)))
    fit = fit_devices(many, LIKE)
    assert fit.memory_gb == pytest.approx(4.0)  # 2 * 2 * 2 * 32 = 4 ** 4
    assert (fit.gflops_spread, fit.correlation) == (0.0, 0.0)


def test_availability_is_the_share_of_traces_in_each_hour() -> None:
    """Two devices for a day: one from 1:30 to 3:00, the other from 2:00 to 3:00."""
    traces = (Trace((5400.0,), (10800.0,), DAY), Trace((7200.0,), (10800.0,), DAY))
    fit = fit_devices(listed((2, 1), (4, 2), traces=traces), LIKE)
    assert fit.available[:4] == (0.001, 0.25, 1.0, 0.001)
    # They are there for 2.5 of 48 hours, in stays of 1.25: blocks of 1.25 * (1 - 2.5 / 48) hours give such stays.
    assert fit.hold_hours == pytest.approx(1.25 * (1 - 2.5 / 48))
    later = fit_devices(listed((2, 1), (4, 2), traces=traces, start_hour=22.0), LIKE)
    assert later.available[23] == 0.25
    assert later.available[0] == 1.0


@pytest.mark.parametrize(
    ("active", "inactive", "said"),
    [
        ((5.0,), (), "1 times in 'active' and 0 in 'inactive'"),
        ((5.0,), (4.0,), "must rise"),
        ((5.0, 6.0), (7.0, 8.0), "must rise"),
        ((5.0,), (2 * DAY,), "must rise"),
    ],
)
def test_a_trace_without_sense_is_refused(active: tuple[float, ...], inactive: tuple[float, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Trace(active, inactive, DAY)


def test_a_tier_has_its_share_of_the_fleet_from_the_weakest_device_on() -> None:
    assert tier_bands({"weak": 3, "strong": 1}) == {"weak": (0.0, 0.75), "strong": (0.75, 1.0)}


def population(fit: DeviceFit, clients: int = 1000, **settings: object) -> Population:
    tiers = [Tier("weak", 3.0), Tier("strong", 1.0)]
    return Population(tiers, clients, Fleet(**settings), 7, None, fit)  # type: ignore[arg-type]


def test_every_client_has_a_device_of_its_own_out_of_its_tiers_band() -> None:
    fleet = population(FIT)
    devices = [fleet.device(fleet.client(index, 0)) for index in range(1000)]
    edge = 10e9 * math.exp(0.8 * statistics.NormalDist().inv_cdf(0.75))
    assert all(device.flops <= edge for device in devices[:750])
    assert all(device.flops >= edge for device in devices[750:])
    assert fleet.device(fleet.client(5, 3)) == devices[5]
    assert {device.basis for device in devices} == {"drawn"}
    assert (devices[0].up, devices[0].train_watts) == (PROFILES["laptop"].up, PROFILES["laptop"].train_watts)


def test_the_devices_of_a_fleet_have_the_fitted_medians_spreads_and_correlation() -> None:
    fleet = population(FIT, 4000)
    devices = [fleet.device(fleet.client(index, 0)) for index in range(4000)]
    memory = [math.log(device.memory / 4e9) for device in devices]
    speed = [math.log(device.flops / 10e9) for device in devices]
    for values, spread in ((memory, 0.5), (speed, 0.8)):
        assert statistics.mean(values) == pytest.approx(0, abs=0.04)
        assert statistics.stdev(values) == pytest.approx(spread, rel=0.04)
    assert statistics.correlation(memory, speed) == pytest.approx(0.6, abs=0.03)


def test_a_weak_device_is_slower_than_nine_of_ten_in_its_band() -> None:
    normal = statistics.NormalDist()
    device = FIT.weak_device(LIKE, (0.5, 1.0))
    assert device.flops == pytest.approx(10e9 * math.exp(0.8 * normal.inv_cdf(0.55)))
    room = 0.6 * normal.inv_cdf(0.55) + 0.8 * normal.inv_cdf(0.1)
    assert device.memory == pytest.approx(4e9 * math.exp(0.5 * room))


NIGHT = DeviceFit("a list", 10, 4.0, 0.5, 10.0, 0.8, 0.6, available=(0.8,) * 6 + (0.1,) * 18, hold_hours=2.0)


def test_availability_follows_the_hour_of_the_day() -> None:
    fleet = population(NIGHT, 2000)
    shares = [sum(1 for _ in fleet.everyone(round)) / 2000 for round in (0, 5, 6, 23, 24)]
    assert shares == pytest.approx([0.8, 0.8, 0.1, 0.1, 0.8], abs=0.03)
    assert sum(1 for _ in population(NIGHT, 2000, round_hours=24.0).everyone(3)) / 2000 == pytest.approx(0.8, abs=0.03)


def test_clients_stay_for_hours_and_who_is_there_depends_on_seed_and_round_alone() -> None:
    always = DeviceFit("a list", 10, 4.0, 0.5, 10.0, 0.8, 0.6, available=(0.5,) * 24, hold_hours=10.0)
    fleet = population(always)
    first, next_, later = ({client.id for client in fleet.everyone(round)} for round in (0, 1, 30))
    assert len(first & next_) > 0.9 * len(first)  # in an hour one block of ten ends, and half of these stay
    assert 0.4 < len(first & later) / len(first) < 0.6
    assert {client.id for client in population(always).everyone(0)} == first
    assert fleet.cohort(3, 20) == population(always).cohort(3, 20)


def test_a_million_clients_with_devices_of_their_own_keep_nothing_in_memory() -> None:
    fleet = population(NIGHT, 1_000_000)
    tracemalloc.start()
    for client in fleet.cohort(2, 50):
        fleet.device(client)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"memory_gb": 0.0}, "memory_gb = 0.0 must be from 1e-06"),
        ({"correlation": 1.5}, "correlation = 1.5 must be from -1 to 1"),
        ({"available": (0.5,)}, "available has 1 numbers; give one for each of 24 hours"),
        ({"available": (0.0,) * 24}, "above 0 and at most 1"),
    ],
)
def test_a_fit_without_sense_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(FIT, **change)  # type: ignore[arg-type]


def test_a_client_keeps_its_device_so_tiers_are_not_redrawn() -> None:
    with pytest.raises(ValueError, match="does not go with"):
        Fleet(file="fleet.json", tiers="redrawn")
