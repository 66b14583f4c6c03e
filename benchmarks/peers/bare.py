"""A federation by hand: one network (or one for each width), load, train, add to a running mean in float32."""

from __future__ import annotations

import torch
from task import Work, asked, data, fit, mark, network, shard
from torch import Tensor, nn

State = dict[str, Tensor]


def whole_round(work: Work, net: nn.Module, whole: State, cohort: list[int]) -> State:
    """FedAvg of equally large clients."""
    mean = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    for client in cohort:
        net.load_state_dict(whole)
        fit(net, *shard(work, client), work.batch)
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():
                mean[name].add_(tensor, alpha=1 / len(cohort))
            else:
                mean[name].copy_(tensor)
    return mean


def width_round(work: Work, nets: list[nn.Module], whole: State, cohort: list[int]) -> State:
    """HeteroFL: the first units of every layer go out, and entries are averaged over those who had them."""
    totals = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    counts = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in whole.items()}
    for client in cohort:
        net = nets[client % len(nets)]
        state = net.state_dict()
        cuts = {name: tuple(slice(length) for length in tensor.shape) for name, tensor in state.items()}
        net.load_state_dict({name: whole[name][cut] for name, cut in cuts.items()})
        fit(net, *shard(work, client), work.batch)
        for name, cut in cuts.items():
            totals[name][cut] += state[name]
            counts[name][cut] += 1
    new = {name: torch.where(count > 0, totals[name] / count, whole[name]) for name, count in counts.items()}
    return {name: tensor.to(whole[name].dtype) for name, tensor in new.items()}


def main() -> None:
    work, rounds, _ = asked()
    data(work)
    nets = [network(work, width) for width in work.widths or (1.0,)]
    whole = {name: tensor.clone() for name, tensor in nets[0].state_dict().items()}
    for _ in range(rounds):
        cohort = torch.randperm(work.clients)[: work.cohort].tolist()
        whole = width_round(work, nets, whole, cohort) if work.widths else whole_round(work, nets[0], whole, cohort)
        if work.hardware == "cuda":
            torch.cuda.synchronize()
        mark()


if __name__ == "__main__":
    main()
