"""Network families with declared axes, and the zoo that builds, cuts and prices them."""

from potluck.models.families import families
from potluck.models.family import Family
from potluck.models.folder import load, save
from potluck.models.menagerie import Menagerie
from potluck.models.options import Option
from potluck.models.specs import complete, make_spec, portion, tier_spec

__all__ = [
    "Family", "Menagerie", "Option", "complete", "families", "load", "make_spec", "portion", "save", "tier_spec",
]  # fmt: skip
