"""HeteroFL, Federated Dropout, FedRolex and FjORD by hand: the conformance numbers of their papers and codes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from potluck.core import Axis, Client, Local, Model, Reply, Round, Spec, Tier, stream
from potluck.learn import AtWidth, MaskedCrossEntropy, truths
from potluck.methods import FedDropout, FedRolex, FjORD, HeteroFL
from potluck.methods.fedrolex import window
from potluck.methods.frames.averaging import class_rows
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.parts import WHOLE, OverlapMean, part


def zoo(*widths, model="mlp", **options):
    full = make_spec(model, input=(4,) if model == "mlp" else (1, 8, 8), classes=3, **options)
    tiers = [Tier(f"w{width}", width=width, spec=tier_spec(full, width)) for width in widths]
    return ModelZoo(full, tiers)


def now(menagerie, index=0, clients=()):
    return Round(index, list(clients), len(clients), menagerie, 0, None, None, None)


def client(menagerie, tier=0, id="c0"):
    return Client(id, menagerie.tiers[tier])


class Fixed(nn.Module):
    """Scores that do not depend on the input."""

    def __init__(self, *scores):
        super().__init__()
        self.scores = nn.Parameter(torch.tensor([scores]))

    def forward(self, x):
        return self.scores.expand(len(x), -1)


def test_lm1_classes_that_are_not_owned_score_zero_but_still_count():
    loss = MaskedCrossEntropy(truths([0, 1], 3))
    found = loss(Fixed(2.0, -1.0, 5.0), {"x": torch.zeros(1, 1), "y": torch.tensor([0])})
    assert found.item() == pytest.approx(0.169846, abs=1e-6)


def test_rx1_the_window_rolls_forward_and_wraps():
    assert [window(5, 3, start) for start in (0, 3, 4, 5)] == [[0, 1, 2], [3, 4, 0], [4, 0, 1], [0, 1, 2]]
    assert [window(5, 3, -start) for start in (1, 3)] == [[4, 0, 1], [2, 3, 4]]


def test_rx4_every_unit_is_trained_equally_often():
    seen = [unit for start in range(5) for unit in window(5, 3, start)]
    assert [seen.count(unit) for unit in range(5)] == [3] * 5


@pytest.mark.parametrize(("mode", "expected"), [("code", [7, 0, 3, 4]), ("per_head", [1, 2, 5, 6])])
def test_rx5_heads_roll_each_for_itself_or_together_as_in_the_code(mode, expected):
    method = FedRolex(head_mode=mode, direction=-1 if mode == "code" else 1)
    spec = Spec("any", sizes={"head": 2})
    at = now(zoo(0.5), 1)
    axes = {"q": (Axis("head", 4, outer=2),)}
    held = part(axes, method.choose(spec, None, at), heads=method.heads(spec, None, at))
    assert held.take({"q": torch.arange(8)})["q"].tolist() == expected


def test_hand_outs_differ_by_one_expression():
    menagerie = zoo(0.5, hidden=8, depth=1)
    kept = [
        method.assign(client(menagerie), now(menagerie, 6))[1].place("body.0.linear.bias")
        for method in (HeteroFL(), FedRolex(), FedDropout())
    ]
    whole = torch.arange(8)
    units = [(place.take(whole) if place.dims else whole[:4]).tolist() for place in kept]
    assert units[0] == [0, 1, 2, 3]
    assert units[1] == [6, 7, 0, 1]
    assert len(set(units[2])) == 4
    assert units[2] == sorted(units[2])


def test_k5_half_is_three_by_ceiling_and_two_by_floor():
    menagerie = zoo(0.5, hidden=5)
    assert set(FedRolex().narrow(client(menagerie), menagerie).sizes.values()) == {3}
    assert set(FedRolex(rounding="floor").narrow(client(menagerie), menagerie).sizes.values()) == {2}


def test_fd2_a_client_draws_the_same_units_again_for_the_same_round_and_others_for_another():
    menagerie = zoo(0.5, hidden=32)

    def drawn(id, index):
        return FedDropout().assign(client(menagerie, id=id), now(menagerie, index))[1].units

    assert drawn("c0", 3) == drawn("c0", 3)
    assert drawn("c0", 3) != drawn("c0", 4)
    assert drawn("c0", 3) != drawn("c1", 3)


def test_a_shared_draw_is_the_same_for_every_client_of_a_round():
    menagerie = zoo(0.5, hidden=32)
    method = FedDropout(shared_per_round=True)
    one, other = (method.assign(client(menagerie, id=id), now(menagerie, 3))[1].units for id in ("c0", "c1"))
    assert one == other


def test_without_coupling_the_two_sides_of_a_residual_sum_carry_other_channels():
    menagerie = zoo(0.5, model="preresnet18", width=16)
    loose = FedDropout(coupling="none").assign(client(menagerie), now(menagerie))[1]
    tight = FedDropout().assign(client(menagerie), now(menagerie))[1]
    stream_rows = {
        name: dims
        for name, dims in menagerie.axes(menagerie.full).items()
        if len(dims) > 1 and isinstance(dims[0], Axis) and dims[0].group == "stage0"
    }
    names = list(stream_rows)
    whole = torch.arange(16.0).reshape(16, 1, 1, 1).expand(16, 16, 3, 3)
    rows = [{tuple(held.place(name).take(whole)[:, 0, 0, 0].tolist()) for name in names} for held in (tight, loose)]
    assert len(rows[0]) == 1
    assert len(rows[1]) == len(names)
    arrays = menagerie.fresh(menagerie.full, stream(0)).arrays
    shapes = menagerie.shapes(menagerie.tiers[0].spec)
    assert {name: tuple(t.shape) for name, t in loose.take(arrays).items()} == {n: s for n, (s, _) in shapes.items()}


def test_lm2_rows_of_classes_a_client_lacks_are_left_out_of_the_head():
    menagerie = zoo(0.5, hidden=2, depth=1)
    method = HeteroFL()
    spec, held = method.assign(client(menagerie), now(menagerie))
    arrays = held.take(menagerie.fresh(menagerie.full, stream(0)).arrays)
    reply = Reply(models={"model": Model(spec, arrays)}, metrics={"labels": [0, 2]})
    weights = method.weigh(reply, menagerie)
    assert set(class_rows(spec, menagerie)) == {"head.weight", "head.bias"}
    assert weights["head.bias"].tolist() == [1, 0, 1]
    assert weights["head.weight"].tolist() == [[1], [0], [1]]
    assert weights[""] == 1


def test_by_width_a_layer_counts_as_many_as_it_has_units():
    menagerie = zoo(0.5, hidden=6, depth=1)
    method = FedRolex(weighting="width", label_mask=False)
    spec, held = method.assign(client(menagerie), now(menagerie))
    arrays = held.take(menagerie.fresh(menagerie.full, stream(0)).arrays)
    weights = method.weigh(Reply(models={"model": Model(spec, arrays)}), menagerie)
    assert (weights["body.0.linear.weight"], weights["head.weight"]) == (3, 3)
    assert weights["stem.linear.bias"] == 3


def test_a_narrow_network_trains_with_a_scaler_and_the_full_one_without():
    menagerie = zoo(0.25, 1.0, model="preresnet18", width=16)
    small, large = (HeteroFL().assign(client(menagerie, tier), now(menagerie))[0] for tier in (0, 1))
    assert (small.options["scaler"], large.options["scaler"]) == (0.25, 1.0)
    assert HeteroFL(scaler=False).assign(client(menagerie), now(menagerie))[0].options["scaler"] == 1.0


def test_every_method_serves_the_first_units_whatever_it_trains():
    menagerie = zoo(0.5, hidden=8)
    for method in (HeteroFL(), FedRolex(), FedDropout()):
        state = method.init(menagerie, stream(0, "init"))
        served = method.serve(state, client(menagerie), menagerie)
        bias = state.model.arrays["stem.linear.bias"]
        assert torch.equal(served.arrays["stem.linear.bias"], bias[:4])


def test_fj3_the_narrow_width_learns_from_the_wide_ones_answers():
    loss = AtWidth(None, WHOLE, True)
    log3 = torch.log(torch.tensor(3.0)).item()
    batch = {"x": torch.zeros(1, 1), "y": torch.tensor([0])}
    wide = Fixed(log3, 0.0)
    lent = replace(loss, narrow=Fixed(0.0, 0.0), part=part({}, lambda axis: []))
    assert lent(wide, batch).item() == pytest.approx(0.287682 + 0.693147, abs=1e-5)


def test_fjord_draws_from_the_widths_up_to_the_clients_own():
    menagerie = zoo(0.5, 1.0, hidden=8)
    method = FjORD(widths=(0.25, 0.5, 1.0))
    sizes = [{spec.sizes["hidden0"] for spec in method.ladder(tier.spec, menagerie)} for tier in menagerie.tiers]
    assert sizes == [{2, 4}, {2, 4, 8}]


def test_fjord_keeps_batch_norm_statistics_apart_for_every_width():
    menagerie = zoo(0.5, 1.0, model="cnn", width=8, depth=1)
    method = FjORD(widths=(0.5, 1.0), local=Local())
    arrays = method.init(menagerie, stream(0, "init")).model.arrays
    running = [name for name in arrays if name.startswith("stem.norm.running_mean")]
    assert sorted(len(arrays[name]) for name in running) == [4, 8]
    assert len(method.serve(method.init(menagerie, stream(0)), client(menagerie), menagerie).arrays) == len(
        menagerie.shapes(menagerie.tiers[0].spec)
    )


def test_fj1_and_fj2_entries_average_over_the_clients_wide_enough_weighed_by_samples():
    old = {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0]])}
    corner = part({"w": (Axis("out", 2), Axis("in", 2))}, lambda axis: [0])
    both, one = OverlapMean(old), OverlapMean(old)
    both.add({"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, WHOLE, 10)
    both.add({"w": torch.tensor([[5.0]])}, corner, 30)
    one.add({"w": torch.tensor([[5.0]])}, corner, 30)
    assert both.value()["w"].tolist() == [[4, 2], [3, 4]]
    assert one.value()["w"].tolist() == [[5, 20], [30, 40]]
    assert FjORD().weigh(Reply(weight=30.0), None) == 30
