"""What clients remember, at hand: what the disk does not hold yet, and what was last put down or asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from potluck.core import detach_all, pack, unpack
from potluck.learn import held_tensors, map_tensors

Remembered: TypeAlias = tuple[int, Mapping[str, Any]]
"""A memory, and the round that committed it."""

ROOM = 2**30
"""Bytes of memories that stay as they are, where the networks are; beyond that they wait packed, or are read again."""
LEAST = 1024
"""Bytes that a memory takes besides its tensors, about."""


class ClientStateCache:
    """The memories of a run's clients. What is handed out may be altered: it is a copy."""

    def __init__(self, read: Callable[[str], tuple[int, bytes] | None], room: int = ROOM) -> None:
        """`read`: a client's memory as the disk has it, with its version."""
        self._read, self._room = read, room
        self._live: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._packed: dict[str, bytes] = {}
        self._versions: dict[str, int] = {}
        self._new: set[str] = set()  # not on the disk yet

    def put(self, memories: Mapping[str, Mapping[str, Any]]) -> None:
        """What clients remember after a round."""
        for client, memory in memories.items():
            self._new.add(client)
            self._packed.pop(client, None)
            self._keep(client, detach_all(memory))

    def get(self, client: str, done: int) -> Remembered | None:
        """A client's memory, after so many rounds; None where it has none."""
        if client in self._packed:
            return done, unpack(self._packed[client])
        if client not in self._live:
            found = self._read(client)
            if found is None:
                return None
            self._versions[client] = found[0]
            memory = unpack(found[1])
            self._keep(client, memory)
        else:
            self._live.move_to_end(client)
            memory = self._live[client]
        return done if client in self._new else self._versions[client], map_tensors(memory, torch.clone)

    def unsaved(self) -> dict[str, bytes]:
        """The memories that the disk does not hold yet."""
        return {client: self._packed.get(client) or pack(self._live[client]) for client in sorted(self._new)}

    def saved(self, version: int) -> None:
        """The disk holds all memories now, the new ones as this version."""
        self._versions |= dict.fromkeys(self._new & self._live.keys(), version)
        self._new.clear()
        self._packed.clear()

    def _keep(self, client: str, memory: Mapping[str, Any]) -> None:
        size = LEAST + sum(tensor.nbytes for tensor in held_tensors(memory)[0])
        self._size += size - self._sizes.get(client, 0)
        self._live[client], self._sizes[client] = memory, size
        self._live.move_to_end(client)
        while self._size > self._room:
            oldest, given_up = self._live.popitem(last=False)
            self._size -= self._sizes.pop(oldest)
            self._versions.pop(oldest, None)
            if oldest in self._new:
                self._packed[oldest] = pack(given_up)
