"""Specs: made from names, cut in width and depth. Every spec made here is complete, so equal networks are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from potluck.core import Depth, Plain, SettingsError, Spec, freeze, suggestion, to_plain
from potluck.models import options as checks
from potluck.models.families import FAMILIES, find
from potluck.models.meta_device import classifier, shapes
from potluck.models.projection import PROJECTION, without_projection


def make_spec(
    name: str, *, input: Any, classes: int, depth: Any = None, width: int | None = None, **options: Any
) -> Spec:
    """The spec of a named model, such as ``mlp`` or ``resnet18``.

    `input` is the shape of one example; `depth` the number of blocks (one per stage where there are stages); `width`
    the channels that the family starts from (a whole number, not a ratio). The families' docstrings list the rest.
    """
    family, named = find(name)
    for argument, value in (("depth", depth), ("width", width)):
        if value is not None:
            options[argument] = freeze(value)
    for argument, value in named.items():
        if options.setdefault(argument, value) != value:
            raise SettingsError(
                f"{name} has the {argument} {to_plain(value)}; for {argument} = {options[argument]!r} "
                f"ask for '{family.name}'."
            )
    depth = options.pop("depth", None)
    return family.spec({"input": input, "classes": classes, **options}, depth)


def complete(spec: Spec) -> Spec:
    """The same network with a value for every option and a size for every group; refuses what cannot be built."""
    if "_complete" in spec.__dict__:  # faster than a look into the cache, which compares specs
        return spec
    found = _complete_uncached(spec)
    object.__setattr__(found, "_complete", True)
    return found


@lru_cache(maxsize=1024)
def _complete_uncached(spec: Spec) -> Spec:
    if spec.family not in FAMILIES:
        raise SettingsError(f"there is no model family '{spec.family}'.{suggestion(spec.family, FAMILIES)}")
    bare = without_projection(spec)
    found = FAMILIES[spec.family].spec(bare.options, spec.depth, spec.sizes)
    return found if bare is spec else _add_projection(found, spec.options[PROJECTION])


def narrow(spec: Spec, width: float | Mapping[str, float]) -> Spec:
    """The spec with this share of each group's units, rounded up; groups that a mapping does not name stay full."""
    spec = complete(spec)
    _refuse_uncut(spec, width)
    if isinstance(width, Mapping):
        checks.refuse_unknown(spec.family, "axis group", width, spec.sizes)
        ratios = {group: checks.check_ratio(f"width of '{group}'", width.get(group, 1.0)) for group in spec.sizes}
    else:
        ratios = dict.fromkeys(spec.sizes, checks.check_ratio("width", width))
    sizes = {group: checks.portion(units, ratios[group]) for group, units in spec.sizes.items()}
    return Spec(spec.family, spec.depth, sizes, spec.options)


def uncut(spec: Spec) -> str:
    """Why this network cannot be cut in width; empty: it can."""
    return FAMILIES[spec.family].uncut(without_projection(spec))


def _refuse_uncut(spec: Spec, width: float | Mapping[str, float]) -> None:
    """Refuse a width below 1 for a network that cannot be cut."""
    if (width != 1 or isinstance(width, Mapping)) and (why := uncut(spec)):
        raise SettingsError(f"'{spec.family}' cannot be cut in width, so leave width out: {why}")


def widths_by_group(spec: Spec, width: float | Mapping[str, float]) -> float | Mapping[str, float]:
    """The widths with every name that holds a ``*`` replaced by the axis groups that it stands for.

    >>> full = make_spec("mlp", input=(2,), classes=2, depth=1)
    >>> widths_by_group(full, {"hidden*": 0.5})
    {'hidden0': 0.5, 'hidden1': 0.5}
    """
    if not isinstance(width, Mapping):
        return width
    _refuse_uncut(spec, width)
    groups = complete(spec).sizes
    named = {name: [group for group in groups if fnmatchcase(group, name)] for name in width}
    checks.refuse_unknown(spec.family, "axis group", [name for name, found in named.items() if not found], groups)
    return {group: width[name] for name, found in named.items() for group in found}


def shallow(spec: Spec, depth: Any) -> Spec:
    """The spec with the first `depth` blocks (of each stage) only; None: with all of them."""
    spec = complete(spec)
    if depth is None:
        return spec
    new_depth = checks.check_depth(spec.family, depth, spec.depth)
    if any(new > old for new, old in zip(_block_counts(new_depth), _block_counts(spec.depth), strict=True)):
        raise SettingsError(f"{spec.family}: depth = {depth!r} is deeper than the {spec.depth} there are.")
    family = FAMILIES[spec.family]
    groups = family.groups(new_depth, dict.fromkeys(family.base, 1), spec.options)
    return Spec(spec.family, new_depth, {group: spec.sizes[group] for group in groups}, spec.options)


def with_scaler(spec: Spec, ratio: float | Mapping[str, float]) -> Spec:
    """The spec whose layers divide by this ratio of widths in training, if its family has such scalers.

    With a ratio for each axis group, a layer divides by that of its outputs; groups that are not named have ratio 1.
    """
    spec = complete(spec)
    if isinstance(ratio, Mapping):
        checks.refuse_unknown(spec.family, "axis group", ratio, spec.sizes)
    return _with_options(spec, scaler=ratio)


@lru_cache(maxsize=1024)
def with_projection(spec: Spec, features: int) -> Spec:
    """The spec whose classifier reads this many features: its own if it has as many, else a projection of them."""
    bare = complete(without_projection(spec))
    path = classifier(bare)
    found = shapes(bare)[f"{path}.weight"][0][1] if path else 0
    return bare if found == features else complete(_add_projection(bare, features))


def with_counted_norms(spec: Spec) -> Spec:
    """The spec with counted norms in place of static ones; any other spec as it is."""
    spec = complete(spec)
    return _with_options(spec, norm="counted") if spec.options.get("norm") == "static" else spec


def tier_spec(full: Spec, width: float | Mapping[str, float] | None = None, depth: Depth = None) -> Spec:
    """A tier's network: the full one made shallow, then narrow."""
    spec = shallow(full, depth)
    return spec if width is None else narrow(spec, width)


def _add_projection(spec: Spec, features: Plain) -> Spec:
    length = checks.check_integer(f"{spec.family}: {PROJECTION}", features, 1, checks.MOST_UNITS)
    if not classifier(spec):
        raise SettingsError(f"{spec.family} has no linear layer in a part called head, which a projection could feed.")
    return replace(spec, options={**spec.options, PROJECTION: length})


def _with_options(spec: Spec, **options: Any) -> Spec:
    checks.refuse_unknown(spec.family, "option", options, spec.options)
    return complete(Spec(spec.family, spec.depth, spec.sizes, {**spec.options, **options}))


def _block_counts(depth: Depth) -> tuple[int, ...]:
    return depth if isinstance(depth, tuple) else (depth or 0,)
