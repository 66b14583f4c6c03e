"""Static batch norm: the statistics that clients gather before scoring."""

import torch
from width_rounds import client, zoo

from potluck.core import Reply, Round, stream
from potluck.methods import FedAvg


def test_every_batch_counts_alike_in_the_statistics_whoever_had_it():
    networks = zoo(1.0, norm="static", hidden=2)
    spec = networks.full
    model = networks.fresh(spec, stream(0, "init"))
    counted = networks.buffers(networks.counting(spec))
    said = {"c0": (0.0, 1.0), "c1": (4.0, 3.0)}  # c1 had three batches, c0 one

    def send(tasks):
        for task in tasks:
            value, batches = said[task.to]
            shapes = task.expects.arrays
            yield Reply(arrays={n: torch.full(s, value).to(d) for n, (s, d) in shapes.items()}, weight=batches)

    clients = [client(networks, id=name) for name in said]
    now = Round(0, clients, 2, networks, 0, send, None, None)
    found = FedAvg().statistics(spec, model.arrays, now)
    assert found.keys() == counted
    means = [tensor for name, tensor in found.items() if name.endswith("running_mean")]
    assert means
    assert all(tensor.tolist() == [3.0] * len(tensor) for tensor in means)
