"""The client's side of secure aggregation: a function for each phase.

A client keeps nothing between phases. All its secrets of a session follow from its root secret, from the session and
from the plan, which names every block and its holders. So a plan that changes between phases gives other secrets, and
nothing that anybody could use. What a client signs or opens, it remembers: it does so in one way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from potluck.core import EMPTY, Arrays, Model, Reply, Task, Weight, Zoo
from potluck.learn import TELLS_NOTHING
from potluck.secure import crypto, shamir
from potluck.secure.blocks import PartLayout, segments
from potluck.secure.crypto import Forged
from potluck.secure.protocol import (
    Announced,
    Fates,
    Identities,
    SumPlan,
    UnsafeRequest,
    Uploads,
    about_uploads,
    commitment,
    mask_secret,
    pair_key,
    scales,
    self_seed,
    share_key,
    signed_text,
    start_digest,
    statement,
)
from potluck.secure.ring import Ring, Values, clip_factor
from potluck.secure.settings import AGREE, KEYS, OPEN, REQUEST, SHARES, Secure, canonical

if TYPE_CHECKING:
    from potluck.secure.noise import NoiseShare

MOST_AGREED = 10_000
"""Sessions that a client remembers; the oldest are forgotten."""
BLOCK = 8
"""Bytes of a block's number, before its share."""
UNREAD = b"\xff" * shamir.SHARE
"""In place of a share that could not be read; no share is that large."""


