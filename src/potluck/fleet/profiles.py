"""Device profiles: memory, speed, network and power of a kind of device, modelled from public specifications.

No figure here was measured (`measured.py` is for those that were). Peak FLOP/s = FP32 operations per cycle (a fused
multiply-add counts two) x clock x cores; training reaches a small part of it, because phones throttle and small batches
leave arithmetic units idle. How small a part, the network speeds and the watts are assumptions: replace them by
measurements of your own devices if you can (`potluck measure`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from potluck.core import SettingsError

GB = 1_000_000_000
MBIT = 1_000_000

Basis: TypeAlias = Literal["modelled", "measured", "fitted", "other network", "drawn"]
"""What speed and memory rest on: public specifications; a measurement of this very step; a fit to measurements of other
sizes of the network; measurements of another network; a draw from fleet.file."""


@dataclass(frozen=True)
class Profile:
    """Memory, speed, network and power of a kind of device."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """FLOP/s reached in training, for long."""
    down: float
    """Bit/s."""
    up: float
    """Bit/s."""
    train_watts: float
    """Power while training, above idle."""
    radio_watts: float
    """Power while sending or receiving, above idle."""
    source: str
    """Where the figures come from."""
    memory_factor: float = 1.0
    """Memory that training takes, as a multiple of the modelled bytes."""
    basis: Basis = "modelled"
    """What `flops` and `memory_factor` rest on."""


_ALL = (
    Profile(
        "mate_x3", 12 * GB, 30e9, 100 * MBIT, 50 * MBIT, 5.0, 1.0,
        "modelled: Huawei Mate X3, Snapdragon 8+ Gen 1 CPU 32x3.2 + 3x16x2.75 + 4x8x2.0 = 298 GFLOP/s, 10 % of it; "
        "12 GB; Wi-Fi at 100/50 Mbit/s; 5 W sustained without throttling, 1 W radio",
    ),
    Profile(
        "pixel5", 8 * GB, 16e9, 100 * MBIT, 50 * MBIT, 3.5, 1.0,
        "modelled: Google Pixel 5, Snapdragon 765G CPU 16x2.4 + 16x2.2 + 6x8x1.8 = 160 GFLOP/s, 10 % of it; "
        "8 GB; Wi-Fi at 100/50 Mbit/s; 3.5 W sustained without throttling, 1 W radio",
    ),
    Profile(
        "tv", 1 * GB, 3.8e9, 40 * MBIT, 20 * MBIT, 3.0, 1.0,
        "modelled: smart TV like Huawei's Harmony TV SE, four Cortex-A55 4x8x1.2 = 38 GFLOP/s, 10 % of it; "
        "1 GB; 2.4 GHz Wi-Fi at 40/20 Mbit/s; 3 W for the processor, the panel not counted, 1 W radio",
    ),
    Profile(
        "camera", GB // 4, 0.48e9, 20 * MBIT, 10 * MBIT, 0.8, 0.8,
        "modelled: networked camera with one Cortex-A7 at 1.2 GHz, 4x1.2 = 4.8 GFLOP/s, 10 % of it; "
        "256 MB; 2.4 GHz Wi-Fi at 20/10 Mbit/s; 0.8 W for the processor, the sensor not counted, 0.8 W radio",
    ),
    Profile(
        "laptop", 16 * GB, 96e9, 200 * MBIT, 100 * MBIT, 28.0, 2.0,
        "modelled: four AVX2 cores 4x32x3.0 = 384 GFLOP/s, 25 % of it; "
        "16 GB; Wi-Fi at 200/100 Mbit/s; 28 W processor class, 2 W radio",
    ),
    Profile(
        "server", 40 * GB, 5.8e12, 10_000 * MBIT, 10_000 * MBIT, 400.0, 10.0,
        "modelled: one NVIDIA A100 40 GB, 19.5 TFLOP/s in FP32, 30 % of it; 10 Gbit/s Ethernet; 400 W board, 10 W link",
    ),
)  # fmt: skip

PROFILES: Mapping[str, Profile] = MappingProxyType({each.name: each for each in _ALL})
"""Every profile that a tier can name."""


def profile(name: str, setting: str = "tier.profile") -> Profile:
    """The built-in profile of this name, which this setting has."""
    if name not in PROFILES:
        near = difflib.get_close_matches(name, PROFILES, 1)
        hint = f"Did you mean '{near[0]}'?" if near else f"There are {', '.join(PROFILES)}."
        raise SettingsError(f"{setting} = '{name}' is not known. {hint}")
    return PROFILES[name]
