"""The server's side of secure aggregation: it asks, checks answers, and adds up what it cannot read.

It holds masked uploads and encrypted shares. What it learns is the sum of each block that it opens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.core import Arrays, Reply, Shapes, numpy_stream
from potluck.parts import Sums
from potluck.secure import crypto, shamir
from potluck.secure.blocks import RoundBlocks, segments
from potluck.secure.client import BLOCK, UNREAD, bytes_of, to_open
from potluck.secure.protocol import (
    Announced,
    Fates,
    Identities,
    SumPlan,
    Uploads,
    about_uploads,
    commitment,
    pair_key,
    scales,
    signed_text,
    start_digest,
)
from potluck.secure.ring import Ring, Values
from potluck.secure.settings import Secure, canonical

if TYPE_CHECKING:
    from potluck.secure.noise import NoiseShare

Request = dict[str, Any]
TRIES = 256
"""How many random sets of shares are tried, if some give a wrong secret."""


@dataclass(frozen=True, eq=False)
class OpenedBlock:
    """What the server reads of an opened block: sums over its contributors."""

    sums: Mapping[str, NDArray[np.float64]]
    """The weighted updates of each tensor's entries, in the order of the block."""
    weight: float
    rows: Mapping[str, NDArray[np.float64]]
    """The weights of rows that have their own, by tensor."""


