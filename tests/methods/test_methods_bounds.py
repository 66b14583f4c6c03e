"""AllLarge, AllSmall and ExclusiveFL: who takes part, and with which network."""

from dataclasses import replace

import pytest
from made_round import Play, data, echoing, people, zeros, zoo

from potluck.core import Client, digest
from potluck.methods import AllLarge, AllSmall, ExclusiveFL
from potluck.models import ModelZoo
from potluck.parts import AdamW


def moved(state):
    return state.model.arrays


def test_exclusivefl_averages_only_clients_that_can_train_the_largest_network():
    values = {"a": ("small", 9.0), "c1": ("large", 1.0), "c2": ("large", 3.0)}
    clients = {client: (tier, data(1, (value, value))) for client, (tier, value) in values.items()}
    for method, mean in ((ExclusiveFL(), 2), (AllLarge(), 13 / 3)):
        play = Play(echoing(method), zoo(small=1, large=2), clients)
        new = play.round(zeros(play.init()))
        assert moved(new)["body.1.linear.weight"].item() == pytest.approx(mean)
        assert new.model.spec == play.zoo.full


def test_exclusivefl_without_a_strong_client_changes_nothing():
    play = Play(ExclusiveFL(), zoo(a=1, b=2, c=3), people("a", "b", "c"))
    start = play.init()
    after = play.round(start, only={"c0", "c1"})
    assert digest(moved(after)) == digest(moved(start))
    assert play.session.entries == []


def test_exclusivefl_can_sample_among_the_strong_alone():
    play = Play(ExclusiveFL(sampling="eligible"), zoo(a=1, c=3), people("a", "a", "c", "c"))
    play.round(play.init(), only={"c0", "c1"})
    assert [entry.task.to for entry in play.session.entries] == ["c2", "c3"]


def test_exclusivefl_serves_the_weak_a_network_that_they_cannot_train():
    play = Play(ExclusiveFL(), zoo(a=1, c=3), people("a", "c"))
    state = play.round(play.init())
    assert [play.served(state, client).spec for client in ("c0", "c1")] == [play.zoo.full] * 2
    weak, strong = (Client("any", tier) for tier in play.zoo.tiers)
    assert [play.method.can_train(client, play.zoo) for client in (weak, strong)] == [False, True]
    assert [entry.task.to for entry in play.session.entries] == ["c1"]


def test_alllarge_sends_everyone_the_largest_network():
    play = Play(AllLarge(), zoo(1, 3), people("d1", "d3"))
    state = play.round(play.init())
    assert {play.served(state, client).spec for client in ("c0", "c1")} == {play.zoo.full}
    assert len({entry.cost.bytes_down for entry in play.session.entries}) == 1


def test_allsmall_trains_and_serves_only_the_smallest_network():
    play = Play(AllSmall(), zoo(large=3, small=1), people("small", "large"))
    state = play.round(play.init())
    assert state.model.spec.depth == 1
    assert "body.1.linear.weight" not in moved(state)
    assert {play.served(state, client).spec.depth for client in ("c0", "c1")} == {1}
    assert [entry.cost.bytes_down for entry in play.session.entries] == [4 * (3 + 2 + 4)] * 2


@pytest.mark.parametrize(("kind", "rate"), [(AllSmall, 0.5), (AllLarge, 0.25), (ExclusiveFL, 0.25)])
def test_the_server_s_rate_is_that_of_the_tier_whose_network_is_trained(kind, rate):
    """AdamW's first step is its learning rate, whatever the gradient."""
    both = zoo(small=1, large=2)
    rated = ModelZoo(both.full, [replace(t, server_lr=lr) for t, lr in zip(both.tiers, (0.5, 0.25), strict=True)])
    clients = {"a": ("small", data(1, (3.0, 3.0))), "b": ("large", data(1, (3.0, 3.0)))}
    play = Play(echoing(kind(server=AdamW(lr=9.0, eps=0.0))), rated, clients)
    assert moved(play.round(zeros(play.init())))["body.0.linear.weight"].item() == pytest.approx(rate)
