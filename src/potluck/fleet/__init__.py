"""The clients: who takes part in a round, on what kind of device, and what the work costs there."""

from potluck.fleet.devices import DeviceFit, DeviceList, fit_devices
from potluck.fleet.draw import Draw, Odds, odds, tier_sizes
from potluck.fleet.measured import MeasuredProfile, MeasuredStep, StepSize
from potluck.fleet.population import Clients, Fleet, Population, tier_ends
from potluck.fleet.price import (
    Budget,
    Cut,
    Price,
    Requirements,
    fits,
    largest_that_fits,
    needed_memory,
    price,
    requirements,
)
from potluck.fleet.profiles import PROFILES, Profile, profile

__all__ = [
    "PROFILES", "Budget", "Clients", "Cut", "DeviceFit", "DeviceList", "Draw", "Fleet", "MeasuredProfile",
    "MeasuredStep", "Odds", "Population", "Price", "Profile", "Requirements", "StepSize", "fit_devices", "fits",
    "largest_that_fits", "needed_memory", "odds", "price", "profile", "requirements", "tier_ends", "tier_sizes",
]  # fmt: skip
