"""FedAvg: means by hand, unequal networks under `share`, and what every averaging method keeps."""

from dataclasses import fields, replace

import pytest
import torch
from made_round import Play, data, echoing, learning, people, zoo

from potluck.core import Local, digest, stream
from potluck.methods import METHODS, Averaging, FedAvg, FjORD, Moss

AVERAGING = {name: kind for name, kind in METHODS.items() if issubclass(kind, Averaging) and kind not in (FjORD, Moss)}

SHARES = ["whole", "layerwise", "per_arch"]


def moved(state):
    return state.model.arrays


def test_clients_are_weighted_by_their_samples():
    play = Play(echoing(FedAvg()), zoo(1), {"c1": ("d1", data(10, (1.0, 2.0))), "c2": ("d1", data(30, (4.0, 8.0)))})
    new = moved(play.round(play.init()))
    assert new["head.bias"].tolist() == [3.25, 6.5]
    assert new["body.0.linear.weight"].tolist() == [[3.25]]


def test_uniform_weighting_gives_the_plain_mean():
    method = echoing(FedAvg(weighting="uniform"))
    play = Play(method, zoo(1), {"c1": ("d1", data(10, (1.0, 2.0))), "c2": ("d1", data(30, (4.0, 8.0)))})
    assert moved(play.round(play.init()))["head.bias"].tolist() == [2.5, 5]


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_tensor_that_one_client_owns_takes_that_clients_value(weighting):
    method = echoing(FedAvg(share="layerwise", weighting=weighting))
    play = Play(method, zoo(1, 2), {"c1": ("d2", data(10, (8.0, 8.0))), "c2": ("d1", data(30, (4.0, 4.0)))})
    new = moved(play.round(play.init()))
    assert new["body.1.linear.weight"].item() == 8
    assert new["body.0.linear.weight"].item() == (5 if weighting == "samples" else 6)


def test_a_tensor_that_two_of_three_clients_own_is_averaged_over_the_two():
    method = echoing(FedAvg(share="layerwise"))
    clients = {"A": ("d2", data(10, (2.0, 2.0))), "B": ("d2", data(30, (6.0, 6.0))), "C": ("d1", data(50, (9.0, 9.0)))}
    play = Play(method, zoo(1, 2), clients)
    new = play.round(play.init())
    assert moved(new)["body.1.linear.weight"].item() == 5
    assert moved(new)["body.0.linear.weight"].item() == pytest.approx((20 + 180 + 450) / 90)
    assert "body.1.linear.weight" not in play.served(new, "C").arrays
    assert play.served(new, "C").arrays["head.bias"].tolist() == pytest.approx([650 / 90] * 2)
    assert play.served(new, "A").arrays["body.1.linear.weight"].item() == 5


def test_layerwise_tensors_of_one_name_and_two_shapes_are_not_averaged_together():
    wide = zoo(1)
    other = replace(wide.tiers[0], name="narrow", spec=replace(wide.full, sizes={"hidden0": 3, "hidden1": 3}))
    both = replace(wide, tiers=(*wide.tiers, other))
    clients = {"c1": ("d1", data(1, (1.0, 1.0))), "c2": ("narrow", data(1, (5.0, 5.0)))}
    play = Play(echoing(FedAvg(share="layerwise")), both, clients)
    new = play.round(play.init())
    assert moved(new)["stem.linear.weight"].tolist() == [[1, 1]]
    assert moved(new)["stem.linear.weight [3, 2]"].tolist() == [[5, 5]] * 3
    assert moved(new)["head.bias"].tolist() == [3, 3]
    assert play.served(new, "c2").arrays["stem.linear.weight"].shape == (3, 2)


def test_per_arch_only_equal_networks_are_averaged_together():
    clients = {"A": ("d2", data(1, (2.0, 2.0))), "B": ("d2", data(1, (6.0, 6.0))), "C": ("d1", data(1, (9.0, 9.0)))}
    play = Play(echoing(FedAvg(share="per_arch")), zoo(1, 2), clients)
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


# Every method that averages weights


def test_a_round_in_which_everyone_is_absent_leaves_the_model_as_it_was():
    for name, kind in AVERAGING.items():
        play = Play(kind(), zoo(1), {"c1": ("d1", data(0))})
        start = play.init()
        assert digest(moved(play.round(start))) == digest(moved(start)), name
        assert [entry.reason for entry in play.session.entries] == ["no samples"]


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
