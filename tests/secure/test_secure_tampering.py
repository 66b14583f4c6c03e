"""Messages of a secure sum that were changed on the way: a client is lost, or a block stays closed; no sum is wrong."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from secure_sums import clients_of, secure_sum

from potluck.core import Reply
from potluck.parts import WHOLE, OverlapMean, Part, Place
from potluck.secure.crypto import Forged

NAMES = [f"c{number}" for number in range(6)]
START = {"w": torch.linspace(-1, 1, 6)}
SMALL = Part({"w": Place("w", ((slice(0, 3),),))})
PARTS = {name: SMALL if number < 3 else WHOLE for number, name in enumerate(NAMES)}


class Tamper:
    """Changes one message: the request or the answer of one client in one phase."""

    def __init__(self, seed, earlier):
        self.random = random.Random(seed)
        self.phase, self.client = self.random.randrange(5), self.random.choice(NAMES)
        self.answer = self.random.random() < 0.6
        self.kind = self.random.choice(["flip", "flip", "truncate", "replay", "duplicate", "drop", "swap"])
        self.earlier, self.seen, self.changed = earlier, {}, False

    def __call__(self, phase, client, what):
        is_answer = isinstance(what, Reply)
        key = (phase, client, is_answer)
        self.seen[key] = copy.deepcopy(what)
        if (phase, client, is_answer) != (self.phase, self.client, self.answer):
            return what
        self.changed = True
        return self.change_answer(key, what) if is_answer else self.change_request(key, what)

    def change_answer(self, key, reply):
        if self.kind == "drop":
            return None
        if self.kind in ("replay", "duplicate"):  # of an earlier session, or of another client
            other = (key[0], self.random.choice(NAMES), True)
            return self.earlier.get(key, reply) if self.kind == "replay" else self.seen.get(other, reply)
        arrays = dict(reply.arrays)
        name = self.random.choice(sorted(arrays))
        tensor = arrays[name].clone()
        if self.kind == "truncate" or not tensor.numel():
            arrays[name] = tensor[: self.random.randrange(len(tensor))] if len(tensor) else tensor
        else:
            flat = tensor.view(torch.uint8).reshape(-1)
            flat[self.random.randrange(len(flat))] ^= 1 << self.random.randrange(8)
            arrays[name] = tensor
        return replace(reply, arrays=arrays)

    def change_request(self, key, request):
        if self.kind == "replay" and key in self.earlier:
            return self.earlier[key]
        request = copy.deepcopy(request)
        name = self.random.choice(sorted(request))
        value = request[name]
        if self.kind in ("drop", "truncate"):
            del request[name]
        elif isinstance(value, str):
            at = self.random.randrange(len(value))
            request[name] = value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
        elif isinstance(value, dict) and value:
            one = self.random.choice(sorted(value))
            if self.random.random() < 0.5:
                del value[one]
            else:
                value[one] = value[self.random.choice(sorted(value))]
        elif isinstance(value, list) and value:
            if self.random.random() < 0.5:
                value.pop(self.random.randrange(len(value)))
            else:
                value.append(copy.deepcopy(self.random.choice(value)))
        elif isinstance(value, float):
            request[name] = value * 2
        return request


def drawn(seed):
    """Random changes of all clients, and their weights."""
    generator = torch.Generator().manual_seed(seed)
    changes = {
        name: torch.randn(len(part.take(START)["w"]), generator=generator).tolist() for name, part in PARTS.items()
    }
    return changes, {name: float(number + 1) for number, name in enumerate(NAMES)}


def wrong_by(found, changes, weights):
    """By how much a sum is wrong, given who uploaded; and whether anybody was lost or any entry stayed closed."""
    mean = OverlapMean(START)
    for name in found.total.uploads:
        made = PARTS[name].take(START)["w"] + torch.tensor(changes[name])
        mean.add({"w": made}, PARTS[name], weights[name])
    opened = found.weights["w"] > 0
    lost = len(found.total.uploads) < len(NAMES) or not bool(opened.all())
    return float((found.mean["w"] - torch.where(opened, mean.value()["w"], START["w"])).abs().max()), lost


def test_one_changed_message_costs_a_client_or_a_block_and_never_gives_a_wrong_sum():
    earlier, changed, lost = {}, 0, 0
    for seed in range(25):
        changes, weights = drawn(seed)
        tamper = Tamper(seed, earlier)
        found = secure_sum(START, clients_of(START, PARTS, changes, weights), tamper=tamper)
        earlier, changed = tamper.seen, changed + tamper.changed
        wrong, missing = wrong_by(found, changes, weights)
        lost += missing
        assert wrong < 1e-4, (seed, tamper.kind, tamper.phase, tamper.client, tamper.answer)
    assert changed > 20
    assert lost > 8


@pytest.mark.slow
def test_ten_thousand_changed_messages_are_all_refused():
    """Every one is tried before the true message, and must leave no trace: the sum is whole and right at the end."""
    earlier, tried = {}, 0
    for seed in range(12):
        changes, weights = drawn(seed)
        last: dict = {}

        def probe(phase, client, asked, answer, take, seed=seed, last=last, before=earlier):
            nonlocal tried
            true = answer(client, asked)
            last[phase, client, True], last[phase, client, False] = true, asked
            for number in range(24):
                tamper = Tamper(f"{seed} {phase} {client} {number}", before)
                tamper.seen = last
                odd = tamper.change_answer((phase, client, True), true)
                if odd is not None and not same(odd, true):
                    tried += 1
                    refused(take, client, odd, true)
                changed = tamper.change_request((phase, client, False), asked)
                if changed != asked:
                    tried += 1
                    told = None
                    with suppress(Exception):  # a client may refuse as it likes
                        told = answer(client, changed)
                    if told is not None:
                        refused(take, client, told, true)

        found = secure_sum(START, clients_of(START, PARTS, changes, weights), probe=probe)
        earlier = last
        assert wrong_by(found, changes, weights) == (pytest.approx(0, abs=1e-4), False)
    assert tried > 10_000


def same(one, other):
    return one.metrics == other.metrics and all(
        name in one.arrays and torch.equal(one.arrays[name], other.arrays[name]) for name in other.arrays
    )


def refused(take, client, odd, true):
    """The gate refuses other shapes; the server refuses all else."""
    if same(odd, true):
        return
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in odd.arrays.items()}
    if shapes != {name: (tensor.shape, tensor.dtype) for name, tensor in true.arrays.items()}:
        return
    try:
        take(client, odd)
    except Forged:
        return
    raise AssertionError("a changed answer was taken")
