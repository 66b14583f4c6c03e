"""The options of a family, and the checks of what a user gives for them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from potluck.core import Depth, SettingsError, suggestion
from potluck.core.plain import FrozenDict, Plain, freeze
from potluck.models.norm import POLICIES

Options: TypeAlias = Mapping[str, Any]

MOST_BLOCKS = 200
"""In one stage. These limits keep a mistyped number, or a forged file, from filling the machine's memory."""
MOST_UNITS = 1 << 20
MOST_INPUT = 1 << 24


@dataclass(frozen=True)
class Option:
    """One setting of a family: one of some choices, or a number within bounds."""

    default: Plain
    about: str
    choices: tuple[Plain, ...] = ()
    low: float = 1
    high: float = MOST_UNITS

    def check(self, where: str, value: Any) -> Any:
        """The value, if it can be used; `where` names the setting in the error."""
        if self.choices:
            if value not in self.choices:
                raise SettingsError(f"{where} = {value!r} is not a choice.{suggestion(value, self.choices)}")
            return self.choices[self.choices.index(value)]
        if isinstance(self.default, int):
            return check_integer(where, value, int(self.low), int(self.high))
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            raise SettingsError(f"{where} = {value!r} must be a number from {self.low:g} to {self.high:g}.")
        return float(value)


class Ratio(Option):
    """A ratio of widths: one number for all axis groups, or one for each that is named."""

    def check(self, where: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return FrozenDict(
                {group: super(Ratio, self).check(f"{where} of '{group}'", each) for group, each in value.items()}
            )
        return super().check(where, value)


SCALER = Ratio(
    1.0,
    "ratio of this network's width to the full one's, or of each axis group's; layers divide by it in training",
    low=1e-6,
    high=1.0,
)

DROPOUT = Option(0.1, "share of the units that are left out at random in training", low=0.0, high=0.9)

LAYER_NORM = Option("layer", "layer norm, or nothing in its place", choices=("layer", "none"))


NORM_TEXT = "the norm between a layer and its activation"


def norm_option(default: str) -> Option:
    """The option ``norm`` of a family of convolutions or dense layers."""
    return Option(default, NORM_TEXT, choices=POLICIES)


def portion(units: int, ratio: float) -> int:
    """This share of so many units, rounded up, as HeteroFL, FedRolex and FjORD do; at least one.

    >>> portion(5, 0.5), portion(30, 0.1)  # 30 * 0.1 is a little more than 3 in floating point
    (3, 3)
    """
    return max(1, math.ceil(round(units * ratio, 9)))


def check_integer(where: str, value: Any, low: int, high: int) -> int:
    """The value, if it is a whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(f"{where} = {value!r} must be a whole number from {low} to {high}.")
    return value


def check_ratio(where: str, value: Any) -> float:
    """The value, if it is a number above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise SettingsError(f"{where} = {value!r} must be a number above 0 and at most 1.")
    return float(value)


def check_input_shape(family: str, value: Any, maps: bool, tokens: bool = False) -> tuple[int, ...]:
    """The shape of one example: channels, height, width where the family reads maps; a length where it reads tokens."""
    shape = freeze([value] if isinstance(value, int) else value)
    if not isinstance(shape, tuple) or not shape:
        raise SettingsError(f"{family}: input = {value!r} must be the shape of one example, such as [1, 28, 28].")
    for length in shape:
        check_integer(f"{family}: a length in input = {list(shape)!r},", length, 1, MOST_INPUT)
    if maps and len(shape) != 3:
        raise SettingsError(
            f"{family} reads maps: input = {list(shape)!r} must be [channels, height, width]. For other inputs use mlp."
        )
    if tokens and len(shape) != 1:
        raise SettingsError(f"{family} reads tokens: input = {list(shape)!r} must be [length].")
    if math.prod(shape) > MOST_INPUT:
        raise SettingsError(f"{family}: input = {list(shape)!r} has more than {MOST_INPUT} entries.")
    return shape


def check_depth(family: str, value: Any, pattern: Depth) -> Depth:
    """The depth, if it has the family's pattern: None (one depth only), one number, or one number per stage."""
    depth = freeze(value)
    if pattern is None:
        if depth is not None:
            raise SettingsError(f"{family} has one depth: leave depth = {value!r} out.")
        return None
    if isinstance(pattern, int):
        return check_integer(f"{family}: depth", depth, 1, MOST_BLOCKS)
    if not isinstance(depth, tuple) or len(depth) != len(pattern):
        raise SettingsError(
            f"{family}: depth = {value!r} must be {len(pattern)} numbers, one per stage, such as {list(pattern)}."
        )
    return tuple(
        check_integer(f"{family}: depth of stage {index}", count, 1, MOST_BLOCKS) for index, count in enumerate(depth)
    )


def refuse_unknown(family: str, kind: str, given: Iterable[str], known: Mapping[str, Any] | Iterable[str]) -> None:
    """Refuse names that the family does not have."""
    known = tuple(known)
    for name in given:
        if name not in known:
            raise SettingsError(f"{family} has no {kind} '{name}'.{suggestion(name, known)}")


def error_line(fault: BaseException) -> str:
    """An exception in one line."""
    return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]
