"""Network families with declared axes, and the zoo that builds, cuts and prices them."""

from potluck.models.families import families
from potluck.models.family import Family
from potluck.models.folder import load, save
from potluck.models.menagerie import Menagerie
from potluck.models.options import Option
from potluck.models.own import check, register
from potluck.models.specs import complete, make_spec, portion, tier_spec
from potluck.models.trace import Traced, trace

__all__ = [
    "Family", "Menagerie", "Option", "Traced", "check", "complete", "families", "load", "make_spec", "portion",
    "register", "save", "tier_spec", "trace",
]  # fmt: skip
