"""FedAvgM, FedAdam, FedYogi, FedAdagrad and FedAdamW: FedAvg under server optimisers."""

import pytest
from made_round import Play, data, echoing, people, zeros, zoo

from potluck.core import FrozenDict, digest
from potluck.methods import METHODS, FedAdagrad, FedAdam, FedAdamW, FedAvg, FedAvgM, FedYogi
from potluck.parts import Adagrad, Adam, AdamW, Momentum, Replace, Yogi

SHARES = ["whole", "layerwise", "per_arch"]

RULES = {
    "fedavg": Replace,
    "fedavgm": Momentum,
    "fedadam": Adam,
    "fedyogi": Yogi,
    "fedadagrad": Adagrad,
    "fedadamw": AdamW,
}


def moved(state):
    return state.model.arrays


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(FedAvgM, Momentum()), (FedAdam, Adam(lr=0.03)), (FedYogi, Yogi(lr=0.03)), (FedAdagrad, Adagrad(lr=0.1)),
     (FedAdamW, AdamW(lr=0.01)), (FedAvg, Replace())],
)  # fmt: skip
def test_a_server_optimiser_is_fedavg_with_another_rule(kind, rule):
    assert kind().server == rule
    found = [Play(method, zoo(1), people("d1", "d1")) for method in (kind(), FedAvg(server=rule))]
    assert len({digest(moved(play.round(play.round(play.init()), 1))) for play in found}) == 1


def test_server_optimisers_all_differ():
    found = {}
    for name in RULES:
        play = Play(METHODS[name](), zoo(1), people("d1", "d1"))
        found[digest(moved(play.round(play.round(play.init()), 1)))] = name
    assert sorted(found.values()) == sorted(RULES)


def test_each_method_has_the_server_rule_of_its_name():
    assert {name: METHODS[name]().server.name for name in RULES} == {
        "fedavg": "replace", "fedavgm": "momentum", "fedadam": "adam", "fedyogi": "yogi", "fedadagrad": "adagrad",
        "fedadamw": "adamw",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(Adam, (0.0990099, 0.2236146)), (Yogi, (0.0990099, 0.2231196)), (Adagrad, (0.0099900, 0.0225008))],
)
def test_adam_yogi_and_adagrad_take_two_steps_as_by_hand(rule, expected):
    """x0 = 0, steps of 1 and 0.5: the client sends 1, then half more than where the server is."""
    play = Play(echoing(FedAvg(server=rule(lr=0.1))), zoo(1), {"c1": ("d1", data(1, (1.0, 1.0)))})
    first = play.round(zeros(play.init()))
    assert moved(first)["head.bias"].tolist() == pytest.approx([expected[0]] * 2, abs=1e-7)
    at = moved(first)["head.bias"][0].item() + 0.5
    again = Play(play.method, play.zoo, {"c1": ("d1", data(1, (at, at)))})
    assert moved(again.round(first, 1))["head.bias"].tolist() == pytest.approx([expected[1]] * 2, abs=2e-6)


def test_the_moments_of_a_server_optimiser_live_in_the_state():
    play = Play(FedAdam(), zoo(1), people("d1"))
    start = play.init()
    assert start.slots == FrozenDict()
    after = play.round(start)
    assert set(after.slots) == {"m", "v"}
    assert set(after.slots["m"]) == set(moved(start))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad, FedAvgM, FedAdamW])
def test_batch_norm_statistics_take_the_plain_mean_under_every_server_rule(kind, share):
    clients = {"c1": ("d1", data(10, (1.0, 2.0))), "c2": ("d1", data(30, (4.0, 8.0)))}
    play = Play(echoing(kind(share=share)), zoo(1, 2, norm="running"), clients)
    new = play.served(play.round(play.init()), "c1").arrays
    assert new["stem.norm.running_mean"].tolist() == [3.25]
    assert new["stem.norm.running_var"].tolist() == [3.25]
    assert new["stem.norm.num_batches_tracked"].item() == 4
    assert (new["stem.norm.weight"].tolist() == [3.25]) == (kind is FedAvgM)  # its first step is the plain mean too


@pytest.mark.parametrize("name", RULES)
def test_the_tensors_of_an_absent_tier_stay_bit_for_bit_under_every_server_rule(name):
    play = Play(METHODS[name](share="layerwise"), zoo(1, 2, 3), people("d1", "d2", "d3"))
    state = play.round(play.init())
    later = play.round(play.round(state, 1, only={"c0"}), 2, only={"c0", "c1"})
    own = [tensor for tensor in moved(state) if tensor.startswith("body.2")]
    assert own
    assert all(moved(later)[tensor].equal(moved(state)[tensor]) for tensor in own)
    assert not moved(later)["body.0.linear.weight"].equal(moved(state)["body.0.linear.weight"])
    assert play.session.coverage == pytest.approx(1 - 2 / 13)
