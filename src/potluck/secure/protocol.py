"""What server and clients of secure aggregation agree on: phases, requests, and what is signed.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017. Five phases:

1. keys: each client sends fresh public keys, signed with the key by which the federation knows it.
2. shares: everybody gets the plan: who takes part, and who holds which block. Each client splits its secrets among its
   neighbours: the private key of its pairwise masks, and a seed for each block of its self-mask. The server passes the
   shares on, encrypted.
3. upload: the client trains. Each block of its update is encoded as whole numbers and masked: with one stream for each
   neighbour that holds the block too, which the neighbour subtracts, and with its own. The streams depend on the plan,
   on who is there, and on the model that training began with: clients that were told different things share no stream,
   and the sum of their uploads stays hidden. With its upload, a client signs what it was told.
4. agree: clients sign who uploaded, and which blocks are to be opened; each signs one list.
5. open: who sees that enough neighbours signed the same list gives shares: of those who uploaded, and were told the
   same, of the seeds of these blocks; of those who were lost since phase 2, of their private key. Nobody gives both of
   one client.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from potluck.core import Arrays, numpy_stream
from potluck.secure import crypto
from potluck.secure.blocks import PartLayout, segments
from potluck.secure.crypto import Forged
from potluck.secure.ring import Ring
from potluck.secure.settings import Secure, canonical

ALL_PAIRS = 32
"""Up to so many holders of a block, everybody masks with everybody."""


class UnsafeRequest(PermissionError):
    """A request that a client does not answer, because the answer would tell too much."""


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
        crypto.check(_seeded_public_key(self, client), text, proof)

    def root(self, client: str) -> bytes:
        return crypto.expand(self.seed.to_bytes(32, "little", signed=True), "root", client)

    def _key(self, client: str) -> bytes:
        return crypto.expand(self.seed.to_bytes(32, "little", signed=True), "identity", client)


@lru_cache(maxsize=1 << 14)
def _seeded_public_key(identities: SeededIdentities, client: str) -> bytes:
    return crypto.signing_key(identities._key(client))


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
    """What a client signs in phases 2, 3 and 5: what it was asked, and what it answers."""
    return crypto.digest(b"potluck answer", request, client.encode(), *body)


def pair_key(secret: bytes, session: str, plan: str, uploads: str) -> bytes:
    """The key of the masks that two clients share, if both were told the same."""
    return crypto.extract(secret, "mask", session, plan, uploads)


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
    return {holder: found[holder] for holder in holders}


@dataclass(frozen=True, eq=False)
class SumPlan:
    """Who takes part in a sum, and who holds which block. All clients get the same; who is whose neighbour follows."""

    session: str
    members: tuple[str, ...]
    near: Mapping[int, Mapping[str, Sequence[str]]]
    """The blocks: their holders, and with whom each of them masks it."""
    peers: Mapping[str, Sequence[str]]
    """Among whom each member splits its secrets."""
    hash: str
    """Names the plan; all keys depend on it."""

    @classmethod
    def of(cls, session: str, members: Sequence[str], holders: Mapping[int, Sequence[str]]) -> SumPlan:
        at = {member: number for number, member in enumerate(members)}
        blocks = [[block, [at[holder] for holder in found]] for block, found in holders.items()]
        return _plan(canonical([session, list(members), blocks]))

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> SumPlan:
        """The plan in a request; raises `Forged` if it is none."""
        try:
            return _plan(canonical([str(request["session"]), request["members"], request["blocks"]]))
        except Forged:
            raise
        except (TypeError, ValueError, IndexError, AttributeError):
            raise Forged("a plan that makes no sense") from None

    def plain(self) -> dict[str, Any]:
        at = {member: number for number, member in enumerate(self.members)}
        blocks = [[block, [at[holder] for holder in near]] for block, near in self.near.items()]
        return {"members": list(self.members), "blocks": blocks}

    def held(self, client: str) -> list[int]:
        """The blocks that a client holds."""
        return [block for block, near in self.near.items() if client in near]

    def holders(self, block: int, there: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Those of these clients that hold a block."""
        known = set(there)
        return [client for client in self.near[block] if client in known]

    def enough(self, block: int, there: Sequence[str] | Mapping[str, Any], least: int) -> bool:
        """Whether enough of a block's holders are there, and each of them has enough neighbours that are."""
        known, holders = set(there), self.holders(block, there)
        return len(holders) >= least and all(
            1 + sum(peer in known for peer in self.near[block][client]) >= least for client in holders
        )


@lru_cache(maxsize=16)  # a simulation reads a plan once for all clients
def _plan(text: bytes) -> SumPlan:
    session, members, blocks = json.loads(text)
    if not all(isinstance(member, str) for member in members) or len(set(members)) < len(members):
        raise Forged("a client that is there twice")
    near: dict[int, dict[str, list[str]]] = {}
    for block, numbers in blocks:
        odd = type(block) is not int or not 0 < block < 1 << 63 or block in near or len(set(numbers)) < len(numbers)
        if odd or not all(type(number) is int and 0 <= number < len(members) for number in numbers):
            raise Forged("a block with holders that are not there, or are there twice")
        near[block] = neighbours(block, [members[number] for number in numbers], session)
    # Shares go to others than holders too, so that a small block survives that most of its holders are lost.
    around, peers = neighbours(0, members, session), {}
    for client in members:
        found = {*around[client], *(peer for each in near.values() for peer in each.get(client, ()))}
        peers[client] = [peer for peer in members if peer in found]
    return SumPlan(session, tuple(members), near, peers, crypto.digest(b"potluck plan", text).hex())


