"""Who takes part, on what kind of device, and what the work costs there."""

from potluck.fleet.crew import Crew, Fleet
from potluck.fleet.price import Price, fits, price
from potluck.fleet.profiles import PROFILES, Profile, profile

__all__ = ["PROFILES", "Crew", "Fleet", "Price", "Profile", "fits", "price", "profile"]
