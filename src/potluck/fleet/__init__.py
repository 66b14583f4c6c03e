"""Who takes part, on what kind of device, and what the work costs there."""

from potluck.fleet.population import Fleet, Population
from potluck.fleet.price import Budget, Need, Price, fit, fits, need, price
from potluck.fleet.profiles import PROFILES, Profile, profile

__all__ = [
    "PROFILES", "Budget", "Fleet", "Need", "Population", "Price", "Profile", "fit", "fits", "need", "price", "profile",
]  # fmt: skip
