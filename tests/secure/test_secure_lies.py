"""A server that lies: about who holds a block, who was lost, which model was sent. It reads no single update.

Each test is an attack that once worked; every node is honest.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from secure_sums import IDENTITIES, answer, clients_of, make_sum, secure_sum, upload, uploaded_sum

from potluck.parts import WHOLE, Part, Place
from potluck.secure import crypto, shamir
from potluck.secure.client import UnsafeRequest, _about, _number, _read_shares
from potluck.secure.crypto import Forged
from potluck.secure.protocol import Fates, self_seed
from potluck.secure.settings import AGREE, OPEN, SHARES, Secure

START = {"w": torch.linspace(-1, 1, 4)}
NAMES = [f"c{number:02}" for number in range(12)]
SMALL = Part({"w": Place("w", ((slice(0, 2),),))})
WIDE = NAMES[:3]


def drawn(parts):
    """Clients with random updates and equal weights."""
    generator = torch.Generator().manual_seed(7)
    changes = {
        name: torch.randn(len(part.take(START)["w"]), generator=generator).tolist() for name, part in parts.items()
    }
    return clients_of(START, parts, changes, dict.fromkeys(parts, 1.0))


def refused(clients, verb, names, request, match):
    """All these clients refuse this request."""
    for name in names:
        with pytest.raises((UnsafeRequest, Forged), match=match):
            answer(clients, verb, name, request(name))


def test_no_client_helps_to_open_a_block_of_too_few_contributors_also_if_it_does_not_hold_it():
    """Nine small devices could together open what only three wide ones hold, if one of these alone had uploaded."""
    clients = drawn({name: WHOLE if name in WIDE else SMALL for name in NAMES})
    total = uploaded_sum(START, clients, Secure(True, threshold=0.6))
    (own,) = [block for block, near in total.near.items() if set(near) == set(WIDE)]
    total.uploads = {name: values for name, values in total.uploads.items() if name not in WIDE[1:]}
    total.opening = [own]
    for verb, request in ((AGREE, total.agree_request), (OPEN, total.open_request)):
        refused(clients, verb, NAMES[3:], request, "fewer than 3 clients contributed to")


def test_a_plan_that_has_a_block_of_two_holders_gets_no_shares():
    clients = drawn({name: WHOLE if name in WIDE else SMALL for name in NAMES})
    total = make_sum(START, clients, Secure(True))
    for name in clients:
        total.take_keys(name, clients[name].side.keys(name, total.key_request(name)))
    total.make_plan()

    def fewer(name):
        request = total.share_request(name)
        return request | {"blocks": [[block, numbers[:2]] for block, numbers in request["blocks"]]}

    refused(clients, SHARES, NAMES, fewer, "fewer than 3 clients hold")


def test_a_plan_in_which_a_neighbour_is_left_out_is_not_the_plan_that_others_have():
    """Who holds a block is told to all; a client with another list has other keys, and can read no share."""
    clients = drawn(dict.fromkeys(NAMES[:5], WHOLE))
    total = uploaded_sum(START, clients)
    for name in NAMES[:5]:
        total.take_agreed(name, answer(clients, AGREE, name, total.agree_request(name)))
    request = total.open_request("c00")
    (block, numbers), *_ = request["blocks"]
    gone = request["members"].index("c04")
    odd = request | {"blocks": [[block, [number for number in numbers if number != gone]]]}
    odd["peers"] = {peer: keys for peer, keys in request["peers"].items() if peer != "c04"}
    with pytest.raises((Forged, UnsafeRequest)):
        answer(clients, OPEN, "c00", odd)


def test_a_block_whose_number_was_exchanged_inside_a_share_is_not_given():
    """The number of the block is encrypted with its share: a request cannot give it another."""
    clients = drawn({name: WHOLE if name in WIDE else SMALL for name in NAMES[:6]})
    total = uploaded_sum(START, clients)
    for name in NAMES[:6]:
        total.take_agreed(name, answer(clients, AGREE, name, total.agree_request(name)))
    true = total.open_request("c05")
    ((one, first), (other, second)) = true["blocks"]
    odd = true | {"blocks": [[other, first], [one, second]]}
    with pytest.raises((Forged, UnsafeRequest)):
        answer(clients, OPEN, "c05", odd)


@pytest.mark.parametrize("threshold", [0.5, 0.6, 1.0])
def test_clients_that_are_told_different_lists_of_uploads_open_nothing(threshold):
    """Every client hears that the victim and one other uploaded, and that all others were lost."""
    names, victim = NAMES[:9], "c00"
    clients = drawn(dict.fromkeys(names, WHOLE))
    total = uploaded_sum(START, clients, Secure(True, threshold=threshold, min_holders=2))
    others, every = [name for name in names if name != victim], dict(total.uploads)
    signed = {}
    for number, name in enumerate(others):
        decoy = others[(number + 1) % len(others)]
        total.uploads = {who: values for who, values in every.items() if who in (victim, decoy)}
        total.agreed = {}
        total.take_agreed(name, answer(clients, AGREE, name, total.agree_request(name)))
        signed[name] = (dict(total.uploads), dict(total.agreed))
    for name, (uploads, agreed) in signed.items():
        total.uploads, total.agreed = uploads, agreed
        with pytest.raises(UnsafeRequest, match="1 clients agree on who uploaded"):
            answer(clients, OPEN, name, total.open_request(name))
        # Signatures of others, who signed another list, do not help.
        total.agreed = {peer: each[1][peer] for peer, each in signed.items()}
        with pytest.raises(Forged, match="signature"):
            answer(clients, OPEN, name, total.open_request(name))


def test_seeds_of_a_client_that_was_told_that_others_are_not_there_stay_closed():
    """The victim masks with two neighbours alone; all others hear that it uploaded, and that these two were lost."""
    names, victim, gone = NAMES[:9], "c00", ["c01", "c02"]
    clients = drawn(dict.fromkeys(names, WHOLE))
    total = make_sum(START, clients, Secure(True, threshold=0.6))
    for name in names:
        total.take_keys(name, clients[name].side.keys(name, total.key_request(name)))
    for name in total.make_plan():
        total.take_shares(name, answer(clients, SHARES, name, total.share_request(name)))
    total.choose_uploads()
    every = dict(total.shares)
    total.shares = {name: every[name] for name in (victim, *gone)}
    alone = upload(clients, START, victim, total.upload_request(victim))
    total.shares = every
    for name in names:
        if name not in (victim, *gone):
            total.take_upload(name, upload(clients, START, name, total.upload_request(name)))
    total.uploads[victim] = alone.arrays["masked"].numpy().view(np.uint32)
    total.told[victim] = alone.arrays["told"].numpy().tobytes()
    others = [name for name in names if name not in (victim, *gone)]
    total.choose_blocks()
    for name in others:
        total.take_agreed(name, answer(clients, AGREE, name, total.agree_request(name)))
    assert len(total.agreed) == 6  # enough for this threshold
    refused(clients, OPEN, others, total.open_request, "signature that does not fit")


def test_who_signed_one_list_of_uploads_signs_and_opens_no_other():
    clients = drawn(dict.fromkeys(NAMES[:5], WHOLE))
    total = uploaded_sum(START, clients)
    answer(clients, AGREE, "c00", total.agree_request("c00"))
    del total.uploads["c04"]
    for verb, request in ((AGREE, total.agree_request), (OPEN, total.open_request)):
        with pytest.raises(UnsafeRequest, match="two ways"):
            answer(clients, verb, "c00", request("c00"))


def test_a_client_that_is_sent_another_model_uploads_nothing():
    """A server could send all but one client a model on which training changes nothing (Pasquini et al. 2022)."""
    clients = drawn(dict.fromkeys(NAMES[:5], WHOLE))
    total = uploaded_sum(START, clients)
    with pytest.raises(UnsafeRequest, match="its model is not the one that all others were told of"):
        upload(clients, {"w": torch.zeros(4)}, "c01", total.upload_request("c01"))


def unequal_sum(change):
    """The sum of five clients, of which all but the first are told something else."""
    clients = drawn(dict.fromkeys(NAMES[:5], WHOLE))
    total = make_sum(START, clients, Secure(True))
    for name in clients:
        total.take_keys(name, clients[name].side.keys(name, total.key_request(name)))
    for name in total.make_plan():
        total.take_shares(name, answer(clients, SHARES, name, total.share_request(name)))
    for name in total.choose_uploads():
        start, request = START, total.upload_request(name)
        if name != "c00":
            start, request = change(total, name, request)
        reply = upload(clients, start, name, request)
        total.uploads[name] = reply.arrays["masked"].numpy().view(np.uint32)
        total.told[name] = reply.arrays["told"].numpy().tobytes()
    total.choose_blocks()
    return clients, total


def masked_sum(clients, total):
    """What is left of a sum when all self-masks are gone."""
    (block,) = total.opening
    found = sum(total.uploads.values())
    for name in clients:
        seed = self_seed(IDENTITIES.root(name), total.session, total.plan.hash, block)
        crypto.add_mask(found, seed, block, negative=True)
    return total._decode(block, found).sums["w"]


def told_otherwise(kind):
    """How all but the first client are told something else, with a request that fits by itself."""

    def change(total, name, request):
        start = {"w": torch.zeros(4)} if kind == "start" else START
        true_start, true_heaviest = total.start, total.heaviest
        total.start = start
        total.heaviest = 1e30 if kind == "heaviest" else true_heaviest
        total.choose_uploads()
        odd = total.upload_request(name)
        total.start, total.heaviest = true_start, true_heaviest
        total.choose_uploads()
        return start, odd

    return change


@pytest.mark.parametrize("kind", ["start", "heaviest"])
def test_uploads_of_clients_that_were_told_different_things_stay_hidden(kind):
    """With another largest weight, the updates of all others would be rounded to zero."""
    clients, total = unequal_sum(told_otherwise(kind))
    found = masked_sum(clients, total)
    single = clients["c00"].change["w"].numpy()
    assert np.abs(found - single).max() > 1
    every = sum(client.change["w"].numpy() for client in clients.values())
    assert np.abs(found - every).max() > 1


def test_the_same_sum_of_clients_that_were_told_the_same_is_right():
    clients, total = unequal_sum(lambda total, name, request: (START, request))
    every = sum(client.change["w"].numpy() for client in clients.values())
    assert masked_sum(clients, total) == pytest.approx(every, abs=1e-4)


def test_scales_of_a_message_do_not_count():
    """With other scales, the updates of all others would be rounded to zero."""

    def silenced(total, name, request):
        return START, request | {"scales": [1e-30, 1e-30, 1.0]}

    clients, total = unequal_sum(silenced)
    every = sum(client.change["w"].numpy() for client in clients.values())
    assert masked_sum(clients, total) == pytest.approx(every, abs=1e-4)


def test_a_layout_that_lists_an_entry_twice_is_refused():
    """Entries that never change, in place of all others, would leave a sum of one client."""
    clients = drawn(dict.fromkeys(NAMES[:5], WHOLE))
    total = uploaded_sum(START, clients)
    request = total.upload_request("c01")
    block = request["upload"][0]
    request["layout"] = {"dims": [[[[block, 4]], [[0, 1], [0, 1], [0, 1], [0, 1]]]], "tensors": [["w", block, [0]]]}
    with pytest.raises(Forged, match="twice"):
        upload(clients, START, "c01", request)


def test_as_many_shares_as_holders_are_needed_for_a_secret():
    assert Secure(min_holders=3).shares_needed(6) == 3
    assert Secure(min_holders=5).shares_needed(6) == 5
    assert Secure(min_holders=8).shares_needed(10) == 8
    assert Secure(min_holders=3).shares_needed(30) == 10
    assert Secure(min_holders=5).shares_needed(4) == 4  # of four that is all of them
    assert Secure(min_holders=3, threshold=0.6).shares_needed(9) == 6


def test_fewer_than_min_holders_clients_together_cannot_open_a_secret():
    clients = drawn(dict.fromkeys(NAMES[:6], WHOLE))
    few = dict.fromkeys(NAMES[:2], 4)
    assert secure_sum(START, clients, dict(few), Secure(True, min_holders=5)).total.open() == {}
    assert secure_sum(START, clients, {"c00": 4}, Secure(True, min_holders=5)).total.open() != {}


def test_what_is_signed_names_every_single_thing():
    total = uploaded_sum(START, drawn(dict.fromkeys(NAMES[:5], WHOLE)))
    fates = total.fates
    texts = {
        each.text(total.plan, total._told)
        for each in (fates, Fates(fates.uploaded[:-1], fates.blocks), Fates(fates.uploaded, ()))
    }
    assert len(texts) == 3


def test_the_number_of_a_block_is_encrypted_with_its_share():
    total = uploaded_sum(START, drawn({name: WHOLE if name in WIDE else SMALL for name in NAMES}))
    held = total.plan.held("c00")
    shares = [bytes([number]) * shamir.SHARE for number in range(3)]

    def read(blocks):
        text = shares[0] + b"".join(_number(block) + each for block, each in zip(blocks, shares[1:], strict=True))
        cipher = crypto.encrypt(bytes(32), text, _about(total.session, "c00", "c01"))
        return _read_shares(bytes(32), cipher.hex(), total.plan, "c00", "c01")

    assert read(held) == {-1: shares[0], held[0]: shares[1], held[1]: shares[2]}
    assert read(held[::-1]) == {}
