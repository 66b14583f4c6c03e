"""The list of families. To add one, write its file and add it here."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from potluck.core import EMPTY, SettingsError, suggestion
from potluck.models.bert import Bert
from potluck.models.cnn import CNN, DeviceCNN
from potluck.models.family import Family
from potluck.models.lenet import LeNet
from potluck.models.mlp import MLP
from potluck.models.mobilenet import MobileNetV2
from potluck.models.preresnet import PreResNet
from potluck.models.resnet import ResNet
from potluck.models.trace import REGISTERED, register
from potluck.models.transformer import Transformer

LISTED = (MLP(), LeNet(), CNN(), DeviceCNN(), ResNet(), PreResNet(), MobileNetV2(), Transformer(), Bert())

FAMILIES: Mapping[str, Family] = MappingProxyType(
    ChainMap({each.name: each for each in LISTED}, cast("dict[str, Family]", REGISTERED))
)
"""The families listed here, and those that users register."""


def families() -> Mapping[str, str]:
    """Every name of a listed model, and what it is."""
    found = {}
    for family in LISTED:
        name = family.name
        found[name] = family.about
        for alias, arguments in family.aliases.items():
            settings = (f"{argument} = {_text(value)}" for argument, value in arguments.items())
            found[alias] = f"{name} with {', '.join(settings)}"
    return found


def find(name: str) -> tuple[Family, Mapping[str, Any]]:
    """The family of this name, and the arguments that the name stands for.

    A name ``package.module:factory`` is imported. So only settings may come here, never a message from another machine.
    """
    if ":" in name:
        register(name)
    for family in FAMILIES.values():
        if name == family.name:
            return family, EMPTY
        if name in family.aliases:
            return family, family.aliases[name]
    raise SettingsError(f"there is no model family '{name}'.{suggestion(name, families())}")


def _text(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
