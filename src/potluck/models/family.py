"""A family of networks: one architecture, in many widths and depths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from potluck.core import EMPTY, Arrays, Depth, Dimensions, SettingsError, Spec
from potluck.models import options as checks
from potluck.models.layers import layer_axes
from potluck.models.options import MOST_UNITS, Option, Options

Base: TypeAlias = Mapping[str, int]
"""The numbers from which the sizes of all groups follow."""


class Family(ABC):
    """How to build one kind of network, and what its tensors count.

    To add a family, write one file with a subclass and add it to the list in ``families.py``. Tensors are named by
    position, ``body.<block>`` or ``body.<stage>.<position>``. So the names of a shallow network are among a deep one's.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for a list of models."""
    depth: ClassVar[Depth] = None
    """The default depth, which also shows the form of a depth in this family; None: there is only one depth."""
    aliases: ClassVar[Mapping[str, Mapping[str, Any]]] = EMPTY
    """Names of certain members of the family, and the arguments of `make_spec` that each stands for."""
    options: ClassVar[Mapping[str, Option]]
    """The options besides ``input`` and ``classes``; the spec holds them."""
    base: ClassVar[Mapping[str, Option]] = EMPTY
    """Arguments from which the sizes of all groups follow; the spec holds those sizes instead."""
    read_first: ClassVar[Mapping[str, str]] = EMPTY
    """Arguments from which the family takes others before it checks them, and what each means."""
    maps: ClassVar[bool] = True
    """Whether an input is channels x height x width."""
    tokens: ClassVar[bool] = False
    """Whether an input is a row of token ids, whole numbers from 0."""
    class_layers: ClassVar[tuple[str, ...]] = ("head",)
    """The layers with one row for each class: the one that gives the scores; in a language model, also the embedding
    of tokens."""

    @abstractmethod
    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        """Units of each axis group at full width."""

    @abstractmethod
    def net(self, spec: Spec) -> nn.Module:
        """A network of this (complete) spec, with random weights from PyTorch's default generator."""

    def meta_net(self, spec: Spec) -> nn.Module:
        """A network of this (complete) spec on PyTorch's meta device: shapes without storage."""
        with torch.device("meta"):
            return self.net(spec)

    def empty_net(self, spec: Spec, device: torch.device) -> nn.Module:
        """A network of this (complete) spec on a device, whose tensors are still to be filled."""
        return self.meta_net(spec).to_empty(device=device)

    def uncut(self, spec: Spec) -> str:
        """Why networks of this spec cannot be cut in width; empty: they can."""
        return ""

    def needs_numbers(self, spec: Spec) -> bool:
        """Whether the network cannot run on the meta device, where there are shapes and no numbers."""
        return False

    def resolve_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options, with those replaced that follow from others; refuses what the family cannot do."""
        return options

    def check_base(self, base: Base, options: Options) -> None:  # noqa: B027 (most families have nothing to check)
        """Refuse a base that does not go with the options; called only where the sizes follow from the base."""

    def axes(self, spec: Spec, net: nn.Module) -> dict[str, Dimensions]:
        """What each dimension of each tensor counts."""
        return layer_axes(net)

    def blocks(self, spec: Spec) -> tuple[str, ...]:
        """The modules that are blocks of the body, in forward order."""
        if isinstance(spec.depth, tuple):
            return tuple(f"body.{stage}.{place}" for stage, count in enumerate(spec.depth) for place in range(count))
        return tuple(f"body.{place}" for place in range(spec.depth or 0))

    def class_rows(self, spec: Spec) -> tuple[str, ...]:
        """The tensors with one row for each class (or token)."""
        return tuple(name for name in self.meta_net(spec).state_dict() if name.rpartition(".")[0] in self.class_layers)

    def initial_weights(self, spec: Spec) -> Arrays:
        """Tensors that a new network starts from instead of random ones: none, or the pre-trained ones of its spec."""
        return {}

    def spec(self, given: Mapping[str, Any], depth: Depth = None, sizes: Mapping[str, int] | None = None) -> Spec:
        """The complete spec: a value for every option, a size for every group. `given` may hold the base too."""
        given = dict(given)
        base = {
            name: option.check(f"{self.name}: {name}", given.pop(name, option.default))
            for name, option in self.base.items()
        }
        answers = self.resolve_options(self._complete_options(given))
        if sizes is None:
            self.check_base(base, answers)
        depth = checks.check_depth(self.name, self.depth if depth is None else depth, self.depth)
        full = self.groups(depth, base, answers)
        sizes = sizes or {}
        checks.refuse_unknown(self.name, "axis group", sizes, full)
        units = {
            group: checks.check_integer(f"{self.name}: size of '{group}'", sizes.get(group, size), 1, MOST_UNITS)
            for group, size in full.items()
        }
        return Spec(self.name, depth, units, answers)

    def _complete_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        checks.refuse_unknown(self.name, "option", given, ("input", "classes", *self.options, *self.base))
        for needed in ("input", "classes"):
            if needed not in given:
                raise SettingsError(f"{self.name} needs to know '{needed}'.")
        return {
            "input": checks.check_input_shape(self.name, given["input"], self.maps, self.tokens),
            "classes": checks.check_integer(f"{self.name}: classes", given["classes"], 1, MOST_UNITS),
            **{
                name: option.check(f"{self.name}: {name}", given.get(name, option.default))
                for name, option in self.options.items()
            },
        }
