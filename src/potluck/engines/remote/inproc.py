"""Nodes in this process: the reference that other transports are compared with."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from potluck.engines.remote.transport import Answer, Parts, Presence, Respond


class InProcess:
    """Calls each node when its answer is fetched, one after the other."""

    def __init__(self, nodes: Mapping[str, Respond]) -> None:
        self.nodes = dict(nodes)
        """Nodes may be taken out, or added: they left, or came."""
        self.notes: list[str] = []
        self._waiting: deque[tuple[str, int, Parts]] = deque()

    def post(self, node: str, number: int, parts: Parts, seconds: float) -> None:
        self._waiting.append((node, number, parts))

    def fetch(self, seconds: float) -> list[Answer]:
        if not self._waiting:
            return []
        node, number, parts = self._waiting.popleft()
        if node not in self.nodes:
            return [Answer(node, number, fault="it is not there")]
        return [Answer(node, number, self.nodes[node](parts))]

    def present(self) -> Mapping[str, Presence]:
        return {node: Presence(node, 0.0, "this process") for node in self.nodes}

    def close(self) -> None:
        self._waiting.clear()
