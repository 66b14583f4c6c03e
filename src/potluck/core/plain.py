"""Plain values: numbers, strings, lists and mappings, which survive JSON unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

Plain: TypeAlias = "bool | int | float | str | list[Plain] | tuple[Plain, ...] | Mapping[str, Plain] | None"
V = TypeVar("V", covariant=True)


class FrozenDict(Mapping[str, V]):
    """An immutable mapping that compares by content and can be hashed.

    >>> FrozenDict({"b": 2, "a": 1}) == FrozenDict({"a": 1, "b": 2})
    True
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, V] | None = None, /, **more: V) -> None:
        both = {**(items or {}), **more}
        self._items: dict[str, V] = {key: both[key] for key in sorted(both)}
        self._hash: int | None = None

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple((key, freeze(value)) for key, value in self._items.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self._items == dict(other)

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"


EMPTY: FrozenDict[Any] = FrozenDict()


def freeze(value: Any) -> Any:
    """The plain value with lists as tuples and mappings as `FrozenDict`, so that it can be hashed."""
    if isinstance(value, FrozenDict):
        return value
    if isinstance(value, Mapping):
        return FrozenDict({str(key): freeze(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value


def to_plain(value: Any) -> Any:
    """The plain value with only dicts, lists and scalars, as `json` reads it back."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value
