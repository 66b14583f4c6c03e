"""The protocol of secure sums by itself: blocks, masks, shares; what is opened, and what never is."""

from __future__ import annotations

import pickle
from contextlib import suppress
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from secure_sums import IDENTITIES, clients_of, secure_sum

from potluck.parts import WHOLE, OverlapMean, Part, Place
from potluck.secure import crypto, shamir
from potluck.secure.blocks import Dimension, PartLayout, RoundBlocks
from potluck.secure.client import UnsafeRequest
from potluck.secure.protocol import SumPlan, mask_secret, neighbours, pair_key, self_seed
from potluck.secure.ring import Ring
from potluck.secure.settings import Secure

QUICK = settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def test_any_two_of_three_shares_give_the_secret_and_one_gives_none():
    secret = bytes(range(32))
    shares = dict(enumerate(shamir.split(secret, 2, [1, 2, 3], lambda n: crypto.expand(b"x", n)), 1))
    for pair in ({1, 2}, {1, 3}, {2, 3}, {1, 2, 3}):
        assert shamir.join({point: shares[point] for point in pair}) == secret
    with suppress(shamir.NoSecret):
        assert shamir.join({1: shares[1]}) != secret


def test_shares_of_a_constant_secret_of_degree_one_are_a_line():
    drawn = [0, 7, 0, 9]  # coefficients 7 and 9
    shares = shamir.split(bytes(32), 2, [1, 2], lambda n: drawn[n].to_bytes(32, "little"))
    low = [int.from_bytes(share[:17], "little") for share in shares]
    high = [int.from_bytes(share[17:], "little") for share in shares]
    assert (low, high) == ([7, 14], [9, 18])


def test_the_ring_holds_the_largest_sum_and_numbers_come_back_within_half_a_step():
    for bits in (32, 64):
        ring = Ring(bits)
        scale = ring.scale(100.0, 30)
        total = ring.zeros(2)
        for _ in range(30):
            total += ring.encode(np.array([100.0, -100.0]), scale)
        assert ring.decode(total, scale).tolist() == [3000.0, -3000.0]
        assert abs(ring.decode(ring.encode(np.array([0.1]), scale), scale)[0] - 0.1) <= 0.5 / scale


def test_a_mask_that_is_added_and_subtracted_is_gone_and_other_blocks_have_other_masks():
    values = np.arange(700_000, dtype=np.uint32)
    masked, other = values.copy(), values.copy()
    crypto.add_mask(masked, bytes(32), 1)
    crypto.add_mask(other, bytes(32), 2)
    assert (masked != values).mean() > 0.99
    assert (masked != other).mean() > 0.99
    crypto.add_mask(masked, bytes(32), 1, negative=True)
    assert (masked == values).all()


def test_entries_fall_into_blocks_by_who_holds_them():
    start = {"w": torch.zeros(4, 3)}
    small, wide = Part({"w": Place("w", ((slice(0, 2),), (slice(0, 1),)))}), WHOLE
    found = RoundBlocks.of(start, {"a": small, "b": wide, "c": small}, {name: ["w"] for name in "abc"})
    assert found.whole.tensors[0].grid().tolist() == [[3, 2, 2], [3, 2, 2], [2, 2, 2], [2, 2, 2]]
    assert found.holders(3, ["a", "b", "c"]) == ["a", "b", "c"]
    assert found.holders(2, ["a", "b", "c"]) == ["b"]


def test_a_window_that_wraps_round_lists_its_entries_in_the_servers_order():
    rolled = Part({"w": Place("w", ((slice(3, 4), slice(0, 1)),))})  # entries 3, 0
    found = RoundBlocks.of({"w": torch.zeros(4)}, {"a": rolled, "b": WHOLE}, {"a": ["w"], "b": ["w"]})
    layout = PartLayout.read(found.layout("a").plain())
    assert layout.tensors[0].ordered(torch.tensor([30.0, 0.5])).reshape(-1).tolist() == [0.5, 30.0]
    assert layout.tensors[0].grid().tolist() == [3, 3]


@given(st.lists(st.integers(0, 5), max_size=12), st.permutations(range(5)))
def test_a_dimension_survives_being_written(bits, order):
    dim = Dimension(np.array(bits, np.int64), np.array(order, np.int64))
    again = Dimension.read(dim.plain())
    assert again.bits.tolist() == bits
    assert again.order is not None
    assert again.order.tolist() == list(order)


def test_above_32_holders_everybody_has_few_neighbours_and_they_are_mutual():
    names = [f"c{number}" for number in range(200)]
    found = neighbours(1, names, "session")
    assert {len(near) for near in found.values()} == {46}  # 2 ceil(3 log2 200)
    assert all(client in found[peer] for client, near in found.items() for peer in near)
    few = neighbours(1, names[:32], "session")
    assert {len(near) for near in few.values()} == {31}


