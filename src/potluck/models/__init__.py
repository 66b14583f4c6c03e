"""Network families with declared axes, and the zoo that builds, cuts and prices them."""

from potluck.models.families import families
from potluck.models.family import Family
from potluck.models.folder import load, save
from potluck.models.options import Option
from potluck.models.own import check, register
from potluck.models.specs import complete, make_spec, portion, tier_spec
from potluck.models.trace import Traced, trace
from potluck.models.zoo import ModelZoo

__all__ = [
    "Family", "ModelZoo", "Option", "Traced", "check", "complete", "families", "load", "make_spec", "portion",
    "register", "save", "tier_spec", "trace",
]  # fmt: skip
