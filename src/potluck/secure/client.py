"""The client's side of secure aggregation: a function for each phase.

A client keeps nothing between phases. All its secrets of a session follow from its root secret, from the session and
from the plan, which names every block and its holders. So a plan that changes between phases gives other secrets, and
nothing that anybody could use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from potluck.core import EMPTY, Model, Reply, Task, Weight, Zoo
from potluck.learn import TELLS_NOTHING
from potluck.secure import crypto, shamir
from potluck.secure.blocks import PartLayout, segments
from potluck.secure.crypto import Forged
from potluck.secure.protocol import (
    Announced,
    Identities,
    commitment,
    mask_secret,
    pair_key,
    self_seed,
    share_key,
    signed_text,
    statement,
)
from potluck.secure.ring import Ring, Values, clip_factor
from potluck.secure.settings import KEYS, OPEN, REQUEST, SHARES, Secure, canonical

if TYPE_CHECKING:
    from potluck.secure.noise import NoiseShare

MOST_OPENED = 10_000
"""Sessions that a client remembers; the oldest are forgotten."""


class UnsafeRequest(PermissionError):
    """A request that a client does not answer, because the answer would tell too much."""


@dataclass
class SecureClient:
    """What clients do in a protocol session. One object may act for many clients, as in a simulation."""

    settings: Secure
    identities: Identities
    noise: NoiseShare | None = None
    """The noise that a client adds to its update under the mask; None: none."""
    opened: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """What a client has opened, by client and session: another request of the same session is refused."""

    def answer(self, task: Task) -> Reply:
        """The answer in phase 1, 2 or 4."""
        acts = {KEYS: self.keys, SHARES: self.shares, OPEN: self.open}
        return acts[task.verb](task.to, request_of(task))

    def keys(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 1: fresh public keys."""
        session = str(request["session"])
        own = _Own.of(self.identities.root(client), session)
        public = crypto.public_key(own.mask), crypto.public_key(own.share), crypto.signing_key(own.sign)
        proof = self.identities.sign(client, statement(session, client, *public))
        return Reply(arrays={"keys": _tensor(b"".join(public))}, metrics={"proof": proof.hex()})

    def shares(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 2: shares of the secrets, one row for each neighbour, encrypted; and a commitment for each seed."""
        session, plan, peers = str(request["session"]), str(request["plan"]), self._peers(client, request)
        root = self.identities.root(client)
        own = _Own.of(root, session)
        if 1 + len(peers) < self.settings.min_holders:
            raise UnsafeRequest(f"{len(peers)} neighbours are too few")
        made = self._split(client, request, own)
        rows = []
        for place, (peer, told) in enumerate(peers.items()):
            key = share_key(crypto.agree(own.share, told.share), session, plan, client, peer)
            rows.append(crypto.encrypt(key, b"".join(each[place] for each in made), _about(session, client, peer)))
        seeds = (self_seed(root, session, plan, block) for block in _blocks(request))
        commitments = b"".join(map(commitment, seeds))
        signature = crypto.sign(own.sign, signed_text(canonical(request), client, *rows, commitments))
        arrays = {
            "shares": _tensor(b"".join(rows)).reshape(len(rows), -1),
            "commitments": _tensor(commitments),
            "signature": _tensor(signature),
        }
        return Reply(arrays=arrays)

    def upload(self, task: Task, reply: Reply, weight: Weight, zoo: Zoo) -> Reply:
        """Phase 3: the reply with a masked update in place of its model, and without anything else that tells of it."""
        client, request = task.to, request_of(task)
        if reply.arrays or reply.models.keys() != {"model"}:
            raise UnsafeRequest("[secure] lets only one model leave a device")
        session, plan, peers = str(request["session"]), str(request["plan"]), self._peers(client, request)
        root = self.identities.root(client)
        own, ring = _Own.of(root, session), Ring(self.settings.bits)
        present = [str(peer) for peer in request["present"] if str(peer) in peers]
        pairs = {peer: pair_key(crypto.agree(own.mask, peers[peer].mask), session, plan) for peer in present}
        update = Update.of(task.models["model"], reply.models["model"], weight, request, self.settings, zoo)
        if self.noise is not None:
            fixed, heaviest = zoo.buffers(reply.models["model"].spec), float(request["heaviest"])
            update = self.noise.cover(update, heaviest, fixed, partial(crypto.expand, root, "noise", session, plan))
        blocks, told = _blocks(request), []
        for block in (int(each) for each in request["upload"]):
            values = update.encode(block, ring)
            near = [peer for peer in blocks[block] if peer in pairs]
            if len(near) < self.settings.min_holders - 1:
                raise UnsafeRequest(f"{len(near)} neighbours that hold a block are too few")
            crypto.add_mask(values, self_seed(root, session, plan, block), block)
            for peer in near:
                crypto.add_mask(values, pairs[peer], block, negative=peer < client)
            told.append(values)
        masked = np.concatenate(told) if told else ring.zeros(0)
        signature = crypto.sign(own.sign, signed_text(canonical(request), client, masked.tobytes()))
        arrays = {"masked": torch.from_numpy(masked.view(ring.signed)), "signature": _tensor(signature)}
        metrics = {name: value for name, value in reply.metrics.items() if name in TELLS_NOTHING}
        return replace(reply, models=EMPTY, arrays=arrays, weight=1.0, metrics=metrics)

    def open(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 4: shares of others' secrets: of a client that uploaded, the seeds of these blocks; of one that was
        lost, its private key. And its own share of its own seeds."""
        session, plan, peers = str(request["session"]), str(request["plan"]), self._peers(client, request)
        asked = signed_text(canonical(request), client)
        if self.opened.get((client, session), asked) != asked:
            raise UnsafeRequest("it was asked to open the same uploads in two ways")
        root, blocks = self.identities.root(client), _blocks(request)
        own = _Own.of(root, session)
        uploaded, lost = (list(map(str, request[name])) for name in ("uploaded", "lost"))
        if set(uploaded) & set(lost) or len({*uploaded, *lost}) < len(uploaded) + len(lost):
            raise UnsafeRequest("both secrets of one client")
        wanted = {int(block) for block in request["open"]}
        for block in wanted & blocks.keys():
            if 1 + len(set(blocks[block]) & set(uploaded)) < self.settings.min_holders:
                raise UnsafeRequest(f"a block that fewer than {self.settings.min_holders} clients contributed to")
        found = []
        for peer, cipher in zip([*uploaded, *lost], request["shares"], strict=True):
            if peer not in peers:
                raise Forged("shares of a client that is no neighbour")
            key = share_key(crypto.agree(own.share, peers[peer].share), session, plan, peer, client)
            text = crypto.decrypt(key, bytes.fromhex(str(cipher)), _about(session, peer, client))
            held = [int(block) for block in request["held"][peer]]
            if len(text) != (1 + len(held)) * shamir.SHARE:
                raise Forged("shares of another length")
            each = [text[at : at + shamir.SHARE] for at in range(0, len(text), shamir.SHARE)]
            found.append(b"".join(share for block, share in zip(held, each[1:], strict=True) if block in wanted)
                         if peer in uploaded else each[0])  # fmt: skip
        self.opened[client, session] = asked
        while len(self.opened) > MOST_OPENED:
            del self.opened[next(iter(self.opened))]
        mine = dict(zip(blocks, self._split(client, request, own)[1:], strict=True))
        told = b"".join([*found, *(shares[-1] for block, shares in mine.items() if block in wanted)])
        signature = crypto.sign(own.sign, signed_text(canonical(request), client, told))
        return Reply(arrays={"opened": _tensor(told), "signature": _tensor(signature)})

    def _split(self, client: str, request: Mapping[str, Any], own: _Own) -> list[list[bytes]]:
        """The shares of a client's secrets: of its private key, then of the seed of each block. Each has a share for
        every neighbour, and a last one for the client itself."""
        session, plan, root = str(request["session"]), str(request["plan"]), self.identities.root(client)
        count = 1 + len(request["peers"])
        seeds = (self_seed(root, session, plan, block) for block in _blocks(request))
        return [
            shamir.split(
                secret,
                self.settings.shares_needed(count),
                range(1, count + 1),
                _Draw(root, session, plan, number),
            )
            for number, secret in enumerate([own.mask, *seeds])
        ]

    def _peers(self, client: str, request: Mapping[str, Any]) -> dict[str, Announced]:
        """The keys of a client's neighbours, each proved to be its own."""
        session = str(request["session"])
        found = {str(peer): Announced.read(plain) for peer, plain in request["peers"].items()}
        if client in found:
            raise Forged("a client that is its own neighbour")
        for peer, told in found.items():
            self.identities.check(peer, told.text(session, peer), told.proof)
        return found


@dataclass(frozen=True)
class _Own:
    """A client's private keys in a session."""

    mask: bytes
    share: bytes
    sign: bytes

    @classmethod
    def of(cls, root: bytes, session: str) -> _Own:
        named = (crypto.expand(root, name, session) for name in ("share key", "signing key"))
        return cls(mask_secret(root, session), *named)


@dataclass(frozen=True)
class _Draw:
    """Random bytes for the coefficients of one secret's shares."""

    root: bytes
    session: str
    plan: str
    secret: int

    def __call__(self, number: int) -> bytes:
        return crypto.expand(self.root, "coefficient", self.session, self.plan, self.secret, number)


@dataclass(frozen=True)
class Update:
    """A client's weighted update, ready to be cut into blocks."""

    layout: PartLayout
    tensors: Mapping[str, Tensor]
    """Weighted changes, in float64."""
    scales: Mapping[str, float]
    """How each tensor is rounded."""
    weight: float
    weight_scale: float
    rows: Mapping[str, Tensor]
    """For tensors whose rows have weights of their own: these weights, by row."""

    @classmethod
    def of(
        cls, sent: Model, made: Model, weight: Weight, request: Mapping[str, Any], settings: Secure, zoo: Zoo
    ) -> Update:
        """The update of a client, clipped."""
        layout, heaviest = PartLayout.read(request["layout"]), float(request["heaviest"])
        own, by_row = _weights(weight, request["rows"])
        if not 0 < own <= heaviest:
            raise UnsafeRequest(f"its weight {own:g} is not in (0, {heaviest:g}]")
        buffers = zoo.buffers(made.spec)
        changes = {
            each.name: made.arrays[each.name].double().cpu() - sent.arrays[each.name].double().cpu()
            for each in layout.tensors
        }
        square = sum(float(change.square().sum()) for name, change in changes.items() if name not in buffers)
        factor = clip_factor(square, settings.clip)
        scales: dict[str, float] = {}
        for name, change in changes.items():
            share = by_row.get(name, own) / heaviest
            if isinstance(share, Tensor):
                share = share.reshape(-1, *[1] * (change.dim() - 1))
            if name in buffers:
                if not bool(torch.isfinite(change).all()):
                    raise ValueError("its update is not finite")
                changes[name] = change.clamp(-settings.statistics, settings.statistics) * share
            else:
                changes[name] = change * (factor * share)
            scales[name] = float(request["scales"][name in buffers])
        return cls(layout, changes, scales, own, float(request["scales"][2]), by_row)

    def encode(self, block: int, ring: Ring) -> Values:
        """The entries of a block, then its weights: one for the block, and one for each row where rows have weights."""
        values, weights = [], [ring.encode(np.array([self.weight]), self.weight_scale)]
        for tensor, rows in segments(self.layout, block):
            flat = tensor.ordered(self.tensors[tensor.name])
            values.append(ring.encode((flat if rows is None else flat[rows]).reshape(-1), self.scales[tensor.name]))
            if tensor.name in self.rows:
                weights.append(ring.encode(self.rows[tensor.name].double().cpu().numpy(), self.weight_scale))
        return np.concatenate([*values, *weights])


def request_of(task: Task) -> Mapping[str, Any]:
    """What the server asks for, in a task of a secure sum."""
    request = task.config.get(REQUEST)
    if not isinstance(request, Mapping):
        raise Forged("a request that is not there")
    return request


def _weights(weight: Weight, named: Any) -> tuple[float, dict[str, Tensor]]:
    """The weight of a client, and the weights of the rows of these tensors."""
    rows = [str(name) for name in named]
    if not isinstance(weight, Mapping):
        if rows:
            raise UnsafeRequest("no weights for rows that have weights of their own")
        return float(weight), {}
    own = {name: value for name, value in weight.items() if name not in rows}
    if own.keys() - {""} or isinstance(own.get(""), Tensor):
        raise UnsafeRequest("[secure] sums one weight for all tensors of a client")
    found = {name: torch.as_tensor(weight[name]).reshape(-1) for name in rows}
    return float(own.get("", 0.0)), found


def _blocks(request: Mapping[str, Any]) -> dict[int, list[str]]:
    """The blocks that a client holds, each with its neighbours that hold it too."""
    found = {int(block): list(map(str, near)) for block, near in request["blocks"]}
    if any(len(set(near)) < len(near) for near in found.values()):
        raise Forged("a neighbour that is there twice")
    return found


def _about(session: str, sender: str, receiver: str) -> bytes:
    return f"{session} {sender} {receiver}".encode()


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes in a tensor of bytes."""
    return tensor.cpu().numpy().tobytes()
