"""A fleet fitted to a list of devices: memory and speed as a log-normal pair, availability by the hour of the day.

Only the fitted numbers are kept. Every client's device and presence are pure functions of seed, client and round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.core import numpy_stream
from potluck.fleet.profiles import GB, Profile

HOURS = 24
LEAST = 0.001
"""The least share of devices that is available in an hour: a round must find someone."""
WEAK = 0.1
"""The networks of a tier must suit a device slower than all but this share of its devices, with as little memory as
this share of such devices has."""
_NORMAL = statistics.NormalDist()


@dataclass(frozen=True)
class ListedDevice:
    """A device of a list, under "devices"."""

    ram_gb: float
    """Memory, in GB."""
    score: float
    """Its score in a benchmark: twice as much is twice as fast."""
    name: str = ""
    count: float = 1.0
    """How many there are, relative to the others."""

    def __post_init__(self) -> None:
        for name in ("ram_gb", "score", "count"):
            if not 0 < getattr(self, name) <= 1e12:
                raise ValueError(f"devices.{name} = {getattr(self, name)} must be above 0 and at most 1e12")


@dataclass(frozen=True)
class Trace:
    """When one device could take part, in seconds from the start, under "traces"; written as FedScale writes them."""

    active: tuple[float, ...]
    """When it came."""
    inactive: tuple[float, ...]
    """When it went each time."""
    finish_time: float
    """When the trace ends."""
    duration: float = 0.0
    """Not used."""
    model: str = ""
    """Not used."""

    def __post_init__(self) -> None:
        if not 0 < self.finish_time <= 366 * 86400:
            raise ValueError(f"traces.finish_time = {self.finish_time:g} must be above 0 and at most 366 days")
        if len(self.active) != len(self.inactive):
            raise ValueError(
                f"a trace has {len(self.active)} times in 'active' and {len(self.inactive)} in 'inactive'; each time "
                "that a device came needs one at which it went"
            )
        times = [time for stay in zip(self.active, self.inactive, strict=True) for time in stay]
        if times != sorted(times) or (times and not 0 <= times[0] <= times[-1] <= self.finish_time):
            raise ValueError(
                f"the times of a trace must rise, active before inactive, from 0 to finish_time = {self.finish_time:g}"
            )


@dataclass(frozen=True)
class DeviceList:
    """A list of devices, as `potluck fit-fleet` reads it."""

    source: str
    """Where the list comes from."""
    devices: tuple[ListedDevice, ...]
    traces: tuple[Trace, ...] = ()
    start_hour: float = 0.0
    """The hour of the day at which the traces start."""

    def __post_init__(self) -> None:
        if len(self.devices) < 2:
            raise ValueError(f"devices has {len(self.devices)}; a fit needs at least 2")
        if not 0 <= self.start_hour < HOURS:
            raise ValueError(f"start_hour = {self.start_hour} must be from 0 to below {HOURS}")


@dataclass(frozen=True)
class DeviceFit:
    """A fleet that was fitted to a list: what fleet.file holds.

    The logarithms of memory and speed are normal and correlated. A client comes and goes in blocks of `hold_hours`; in
    each it is there or not by one draw, against the share that is available at that hour of the day.
    """

    source: str
    """Where the list came from."""
    devices: int
    """How many devices the list had."""
    memory_gb: float
    """The median."""
    memory_spread: float
    """The standard deviation of the natural logarithm."""
    gflops: float
    """The median of 10^9 FLOP/s reached in training."""
    gflops_spread: float
    """The standard deviation of the natural logarithm."""
    correlation: float
    """Of both logarithms."""
    speed_from: str = ""
    """The profile that a benchmark score was set equal to."""
    available: tuple[float, ...] = ()
    """The share of devices that is available in each hour of the day; empty: the list had no traces."""
    hold_hours: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("memory_gb", 1e-6, 1e9), ("gflops", 1e-6, 1e12), ("memory_spread", 0, 10), ("gflops_spread", 0, 10),
            ("correlation", -1, 1), ("hold_hours", 0.01, 10_000), ("devices", 1, 1e12),
        ):  # fmt: skip
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} = {getattr(self, name)} must be from {low:g} to {high:g}")
        if self.available and len(self.available) != HOURS:
            raise ValueError(f"available has {len(self.available)} numbers; give one for each of {HOURS} hours")
        if not all(0 < share <= 1 for share in self.available):
            raise ValueError("available must hold numbers above 0 and at most 1")

    def device(self, like: Profile, seed: int, index: int, band: tuple[float, float]) -> Profile:
        """The device of this client, out of a band of the fleet (shares of it, by speed); link and watts of `like`."""
        place, lean = numpy_stream(seed, "device", index).random(2)
        return self._made(like, band, float(place), float(lean))

    def weak_device(self, like: Profile, band: tuple[float, float]) -> Profile:
        """A device that nearly all of the band are as good as."""
        return self._made(like, band, WEAK, WEAK)

    def _made(self, like: Profile, band: tuple[float, float], place: float, lean: float) -> Profile:
        start, end = band
        speed = _deviate(start + place * (end - start))
        room = self.correlation * speed + math.sqrt(1 - self.correlation**2) * _deviate(lean)
        memory = self.memory_gb * math.exp(self.memory_spread * room) * GB
        flops = self.gflops * 1e9 * math.exp(self.gflops_spread * speed)
        source = f"drawn from a fit to {self.devices} devices: {self.source}"
        return replace(like, memory=max(1, round(memory)), flops=flops, source=source, basis="drawn")

    def is_available(self, seed: int, index: int, hour: float) -> bool:
        """Whether this client is available, so many hours after round 0."""
        if not self.available:
            return True
        block = math.floor(hour / self.hold_hours + float(numpy_stream(seed, "phase", index).random()))
        drawn = float(numpy_stream(seed, "available", index, "block", block).random())
        return drawn < self.available[int(hour) % HOURS]


def fit_devices(listed: DeviceList, like: Profile, score: float | None = None) -> DeviceFit:
    """The fit to a list. A device with this score (None: the median one) has the FLOP/s of the profile `like`."""
    counts = [device.count for device in listed.devices]
    memory, memory_spread = _moments([math.log(device.ram_gb) for device in listed.devices], counts)
    scores = [math.log(device.score) for device in listed.devices]
    speed, spread = _moments(scores, counts)
    total = math.fsum(counts)
    shared = math.fsum(
        device.count * (math.log(device.ram_gb) - memory) * (math.log(device.score) - speed)
        for device in listed.devices
    )
    both = memory_spread * spread * total
    gflops = like.flops / 1e9 * math.exp(speed - math.log(score) if score else 0.0)
    available, hold = _availability(listed.traces, listed.start_hour)
    return DeviceFit(
        *(listed.source, len(listed.devices), math.exp(memory), memory_spread, gflops, spread),
        *(max(-1.0, min(1.0, shared / both)) if both else 0.0, like.name, available, hold),
    )


def _moments(values: Sequence[float], counts: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation, weighted."""
    total = math.fsum(counts)
    mean = math.fsum(value * count for value, count in zip(values, counts, strict=True)) / total
    square = math.fsum(count * (value - mean) ** 2 for value, count in zip(values, counts, strict=True)) / total
    return mean, math.sqrt(square)


