"""FjORD: ordered dropout, self-distillation and statistics for every width, by hand."""

from dataclasses import replace

import pytest
import torch
from width_rounds import Fixed, client, zoo

from potluck.core import Axis, Local, Reply, stream
from potluck.methods import FjORD
from potluck.methods.fjord import AtWidth
from potluck.parts import WHOLE, OverlapMean, part


def test_the_narrow_width_learns_from_the_wide_ones_predictions():
    loss = AtWidth(None, WHOLE, True)
    log3 = torch.log(torch.tensor(3.0)).item()
    batch = {"x": torch.zeros(1, 1), "y": torch.tensor([0])}
    wide = Fixed(log3, 0.0)
    lent = replace(loss, narrow=Fixed(0.0, 0.0), part=part({}, lambda axis: []))
    assert lent(wide, batch).item() == pytest.approx(0.287682 + 0.693147, abs=1e-5)


def test_widths_are_drawn_up_to_the_clients_own():
    networks = zoo(0.5, 1.0, hidden=8)
    method = FjORD(widths=(0.25, 0.5, 1.0))
    sizes = [{spec.sizes["hidden0"] for spec in method.widths_up_to(tier.spec, networks)} for tier in networks.tiers]
    assert sizes == [{2, 4}, {2, 4, 8}]


def test_every_width_has_batch_norm_statistics_of_its_own():
    networks = zoo(0.5, 1.0, model="cnn", width=8, depth=1)
    method = FjORD(widths=(0.5, 1.0), local=Local())
    arrays = method.init(networks, stream(0, "init")).model.arrays
    running = [name for name in arrays if name.startswith("stem.norm.running_mean")]
    assert sorted(len(arrays[name]) for name in running) == [4, 8]
    assert len(method.serve(method.init(networks, stream(0)), client(networks), networks).arrays) == len(
        networks.shapes(networks.tiers[0].spec)
    )


def test_entries_are_averaged_over_the_clients_wide_enough_weighted_by_samples():
    old = {"w": torch.tensor([[10.0, 20.0], [30.0, 40.0]])}
    corner = part({"w": (Axis("out", 2), Axis("in", 2))}, lambda axis: [0])
    both, one = OverlapMean(old), OverlapMean(old)
    both.add({"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, WHOLE, 10)
    both.add({"w": torch.tensor([[5.0]])}, corner, 30)
    one.add({"w": torch.tensor([[5.0]])}, corner, 30)
    assert both.value()["w"].tolist() == [[4, 2], [3, 4]]
    assert one.value()["w"].tolist() == [[5, 20], [30, 40]]
    assert FjORD().weigh(Reply(weight=30.0), None) == 30