@dataclass(eq=False)
class SecureSum:
    """One secure sum: the state of the server between the phases.

    For each phase there is a request for each client, and a function that takes its answer; it raises `Forged` if the
    answer cannot be used, and then the client counts as lost.
    """

    settings: Secure
    identities: Identities
    session: str
    blocks: RoundBlocks
    start: Arrays
    buffers: frozenset[str]
    """The server's tensors that are statistics, not weights."""
    rows: Mapping[str, Sequence[str]]
    """For each client, the tensors in its part whose rows have weights of their own."""
    row_names: frozenset[str]
    """The same tensors under the server's names."""
    heaviest: float
    """The largest weight of a client."""
    noise: NoiseShare | None = None
    """The noise that clients add together; None: none."""
    announced: dict[str, Announced] = field(default_factory=dict)
    plan: SumPlan = field(init=False)
    shares: dict[str, list[bytes]] = field(default_factory=dict)
    commitments: dict[str, list[bytes]] = field(default_factory=dict)
    wanted: list[int] = field(default_factory=list)
    """The blocks that clients upload."""
    uploads: dict[str, Values] = field(default_factory=dict)
    told: dict[str, bytes] = field(default_factory=dict)
    """Signatures of who uploaded, under what they were told."""
    opening: list[int] = field(default_factory=list)
    """The blocks that are to be opened."""
    agreed: dict[str, bytes] = field(default_factory=dict)
    """Signatures under who uploaded."""
    opened: dict[str, dict[tuple[str, int], bytes]] = field(default_factory=dict)
    """Shares by who gave them: of whom, and of which block; -1: of the private key."""
    faulty: dict[str, str] = field(default_factory=dict)
    """Clients whose shares were wrong or could not be read, and what was wrong."""
    refused: dict[int, str] = field(default_factory=dict)
    """Opened blocks whose sum is not one of honest clients, and why."""
    _sizes: dict[int, int] = field(default_factory=dict)
    _starts: dict[int, str] = field(default_factory=dict)
    _asked: dict[str, bytes] = field(default_factory=dict)
    """What each client was asked last."""
    _secrets: crypto.Agreements = field(default_factory=crypto.Agreements, repr=False)

    def __post_init__(self) -> None:
        self.plan = SumPlan.of(self.session, (), {})

    @property
    def near(self) -> Mapping[int, Mapping[str, Sequence[str]]]:
        """The blocks of the plan: their holders, and with whom each of them masks it."""
        return self.plan.near

    @property
    def ring(self) -> Ring:
        return Ring(self.settings.bits)

    # Phase 1: keys.

    def key_request(self, client: str) -> Request:
        return {"session": self.session}

    def key_shapes(self, client: str) -> Shapes:
        return {"keys": ((3 * crypto.KEY,), torch.uint8)}

    def take_keys(self, client: str, reply: Reply) -> None:
        keys = bytes_of(reply.arrays["keys"])
        parts = (keys[at : at + crypto.KEY].hex() for at in range(0, len(keys), crypto.KEY))
        told = Announced.read([*parts, reply.metrics.get("proof")])
        self.identities.check(client, told.text(self.session, client), told.proof)
        self.announced[client] = told

    # Phase 2: shares.

    def make_plan(self) -> list[str]:
        """Decides which blocks can be opened if all go well; returns the clients that hold any of them."""
        clients = [client for client in self.blocks.number if client in self.announced]
        found = {block: self.blocks.holders(block, clients) for block in sorted(self.blocks.whole.blocks()) if block}
        holders = {block: each for block, each in found.items() if len(each) >= self.settings.min_holders}
        held = {client for each in holders.values() for client in each}
        self.plan = SumPlan.of(self.session, [client for client in clients if client in held], holders)
        return list(self.plan.members)

    def share_request(self, client: str) -> Request:
        return self._asks(client, self._common(client))

    def _common(self, client: str) -> Request:
        """What a client is told in phases 2 to 5: the plan, and the keys of its neighbours."""
        peers = {peer: self.announced[peer].plain() for peer in self.plan.peers[client]}
        return {"session": self.session, **self.plan.plain(), "peers": peers}

    def share_shapes(self, client: str) -> Shapes:
        """What the answer must hold."""
        blocks = len(self.held(client))
        row = (1 + blocks) * shamir.SHARE + blocks * BLOCK + crypto.TAG
        return {
            "shares": ((len(self.plan.peers[client]), row), torch.uint8),
            "commitments": ((blocks * crypto.KEY,), torch.uint8),
            "signature": ((crypto.SIGNATURE,), torch.uint8),
        }

    def take_shares(self, client: str, reply: Reply) -> None:
        arrays = reply.arrays
        rows = [row.tobytes() for row in arrays["shares"].cpu().numpy()]
        told = bytes_of(arrays["commitments"])
        self._check(client, arrays, *rows, told)
        self.shares[client] = rows
        self.commitments[client] = [told[at : at + crypto.KEY] for at in range(0, len(told), crypto.KEY)]

    def held(self, client: str) -> list[int]:
        """The blocks of the plan that a client holds."""
        return self.plan.held(client)

    # Phase 3: uploads.

    def choose_uploads(self) -> list[str]:
        """Decides which blocks are uploaded, after some clients were lost; returns the clients that hold any."""
        self.wanted = [block for block in self.near if self._enough(block, self.shares)]
        for block in self.wanted:
            entries = sum(count for _, count in self._entries(block))
            self._sizes[block] = entries + 1 + sum(count for _, count in self._row_weights(block))
            self._starts[block] = start_digest(self.blocks.whole, block, self.start, self.buffers, self.row_names)
        return self._told.asked(self.plan)

    @property
    def _told(self) -> Uploads:
        """What all clients that upload are told."""
        about = about_uploads(self._starts, self.heaviest)
        return Uploads(tuple(self.shares), tuple(self.wanted), about)

    def upload_request(self, client: str) -> Request:
        request = {
            **self._told.plain(),
            "starts": [[block, start] for block, start in self._starts.items()],
            "heaviest": self.heaviest,
            "layout": self.blocks.layout(client).plain(),
            "rows": list(self.rows[client]),
        }
        return self._asks(client, self._common(client) | request)

    def scales(self) -> tuple[float, float, float]:
        """How weights of the model, statistics, and weights of clients are rounded."""
        return scales(self.settings, self.heaviest, len(self.plan.members))

    def upload_shapes(self, client: str) -> Shapes:
        entries = sum(self._sizes[block] for block in self.wanted if client in self.near[block])
        whole = torch.int32 if self.settings.bits == 32 else torch.int64
        signature = ((crypto.SIGNATURE,), torch.uint8)
        return {"masked": ((entries,), whole), "told": signature, "signature": signature}

    def take_upload(self, client: str, reply: Reply) -> None:
        arrays = reply.arrays
        masked, told = arrays["masked"].cpu().numpy(), bytes_of(arrays["told"])
        self._check(client, arrays, masked.tobytes())
        crypto.check(self.announced[client].sign, self._told.text(self.plan), told)
        self.told[client] = told
        self.uploads[client] = masked.view(self.ring.dtype)

    # Phase 4: agree.

    def choose_blocks(self) -> list[str]:
        """Decides which blocks are opened, after some clients were lost; returns the clients that can help."""
        self.opening = [block for block in self.wanted if self._enough(block, self.uploads)]
        asked = set(self._told.asked(self.plan))
        helpful = [client for client in self.shares if client in self.uploads or client not in asked]
        return helpful if self.opening else []

    @property
    def fates(self) -> Fates:
        """Who uploaded, and what is to be opened."""
        return Fates(tuple(client for client in self.shares if client in self.uploads), tuple(self.opening))

    def agree_request(self, client: str) -> Request:
        return self._asks(client, self._common(client) | self._told.plain() | self.fates.plain())

    def agree_shapes(self, client: str) -> Shapes:
        return {"agreed": ((crypto.SIGNATURE,), torch.uint8)}

    def take_agreed(self, client: str, reply: Reply) -> None:
        signature = bytes_of(reply.arrays["agreed"])
        crypto.check(self.announced[client].sign, self.fates.text(self.plan, self._told), signature)
        self.agreed[client] = signature

    # Phase 5: open.

    def choose_openers(self) -> list[str]:
        """Those who agreed, if they are enough."""
        known = self.agreed
        return [
            client
            for client in known
            if 1 + sum(peer in known for peer in self.plan.peers[client]) >= self._need(client)
        ]

    def _need(self, client: str) -> int:
        """How many shares give a client's secrets, and how many must agree before it opens anything."""
        return self.settings.shares_needed(1 + len(self.plan.peers[client]))

    def open_request(self, client: str) -> Request:
        needed = [peer for peer in self.plan.peers[client] if peer in self.agreed][: self._need(client) - 1]
        request = {
            "agreed": {peer: self.agreed[peer].hex() for peer in needed},
            "told": {peer: self.told[peer].hex() for peer in self.plan.peers[client] if peer in self.uploads},
            "shares": {
                peer: self.shares[peer][self.plan.peers[peer].index(client)].hex()
                for peer, _ in to_open(client, self.plan, self._told, self.fates)
                if peer != client
            },
        }
        return self._asks(client, self._common(client) | self._told.plain() | self.fates.plain() | request)

    def open_shapes(self, client: str) -> Shapes:
        count = len(self._opened_by(client))
        return {
            "opened": ((count * shamir.SHARE,), torch.uint8),
            "signature": ((crypto.SIGNATURE,), torch.uint8),
        }

    def take_opened(self, client: str, reply: Reply) -> None:
        arrays = reply.arrays
        told = bytes_of(arrays["opened"])
        self._check(client, arrays, told)
        shares = (told[at : at + shamir.SHARE] for at in range(0, len(told), shamir.SHARE))
        given = dict(zip(self._opened_by(client), shares, strict=True))
        self.opened[client] = {of: share for of, share in given.items() if share != UNREAD}
        for peer, _ in given.keys() - self.opened[client].keys():
            self.faulty.setdefault(peer, f"{client[:8]} cannot read its shares")

    def _opened_by(self, client: str) -> list[tuple[str, int]]:
        """Which secrets a client is asked for shares of."""
        wanted = to_open(client, self.plan, self._told, self.fates)
        return [(peer, block) for peer, blocks in wanted for block in blocks]

    # The sum.

    def open(self) -> dict[int, Values]:
        """The sum of each block that can be opened, without masks."""
        found: dict[int, Values] = {}
        for block in self.opening:
            try:
                found[block] = self._unmask(block)
            except shamir.NoSecret:
                continue
        return found

    def contributors(self, block: int) -> list[str]:
        """Who uploaded this block."""
        return [client for client in self.near[block] if client in self.uploads]

    def _unmask(self, block: int) -> Values:
        total, uploads = self.ring.zeros(self._sizes[block]), self._told.hash
        for client in self.contributors(block):
            total += self._segment(client, block)
            crypto.add_mask(total, self._seed(client, block), block, negative=True)
        for lost in (client for client in self.near[block] if client in self.shares and client not in self.uploads):
            private = self._private_key(lost)
            for client in self.near[block][lost]:
                if client in self.uploads:
                    secret = self._secrets.agree(private, self.announced[client].mask)
                    key = pair_key(secret, self.session, self.plan.hash, uploads)
                    crypto.add_mask(total, key, block, negative=not lost < client)
        return total

    def _segment(self, client: str, block: int) -> Values:
        """A block of a masked upload."""
        start = 0
        for each in self.wanted:
            if each == block:
                break
            start += self._sizes[each] if client in self.near[each] else 0
        return self.uploads[client][start : start + self._sizes[block]]

    def _seed(self, client: str, block: int) -> bytes:
        promised = self.commitments[client][self.held(client).index(block)]
        return self._recover(client, block, lambda seed: commitment(seed) == promised)

    def _private_key(self, client: str) -> bytes:
        public = self.announced[client].mask
        return self._recover(client, -1, lambda key: crypto.public_key(key) == public)

    def _recover(self, client: str, block: int, fits: Callable[[bytes], bool]) -> bytes:
        """A secret, from the shares that the client's neighbours gave; those that do not fit together are left out."""
        peers = [*self.plan.peers[client], client]
        known = {
            place: given[client, block]
            for place, peer in enumerate(peers, 1)
            if (client, block) in (given := self.opened.get(peer, {}))
        }
        need = self._need(client)
        # Those who gave wrong shares before come last.
        order = sorted(known, key=lambda place: (peers[place - 1] in self.faulty, place))
        for points in _choices(order, need, f"{self.session} {client} {block}"):
            secret = _joined(known, points)
            if secret is None or not fits(secret):
                continue
            for place in known.keys() - set(points) if list(points) != order[:need] else ():
                if _joined(known, [*points[1:], place]) != secret:
                    self.faulty.setdefault(peers[place - 1], f"its share of a secret of {client[:8]} is wrong")
            return secret
        raise shamir.NoSecret(f"{len(known)} shares, of which {need} are needed")

    def decode(self, opened: Mapping[int, Values]) -> dict[int, OpenedBlock]:
        """The sums of opened blocks as numbers, without those that no honest clients can have."""
        found = {block: self._decode(block, values) for block, values in opened.items()}
        for block, each in found.items():
            if why := self._odd(each, len(self.contributors(block))):
                self.refused[block] = why
        return {block: each for block, each in found.items() if block not in self.refused}

    def _odd(self, found: OpenedBlock, count: int) -> str:
        """Why a sum of so many clients is out of range; empty: it is not. Each number may be off by half a step."""
        (fine, coarse, by_weight), most = self.scales(), self.heaviest * count
        off = 0.5 * count / by_weight
        if not 0 < found.weight <= most + off:
            return f"a sum of {count} weights is {found.weight:.4g}; their largest sum is {most:.4g}"
        if any(float(each.min()) < -off or float(each.max()) > found.weight + 2 * off for each in found.rows.values()):
            return "the weight of a row is above that of its block, or below zero"
        values = [each for name, each in found.sums.items() if name not in self.buffers]
        length, entries = math.sqrt(sum(float((each**2).sum()) for each in values)), sum(each.size for each in values)
        rounded = 0.5 * most / fine * math.sqrt(entries)
        limit = self.settings.clip * most if self.noise is None else self.noise.longest(count, entries)
        if length > limit * (1 + 1e-6) + rounded:
            return f"the norm of a sum of {count} updates is {length:.4g}; secure.clip allows {limit:.4g}"
        limit = self.settings.statistics * most
        largest = max(
            (float(np.abs(each).max()) for name, each in found.sums.items() if name in self.buffers), default=0
        )
        if largest > limit * (1 + 1e-6) + 0.5 * most / coarse:
            return f"a sum of {count} changes of statistics is {largest:.4g}; secure.statistics allows {limit:.4g}"
        return ""

    def _decode(self, block: int, values: Values) -> OpenedBlock:
        (fine, coarse, by_weight), ring, at = self.scales(), self.ring, 0
        sums, rows = {}, {}
        for name, count in self._entries(block):
            sums[name] = ring.decode(values[at : at + count], coarse if name in self.buffers else fine) * self.heaviest
            at += count
        weight = float(ring.decode(values[at : at + 1], by_weight)[0])
        at += 1
        for name, count in self._row_weights(block):
            rows[name] = ring.decode(values[at : at + count], by_weight)
            at += count
        return OpenedBlock(sums, weight, rows)

    def sums(self, decoded: Mapping[int, OpenedBlock]) -> Sums:
        """The weighted sums of the clients' models, entry by entry, for a mean. Closed blocks have weight zero."""
        found = Sums()
        for tensor in self.blocks.whole.tensors:
            name, start = tensor.name, self.start[tensor.name]
            dims = max(len(tensor.dims), int(name in self.row_names))
            lead = math.prod(start.shape[:dims])
            total, weights = np.zeros((lead, start.numel() // lead)), np.zeros(lead)
            for block, each in decoded.items():
                if name not in each.sums:
                    continue
                rows = tensor.rows(block)
                at = np.arange(lead) if rows is None else rows
                total[at] = each.sums[name].reshape(len(at), -1)
                weights[at] = each.rows[name][at // (lead // len(start))] if name in each.rows else each.weight
            if not weights.any():
                continue
            shape = (*start.shape[:dims], *[1] * (start.dim() - dims))
            by_entry = torch.from_numpy(weights).reshape(shape).to(start.device)
            moved = torch.from_numpy(total).reshape(start.shape).to(start.device) + by_entry * start.double()
            # A total of -0.0 is one that nothing was added to.
            found.totals[name] = torch.where(by_entry > 0, moved, -0.0)
            found.weights[name] = float(weights[0]) if bool((weights == weights[0]).all()) else by_entry
        return found

    def weight(self, client: str, decoded: Mapping[int, OpenedBlock]) -> float | None:
        """The mean weight of those who hold the same as this client, as far as it is known; None: nothing of its
        upload was opened."""
        held = [block for block in decoded if client in self.near[block]]
        if not held:
            return None
        least = min(held, key=lambda block: len(self.contributors(block)))
        return decoded[least].weight / len(self.contributors(least))

    def _entries(self, block: int) -> Iterator[tuple[str, int]]:
        """The tensors in a block, each with the number of its entries there."""
        for tensor, rows in segments(self.blocks.whole, block):
            start = self.start[tensor.name]
            lead = math.prod(start.shape[: len(tensor.dims)])
            yield tensor.name, start.numel() if rows is None else len(rows) * (start.numel() // lead)

    def _row_weights(self, block: int) -> Iterator[tuple[str, int]]:
        """The tensors in a block whose rows have weights of their own, each with the number of its rows."""
        for tensor, _ in segments(self.blocks.whole, block):
            if tensor.name in self.row_names:
                yield tensor.name, len(self.start[tensor.name])

    def _enough(self, block: int, there: Mapping[str, Any]) -> bool:
        return self.plan.enough(block, there, self.settings.min_holders)

    def _asks(self, client: str, request: Request) -> Request:
        """The request, which the answer must be about."""
        self._asked[client] = canonical(request)
        return request

    def _check(self, client: str, arrays: Arrays, *body: bytes) -> None:
        key, signature = self.announced[client].sign, bytes_of(arrays["signature"])
        crypto.check(key, signed_text(self._asked[client], client, *body), signature)


def _choices(order: Sequence[int], need: int, about: str) -> Iterator[Sequence[int]]:
    """Sets of so many shares: the first; without each one of them; then random ones, the same in every run."""
    if len(order) < need:
        return
    first = list(order[:need])
    yield first
    if len(order) == need:
        return
    for place in first:
        yield [*(each for each in first if each != place), order[need]]
    seed = int.from_bytes(crypto.digest(about.encode())[:8], "little")
    draws = numpy_stream(seed, "shares")
    for _ in range(TRIES):
        yield [order[each] for each in draws.permutation(len(order))[:need].tolist()]


def _joined(known: Mapping[int, bytes], points: Sequence[int]) -> bytes | None:
    try:
        return shamir.join({point: known[point] for point in points})
    except shamir.NoSecret:
        return None
