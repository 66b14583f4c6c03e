"""What each method computes, with the conformance numbers of METHODS.md through whole rounds."""

from dataclasses import fields, replace

import pytest
import torch
from made_round import Play, data, telling, zeros, zoo

from potluck.core import FrozenDict, Local, digest, stream
from potluck.methods import (
    METHODS,
    AllLarge,
    AllSmall,
    Averaging,
    ExclusiveFL,
    FedAdagrad,
    FedAdam,
    FedAdamW,
    FedAvg,
    FedAvgM,
    FedProx,
    FedYogi,
    FjORD,
    Moss,
)
from potluck.methods import Local as Alone
from potluck.parts import Adagrad, Adam, AdamW, Momentum, Replace, Yogi

AVERAGING = {name: kind for name, kind in METHODS.items() if issubclass(kind, Averaging) and kind not in (FjORD, Moss)}
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


def learning(count=12, seed=0):
    """Rows that teach something: the label says which of the two inputs is larger."""
    x = torch.randn(count, 2, generator=stream(seed, "rows"))
    rows = data(count)
    rows.columns.update(x=x, y=(x[:, 0] > x[:, 1]).long())
    return rows


def people(*tiers, count=12):
    return {f"c{n}": (tier, learning(count + 3 * n, n)) for n, tier in enumerate(tiers)}


# FedAvg


def test_fa1_samples_weigh_the_mean():
    play = Play(telling(FedAvg()), zoo(1), {"c1": ("d1", data(10, (1.0, 2.0))), "c2": ("d1", data(30, (4.0, 8.0)))})
    new = moved(play.round(play.init()))
    assert new["head.bias"].tolist() == [3.25, 6.5]
    assert new["body.0.linear.weight"].tolist() == [[3.25]]


def test_fa2_equal_weights_give_the_plain_mean():
    method = telling(FedAvg(weighting="uniform"))
    play = Play(method, zoo(1), {"c1": ("d1", data(10, (1.0, 2.0))), "c2": ("d1", data(30, (4.0, 8.0)))})
    assert moved(play.round(play.init()))["head.bias"].tolist() == [2.5, 5]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fa3_a_tensor_of_one_owner_takes_that_owners_value(weighting):
    method = telling(FedAvg(share="layerwise", weighting=weighting))
    play = Play(method, zoo(1, 2), {"c1": ("d2", data(10, (8.0, 8.0))), "c2": ("d1", data(30, (4.0, 4.0)))})
    new = moved(play.round(play.init()))
    assert new["body.1.linear.weight"].item() == 8
    assert new["body.0.linear.weight"].item() == (5 if weighting == "samples" else 6)


def test_fi5_a_tensor_owned_by_two_of_three_is_averaged_over_the_two():
    method = telling(FedAvg(share="layerwise"))
    clients = {"A": ("d2", data(10, (2.0, 2.0))), "B": ("d2", data(30, (6.0, 6.0))), "C": ("d1", data(50, (9.0, 9.0)))}
    play = Play(method, zoo(1, 2), clients)
    new = play.round(play.init())
    assert moved(new)["body.1.linear.weight"].item() == 5
    assert moved(new)["body.0.linear.weight"].item() == pytest.approx((20 + 180 + 450) / 90)
    assert "body.1.linear.weight" not in play.served(new, "C").arrays
    assert play.served(new, "C").arrays["head.bias"].tolist() == pytest.approx([650 / 90] * 2)
    assert play.served(new, "A").arrays["body.1.linear.weight"].item() == 5


def test_layerwise_tensors_of_one_name_and_two_shapes_do_not_meet():
    wide = zoo(1)
    other = replace(wide.tiers[0], name="narrow", spec=replace(wide.full, sizes={"hidden0": 3, "hidden1": 3}))
    both = replace(wide, tiers=(*wide.tiers, other))
    clients = {"c1": ("d1", data(1, (1.0, 1.0))), "c2": ("narrow", data(1, (5.0, 5.0)))}
    play = Play(telling(FedAvg(share="layerwise")), both, clients)
    new = play.round(play.init())
    assert moved(new)["stem.linear.weight"].tolist() == [[1, 1]]
    assert moved(new)["stem.linear.weight [3, 2]"].tolist() == [[5, 5]] * 3
    assert moved(new)["head.bias"].tolist() == [3, 3]
    assert play.served(new, "c2").arrays["stem.linear.weight"].shape == (3, 2)


