"""What HeteroFL, Federated Dropout and FedRolex have in common: clients train narrow parts of one model."""

import torch
from width_rounds import client, now, zoo

from potluck.core import stream
from potluck.methods import FedDropout, FedRolex, HeteroFL


def test_clients_train_the_first_units_or_a_window_of_them_or_random_ones():
    networks = zoo(0.5, hidden=8, depth=1)
    kept = [
        method.assign(client(networks), now(networks, 6))[1].place("body.0.linear.bias")
        for method in (HeteroFL(), FedRolex(), FedDropout())
    ]
    whole = torch.arange(8)
    units = [(place.take(whole) if place.dims else whole[:4]).tolist() for place in kept]
    assert units[0] == [0, 1, 2, 3]
    assert units[1] == [6, 7, 0, 1]
    assert len(set(units[2])) == 4
    assert units[2] == sorted(units[2])


def test_every_width_method_serves_the_first_units_whatever_it_trains():
    networks = zoo(0.5, hidden=8)
    for method in (HeteroFL(), FedRolex(), FedDropout()):
        state = method.init(networks, stream(0, "init"))
        served = method.serve(state, client(networks), networks)
        bias = state.model.arrays["stem.linear.bias"]
        assert torch.equal(served.arrays["stem.linear.bias"], bias[:4])
