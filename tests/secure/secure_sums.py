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
from potluck.secure.settings import AGREE, OPEN, REQUEST, SHARES, Secure

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


def make_sum(start, clients, wanted):
    """The server's side of a new sum."""
    for client in clients.values():
        client.side.settings = wanted
    blocks = RoundBlocks.of(
        start, {n: c.part for n, c in clients.items()}, {n: list(c.change) for n, c in clients.items()}
    )
    return SecureSum(
        *(wanted, IDENTITIES, f"session {next(NUMBERS)}", blocks, start, frozenset()),
        *({name: [] for name in clients}, frozenset(), max(c.weight for c in clients.values())),
    )


def upload(clients, start, name, asked):
    """What a client uploads that is sent its part of a model."""
    client = clients[name]
    sent = client.part.take(start)
    made = {key: sent[key] + change for key, change in client.change.items()}
    task = Task("train", name, models={"model": Model(SPEC, sent)}, config={REQUEST: asked})
    return client.side.upload(task, Reply({"model": Model(SPEC, made)}), client.weight, NoBuffers())


def answer(clients, verb, name, asked):
    return clients[name].side.answer(Task(verb, name, config={REQUEST: asked}))


def uploaded_sum(start, clients, wanted=None):
    """A sum up to the uploads of all clients; the blocks to open are chosen."""
    total = make_sum(start, clients, wanted or Secure(True))
    for name in clients:
        total.take_keys(name, clients[name].side.keys(name, total.key_request(name)))
    for name in total.make_plan():
        total.take_shares(name, answer(clients, SHARES, name, total.share_request(name)))
    for name in total.choose_uploads():
        total.take_upload(name, upload(clients, start, name, total.upload_request(name)))
    total.choose_blocks()
    return total


def secure_sum(start, clients, lost=None, wanted=None, tamper=lambda phase, client, what: what, probe=None):
    """All five phases. `lost`: in which phase a client is lost. `tamper` changes a request or an answer on the way;
    `probe` may try answers before the true one is taken."""
    lost, total = lost or {}, make_sum(start, clients, wanted or Secure(True))

    def phase(number, names, request, answer, take):
        for name in list(names):
            if lost.get(name, 5) <= number:
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

    def ask(verb):
        return lambda name, asked: answer(clients, verb, name, asked)

    def train(name, asked):
        return upload(clients, start, name, asked)

    phase(0, clients, total.key_request, lambda n, asked: clients[n].side.keys(n, asked), total.take_keys)
    phase(1, total.make_plan(), total.share_request, ask(SHARES), total.take_shares)
    phase(2, total.choose_uploads(), total.upload_request, train, total.take_upload)
    phase(3, total.choose_blocks(), total.agree_request, ask(AGREE), total.take_agreed)
    phase(4, total.choose_openers(), total.open_request, ask(OPEN), total.take_opened)
    mean = OverlapMean(start)
    sums = total.sums(total.decode(total.open()))
    weights = {name: torch.as_tensor(sums.weights.get(name, 0.0)).expand(start[name].shape).clone() for name in start}
    mean.add_block(sums, 0)
    return Found(total, mean.value(), weights)