def test_a_sum_of_three_clients_is_theirs():
    parts = dict.fromkeys(("a", "b", "c"), WHOLE)
    start = {"w": torch.tensor([1.0, 2.0])}
    changes = {"a": [1.0, 0.0], "b": [0.0, 3.0], "c": [2.0, 0.0]}
    found = secure_sum(start, clients_of(start, parts, changes, {"a": 1.0, "b": 2.0, "c": 1.0}))
    # (1*1 + 2*0 + 1*2) / 4 and (1*0 + 2*3 + 1*0) / 4
    assert found.mean["w"].tolist() == pytest.approx([1.75, 3.5], abs=1e-5)


@given(st.data())
@QUICK
def test_no_block_of_too_few_contributors_is_ever_opened_and_all_others_are_right(data):
    least = data.draw(st.integers(2, 4))
    tiers = data.draw(st.integers(1, 4))
    size = 8
    runs = [sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1))) for _ in range(tiers)]
    tier_parts = [Part({"w": Place("w", (torch.tensor(run),))}) for run in runs]
    names = [f"c{number}" for number in range(data.draw(st.integers(3, 9)))]
    parts = {name: tier_parts[data.draw(st.integers(0, tiers - 1))] for name in names}
    start = {"w": torch.linspace(-1, 1, size)}
    changes = {
        name: data.draw(st.lists(st.floats(-2, 2), min_size=(n := len(parts[name].take(start)["w"])), max_size=n))
        for name in names
    }
    lost = {name: data.draw(st.integers(0, 4)) for name in names if data.draw(st.integers(0, 9)) < 3}
    wanted = Secure(True, min_holders=least)
    found = secure_sum(start, clients_of(start, parts, changes, dict.fromkeys(names, 1.0)), lost, wanted)
    uploaded = [name for name in names if lost.get(name, 5) > 2]
    mean, count = OverlapMean(start), torch.zeros(size)
    for name in uploaded:
        mean.add({"w": parts[name].take(start)["w"] + torch.tensor(changes[name])}, parts[name], 1.0)
        count[parts[name].places["w"].dims[0]] += 1
    opened = found.weights["w"] > 0
    assert not bool((opened & (count < least)).any())
    assert bool((found.mean["w"][~opened] == start["w"][~opened]).all())
    assert found.mean["w"][opened].tolist() == pytest.approx(mean.value()["w"][opened].tolist(), abs=1e-4)


def stripped(total, client, block):
    """A block of an upload without all masks that the server may ever learn: those that it shares with clients that
    were lost and, if the block may be opened, the client's own."""
    values, told = total._segment(client, block).copy(), total._told.hash
    seed = self_seed(IDENTITIES.root(client), total.session, total.plan.hash, block)
    if block in total.opening:
        crypto.add_mask(values, seed, block, negative=True)
    for peer in total.near[block][client]:
        if peer in total.shares and peer not in total.uploads:
            private = mask_secret(IDENTITIES.root(peer), total.session)
            secret = crypto.Agreements().agree(private, total.announced[client].mask)
            key = pair_key(secret, total.session, total.plan.hash, told)
            crypto.add_mask(values, key, block, negative=not peer < client)
    return values


