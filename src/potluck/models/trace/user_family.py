"""A user's own network as a family: a factory under a name that server and devices both know. Code is never sent.

A factory is any callable that returns an ``nn.Module``. It gets the options of the spec as arguments, and ``input``
and ``classes`` if it has arguments of these names. The axes are traced. The spec holds their checksum, so a device
whose code prunes in another way refuses the spec.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from potluck.core import Axis, Depth, Dimension, Dimensions, FrozenDict, SettingsError, Spec, freeze, import_own
from potluck.models import options as checks
from potluck.models.family import Base, Family
from potluck.models.options import Options, error_line
from potluck.models.trace.class_rows import class_rows
from potluck.models.trace.traced_module import TracedModule, run_example, trace

Factory: TypeAlias = "Callable[..., nn.Module]"

CHECKSUM = "axes"
"""The option that holds the checksum of the traced axes."""

_registered: dict[str, Family] = {}
REGISTERED: Mapping[str, Family] = MappingProxyType(_registered)
"""Users' families by name. A spec that arrives in a message or a file can name these and no others. So it can never
make a machine import or call what its owner did not choose."""


def register(name: str, factory: Factory | None = None, tokens: bool | None = None) -> None:
    """Register a network under a name; without a factory, the name ``package.module:factory`` says where it is.

    `tokens`: whether an input is a row of token ids (default: the factory's attribute ``tokens``, or False).
    A factory that is passed here exists in this process and in workers forked from it; elsewhere register it again.
    """
    from potluck.models.families import families  # that module imports this one

    if factory is None:
        if name in _registered:
            return
        factory = _import_factory(name)
    old = _registered.get(name)
    if isinstance(old, UserFamily) and old.factory is factory:
        return
    if old is not None or name in families():
        raise SettingsError(f"there is already a model family '{name}'. Register the network under another name.")
    reads_tokens = bool(getattr(factory, "tokens", False)) if tokens is None else tokens
    # A family's name is a class attribute, so each factory gets a class.
    members = {"name": name, "tokens": reads_tokens, "factory": staticmethod(factory)}
    _registered[name] = type("UserFamily", (UserFamily,), members)()


def _import_factory(name: str) -> Factory:
    module, _, path = name.partition(":")
    try:
        found: Any = import_own(module)
        for step in path.split("."):
            found = getattr(found, step)
    except Exception as fault:  # a user's module may raise anything
        raise SettingsError(
            f"model family '{name}': cannot import '{path}' from '{module}' ({error_line(fault)}). "
            "Write package.module:factory, and put the package where Python finds it."
        ) from fault
    if not callable(found):
        raise SettingsError(f"model family '{name}': '{path}' is not a function that makes a network.")
    factory: Factory = found
    return factory


def check(full: Spec, tiers: Iterable[Spec]) -> None:
    """Check a user's own network by numbers at the size of every tier; families declared in Potluck need no check."""
    family = REGISTERED.get(full.family)
    if isinstance(family, UserFamily):
        traced = family.traced_module(full.options)
        cut = [spec for spec in tiers if spec.family == full.family]  # a tier may have another network
        widths = {FrozenDict({group: size / traced.sizes[group] for group, size in spec.sizes.items()}) for spec in cut}
        traced.check(sorted(widths, key=repr))


class UserFamily(Family):
    """The family of one factory. It has one depth; a group is named after the layer that outputs its units."""

    name: ClassVar[str]
    about = "a user's own network, with traced axes"
    options = FrozenDict({})
    factory: ClassVar[Factory]

    def spec(self, given: Mapping[str, Any], depth: Depth = None, sizes: Mapping[str, int] | None = None) -> Spec:
        answers = self._complete_options({name: value for name, value in given.items() if name != CHECKSUM})
        checks.check_depth(self.name, depth, None)
        traced = self.traced_module(answers)
        if given.get(CHECKSUM, traced.checksum) != traced.checksum:
            raise SettingsError(
                f"{self.name}: the network made here is not pruned in the same way as the one that was asked for "
                f"(checksums {traced.checksum[:12]} and {str(given[CHECKSUM])[:12]}). Use the same code on both sides."
            )
        full, sizes = traced.sizes, sizes or {}
        checks.refuse_unknown(self.name, "axis group", sizes, full)
        units = {
            group: checks.check_integer(f"{self.name}: size of '{group}'", sizes.get(group, most), 1, most)
            for group, most in full.items()
        }
        return Spec(self.name, None, units, {**answers, CHECKSUM: traced.checksum})

    def traced_module(self, options: Options) -> TracedModule:
        """The full network of these options with its axes; traced once."""
        return _trace_module(self, FrozenDict({name: value for name, value in options.items() if name != CHECKSUM}))

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        return self.traced_module(options).sizes

    def net(self, spec: Spec) -> nn.Module:
        return self.traced_module(spec.options).prune(self.make(spec.options), spec.sizes)

    def meta_net(self, spec: Spec) -> nn.Module:
        # A factory may compute with numbers, which the meta device does not have; a copy of its network does not.
        traced = self.traced_module(spec.options)
        with torch.device("meta"):
            return traced.prune(copy.deepcopy(traced.net).to("meta"), spec.sizes)

    def axes(self, spec: Spec, net: nn.Module) -> dict[str, Dimensions]:
        axes = self.traced_module(spec.options).axes
        return {name: tuple(_resize(each, spec.sizes) for each in dimensions) for name, dimensions in axes.items()}

    def blocks(self, spec: Spec) -> tuple[str, ...]:
        return ()

    def class_rows(self, spec: Spec) -> tuple[str, ...]:
        return class_rows(self.traced_module(spec.options), int(str(spec.options["classes"])), self.tokens)

    def make(self, options: Options) -> nn.Module:
        """Call the factory: a full network of these options."""
        parameters = self._parameters()
        any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        arguments = {
            name: value
            for name, value in options.items()
            if name != CHECKSUM and (name in parameters or (any_name and name not in ("input", "classes")))
        }
        try:
            net = type(self).factory(**arguments)
        except Exception as fault:  # a user's code may raise anything
            raise SettingsError(f"{self.name} cannot make a network: {error_line(fault)}") from fault
        if not isinstance(net, nn.Module):
            raise SettingsError(f"{self.name} makes a {type(net).__name__}, not an nn.Module.")
        return net

    def _complete_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of the factory, with its default where it is not given."""
        parameters = self._parameters()
        for needed in ("input", "classes"):
            if needed not in given:
                raise SettingsError(f"{self.name} needs to know '{needed}'.")
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            checks.refuse_unknown(self.name, "option", given, ("input", "classes", *parameters))
        defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
        plain = {name: freeze(value) for name, value in defaults.items() if _is_plain(value)}
        return {
            **plain,
            **{name: freeze(value) for name, value in given.items()},
            "input": checks.check_input_shape(self.name, given["input"], maps=False, tokens=self.tokens),
            "classes": checks.check_integer(f"{self.name}: classes", given["classes"], 1, checks.MOST_UNITS),
        }

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(type(self).factory).parameters


@lru_cache(maxsize=64)
def _trace_module(family: UserFamily, options: FrozenDict[Any]) -> TracedModule:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(0)
        net = family.make(options)
        shape = (2, *options["input"])
        example = torch.zeros(shape, dtype=torch.long) if family.tokens else torch.randn(shape)
    try:
        _refuse_wrong_classes(run_example(net, (example,)), options["classes"])
        return trace(net, example)
    except SettingsError as fault:
        raise SettingsError(f"{family.name}: {fault}") from fault


def _refuse_wrong_classes(output: object, classes: int) -> None:
    if not isinstance(output, Tensor):
        raise SettingsError(f"it returns a {type(output).__name__}; a network must return one tensor of scores.")
    if classes not in output.shape[1:]:
        raise SettingsError(f"it returns scores of shape {list(output.shape)}, which has no classes = {classes}.")


def _resize(dimension: Dimension, sizes: Mapping[str, int]) -> Dimension:
    if isinstance(dimension, Axis):
        return Axis(dimension.group, sizes[dimension.group], dimension.outer, dimension.inner)
    if dimension is None:
        return None
    return tuple(Axis(axis.group, sizes[axis.group], axis.outer, axis.inner) for axis in dimension)


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