@dataclass
class SecureClient:
    """What clients do in a protocol session. One object may act for many clients, as in a simulation."""

    settings: Secure
    identities: Identities
    noise: NoiseShare | None = None
    """The noise that a client adds to its update under the mask; None: none."""
    agreed: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """What a client has signed or opened, by client and session: nothing else of the same session is."""
    secrets: crypto.Agreements = field(default_factory=crypto.Agreements, repr=False)

    def answer(self, task: Task) -> Reply:
        """The answer in phase 1, 2, 4 or 5."""
        acts = {KEYS: self.keys, SHARES: self.shares, AGREE: self.agree, OPEN: self.open}
        return acts[task.verb](task.to, request_of(task))

    def keys(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 1: fresh public keys."""
        session = str(request["session"])
        self.secrets.begin(session)
        own = _Own.of(self.identities.root(client), session)
        public = crypto.public_key(own.mask), crypto.public_key(own.share), crypto.signing_key(own.sign)
        proof = self.identities.sign(client, statement(session, client, *public))
        return Reply(arrays={"keys": _tensor(b"".join(public))}, metrics={"proof": proof.hex()})

    def shares(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 2: shares of the secrets, one row for each neighbour, encrypted; and a commitment for each seed."""
        plan, peers = self._read(client, request)
        root = self.identities.root(client)
        own = _Own.of(root, plan.session)
        blocks, made = plan.held(client), self._split(client, plan, own)
        rows = []
        for place, (peer, told) in enumerate(peers.items()):
            key = share_key(self.secrets.agree(own.share, told.share), plan.session, plan.hash, client, peer)
            seeds = (_number(block) + each[place] for block, each in zip(blocks, made[1:], strict=True))
            text = b"".join([made[0][place], *seeds])
            rows.append(crypto.encrypt(key, text, _about(plan.session, client, peer)))
        commitments = b"".join(commitment(self_seed(root, plan.session, plan.hash, block)) for block in blocks)
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
        plan, peers = self._read(client, request)
        uploads = Uploads.read(request, plan, self.settings.min_holders)
        if client not in uploads.present:
            raise UnsafeRequest("it is asked to upload, and the others are told that it is not there")
        root, ring = self.identities.root(client), Ring(self.settings.bits)
        own = _Own.of(root, plan.session)
        update = Update.of(
            task.models["model"], reply.models["model"], weight, request, self.settings, len(plan.members), zoo
        )
        blocks = [block for block in uploads.blocks if client in plan.near[block]]
        self._check_start(blocks, update, request, uploads)
        if self.noise is not None:
            fixed = zoo.buffers(reply.models["model"].spec)
            key = partial(crypto.expand, root, "noise", plan.session, plan.hash)
            update = self.noise.cover(update, update.heaviest, fixed, key)
        pairs = {
            peer: pair_key(self.secrets.agree(own.mask, peers[peer].mask), plan.session, plan.hash, uploads.hash)
            for peer in uploads.present
            if peer in peers
        }
        told = []
        for block in blocks:
            values = update.encode(block, ring)
            crypto.add_mask(values, self_seed(root, plan.session, plan.hash, block), block)
            for peer in plan.near[block][client]:
                if peer in pairs:
                    crypto.add_mask(values, pairs[peer], block, negative=peer < client)
            told.append(values)
        masked = np.concatenate(told) if told else ring.zeros(0)
        signature = crypto.sign(own.sign, signed_text(canonical(request), client, masked.tobytes()))
        arrays = {
            "masked": torch.from_numpy(masked.view(ring.signed)),
            "told": _tensor(crypto.sign(own.sign, uploads.text(plan))),
            "signature": _tensor(signature),
        }
        metrics = {name: value for name, value in reply.metrics.items() if name in TELLS_NOTHING}
        return replace(reply, models=EMPTY, arrays=arrays, weight=1.0, metrics=metrics)

    def agree(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 4: a signature under who uploaded and which blocks are opened."""
        plan, _ = self._read(client, request)
        _, _, text = self._read_fates(client, request, plan)
        own = _Own.of(self.identities.root(client), plan.session)
        return Reply(arrays={"agreed": _tensor(crypto.sign(own.sign, text))})

    def open(self, client: str, request: Mapping[str, Any]) -> Reply:
        """Phase 5: shares of others' secrets: of a client that uploaded, the seeds of these blocks; of one that was
        lost, its private key. And its own share of its own seeds. Shares that it cannot read it leaves out."""
        plan, peers = self._read(client, request)
        uploads, fates, text = self._read_fates(client, request, plan)
        self._check_agreed(peers, request, text)
        for peer in fates.uploaded:
            if peer in peers:
                crypto.check(peers[peer].sign, uploads.text(plan), bytes.fromhex(str(request["told"][peer])))
        own = _Own.of(self.identities.root(client), plan.session)
        found = []
        for peer, wanted in to_open(client, plan, uploads, fates):
            if peer == client:
                mine = dict(zip(plan.held(client), self._split(client, plan, own)[1:], strict=True))
                found += [mine[block][-1] for block in wanted]
                continue
            key = share_key(self.secrets.agree(own.share, peers[peer].share), plan.session, plan.hash, peer, client)
            shares = _read_shares(key, str(request["shares"].get(peer, "")), plan, peer, client)
            found += [shares.get(block, UNREAD) for block in wanted]
        told = b"".join(found)
        signature = crypto.sign(own.sign, signed_text(canonical(request), client, told))
        return Reply(arrays={"opened": _tensor(told), "signature": _tensor(signature)})

    def _read(self, client: str, request: Mapping[str, Any]) -> tuple[SumPlan, dict[str, Announced]]:
        """The plan, in which enough clients hold every block; and the keys of the neighbours, proved to be theirs."""
        plan, least = SumPlan.read(request), self.settings.min_holders
        self.secrets.begin(plan.session)
        if client not in plan.members:
            raise Forged("a plan for others")
        for block, near in plan.near.items():
            if not plan.enough(block, near, least):
                raise UnsafeRequest(f"a block that fewer than {least} clients hold")
        found = {str(peer): Announced.read(plain) for peer, plain in request["peers"].items()}
        if found.keys() != set(plan.peers[client]):
            raise Forged("keys of others than its neighbours in the plan")
        for peer, told in found.items():
            self.identities.check(peer, told.text(plan.session, peer), told.proof)
        return plan, {peer: found[peer] for peer in plan.peers[client]}

    def _read_fates(self, client: str, request: Mapping[str, Any], plan: SumPlan) -> tuple[Uploads, Fates, bytes]:
        """Who uploaded and what is to be opened; refuses a second version of it."""
        least = self.settings.min_holders
        uploads = Uploads.read(request, plan, least)
        fates = Fates.read(request, plan, uploads, least)
        text = fates.text(plan, uploads)
        if self.agreed.setdefault((client, plan.session), text) != text:
            raise UnsafeRequest("it was asked to open the same uploads in two ways")
        while len(self.agreed) > MOST_AGREED:
            del self.agreed[next(iter(self.agreed))]
        return uploads, fates, text

    def _check_agreed(self, peers: Mapping[str, Announced], request: Mapping[str, Any], text: bytes) -> None:
        """Raises an error unless enough neighbours signed the same; the client itself counts as one."""
        signed = {str(peer): bytes.fromhex(str(each)) for peer, each in request["agreed"].items()}
        for peer, signature in signed.items():
            if peer not in peers:
                raise Forged("a signature of a client that is no neighbour")
            crypto.check(peers[peer].sign, text, signature)
        need = self.settings.shares_needed(1 + len(peers))
        if 1 + len(signed) < need:
            raise UnsafeRequest(f"{1 + len(signed)} clients agree on who uploaded; {need} must")

    def _check_start(self, blocks: Sequence[int], update: Update, request: Mapping[str, Any], uploads: Uploads) -> None:
        """Refuses a model that is not the one which all others were told of."""
        starts = {int(block): str(start) for block, start in request["starts"]}
        if list(starts) != list(uploads.blocks) or about_uploads(starts, update.heaviest) != uploads.about:
            raise Forged("a model that is not the one of this sum")
        if any(update.starts(block) != starts[block] for block in blocks):
            raise UnsafeRequest("its model is not the one that all others were told of")

    def _split(self, client: str, plan: SumPlan, own: _Own) -> list[list[bytes]]:
        """The shares of a client's secrets: of its private key, then of the seed of each block. Each has a share for
        every neighbour, and a last one for the client itself."""
        root, count = self.identities.root(client), 1 + len(plan.peers[client])
        seeds = (self_seed(root, plan.session, plan.hash, block) for block in plan.held(client))
        return [
            shamir.split(
                secret,
                self.settings.shares_needed(count),
                range(1, count + 1),
                _Draw(root, plan.session, plan.hash, number),
            )
            for number, secret in enumerate([own.mask, *seeds])
        ]


def to_open(client: str, plan: SumPlan, uploads: Uploads, fates: Fates) -> list[tuple[str, list[int]]]:
    """Of whom a client gives shares, and of which blocks; -1: of the private key. Its own come last."""
    uploaded, lost = set(fates.uploaded), set(fates.lost(plan, uploads))
    wanted = [(peer, plan.held(peer)) for peer in (*plan.peers[client], client)]
    seeds = [
        (peer, [block for block in held if block in fates.blocks])
        for peer, held in wanted
        if peer in uploaded or peer == client
    ]
    return [*((peer, [-1]) for peer in plan.peers[client] if peer in lost), *seeds]


def _read_shares(key: bytes, cipher: str, plan: SumPlan, sender: str, receiver: str) -> dict[int, bytes]:
    """The shares that a neighbour sent, by block; -1: of its private key. Empty if they cannot be read."""
    try:
        text = crypto.decrypt(key, bytes.fromhex(cipher), _about(plan.session, sender, receiver))
    except ValueError:
        return {}
    seeds = [text[at : at + BLOCK + shamir.SHARE] for at in range(shamir.SHARE, len(text), BLOCK + shamir.SHARE)]
    blocks = [int.from_bytes(each[:BLOCK], "little") for each in seeds]
    if blocks != plan.held(sender) or len(text) != shamir.SHARE + len(seeds) * (BLOCK + shamir.SHARE):
        return {}
    return {-1: text[: shamir.SHARE], **{block: each[BLOCK:] for block, each in zip(blocks, seeds, strict=True)}}


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
    heaviest: float
    start: Arrays
    """What training began with."""
    buffers: frozenset[str]

    @classmethod
    def of(
        cls,
        sent: Model,
        made: Model,
        weight: Weight,
        request: Mapping[str, Any],
        settings: Secure,
        members: int,
        zoo: Zoo,
    ) -> Update:
        """The update of a client, clipped."""
        layout, heaviest = PartLayout.read(request["layout"]), float(request["heaviest"])
        _check_layout(layout, sent.arrays)
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
        fine, coarse, by_weight = scales(settings, heaviest, members)
        found: dict[str, float] = {}
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
            found[name] = coarse if name in buffers else fine
        return cls(layout, changes, found, own, by_weight, by_row, heaviest, sent.arrays, frozenset(buffers))

    def starts(self, block: int) -> str:
        """A hash of what training began with, in a block."""
        return start_digest(self.layout, block, self.start, self.buffers, frozenset(self.rows))

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


def _check_layout(layout: PartLayout, arrays: Arrays) -> None:
    """Refuses a list of blocks in which an entry of the model is there twice, or none is there at all."""
    if len({tensor.name for tensor in layout.tensors}) < len(layout.tensors):
        raise Forged("a tensor that is in a block twice")
    for tensor in layout.tensors:
        shape = arrays[tensor.name].shape
        for length, dim in zip(shape, tensor.dims, strict=False):
            order = range(length) if dim.order is None else sorted(dim.order.tolist())
            if len(dim.bits) != length or list(order) != list(range(length)):
                raise Forged("an entry that is in a block twice")


def _number(block: int) -> bytes:
    return block.to_bytes(BLOCK, "little")


def _about(session: str, sender: str, receiver: str) -> bytes:
    return f"{session} {sender} {receiver}".encode()


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes in a tensor of bytes."""
    return tensor.cpu().numpy().tobytes()
