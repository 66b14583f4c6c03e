"""Clients that do not keep to the protocol: one of them does not close the sums of all others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from secure_sums import IDENTITIES, clients_of, secure_sum

from potluck.core import Model, Reply
from potluck.parts import WHOLE
from potluck.secure import crypto
from potluck.secure.client import SecureClient, _Own, _tensor
from potluck.secure.protocol import scales, signed_text
from potluck.secure.server import OpenedBlock
from potluck.secure.settings import Secure, canonical

NAMES = [f"c{number:02}" for number in range(20)]
START = {"w": torch.zeros(4)}


class WrongShares(SecureClient):
    """Gives wrong shares of others' secrets, and signs them."""

    def open(self, client, request):
        opened = super().open(client, request).arrays["opened"].clone()
        opened[0::34] ^= 1
        return self.signed(client, request, opened)

    def signed(self, client, request, opened):
        own = _Own.of(self.identities.root(client), request["session"])
        text = signed_text(canonical(request), client, opened.numpy().tobytes())
        return Reply(arrays={"opened": opened, "signature": _tensor(crypto.sign(own.sign, text))})


class WrongCiphers(SecureClient):
    """Sends its neighbours bytes that they cannot decrypt, and signs them."""

    def shares(self, client, request):
        arrays = dict(super().shares(client, request).arrays)
        arrays["shares"] = arrays["shares"].clone()
        arrays["shares"][:, 0] ^= 1
        own = _Own.of(self.identities.root(client), request["session"])
        rows = [row.tobytes() for row in arrays["shares"].numpy()]
        text = signed_text(canonical(request), client, *rows, arrays["commitments"].numpy().tobytes())
        return Reply(arrays=arrays | {"signature": _tensor(crypto.sign(own.sign, text))})


class Long(SecureClient):
    """Clips nothing: its update is 19 times as long as it may be, in every entry."""

    def upload(self, task, reply, weight, zoo):
        sent = task.models["model"]
        made = {name: tensor + 1900.0 for name, tensor in sent.arrays.items()}
        clipped, self.settings = self.settings, replace(self.settings, clip=1e9)
        scale = scales(clipped, 1.0, len(NAMES))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("potluck.secure.client.scales", lambda *told: scale)
                return super().upload(task, Reply({"model": Model(sent.spec, made)}), weight, zoo)
        finally:
            self.settings = clipped


def clients(**kinds):
    """Twenty clients that all add 1; some of them of another kind."""
    found = clients_of(START, dict.fromkeys(NAMES, WHOLE), dict.fromkeys(NAMES, [1.0] * 4), dict.fromkeys(NAMES, 1.0))
    for name, kind in kinds.items():
        found[name].side = kind(Secure(True), IDENTITIES)
    return found


@pytest.mark.parametrize("bad", [["c00"], ["c07"], ["c19"], ["c00", "c01", "c02"]])
def test_wrong_shares_of_a_few_clients_do_not_close_a_block_and_they_are_named(bad):
    found = secure_sum(START, clients(**dict.fromkeys(bad, WrongShares)))
    assert found.mean["w"].tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    wrong = {name for name, why in found.total.faulty.items() if "wrong" in why}
    assert wrong <= set(bad)
    if "c00" in bad:  # the first shares are tried first: a wrong one among them is seen
        assert "c00" in wrong


@pytest.mark.parametrize("lost", [{}, {"c05": 2}])
def test_shares_that_nobody_can_read_are_left_out_and_their_sender_is_named(lost):
    """Nobody can take its masks away, so its blocks stay closed; but no honest client fails, or is blamed."""
    before = dict(lost)
    found = secure_sum(START, clients(c05=WrongCiphers), lost)
    assert lost == before
    assert found.total.faulty.keys() == {"c05"}
    assert len(found.total.opened) == 20 - len(before)
    assert not found.weights["w"].any()


def test_a_sum_that_honest_clients_cannot_have_keeps_its_value_and_says_why():
    found = secure_sum(START, clients(c05=Long))
    assert found.mean["w"].tolist() == [0.0] * 4
    ((_, why),) = found.total.refused.items()
    assert why.startswith("the norm of a sum of 20 updates is 3838; secure.clip allows 2000")


def test_the_weights_of_a_sum_must_be_ones_that_its_clients_can_have():
    total = secure_sum(START, clients()).total
    fine = OpenedBlock({"w": np.zeros(4)}, 20.0, {"w": np.array([0.0, 20.0])})
    assert total._odd(fine, 20) == ""
    for weight, rows in ((21.0, [1.0, 1.0]), (-1.0, [0.0, 0.0]), (20.0, [-1.0, 1.0]), (20.0, [1.0, 21.0])):
        assert "weight" in total._odd(OpenedBlock({"w": np.zeros(4)}, weight, {"w": np.array(rows)}), 20)
