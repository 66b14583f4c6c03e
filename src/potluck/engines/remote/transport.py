"""What carries messages between the server of a federation and its nodes: four functions.

A message is a few parts, each an array of bytes. Transports do not read them. The server posts a message to a node, and
the node answers it; a node never begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from potluck.core import Bytes

Parts: TypeAlias = Sequence[Bytes]
"""The parts of a message. They may lie in files, so that large models need no memory; nobody may change them."""

Respond: TypeAlias = Callable[[Parts], Parts]
"""The node's side: takes the parts of a message, returns those of the answer. It is called for one message at a time,
in the order in which they were posted, and never raises an exception."""


@dataclass(frozen=True, eq=False)
class Answer:
    """What became of a message that was posted."""

    node: str
    """The node's id, as the transport knows it from its key; not what the node says."""
    number: int
    """The number of the message that it answers."""
    parts: Parts = ()
    fault: str = ""
    """Why there is no answer; then there are no parts."""


@dataclass(frozen=True)
class Presence:
    """A node that is connected now."""

    node: str
    """The node's id: the fingerprint of its public key."""
    since: float
    """When it connected, in seconds since 1970."""
    address: str = ""
    """From where, for people."""


class Transport(Protocol):
    """The server's side."""

    @property
    def notes(self) -> list[str]:
        """What the operator should know, one line each: connections that were refused, answers that came too late. The
        reader removes them from the list."""

    def post(self, node: str, number: int, parts: Parts, seconds: float) -> None:
        """Sends a message. `fetch` gives exactly one `Answer` with its number, which must be new.

        The answer has a fault if none came within so many seconds, if the node is not there, or if it leaves and does
        not come back soon. An answer that comes after that is dropped, with a note.
        """

    def fetch(self, seconds: float) -> list[Answer]:
        """The answers that came since the last call; if there is none yet, waits for one at most so long."""

    def present(self) -> Mapping[str, Presence]:
        """The nodes that are connected now, by id."""

    def close(self) -> None:
        """Ends all connections."""
