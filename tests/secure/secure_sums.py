"""A secure sum without engines and methods: clients with given updates, and the server's state after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import torch

from potluck.core import Model, Reply, Spec, Task
from potluck.parts import OverlapMean
from potluck.secure.blocks import RoundBlocks
from potluck.secure.client import SecureClient
from potluck.secure.crypto import Forged
from potluck.secure.protocol import SeededIdentities
from potluck.secure.server import SecureSum
from potluck.secure.settings import OPEN, REQUEST, SHARES, Secure

NUMBERS = count()
SPEC = Spec("none")


class NoBuffers:
    """A zoo for networks without statistics."""

    def buffers(self, spec):
        return frozenset()


@dataclass
class Client:
    """A client with a part of the server's model, a change to it, and a weight."""

    part: object
    change: dict
    weight: float
    side: SecureClient = field(default_factory=lambda: SecureClient(Secure(True), SeededIdentities(5)))


@dataclass
class Found:
    total: SecureSum
    mean: dict
    weights: dict


def clients_of(start, parts, changes, weights):
    """Clients of one tensor, w."""
    return {
        name: Client(part, {"w": torch.tensor(changes[name])}, weights[name], SecureClient(Secure(True), IDENTITIES))
        for name, part in parts.items()
    }


IDENTITIES = SeededIdentities(5)


def secure_sum(start, clients, lost=None, wanted=None, tamper=lambda phase, client, what: what, probe=None):
    """All four phases. `lost`: in which phase a client is lost. `tamper` changes a request or an answer on the way;
    `probe` may try answers before the true one is taken."""
    lost, wanted = lost or {}, wanted or Secure(True)
    for client in clients.values():
        client.side.settings = wanted
    blocks = RoundBlocks.of(
        start, {n: c.part for n, c in clients.items()}, {n: list(c.change) for n, c in clients.items()}
    )
    total = SecureSum(
        *(wanted, IDENTITIES, f"session {next(NUMBERS)}", blocks, start, frozenset()),
        *({name: [] for name in clients}, frozenset(), max(c.weight for c in clients.values())),
    )

    def phase(number, names, request, answer, take):
        for name in list(names):
            if lost.get(name, 4) <= number:
                continue
            asked = tamper(number, name, request(name))
            if probe is not None:
                probe(number, name, asked, answer, take)
            try:
                reply = tamper(number, name, answer(name, asked))
                if reply is not None:
                    take(name, reply)
            except (Forged, PermissionError, ValueError, TypeError, KeyError):
                lost[name] = number

    def upload(name, asked):
        client = clients[name]
        sent = client.part.take(start)
        made = {key: sent[key] + change for key, change in client.change.items()}
        task = Task("train", name, models={"model": Model(SPEC, sent)}, config={REQUEST: asked})
        return client.side.upload(task, Reply({"model": Model(SPEC, made)}), client.weight, NoBuffers())

    def ask(verb):
        return lambda name, asked: clients[name].side.answer(Task(verb, name, config={REQUEST: asked}))

    phase(0, clients, total.key_request, lambda n, asked: clients[n].side.keys(n, asked), total.take_keys)
    phase(1, total.make_plan(), total.share_request, ask(SHARES), total.take_shares)
    phase(2, total.choose_uploads(), total.upload_request, upload, total.take_upload)
    phase(3, total.choose_blocks(), total.open_request, ask(OPEN), total.take_opened)
    mean = OverlapMean(start)
    sums = total.sums(total.decode(total.open()))
    weights = {name: torch.as_tensor(sums.weights.get(name, 0.0)).expand(start[name].shape).clone() for name in start}
    mean.add_block(sums, 0)
    return Found(total, mean.value(), weights)
