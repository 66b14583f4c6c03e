"""Network families with their axis groups, and the zoo that builds, cuts and prices them."""

from potluck.models.families import families
from potluck.models.family import Family
from potluck.models.folder import load, save
from potluck.models.options import Option, portion
from potluck.models.specs import complete, make_spec, tier_spec, uncut, widths_by_group
from potluck.models.trace import TracedModule, check, register, trace
from potluck.models.zoo import ModelZoo

__all__ = [
    "Family", "ModelZoo", "Option", "TracedModule", "check", "complete", "families", "load", "make_spec", "portion",
    "register", "save", "tier_spec", "trace", "uncut", "widths_by_group",
]  # fmt: skip