def test_per_arch_only_equal_networks_meet():
    clients = {"A": ("d2", data(1, (2.0, 2.0))), "B": ("d2", data(1, (6.0, 6.0))), "C": ("d1", data(1, (9.0, 9.0)))}
    play = Play(telling(FedAvg(share="per_arch")), zoo(1, 2), clients)
    new = play.round(play.init())
    assert play.served(new, "A").arrays["head.bias"].tolist() == [4, 4]
    assert play.served(new, "B").arrays["body.0.linear.weight"].item() == 4
    assert play.served(new, "C").arrays["head.bias"].tolist() == [9, 9]
    assert play.served(new, "C").arrays["body.0.linear.weight"].item() == 9


def test_per_arch_an_architecture_that_nobody_sampled_keeps_its_bits():
    clients = {"A": ("d2", learning()), "C": ("d1", learning())}
    play = Play(FedAvg(share="per_arch"), zoo(1, 2), clients)
    start = play.init()
    for absent, present in (("A", "C"), ("C", "A")):
        after = play.round(start, only={present})
        assert digest(play.served(after, absent).arrays) == digest(play.served(start, absent).arrays)
        assert digest(play.served(after, present).arrays) != digest(play.served(start, present).arrays)


@pytest.mark.parametrize("name", RULES)
def test_a_tier_that_is_absent_leaves_its_own_tensors_bit_for_bit(name):
    play = Play(METHODS[name](share="layerwise"), zoo(1, 2, 3), people("d1", "d2", "d3"))
    state = play.round(play.init())
    later = play.round(play.round(state, 1, only={"c0"}), 2, only={"c0", "c1"})
    own = [tensor for tensor in moved(state) if tensor.startswith("body.2")]
    assert own
    assert all(moved(later)[tensor].equal(moved(state)[tensor]) for tensor in own)
    assert not moved(later)["body.0.linear.weight"].equal(moved(state)["body.0.linear.weight"])
    assert play.session.coverage == pytest.approx(1 - 2 / 13)


def test_everyone_absent_leaves_the_model_as_it_was():
    for name, kind in AVERAGING.items():
        play = Play(kind(), zoo(1), {"c1": ("d1", data(0))})
        start = play.init()
        assert digest(moved(play.round(start))) == digest(moved(start)), name
        assert [entry.reason for entry in play.session.entries] == ["no samples"]


def test_a_server_starts_every_tier_from_the_full_network_where_shapes_agree():
    play = Play(FedAvg(share="layerwise"), zoo(1, 2), people("d1", "d2"))
    start = play.init()
    assert set(moved(start)) == set(play.served(start, "c1").arrays)
    full = play.zoo.fresh(play.zoo.full, stream(0, "init")).arrays
    assert digest(moved(start)) == digest(full)
    apart = Play(FedAvg(share="per_arch"), zoo(1, 2), people("d1", "d2"))
    assert digest(apart.served(apart.init(), "c1").arrays) == digest(full)
    small = apart.served(apart.init(), "c0").arrays
    assert len(small) == len(full) - 2
    assert digest(small) == digest({name: full[name] for name in small})


# FedProx


def test_fedprox_without_a_leash_is_fedavg_bit_for_bit():
    states = []
    for method in (FedAvg(Local(epochs=2, batch=4)), FedProx(Local(epochs=2, batch=4), mu=0.0)):
        play = Play(method, zoo(2), people("d2", "d2", "d2"))
        states.append(digest(moved(play.round(play.round(play.init()), 1))))
    assert states[0] == states[1]


def test_a_leash_keeps_clients_closer_to_where_they_began():
    def distance(method):
        play = Play(method, zoo(1), people("d1", "d1"))
        start = play.init()
        new = moved(play.round(start))
        return sum(float((new[name] - old).square().sum()) for name, old in moved(start).items())

    local = Local(lr=0.1, epochs=5, batch=4)
    assert 0 < distance(FedProx(local, mu=5.0)) < distance(FedProx(local, mu=0.1)) < distance(FedAvg(local))


