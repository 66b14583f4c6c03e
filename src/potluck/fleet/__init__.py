"""The clients: who takes part in a round, on what kind of device, and what the work costs there."""

from potluck.fleet.population import Clients, Fleet, Population
from potluck.fleet.price import Budget, Price, Requirements, fits, price, requirements, widest_that_fits
from potluck.fleet.profiles import PROFILES, Profile, profile

__all__ = [
    "PROFILES", "Budget", "Clients", "Fleet", "Population", "Price", "Profile", "Requirements", "fits", "price",
    "profile", "requirements", "widest_that_fits",
]  # fmt: skip
