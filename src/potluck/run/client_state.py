"""A cache of client memories: those that are not on disk yet, and the most recently used ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

from potluck.core import detach_all, pack, unpack
from potluck.learn import held_tensors, map_tensors
from potluck.run.restoring import read_memory

Remembered: TypeAlias = tuple[int, Mapping[str, Any]]
"""The round that committed a memory, and the memory."""

ROOM = 2**30
"""Bytes of memories kept as tensors on the networks' hardware. Others are packed, or read from disk again."""
LEAST = 1024
"""Bytes of a memory besides its tensors, roughly."""


class ClientStateCache:
    """The memories of a run's clients. `get` returns a copy, which may be changed."""

    def __init__(self, read: Callable[[str], tuple[int, bytes] | None], room: int = ROOM) -> None:
        """`read`: reads a client's memory and its version from disk."""
        self._read, self._room = read, room
        self._live: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._packed: dict[str, bytes] = {}
        self._versions: dict[str, int] = {}
        self._new: set[str] = set()  # not on the disk yet

    def put(self, memories: Mapping[str, Mapping[str, Any]]) -> None:
        """Stores the client memories of a committed round."""
        for client, memory in memories.items():
            self._new.add(client)
            self._packed.pop(client, None)
            self._keep(client, detach_all(memory))

    def get(self, client: str, done: int) -> Remembered | None:
        """A client's memory and its version, after `done` rounds; None if it has none."""
        if client in self._packed:
            return done, unpack(self._packed[client])
        if client not in self._live:
            found = self._read(client)
            if found is None:
                return None
            self._versions[client] = found[0]
            memory = read_memory(client, found[1])
            self._keep(client, memory)
        else:
            self._live.move_to_end(client)
            memory = self._live[client]
        return done if client in self._new else self._versions[client], map_tensors(memory, torch.clone)

    def pack_unsaved(self) -> dict[str, bytes]:
        """The memories that are not on disk yet, as bytes."""
        return {client: self._packed.get(client) or pack(self._live[client]) for client in sorted(self._new)}

    def mark_saved(self, version: int) -> None:
        """Marks all memories as saved; the new ones have this version."""
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
