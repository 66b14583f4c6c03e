"""FedRolex: the rolling window, by hand."""

from dataclasses import replace

import pytest
import torch
from width_rounds import client, now, zoo

from potluck.core import Axis, Local, Model, Reply, Spec, stream
from potluck.methods import FedRolex
from potluck.methods.fedrolex import window
from potluck.parts import OverlapMean
from potluck.run import config


def test_the_window_rolls_forward_and_wraps():
    assert [window(5, 3, start) for start in (0, 3, 4, 5)] == [[0, 1, 2], [3, 4, 0], [4, 0, 1], [0, 1, 2]]
    assert [window(5, 3, -start) for start in (1, 3)] == [[4, 0, 1], [2, 3, 4]]


def test_every_unit_is_trained_equally_often():
    seen = [unit for start in range(5) for unit in window(5, 3, start)]
    assert [seen.count(unit) for unit in range(5)] == [3] * 5


@pytest.mark.parametrize(("mode", "expected"), [("code", [7, 0, 3, 4]), ("per_head", [1, 2, 5, 6])])
def test_attention_heads_roll_each_for_itself_or_together_as_in_the_released_code(mode, expected):
    class Heads:
        def axes(self, spec):
            return {"q": (Axis("head", 4, outer=2),)}

        def shapes(self, spec):
            return ["q"]

    method = FedRolex(head_mode=mode, direction=-1 if mode == "code" else 1)
    held = method.cut(Spec("any", sizes={"head": 2}), Spec("any"), None, now(Heads(), 1))
    assert held.take({"q": torch.arange(8)})["q"].tolist() == expected


def test_clients_of_one_width_share_a_part_and_one_copy_of_it():
    networks = zoo(0.5, 0.25, hidden=8)
    cohort = [client(networks, tier, f"c{tier}{number}") for tier in (0, 1) for number in (0, 1)]
    sent = []

    def fold(tasks, mean, parts, weigh):
        sent.extend(task.models["model"] for task in tasks)
        return [parts]

    method = FedRolex(label_mask=False)
    state = method.init(networks, stream(0))
    ((parts,), _) = method.train_cohort(
        OverlapMean(state.model.arrays), state, replace(now(networks, 3, cohort), fold=fold)
    )
    assert parts["c00"] is parts["c01"] is not parts["c10"]
    assert sent[0] is sent[1] is not sent[2]
    assert sent[2] is sent[3]


def test_half_of_five_units_is_three_by_ceiling_and_two_by_floor():
    networks = zoo(0.5, hidden=5)
    assert set(FedRolex().narrow(client(networks), networks).sizes.values()) == {3}
    assert set(FedRolex(rounding="floor").narrow(client(networks), networks).sizes.values()) == {2}


def test_weighting_by_width_counts_a_layers_units():
    networks = zoo(0.5, hidden=6, depth=1)
    method = FedRolex(weighting="width", label_mask=False)
    spec, held = method.assign(client(networks), now(networks))
    arrays = held.take(networks.fresh(networks.full, stream(0)).arrays)
    weights = method.weigh(Reply(models={"model": Model(spec, arrays)}), networks)
    assert (weights["body.0.linear.weight"], weights["head.weight"]) == (3, 3)
    assert weights["stem.linear.bias"] == 3


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("updates", [5.0, 4.0, 10.0, 3.0, 4.0]), ("updates_width", [33 / 7, 4.0, 10.0, 19 / 7, 26 / 7])],
)
def test_counters_of_updates_cancel_in_the_mean(weighting, expected):
    """Five units, round 3: a client with four of them sends 1, 2, 3, 4 for its biases, one with three 5, 6, 7."""
    networks = zoo(0.6, 0.8, hidden=5, depth=1)
    method = config.method({"name": "fedrolex", "weighting": weighting, "label_mask": False}, Local())
    old = {name: torch.full_like(t, 10.0) for name, t in networks.fresh(networks.full, stream(0)).arrays.items()}
    mean, updates = OverlapMean(old), torch.tensor([7.0, 2.0, 9.0, 4.0, 1.0])  # so often each unit was updated before
    total, counted = torch.zeros(5), torch.zeros(5)
    for tier, sent, units in ((1, [1.0, 2.0, 3.0, 4.0], [3, 4, 0, 1]), (0, [5.0, 6.0, 7.0], [3, 4, 0])):
        spec, held = method.assign(client(networks, tier), now(networks, 3))
        arrays = {**held.take(old), "stem.linear.bias": torch.tensor(sent)}
        mean.add(arrays, held, method.weigh(Reply(models={"model": Model(spec, arrays)}, weight=99.0), networks))
        weights = updates[units] * (len(units) if weighting == "updates_width" else 1)
        total[units] += weights * torch.tensor(sent)
        counted[units] += weights
    by_counters = torch.where(counted > 0, total / counted, 10.0)
    assert by_counters.tolist() == pytest.approx(expected)
    assert mean.value()["stem.linear.bias"].tolist() == pytest.approx(expected)