def test_fedprox_pulls_towards_the_weights_received_this_round():
    """One full-batch step feels no pull (FP-2); the second is pulled back by lr * mu * what the first one moved."""
    one, two = Local(lr=0.5, steps=1, batch=100), Local(lr=0.5, steps=2, batch=100)

    def after(method):
        play = Play(method, zoo(1), people("d1"))
        return moved(play.round(play.init()))

    assert digest(after(FedProx(one, mu=0.4))) == digest(after(FedAvg(one)))
    start = moved(Play(FedAvg(), zoo(1), people("d1")).init())
    first, free, held = after(FedAvg(one)), after(FedAvg(two)), after(FedProx(two, mu=0.4))
    for name, tensor in held.items():
        assert torch.allclose(tensor, free[name] - 0.5 * 0.4 * (first[name] - start[name]), atol=1e-6), name


# Server optimisers


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


def test_the_names_in_settings_are_the_rules_own():
    assert {name: METHODS[name]().server.name for name in RULES} == {
        "fedavg": "replace", "fedavgm": "momentum", "fedadam": "adam", "fedyogi": "yogi", "fedadagrad": "adagrad",
        "fedadamw": "adamw",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(Adam, (0.0990099, 0.2236146)), (Yogi, (0.0990099, 0.2231196)), (Adagrad, (0.0099900, 0.0225008))],
)
def test_so1_to_so3_through_two_rounds(rule, expected):
    """x0 = 0, steps of 1 and 0.5: the client says 1, then half more than where the server is."""
    play = Play(telling(FedAvg(server=rule(lr=0.1))), zoo(1), {"c1": ("d1", data(1, (1.0, 1.0)))})
    first = play.round(zeros(play.init()))
    assert moved(first)["head.bias"].tolist() == pytest.approx([expected[0]] * 2, abs=1e-7)
    at = moved(first)["head.bias"][0].item() + 0.5
    again = Play(play.method, play.zoo, {"c1": ("d1", data(1, (at, at)))})
    assert moved(again.round(first, 1))["head.bias"].tolist() == pytest.approx([expected[1]] * 2, abs=2e-6)


def test_a_rules_memory_lives_in_the_state():
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
    play = Play(telling(kind(share=share)), zoo(1, 2, norm="running"), clients)
    new = play.served(play.round(play.init()), "c1").arrays
    assert new["stem.norm.running_mean"].tolist() == [3.25]
    assert new["stem.norm.running_var"].tolist() == [3.25]
    assert new["stem.norm.num_batches_tracked"].item() == 4
    assert (new["stem.norm.weight"].tolist() == [3.25]) == (kind is FedAvgM)  # its first step is the plain mean too


# Bounds


def test_ex1_exclusivefl_hears_only_who_can_carry_the_largest():
    said = {"a": ("small", 9.0), "c1": ("large", 1.0), "c2": ("large", 3.0)}
    clients = {client: (tier, data(1, (value, value))) for client, (tier, value) in said.items()}
    for method, heard in ((ExclusiveFL(), 2), (AllLarge(), 13 / 3)):
        play = Play(telling(method), zoo(small=1, large=2), clients)
        new = play.round(zeros(play.init()))
        assert moved(new)["body.1.linear.weight"].item() == pytest.approx(heard)
        assert new.model.spec == play.zoo.full


def test_ex2_exclusivefl_without_a_strong_client_changes_nothing():
    play = Play(ExclusiveFL(), zoo(a=1, b=2, c=3), people("a", "b", "c"))
    start = play.init()
    after = play.round(start, only={"c0", "c1"})
    assert digest(moved(after)) == digest(moved(start))
    assert play.session.entries == []


def test_exclusivefl_can_sample_among_the_strong_alone():
    play = Play(ExclusiveFL(sampling="eligible"), zoo(a=1, c=3), people("a", "a", "c", "c"))
    play.round(play.init(), only={"c0", "c1"})
    assert [entry.task.to for entry in play.session.entries] == ["c2", "c3"]


def test_exclusivefl_has_no_model_for_the_weak():
    play = Play(ExclusiveFL(), zoo(a=1, c=3), people("a", "c"))
    state = play.init()
    assert play.served(state, "c0") is None
    assert play.served(state, "c1").spec == play.zoo.full


def test_alllarge_hands_everyone_the_largest():
    play = Play(AllLarge(), zoo(1, 3), people("d1", "d3"))
    state = play.round(play.init())
    assert {play.served(state, client).spec for client in ("c0", "c1")} == {play.zoo.full}
    assert len({entry.cost.bytes_down for entry in play.session.entries}) == 1


