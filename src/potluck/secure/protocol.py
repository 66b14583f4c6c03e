"""What server and clients of secure aggregation agree on: phases, requests, and what is signed.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017. Four phases:

1. keys: each client sends fresh public keys, signed with the key by which the federation knows it.
2. shares: each client splits its secrets among its neighbours: the private key of its pairwise masks, and a seed for
   each block of its self-mask. The server passes the shares on, encrypted.
3. upload: the client trains. Each block of its update is encoded as whole numbers and masked: with one stream for each
   neighbour that holds the block too, which the neighbour subtracts, and with its own.
4. open: of those who uploaded, the server asks for shares of the seeds of blocks that it may open; of those who were
   lost since phase 2, for shares of their private key. Nobody gives both of one client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from potluck.core import numpy_stream
from potluck.secure import crypto
from potluck.secure.crypto import Forged

ALL_PAIRS = 32
"""Up to so many holders of a block, everybody masks with everybody."""


class Identities(Protocol):
    """How clients prove who they are."""

    def sign(self, client: str, text: bytes) -> bytes:
        """A proof that this client says this."""

    def check(self, client: str, text: bytes, proof: bytes) -> None:
        """Raises `Forged` unless this client said this."""

    def root(self, client: str) -> bytes:
        """The secret of a client, from which all its secrets of a session follow."""


@dataclass(frozen=True)
class SeededIdentities:
    """The identities of a simulation: all keys follow from the run's seed, so that runs repeat."""

    seed: int

    def sign(self, client: str, text: bytes) -> bytes:
        return crypto.sign(self._key(client), text)

    def check(self, client: str, text: bytes, proof: bytes) -> None:
        crypto.check(crypto.signing_key(self._key(client)), text, proof)

    def root(self, client: str) -> bytes:
        return crypto.expand(self.seed.to_bytes(32, "little", signed=True), "root", client)

    def _key(self, client: str) -> bytes:
        return crypto.expand(self.seed.to_bytes(32, "little", signed=True), "identity", client)


@dataclass(frozen=True)
class Announced:
    """The public keys of a client in a session, with its proof that they are its own."""

    mask: bytes
    share: bytes
    sign: bytes
    proof: bytes

    def plain(self) -> list[str]:
        return [each.hex() for each in (self.mask, self.share, self.sign, self.proof)]

    @classmethod
    def read(cls, plain: Any) -> Announced:
        try:
            mask, share, sign, proof = (bytes.fromhex(each) for each in plain)
        except (TypeError, ValueError):
            raise Forged("keys that are not there") from None
        if not len(mask) == len(share) == len(sign) == crypto.KEY:
            raise Forged("keys of another length")
        return cls(mask, share, sign, proof)

    def text(self, session: str, client: str) -> bytes:
        """What the proof is about."""
        return statement(session, client, self.mask, self.share, self.sign)


def statement(session: str, client: str, *keys: bytes) -> bytes:
    """What a client proves with its identity: these keys are its keys in this session."""
    return crypto.digest(b"potluck keys", session.encode(), client.encode(), *keys)


def signed_text(request: bytes, client: str, *body: bytes) -> bytes:
    """What a client signs in phases 2 to 4: what it was asked, and what it answers."""
    return crypto.digest(b"potluck answer", request, client.encode(), *body)


def pair_key(secret: bytes, session: str, plan: str) -> bytes:
    """The key of the masks that two clients share."""
    return crypto.extract(secret, "mask", session, plan)


def share_key(secret: bytes, session: str, plan: str, sender: str, receiver: str) -> bytes:
    """The key of the shares that one client sends to another."""
    return crypto.extract(secret, "shares", session, plan, sender, receiver)


def self_seed(root: bytes, session: str, plan: str, block: int) -> bytes:
    """The seed of a client's own mask on a block."""
    return crypto.expand(root, "self", session, plan, block)


def mask_secret(root: bytes, session: str) -> bytes:
    """A client's private key for pairwise masks."""
    return crypto.expand(root, "mask key", session)


def commitment(seed: bytes) -> bytes:
    """What shows later that a seed is the one that was meant."""
    return crypto.digest(b"potluck seed", seed)


def most_neighbours(holders: int) -> int:
    """With how many others a client shares a mask at most, if a block has so many holders."""
    return holders - 1 if holders <= ALL_PAIRS else min(2 * math.ceil(3 * math.log2(holders)), holders - 1)


def neighbours(block: int, holders: Sequence[str], session: str) -> dict[str, list[str]]:
    """With whom each holder of a block shares a mask.

    Up to 32 holders: with all others. Above: with the nearest on a ring in random order (Bell et al., "Secure
    Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020), so that cost grows with the logarithm.
    """
    if len(holders) <= ALL_PAIRS:
        return {client: [other for other in holders if other != client] for client in holders}
    reach = math.ceil(3 * math.log2(len(holders)))
    seed = int.from_bytes(crypto.digest(session.encode(), str(block).encode())[:8], "little")
    order = numpy_stream(seed, "neighbours").permutation(len(holders)).tolist()
    found: dict[str, list[str]] = {}
    for place, number in enumerate(order):
        near = {order[(place + step) % len(order)] for far in range(1, reach + 1) for step in (far, -far)}
        found[holders[number]] = [holders[each] for each in sorted(near - {number})]
    return found