def assert_uniform(values):
    """Chi-square over the 256 values of a byte."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-8, 255)


@given(st.data())
@settings(QUICK, max_examples=12)
def test_any_uploads_of_fewer_than_min_holders_are_uniform_whatever_the_server_may_open(data):
    """Over random tiers, cohorts and losses. Masks that the server may learn are taken away first."""
    least, tiers, size = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3)), 6000
    ends = [size * (number + 1) // tiers for number in range(tiers)]
    tier_parts = [Part({"w": Place("w", ((slice(0, end),),))}) for end in ends]
    names = [f"c{number}" for number in range(data.draw(st.integers(least, 8)))]
    parts = {name: tier_parts[data.draw(st.integers(0, tiers - 1))] for name in names}
    start = {"w": torch.linspace(-1, 1, size)}
    changes = {name: [0.5] * len(part.take(start)["w"]) for name, part in parts.items()}
    lost = {name: data.draw(st.integers(1, 4)) for name in names if data.draw(st.integers(0, 9)) < 3}
    clients = clients_of(start, parts, changes, dict.fromkeys(names, 1.0))
    total = secure_sum(start, clients, lost, Secure(True, min_holders=least)).total
    fine, _, _ = total.scales() if total.plan.members else (1.0, 1.0, 1.0)
    for block in total.wanted:
        shown = {client: stripped(total, client, block) for client in total.contributors(block)}
        for values in shown.values():
            assert_uniform(values)
            assert (np.abs(total.ring.decode(values[:-1], fine) - 0.5) < 1e-3).mean() < 0.01
        if len(shown) < least:
            continue
        for few in combinations(shown, least - 1):
            assert_uniform(sum(shown[client] for client in few))
            assert_uniform(np.concatenate([shown[client] for client in few]))
        if block in total.opening:  # all of them together are the sum
            every = total.ring.decode(sum(shown.values())[:-1], fine)
            assert np.abs(every - 0.5 * len(shown)).max() < 1e-3


def test_uploads_together_with_their_own_masks_are_uniform_too():
    parts = dict.fromkeys(("a", "b", "c"), WHOLE)
    start = {"w": torch.zeros(20_000)}
    changes = {name: [0.0] * 20_000 for name in parts}
    found = secure_sum(start, clients_of(start, parts, changes, dict.fromkeys(parts, 1.0)))
    a, b, c = (found.total.uploads[name] for name in parts)
    for values in (a, b, a + b, a - b, b + c, a + b + c):
        assert_uniform(values)


def test_a_client_gives_no_share_of_a_block_that_too_few_contributed_to():
    parts = dict.fromkeys(("a", "b", "c", "d"), WHOLE)
    start = {"w": torch.zeros(3)}
    made = clients_of(start, parts, dict.fromkeys(parts, [0.0] * 3), dict.fromkeys(parts, 1.0))
    found = secure_sum(start, made, {"c": 2, "d": 2})
    assert found.total.opening == []
    found.total.opening = found.total.wanted  # a server that wants more
    for name in ("a", "b"):
        with pytest.raises(UnsafeRequest, match="fewer than 3"):
            made[name].side.open(name, found.total.open_request(name))


def test_a_client_opens_a_session_in_one_way_only():
    parts = dict.fromkeys(("a", "b", "c", "d"), WHOLE)
    start = {"w": torch.zeros(3)}
    made = clients_of(start, parts, dict.fromkeys(parts, [0.0] * 3), dict.fromkeys(parts, 1.0))
    found = secure_sum(start, made)
    request = found.total.open_request("a")
    made["a"].side.open("a", request)  # the same again is fine: an answer may be lost on the way
    del found.total.uploads["d"]
    with pytest.raises(UnsafeRequest, match="two ways"):
        made["a"].side.open("a", found.total.open_request("a"))


def test_a_neighbour_that_is_named_twice_does_not_count_twice():
    parts = dict.fromkeys(("a", "b", "c"), WHOLE)
    start = {"w": torch.zeros(3)}
    made = clients_of(start, parts, dict.fromkeys(parts, [0.0] * 3), dict.fromkeys(parts, 1.0))
    request = secure_sum(start, made).total.share_request("a")
    request["blocks"] = [[block, [0, 1, 1]] for block, _ in request["blocks"]]
    with pytest.raises(crypto.Forged, match="twice"):
        made["a"].side.shares("a", request)


def test_an_update_that_is_not_finite_leaves_no_device():
    parts = dict.fromkeys(("a", "b", "c", "d"), WHOLE)
    start = {"w": torch.zeros(3)}
    changes = dict.fromkeys(parts, [1.0] * 3) | {"d": [1.0, float("nan"), 0.0]}
    found = secure_sum(start, clients_of(start, parts, changes, dict.fromkeys(parts, 1.0)))
    assert sorted(found.total.uploads) == ["a", "b", "c"]
    assert found.mean["w"].tolist() == pytest.approx([1.0] * 3, abs=1e-5)


def test_a_long_update_is_clipped_to_the_norm():
    parts = dict.fromkeys(("a", "b", "c"), WHOLE)
    start = {"w": torch.zeros(2)}
    changes = {"a": [30.0, 40.0], "b": [0.0, 0.0], "c": [0.0, 0.0]}
    found = secure_sum(
        start, clients_of(start, parts, changes, dict.fromkeys(parts, 1.0)), wanted=Secure(True, clip=5.0)
    )
    assert found.mean["w"].tolist() == pytest.approx([1.0, 4 / 3], abs=1e-6)


def test_shared_secrets_are_forgotten_when_another_sum_begins_and_go_to_no_other_process():
    parts = dict.fromkeys(("a", "b", "c"), WHOLE)
    start = {"w": torch.zeros(3)}
    made = clients_of(start, parts, dict.fromkeys(parts, [0.0] * 3), dict.fromkeys(parts, 1.0))
    secure_sum(start, made)
    side = made["a"].side
    assert len(side.secrets) > 0
    assert len(pickle.loads(pickle.dumps(side)).secrets) == 0
    side.keys("a", {"session": "another"})
    assert len(side.secrets) == 0
    kept = [name for name, each in vars(crypto).items() if hasattr(each, "cache_info")]
    assert sorted(kept) == ["_zeros", "check"]  # neither is given a secret


def test_a_plan_of_many_clients_is_read_as_it_was_made():
    members = [f"c{number}" for number in range(40)]
    plan = SumPlan.of("session", members, {1: members, 2: members[:35], 4: members[:10]})
    read = SumPlan.read({"session": "session", **plan.plain()})
    assert (read.hash, read.near, read.peers) == (plan.hash, plan.near, plan.peers)