def _availability(traces: Sequence[Trace], start_hour: float) -> tuple[tuple[float, ...], float]:
    """The share of devices in each hour of the day, and the length of a block that gives stays of the right length."""
    there, seen = [0.0] * HOURS, [0.0] * HOURS
    stays = 0
    for trace in traces:
        _add_hours(seen, 0.0, trace.finish_time, start_hour)
        for came, went in zip(trace.active, trace.inactive, strict=True):
            _add_hours(there, came, went, start_hour)
            stays += 1
    total, on = math.fsum(seen), math.fsum(there)
    if not traces:
        return (), 1.0
    share = on / total
    shares = tuple(max(LEAST, min(1.0, here / all_ if all_ else share)) for here, all_ in zip(there, seen, strict=True))
    # Draws that are independent between blocks give stays of block / (1 - share) and breaks of block / share.
    hold = (on / stays) * (1 - share) / 3600 if stays else 1.0
    return shares, min(max(hold, 0.01), 10_000.0)


def _add_hours(hours: list[float], start: float, end: float, start_hour: float) -> None:
    """Adds the seconds between start and end to the hours of the day they fall into."""
    shift = start_hour * 3600
    at, last = start + shift, end + shift
    while at < last:
        step = min(last, (math.floor(at / 3600) + 1) * 3600)
        hours[int(at // 3600) % HOURS] += step - at
        at = step


def _deviate(share: float) -> float:
    """The normal deviate below which this share lies."""
    return _NORMAL.inv_cdf(min(max(share, 1e-9), 1 - 1e-9))
