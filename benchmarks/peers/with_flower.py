"""Flower: its simulation on Ray, FedAvg, and a client that keeps its network between tasks.

It has one actor per core, or as many as are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Work, asked, fit, mark, network, shard
from torch import nn

Result = tuple[ArrayRecord | None, MetricRecord | None]


@lru_cache(maxsize=1)
def kept(work: Work) -> nn.Module:
    """A process's one network."""
    torch.set_num_threads(1)
    return network(work)


class Marking(FedAvg):
    """FedAvg that says when a round is over."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Result:
        found = super().aggregate_train(server_round, replies)
        mark()
        return found


def client_app(work: Work) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        import with_flower  # the actor's own copy, whose cache outlives this task

        net = with_flower.kept(work)
        net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        fit(net, *shard(work, int(context.node_config["partition-id"])), work.batch)
        metrics = MetricRecord({"num-examples": work.samples})
        content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(work: Work, rounds: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Marking(
            fraction_train=work.cohort / work.clients,
            fraction_evaluate=0.0,
            min_train_nodes=work.cohort,  # the fraction alone would count only the nodes that have connected so far
            min_available_nodes=work.clients,
        )
        strategy.start(grid, ArrayRecord(network(work).state_dict()), num_rounds=rounds)

    return app


def main() -> None:
    work, rounds, actors = asked()
    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    if actors:
        resources["init_args"] = {"num_cpus": int(actors)}
    run_simulation(server_app(work, rounds), client_app(work), work.clients, backend_config=resources)


if __name__ == "__main__":
    main()