@dataclass(frozen=True, eq=False)
class Uploads:
    """What all clients that upload are told: who sent shares, which blocks they upload, and what these depend on."""

    present: tuple[str, ...]
    blocks: tuple[int, ...]
    about: str
    """A hash of the model that training begins with, block by block, and of how numbers are rounded."""

    @classmethod
    def read(cls, request: Mapping[str, Any], plan: SumPlan, least: int) -> Uploads:
        """What a request says; raises an error if it does not fit the plan, or has a block of too few holders."""
        return _uploads(plan, canonical([request["present"], request["upload"], request["about"]]), least)

    def plain(self) -> dict[str, Any]:
        return {"present": list(self.present), "upload": list(self.blocks), "about": self.about}

    def asked(self, plan: SumPlan) -> list[str]:
        """Who is asked to upload: all that are there and hold any of these blocks."""
        return [client for client in self.present if any(client in plan.near[block] for block in self.blocks)]

    @property
    def hash(self) -> str:
        return crypto.digest(b"potluck uploads", canonical(self.plain())).hex()

    def text(self, plan: SumPlan) -> bytes:
        """What a client signs that uploads: others give shares of its seeds only if it was told the same as they."""
        return crypto.digest(b"potluck uploaded", plan.session.encode(), plan.hash.encode(), self.hash.encode())


@dataclass(frozen=True, eq=False)
class Fates:
    """Who uploaded, and which blocks are to be opened. Clients sign it, and open nothing else."""

    uploaded: tuple[str, ...]
    blocks: tuple[int, ...]

    @classmethod
    def read(cls, request: Mapping[str, Any], plan: SumPlan, uploads: Uploads, least: int) -> Fates:
        """What a request says; raises an error if it does not fit, or if too few contributed to a block."""
        return _fates(plan, uploads, canonical([request["uploaded"], request["open"]]), least)

    def plain(self) -> dict[str, Any]:
        return {"uploaded": list(self.uploaded), "open": list(self.blocks)}

    def lost(self, plan: SumPlan, uploads: Uploads) -> list[str]:
        """Who was asked for an upload and sent none."""
        known = set(self.uploaded)
        return [client for client in uploads.asked(plan) if client not in known]

    def text(self, plan: SumPlan, uploads: Uploads) -> bytes:
        """What is signed."""
        return crypto.digest(
            b"potluck fates", plan.session.encode(), plan.hash.encode(), uploads.hash.encode(), canonical(self.plain())
        )


@lru_cache(maxsize=16)
def _uploads(plan: SumPlan, text: bytes, least: int) -> Uploads:
    present, blocks, about = json.loads(text)
    found = Uploads(tuple(_distinct(present, plan.members)), tuple(_distinct(blocks, plan.near)), str(about))
    for block in found.blocks:
        if not plan.enough(block, found.present, least):
            raise UnsafeRequest(f"a block that fewer than {least} clients would upload")
    return found


@lru_cache(maxsize=16)
def _fates(plan: SumPlan, uploads: Uploads, text: bytes, least: int) -> Fates:
    uploaded, blocks = json.loads(text)
    found = Fates(tuple(_distinct(uploaded, uploads.asked(plan))), tuple(_distinct(blocks, uploads.blocks)))
    for block in found.blocks:
        if not plan.enough(block, found.uploaded, least):
            raise UnsafeRequest(f"a block that fewer than {least} clients contributed to")
    return found


def _distinct(found: Any, known: Iterable[Any]) -> list[Any]:
    """A list of known things, none of them twice."""
    if not isinstance(found, list) or len(set(found)) < len(found) or not set(found) <= set(known):
        raise Forged("a request that does not fit the plan")
    return found


def scales(settings: Secure, heaviest: float, members: int) -> tuple[float, float, float]:
    """How weights of the model, statistics, and weights of clients are rounded, if so many clients take part."""
    ring = Ring(settings.bits)
    return (
        ring.scale(settings.clip, members),
        ring.scale(settings.statistics, members),
        ring.scale(heaviest, members),
    )


def start_digest(layout: PartLayout, block: int, arrays: Arrays, buffers: frozenset[str], rows: frozenset[str]) -> str:
    """A hash of a block as training begins: how many entries each tensor has there, of which kind, and their values.

    The same for all that hold the block and got the same model, and for the server.
    """
    found = hashlib.sha256(str(block).encode())
    for tensor, at in segments(layout, block):
        flat = tensor.ordered(arrays[tensor.name].detach().cpu().float())
        chosen = np.ascontiguousarray(flat if at is None else flat[at])
        found.update(repr((chosen.size, tensor.name in buffers, tensor.name in rows)).encode())
        found.update(chosen.data)
    return found.hexdigest()


def about_uploads(starts: Mapping[int, str], heaviest: float) -> str:
    """What masks depend on besides the plan: the model that training begins with, and the largest weight."""
    return crypto.digest(canonical([[[block, start] for block, start in starts.items()], heaviest])).hex()
