"""A user's own network as a family: a factory under a name that server and devices both know. Code is never sent.

A factory is any callable that returns an ``nn.Module``. It gets the options of the spec as arguments, and ``input``
and ``classes`` if it has arguments of these names. The axes are traced. The spec holds their checksum, so a device
whose code prunes in another way refuses the spec. A module that cannot be traced takes part whole.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from potluck.core import (
    Axis,
    Depth,
    Dimension,
    Dimensions,
    FrozenDict,
    ResourceError,
    SettingsError,
    Spec,
    freeze,
    import_own,
)
from potluck.models import options as checks
from potluck.models.family import Base, Family
from potluck.models.options import Options, error_line
from potluck.models.trace.class_rows import class_rows
from potluck.models.trace.declared import declared_axes, declared_module
from potluck.models.trace.depth import check_blocks, shallow_module
from potluck.models.trace.traced_module import (
    TracedModule,
    hidden_tensors,
    meta_copy,
    refuse_data_dependence,
    refuse_shared,
    run_example,
    trace,
    uncut_module,
)

Factory: TypeAlias = "Callable[..., nn.Module]"

CHECKSUM = "axes"
"""The option that holds the checksum of the traced axes."""
CUT_HEADS = "cut_heads"
"""The option that says how attention is cut: ``width`` (every head keeps the same units) or ``whole`` (heads)."""
BLOCKS = "blocks"
"""The option that names the list of blocks in a network, a dotted path such as ``encoder.layer``; depth counts them."""

HEADS = checks.Option("width", "how attention is cut", choices=("width", "whole"))

_registered: dict[str, Family] = {}
REGISTERED: Mapping[str, Family] = MappingProxyType(_registered)
"""Users' families by name. A spec that arrives in a message or a file can name these and no others. So it can never
make a machine import or call what its owner did not choose."""


def register(name: str, factory: Factory | None = None, tokens: bool | None = None, *, replace: bool = False) -> None:
    """Register a network under a name; without a factory, the name ``package.module:factory`` says where it is.

    `tokens`: whether an input is a row of token ids (default: the factory's attribute ``tokens``, or False).
    `replace`: whether it may take the place of another factory of this name, such as a notebook's cell that ran again.
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
    if (old is not None and not replace) or name in families():
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
        cut = [spec for spec in tiers if spec.family == full.family]  # a tier may have another network
        for depth in dict.fromkeys(spec.depth for spec in cut):
            traced = family.traced_module(full.options, depth)
            sizes = [spec.sizes for spec in cut if spec.depth == depth]
            widths = {FrozenDict({group: size / traced.sizes[group] for group, size in each.items()}) for each in sizes}
            traced.check(sorted(widths, key=repr))


class UserFamily(Family):
    """The family of one factory. A group is named after the layer that outputs its units.

    It has one depth, unless ``blocks`` names the list of its blocks.
    """

    name: ClassVar[str]
    about = "a user's own network, with traced axes"
    options = FrozenDict({})
    factory: ClassVar[Factory]

    def spec(self, given: Mapping[str, Any], depth: Depth = None, sizes: Mapping[str, int] | None = None) -> Spec:
        answers = self._complete_options({name: value for name, value in given.items() if name != CHECKSUM})
        whole = self.traced_module(answers)
        depth = check_blocks(self.name, whole.net, self._blocks(answers), depth)
        traced = self.traced_module(answers, depth)
        if given.get(CHECKSUM, whole.checksum) != whole.checksum:
            raise SettingsError(
                f"{self.name}: the network made here is not pruned in the same way as the one that was asked for "
                f"(checksums {whole.checksum[:12]} and {str(given[CHECKSUM])[:12]}). Use the same code on both sides."
            )
        full, sizes = traced.sizes, sizes or {}
        checks.refuse_unknown(self.name, "axis group", sizes, full)
        units = {
            group: checks.check_integer(f"{self.name}: size of '{group}'", sizes.get(group, most), 1, most)
            for group, most in full.items()
        }
        return Spec(self.name, depth, units, {**answers, CHECKSUM: whole.checksum})

    def traced_module(self, options: Options, depth: Depth = None) -> TracedModule:
        """The network of these options with its axes, at this depth (None: full); traced once."""
        plain = FrozenDict({name: value for name, value in options.items() if name != CHECKSUM})
        return _trace_module(self, plain) if depth is None else _trace_shallow(self, plain, depth)

    def groups(self, depth: Depth, base: Base, options: Options) -> dict[str, int]:
        return self.traced_module(options, depth).sizes

    def net(self, spec: Spec) -> nn.Module:
        net = shallow_module(self.make(spec.options), self._blocks(spec.options), spec.depth)
        return self.traced_module(spec.options, spec.depth).prune(net, spec.sizes)

    def empty_net(self, spec: Spec, device: torch.device) -> nn.Module:
        traced = self.traced_module(spec.options, spec.depth)
        if not hidden_tensors(traced.net):
            return super().empty_net(spec, device)
        return traced.build(spec.sizes).to(device)  # tensors outside the state dict keep the factory's numbers

    def uncut(self, spec: Spec) -> str:
        return self.traced_module(spec.options).uncut

    def needs_numbers(self, spec: Spec) -> bool:
        return self.traced_module(spec.options).needs_numbers

    def meta_net(self, spec: Spec) -> nn.Module:
        # A factory may compute with numbers, which the meta device does not have; a copy of its network does not.
        traced = self.traced_module(spec.options, spec.depth)
        with torch.device("meta"):
            return traced.prune(meta_copy(traced.net), spec.sizes)

    def axes(self, spec: Spec, net: nn.Module) -> dict[str, Dimensions]:
        axes = self.traced_module(spec.options, spec.depth).axes
        return {name: tuple(_resize(each, spec.sizes) for each in dimensions) for name, dimensions in axes.items()}

    def blocks(self, spec: Spec) -> tuple[str, ...]:
        return tuple(f"{spec.options[BLOCKS]}.{place}" for place in range(int(str(spec.depth or 0))))

    def class_rows(self, spec: Spec) -> tuple[str, ...]:
        return class_rows(self.traced_module(spec.options, spec.depth), int(str(spec.options["classes"])), self.tokens)

    def make(self, options: Options) -> nn.Module:
        """Call the factory: a full network of these options."""
        parameters = self._parameters()
        any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        arguments = {
            name: value
            for name, value in options.items()
            if name != CHECKSUM
            and (name in parameters or (any_name and name not in ("input", "classes", *self._read_here())))
        }
        try:
            net = type(self).factory(**arguments)
        except ResourceError:
            raise
        except Exception as fault:  # a user's code may raise anything
            raise SettingsError(f"{self.name} cannot make a network: {error_line(fault)}") from fault
        if not isinstance(net, nn.Module):
            raise SettingsError(f"{self.name} makes a {type(net).__name__}, not an nn.Module.")
        if any(is_lazy(each) for each in (*net.parameters(), *net.buffers())):
            self._fill_lazy_layers(net, options)
        return net

    def _fill_lazy_layers(self, net: nn.Module, options: Options) -> None:
        """Runs the network once, so that layers such as ``nn.LazyLinear`` get their size."""
        shape: Any = options["input"]
        example = torch.zeros(2, *shape, dtype=torch.long if self.tokens else torch.float)
        modes = {module: module.training for module in net.modules()}
        try:
            with torch.no_grad():
                net.eval()(example)
        except Exception as fault:  # a user's code may raise anything
            raise SettingsError(f"{self.name} has lazy layers, and cannot run: {error_line(fault)}") from fault
        for module, mode in modes.items():
            module.training = mode

    def _complete_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of the factory, with its default where it is not given."""
        parameters = self._parameters()
        for needed in ("input", "classes"):
            if needed not in given:
                raise SettingsError(f"{self.name} needs to know '{needed}'.")
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            known = ("input", "classes", *parameters, *self._read_here())
            checks.refuse_unknown(self.name, "option", given, known)
        defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}
        plain = {name: freeze(value) for name, value in defaults.items() if _is_plain(value)}
        if CUT_HEADS in self._read_here():
            HEADS.check(f"{self.name}: {CUT_HEADS}", given.get(CUT_HEADS, HEADS.default))
        attributes = {name: getattr(type(self).factory, name, None) for name in self._read_here()}
        return {
            **plain,
            **{name: freeze(value) for name, value in attributes.items() if value is not None},
            **{name: freeze(value) for name, value in given.items()},
            "input": checks.check_input_shape(self.name, given["input"], maps=False, tokens=self.tokens),
            "classes": checks.check_integer(f"{self.name}: classes", given["classes"], 1, checks.MOST_UNITS),
        }

    def _blocks(self, options: Options) -> Any:
        """The path of the list of blocks; None: the network has one depth."""
        return options.get(BLOCKS) if BLOCKS in self._read_here() else None

    def _read_here(self) -> tuple[str, ...]:
        """Options that are not for the factory. One that the factory has as an argument is the factory's."""
        return tuple(name for name in (BLOCKS, CUT_HEADS) if name not in self._parameters())

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(type(self).factory).parameters


@lru_cache(maxsize=64)
def _trace_module(family: UserFamily, options: FrozenDict[Any]) -> TracedModule:
    net = _make_seeded(family, options, seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        shape = (2, *options["input"])
        example = _tokens(shape, options) if family.tokens else torch.randn(shape)
    try:
        refuse_shared(net)
        if hidden_tensors(net):
            _refuse_random(net, _make_seeded(family, options, seed=1))
        _refuse_wrong_classes(run_example(net, (example,)), options["classes"])
        if (axes := declared_axes(type(family).factory, net)) is not None:
            return declared_module(net, example, axes)
    except SettingsError as fault:
        raise SettingsError(f"{family.name}: {fault}") from fault
    heads = options.get(CUT_HEADS, "width") if CUT_HEADS in family._read_here() else "width"
    return _trace_or_leave_whole(net, example, heads)


def _tokens(shape: tuple[int, ...], options: Options) -> Tensor:
    """Rows of token ids: different ones, so that attention counts, and no padding, if the vocabulary is known."""
    vocab, pad = options.get("vocab"), options.get("pad", 0)
    if not isinstance(vocab, int) or vocab < 3:
        return torch.zeros(shape, dtype=torch.long)
    known = torch.tensor([token for token in range(min(vocab, 100)) if token != pad])
    return known[torch.arange(math.prod(shape)) % len(known)].view(shape)


def _make_seeded(family: UserFamily, options: Options, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        return family.make(options)


def _trace_or_leave_whole(net: nn.Module, example: Tensor, cut_heads: Any) -> TracedModule:
    """The module with its axes; without any if it cannot be traced, and then with the reason."""
    try:
        refuse_data_dependence(net, (example,))
    except SettingsError as fault:
        return uncut_module(net, example, _one_line(fault), needs_numbers=True)
    try:
        return trace(net, example, cut_heads)
    except SettingsError as fault:
        return uncut_module(net, example, _one_line(fault))


def _one_line(fault: SettingsError) -> str:
    return " ".join(str(fault).split())


@lru_cache(maxsize=64)
def _trace_shallow(family: UserFamily, options: FrozenDict[Any], depth: Depth) -> TracedModule:
    whole = _trace_module(family, options)
    net = shallow_module(copy.deepcopy(whole.net), family._blocks(options), depth)
    try:
        run_example(net, whole.example)
    except SettingsError as fault:
        raise SettingsError(f"{family.name}: with depth = {depth}, {fault}") from fault
    return whole.of_tensors(net)


def _refuse_random(net: nn.Module, other: nn.Module) -> None:
    """Refuse tensors outside the state dict that are random: every device would have others."""
    others = hidden_tensors(other)
    for name, tensor in hidden_tensors(net).items():
        if name not in others or not torch.equal(tensor, others[name]):
            raise SettingsError(
                f"the buffer '{name}' is not in the state dict (persistent=False), so it is never sent, and it is "
                "random. Make it persistent."
            )


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