def test_allsmall_trains_and_serves_only_the_smallest():
    play = Play(AllSmall(), zoo(large=3, small=1), people("small", "large"))
    state = play.round(play.init())
    assert state.model.spec.depth == 1
    assert "body.1.linear.weight" not in moved(state)
    assert {play.served(state, client).spec.depth for client in ("c0", "c1")} == {1}
    assert [entry.cost.bytes_down for entry in play.session.entries] == [4 * (3 + 2 + 4)] * 2


def test_local_keeps_models_on_the_clients_and_sends_no_tensors():
    play = Play(Alone(Local(epochs=1, batch=4)), zoo(1, 2), people("d1", "d2"))
    state = play.round(play.init())
    assert vars(state) == {}
    for entry in play.session.entries:
        assert (entry.verdict, entry.cost.bytes_down, entry.cost.bytes_up) == ("accepted", 0, 0)
    assert [play.memories[client][1]["model"].spec.depth for client in ("c0", "c1")] == [1, 2]
    assert play.served(state, "c0") is None


def test_local_goes_on_from_its_own_model():
    play = Play(Alone(Local(epochs=1, batch=4)), zoo(1), people("d1", "d1"))
    state = play.round(play.init())
    first = play.memories["c0"][1]["model"].arrays
    play.round(state, 1, only={"c0"})
    second = play.memories["c0"][1]["model"].arrays
    assert digest(first) != digest(second)
    assert play.memories["c0"][0] == 1
    assert play.memories["c1"][0] == 0
    alone = Play(Alone(Local(epochs=1, batch=4)), zoo(1), {"c0": people("d1")["c0"]})
    alone.round(alone.round(alone.init()), 1)
    assert digest(alone.memories["c0"][1]["model"].arrays) == digest(second)


def test_local_without_steps_keeps_exactly_what_it_had():
    play = Play(Alone(Local(epochs=1, batch=4)), zoo(1), people("d1"))
    play.round(play.init())
    trained = digest(play.memories["c0"][1]["model"].arrays)
    idle = Play(Alone(Local(steps=0)), zoo(1), people("d1"))
    idle.memories |= play.memories
    idle.round(idle.init(), 1)
    assert idle.memories["c0"][0] == 1
    assert digest(idle.memories["c0"][1]["model"].arrays) == trained


def test_local_clients_are_born_apart_and_reproducibly():
    born = []
    for _ in range(2):
        play = Play(Alone(Local(steps=0)), zoo(1), people("d1", "d1"))
        play.round(play.init())
        born.append([digest(play.memories[client][1]["model"].arrays) for client in ("c0", "c1")])
    assert born[0] == born[1]
    assert born[0][0] != born[0][1]


def test_local_starts_anew_when_a_clients_tier_has_changed():
    play = Play(Alone(Local(epochs=1)), zoo(1, 2), people("d1"))
    state = play.round(play.init())
    moved_up = Play(play.method, play.zoo, people("d2"))
    moved_up.memories |= play.memories
    moved_up.round(state, 1)
    grown = moved_up.memories["c0"][1]["model"]
    assert grown.spec.depth == 2
    assert {name: tensor.shape for name, tensor in grown.arrays.items()} == {
        name: shape for name, (shape, _) in play.zoo.shapes(grown.spec).items()
    }


# METHODS 17.1


@pytest.mark.parametrize("norm", ["none", "running"])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", AVERAGING)
def test_zero_local_steps_leave_the_servers_model_bit_identical(name, share, norm):
    kind = AVERAGING[name]
    shared = {"share": share} if any(field.name == "share" for field in fields(kind)) else {}
    play = Play(kind(Local(steps=0), **shared), zoo(1, 2, 3, norm=norm), people("d1", "d2", "d3", "d2"))
    start = play.init()
    arrays = {tensor: value.clone() for tensor, value in moved(start).items()}
    arrays["head.bias"] = torch.tensor([-0.0, 0.1])  # a sum that starts at zero would lose the sign
    start = replace(start, model=replace(start.model, arrays=arrays))
    after = play.round(start)
    assert play.session.accepted > 0
    assert digest(moved(after)) == digest(arrays)
