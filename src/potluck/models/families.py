"""The list of families. To add one, write its file and add it here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from potluck.core import Depth, SettingsError
from potluck.models.cnn import CNN
from potluck.models.family import Family
from potluck.models.lenet import LeNet
from potluck.models.mlp import MLP
from potluck.models.options import hint
from potluck.models.resnet import ResNet

FAMILIES: Mapping[str, Family] = MappingProxyType({each.name: each for each in (MLP(), LeNet(), CNN(), ResNet())})


def families() -> Mapping[str, str]:
    """Every name that a model can be asked for by, and what it is."""
    found = {}
    for name, family in FAMILIES.items():
        found[name] = family.about
        for alias, depth in family.aliases.items():
            found[alias] = f"{name} with depth = {_written(depth)}"
    return found


def find(name: str) -> tuple[Family, Depth]:
    """The family of this name, and the depth that the name stands for, if it stands for one."""
    for family in FAMILIES.values():
        if name == family.name:
            return family, None
        if name in family.aliases:
            return family, family.aliases[name]
    raise SettingsError(f"there is no model family '{name}'.{hint(name, families())}")


def _written(depth: Depth) -> str:
    return str(list(depth) if isinstance(depth, tuple) else depth)
