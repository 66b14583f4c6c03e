"""The devices of an experiment: built-in profiles, measured ones from files, and a fleet that was fitted to a list."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from potluck.core import Depth, ResourceError, SettingsError, Spec, Tier, to_plain
from potluck.fleet import DeviceFit, DeviceList, MeasuredProfile, Profile, StepSize, profile
from potluck.fleet.population import tier_bands
from potluck.models import ModelZoo
from potluck.run import config, toml
from potluck.run.settings import Experiment, TierSettings

MOST_BYTES = {".toml": 10**7, ".json": 10**9}
"""The largest file that is read."""


class Devices:
    """The devices of an experiment's tiers. Files are read when they are needed, once."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self._measured: dict[str, MeasuredProfile] = {}

    @cached_property
    def fit(self) -> DeviceFit | None:
        """What fleet.file holds; None without it."""
        file = self.experiment.fleet.file
        return read_fit(Path(file)) if file else None

    def of_tier(self, tier: TierSettings, spec: Spec, batch: int) -> Profile:
        """The device of a tier, as it is for training steps of this network."""
        if not is_measured(tier.profile):
            return profile(tier.profile)
        if self.experiment.fleet.file:
            raise SettingsError(
                f"tier.profile = '{tier.profile}' and fleet.file: a client's speed follows from one of them. Leave "
                "fleet.file out, or give a built-in profile (`potluck list profiles`)."
            )
        if tier.profile not in self._measured:
            self._measured[tier.profile] = read_profile(Path(tier.profile))
        found = self._measured[tier.profile]
        return found.at(tier.profile, network_id(spec), step_size(spec, batch, found.block))

    def to_fit(self, tier: TierSettings, spec: Spec, batch: int) -> Profile:
        """The device that a tier with width = "fit" or depth = "fit" must suit: of a fitted fleet, a weak one."""
        like = self.of_tier(tier, spec, batch)
        if self.fit is None:
            return like
        bands = tier_bands({each.name: each.share for each in self.experiment.tier})
        return self.fit.weak_device(like, bands[tier.name])

    def of_tiers(self, tiers: Iterable[Tier], batch: int) -> dict[str, Profile]:
        """The device of each tier, by name."""
        told = {tier.name: tier for tier in self.experiment.tier}
        return {tier.name: self.of_tier(told[tier.name], tier.spec, batch) for tier in tiers}

    def checksums(self) -> dict[str, str]:
        """The files that devices come from, each with a checksum."""
        names = {tier.profile for tier in self.experiment.tier if is_measured(tier.profile)}
        files = sorted(names | ({self.experiment.fleet.file} - {""}))
        return {file: hashlib.sha256(_bytes(Path(file))).hexdigest() for file in files}


def is_measured(name: str) -> bool:
    """Whether tier.profile names a file, and not a built-in profile."""
    return name.endswith(".toml")


def read_profile(path: Path) -> MeasuredProfile:
    """The measured profile in this file."""
    plain, text = toml.parse(_bytes(path), path)
    found = config.parse_settings(MeasuredProfile, plain, str(path), text)
    profile(found.like, f"{path}: like")
    return found


def write_profile(found: MeasuredProfile, path: Path) -> None:
    """Writes a measured profile as TOML."""
    _write(path, toml.write(to_plain(asdict(found))))


def write_fit(fit: DeviceFit, path: Path) -> None:
    """Writes a fitted fleet as JSON."""
    _write(path, json.dumps(to_plain(asdict(fit)), indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as fault:
        raise ResourceError(f"{path}: cannot be written: {fault.strerror}.") from None


def read_fit(path: Path) -> DeviceFit:
    """The fitted fleet in this file."""
    return config.parse_settings(DeviceFit, _json(path), str(path))


def read_list(path: Path) -> DeviceList:
    """The list of devices in this file."""
    return config.parse_settings(DeviceList, _json(path), str(path))


def network_id(spec: Spec) -> str:
    """A checksum of a network without its width and depth."""
    told = [spec.family, to_plain(spec.options)]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def step_size(spec: Spec, batch: int, block: int) -> StepSize:
    """The size of a training step on a batch."""
    zoo = ModelZoo(spec)
    work = zoo.cost(spec, batch)
    flops = max(1, work.flops)
    layers = len(zoo.shapes(spec))
    return StepSize(layers, flops, _aligned(spec, batch, block, flops), work.parameter_bytes, work.activation_bytes)


def _aligned(spec: Spec, batch: int, block: int, flops: int) -> int:
    """The FLOPs if every axis group had a multiple of `block` units; as they are, if no such network can be built."""
    sizes = {group: -(-units // block) * block for group, units in spec.sizes.items()}
    if sizes == dict(spec.sizes):
        return flops
    wider = Spec(spec.family, spec.depth, sizes, spec.options)
    try:
        return max(1, ModelZoo(wider).cost(wider, batch).flops)
    except Exception:  # a network of a user's own may have sizes that go together in no other way
        return flops


def depths(depth: Depth) -> Sequence[Depth]:
    """The depths that depth = "fit" chooses from, deepest first. Of stages, each has at most so many blocks."""
    if isinstance(depth, tuple):
        return [tuple(min(blocks, most) for blocks in depth) for most in range(max(depth), 0, -1)]
    if depth is None:
        raise SettingsError('depth = "fit" needs a network with blocks, and this one has none; leave it out.')
    return list(range(depth, 0, -1))


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise SettingsError(f"{path}: there is no such file. `potluck measure` and `potluck fit-fleet` write them.")
        if path.stat().st_size > (most := MOST_BYTES.get(path.suffix, 10**7)):
            raise SettingsError(f"{path}: is larger than {most / 1e6:,.0f} MB.")
        return path.read_bytes()
    except OSError as fault:
        raise SettingsError(f"{path}: cannot be read: {fault.strerror}.") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_bytes(path))
    except (ValueError, RecursionError):
        raise SettingsError(f"{path}: is no JSON.") from None
    if not isinstance(found, dict):
        raise SettingsError(f"{path}: must hold one JSON object; see docs/devices.md.")
    return found
