"""A user's own network as a family: a factory under a name that both sides know. Code is never sent.

A factory is any callable that returns an ``nn.Module``. It is asked with the options of the spec; ``input`` and
``classes`` are handed in where it takes arguments of these names. Its axes are traced, and their checksum stays in the
spec, so a device whose code cuts otherwise refuses the spec.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from potluck.core import Axis, Depth, Dimension, Dimensions, FrozenDict, SettingsError, Spec, freeze
from potluck.models import options as checks
from potluck.models import suitable
from potluck.models.family import Base, Family
from potluck.models.options import Options
from potluck.models.trace import Traced, trace

Factory: TypeAlias = "Callable[..., nn.Module]"

CHECKSUM = "axes"
"""The option that holds the checksum of the traced axes."""

_known: dict[str, Family] = {}
REGISTERED: Mapping[str, Family] = MappingProxyType(_known)
"""Own families by name. A spec that arrives in a message or a file can name these and no others, so that it can never
make a machine import or call what its owner did not choose."""


def register(name: str, factory: Factory | None = None, tokens: bool | None = None) -> None:
    """Make a network known under a name; without a factory, the name ``package.module:factory`` says where it is.

    `tokens`: whether an input is a row of token ids (unless said, the factory's attribute ``tokens``, or False).
    A factory that is handed in lives in this process and in workers forked from it; elsewhere register it again.
    """
    from potluck.models.families import families  # that module imports this one

    if factory is None:
        if name in _known:
            return
        factory = _imported(name)
    old = _known.get(name)
    if isinstance(old, Own) and old.factory is factory:
        return
    if old is not None or name in families():
        raise SettingsError(f"there is already a model family '{name}'. Register the network under another name.")
    wants_tokens = bool(getattr(factory, "tokens", False)) if tokens is None else tokens
    # A family's name belongs to its class, so each gets one.
    _known[name] = type("Own", (Own,), {"name": name, "tokens": wants_tokens, "factory": staticmethod(factory)})()


def _imported(name: str) -> Factory:
    module, _, place = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for step in place.split("."):
            found = getattr(found, step)
    except Exception as fault:  # a user's module may raise anything
        raise SettingsError(
            f"model family '{name}': cannot import '{place}' from '{module}' ({suitable.brief(fault)}). "
            "Write package.module:factory, and put the package where Python finds it."
        ) from fault
    if not callable(found):
        raise SettingsError(f"model family '{name}': '{place}' is not a function that makes a network.")
    factory: Factory = found
    return factory


class Own(Family):
    """The family of one factory. There is one depth; groups are named after the layer that makes their units."""

    name: ClassVar[str]
    about = "a network of one's own, with traced axes"
    options = FrozenDict({})
    factory: ClassVar[Factory]

    def spec(self, given: Mapping[str, Any], depth: Depth = None, sizes: Mapping[str, int] | None = None) -> Spec:
        answered = self._answers({name: value for name, value in given.items() if name != CHECKSUM})
        checks.blocks(self.name, depth, None)
        traced = self.traced(answered)
        if given.get(CHECKSUM, traced.checksum) != traced.checksum:
            raise SettingsError(
                f"{self.name}: the network made here is cut otherwise than the one that was asked for (checksums "
                f"{traced.checksum[:12]} and {str(given[CHECKSUM])[:12]}). Use the same code on both sides."
            )
        full, sizes = traced.sizes, sizes or {}
        checks.refuse_unknown(self.name, "axis group", sizes, full)
        units = {
            group: checks.whole(f"{self.name}: size of '{group}'", sizes.get(group, most), 1, most)
            for group, most in full.items()
        }
        return Spec(self.name, None, units, {**answered, CHECKSUM: traced.checksum})

    def traced(self, options: Options) -> Traced:
        """The full network of these options with its axes; traced once."""
        return _traced(self, FrozenDict({name: value for name, value in options.items() if name != CHECKSUM}))

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        return self.traced(options).sizes

    def net(self, spec: Spec) -> nn.Module:
        traced = self.traced(spec.options)
        # A factory may compute with numbers that the meta device does not have; a copy of its network does not.
        shapes_only = torch.empty(0).device.type == "meta"
        net = copy.deepcopy(traced.net).to("meta") if shapes_only else self.make(spec.options)
        return traced.carve(net, spec.sizes)

    def axes(self, spec: Spec, net: nn.Module) -> dict[str, Dimensions]:
        axes = self.traced(spec.options).axes
        return {name: tuple(_sized(each, spec.sizes) for each in dimensions) for name, dimensions in axes.items()}

    def blocks(self, spec: Spec) -> tuple[str, ...]:
        return ()

    def make(self, options: Options) -> nn.Module:
        """A full network, by the factory."""
        taken = self._parameters()
        loose = any(each.kind is each.VAR_KEYWORD for each in taken.values())
        arguments = {
            name: value
            for name, value in options.items()
            if name != CHECKSUM and (name in taken or (loose and name not in ("input", "classes")))
        }
        try:
            net = type(self).factory(**arguments)
        except Exception as fault:  # a user's code may raise anything
            raise SettingsError(f"{self.name} cannot make a network: {suitable.brief(fault)}") from fault
        if not isinstance(net, nn.Module):
            raise SettingsError(f"{self.name} makes a {type(net).__name__}, not an nn.Module.")
        return net

    def _answers(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of the factory, with its default where it is not given."""
        taken = self._parameters()
        for needed in ("input", "classes"):
            if needed not in given:
                raise SettingsError(f"{self.name} needs to know '{needed}'.")
        if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            checks.refuse_unknown(self.name, "option", given, ("input", "classes", *taken))
        defaults = {name: each.default for name, each in taken.items() if each.default is not each.empty}
        plain = {name: freeze(value) for name, value in defaults.items() if _is_plain(value)}
        return {
            **plain,
            **{name: freeze(value) for name, value in given.items()},
            "input": checks.input_shape(self.name, given["input"], maps=False, tokens=self.tokens),
            "classes": checks.whole(f"{self.name}: classes", given["classes"], 1, checks.MOST_UNITS),
        }

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(type(self).factory).parameters


@lru_cache(maxsize=64)
def _traced(family: Own, options: FrozenDict[Any]) -> Traced:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(0)
        net = family.make(options)
        shape = (2, *options["input"])
        example = torch.zeros(shape, dtype=torch.long) if family.tokens else torch.randn(shape)
    try:
        _refuse_wrong_classes(suitable.run(net, (example,)), options["classes"])
        return trace(net, example)
    except SettingsError as fault:
        raise SettingsError(f"{family.name}: {fault}") from fault


def check(full: Spec, narrow: Iterable[Spec]) -> None:
    """The door check, at every tier's size, of a network of one's own; declared families need none."""
    family = REGISTERED.get(full.family)
    if isinstance(family, Own):
        traced = family.traced(full.options)
        cut = [spec for spec in narrow if spec.family == full.family]  # a tier may have another network
        widths = {FrozenDict({group: size / traced.sizes[group] for group, size in spec.sizes.items()}) for spec in cut}
        traced.check(sorted(widths, key=repr))


def _refuse_wrong_classes(output: object, classes: int) -> None:
    if not isinstance(output, Tensor):
        raise SettingsError(f"it returns a {type(output).__name__}; a network must return one tensor of scores.")
    if classes not in output.shape[1:]:
        raise SettingsError(f"it returns scores of shape {list(output.shape)}, which has no classes = {classes}.")


def _sized(dimension: Dimension, sizes: Mapping[str, int]) -> Dimension:
    if isinstance(dimension, Axis):
        return Axis(dimension.group, sizes[dimension.group], dimension.outer, dimension.inner)
    if dimension is None:
        return None
    return tuple(Axis(axis.group, sizes[axis.group], axis.outer, axis.inner) for axis in dimension)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
