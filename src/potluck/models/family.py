"""A family of networks: one shape, in many widths and depths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

from torch import nn

from potluck.core import EMPTY, Arrays, Depth, Dimensions, SettingsError, Spec
from potluck.models import options
from potluck.models.layers import declared
from potluck.models.options import MOST_UNITS, Option, Options, refuse_unknown

Base: TypeAlias = Mapping[str, int]
"""The numbers from which the sizes of all groups follow."""


class Family(ABC):
    """How to build one kind of network, and what its tensors count.

    To add a family, write one file with a subclass and add it to the list in ``families.py``. Tensors are named by
    place, ``body.<block>`` or ``body.<stage>.<position>``, so that a shallow network's names are among a deep one's.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for a list of models."""
    depth: ClassVar[Depth] = None
    """Blocks unless said otherwise, which also says what a depth looks like here; None: there is only one."""
    aliases: ClassVar[Mapping[str, Mapping[str, Any]]] = EMPTY
    """Names for certain members of the family: what `make_spec` would have to be given, ``depth`` among it."""
    options: ClassVar[Mapping[str, Option]]
    """What the network is asked besides ``input`` and ``classes``; kept in its spec."""
    base: ClassVar[Mapping[str, Option]] = EMPTY
    """Arguments from which the sizes of all groups follow; kept in its spec as those sizes."""
    maps: ClassVar[bool] = True
    """Whether an input is channels x height x width."""
    tokens: ClassVar[bool] = False
    """Whether an input is a row of token ids, whole numbers from 0."""

    @abstractmethod
    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        """Units of each axis group at full width."""

    @abstractmethod
    def net(self, spec: Spec) -> nn.Module:
        """A network of this (complete) spec, with random weights from torch's own generator."""

    def settle(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options that depend on each other, made definite; refuses what the family cannot do."""
        return options

    def agree(self, base: Base, options: Options) -> Base:
        """The base, if it goes with the options; asked only where sizes follow from it, not where they are given."""
        return base

    def axes(self, spec: Spec, net: nn.Module) -> dict[str, Dimensions]:
        """What each dimension of each tensor counts."""
        return declared(net)

    def blocks(self, spec: Spec) -> tuple[str, ...]:
        """The body's blocks in forward order."""
        if isinstance(spec.depth, tuple):
            return tuple(f"body.{stage}.{place}" for stage, count in enumerate(spec.depth) for place in range(count))
        return tuple(f"body.{place}" for place in range(spec.depth or 0))

    def start(self, spec: Spec) -> Arrays:
        """What a newborn network starts from instead of random weights: none, or those that its spec names."""
        return {}

    def spec(self, given: Mapping[str, Any], depth: Depth = None, sizes: Mapping[str, int] | None = None) -> Spec:
        """The complete spec of these options: every option answered, every group named. `given` may hold the base."""
        given = dict(given)
        base = {
            name: option.check(f"{self.name}: {name}", given.pop(name, option.default))
            for name, option in self.base.items()
        }
        answered = self.settle(self._answers(given))
        if sizes is None:
            base = dict(self.agree(base, answered))
        deep = options.blocks(self.name, self.depth if depth is None else depth, self.depth)
        full = self.groups(deep, base, answered)
        sizes = sizes or {}
        refuse_unknown(self.name, "axis group", sizes, full)
        units = {
            group: options.whole(f"{self.name}: size of '{group}'", sizes.get(group, size), 1, MOST_UNITS)
            for group, size in full.items()
        }
        return Spec(self.name, deep, units, answered)

    def _answers(self, given: Mapping[str, Any]) -> dict[str, Any]:
        refuse_unknown(self.name, "option", given, ("input", "classes", *self.options, *self.base))
        for needed in ("input", "classes"):
            if needed not in given:
                raise SettingsError(f"{self.name} needs to know '{needed}'.")
        return {
            "input": options.input_shape(self.name, given["input"], self.maps, self.tokens),
            "classes": options.whole(f"{self.name}: classes", given["classes"], 1, MOST_UNITS),
            **{
                name: option.check(f"{self.name}: {name}", given.get(name, option.default))
                for name, option in self.options.items()
            },
        }
