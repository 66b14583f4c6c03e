"""Federated Dropout: which units are drawn, for whom and when."""

import torch
from width_rounds import client, now, zoo

from potluck.core import Axis, stream
from potluck.methods import FedDropout


def test_a_client_draws_the_same_units_again_for_the_same_round_and_others_for_another():
    networks = zoo(0.5, hidden=32)

    def drawn(id, index):
        return FedDropout().assign(client(networks, id=id), now(networks, index))[1].units

    assert drawn("c0", 3) == drawn("c0", 3)
    assert drawn("c0", 3) != drawn("c0", 4)
    assert drawn("c0", 3) != drawn("c1", 3)


def test_a_shared_draw_is_the_same_for_every_client_of_a_round():
    networks = zoo(0.5, hidden=32)
    method = FedDropout(shared_per_round=True)
    one, other = (method.assign(client(networks, id=id), now(networks, 3))[1].units for id in ("c0", "c1"))
    assert one == other


def test_without_coupling_the_two_sides_of_a_residual_sum_have_other_channels():
    networks = zoo(0.5, model="preresnet18", width=16)
    loose = FedDropout(coupling="none").assign(client(networks), now(networks))[1]
    tight = FedDropout().assign(client(networks), now(networks))[1]
    stream_rows = {
        name: dims
        for name, dims in networks.axes(networks.full).items()
        if len(dims) > 1 and isinstance(dims[0], Axis) and dims[0].group == "stage0"
    }
    names = list(stream_rows)
    whole = torch.arange(16.0).reshape(16, 1, 1, 1).expand(16, 16, 3, 3)
    rows = [{tuple(held.place(name).take(whole)[:, 0, 0, 0].tolist()) for name in names} for held in (tight, loose)]
    assert len(rows[0]) == 1
    assert len(rows[1]) == len(names)
    arrays = networks.fresh(networks.full, stream(0)).arrays
    shapes = networks.shapes(networks.tiers[0].spec)
    assert {name: tuple(t.shape) for name, t in loose.take(arrays).items()} == {n: s for n, (s, _) in shapes.items()}
