"""What a server that keeps to the protocol, but is curious, can read from a round: without masks, with one mask for
each client, and with [secure].

    python benchmarks/leak.py [--rounds 40]

"no masks": the server sees every upload. "one mask": it sees the sum of all uploads, entry by entry, as secure
aggregation for equal networks gives it; where a single client holds an entry, the sum is that client's own. [secure]:
entries that fewer than three clients hold stay closed. Three attacks, on HeteroFL with five equal tiers on digits:

- own block: the share of the first hidden layer's weights that the server can read of one client alone.
- membership: a client's rows have a lower loss under its own model than rows that it never saw. The area under the ROC
  curve of this guess, 0.5 being a coin; with the best model that the server has of this client.
- inversion: of a client with one row, the change of the first layer is the row itself, times a factor (weights over
  biases). The correlation of what is read with the true row; the mean of ten digits resembles each of them a little.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from potluck.core import Model, stream
from potluck.engines import Dispatcher, Serial, TaskEnvelope, TaskResult
from potluck.learn import predict_logits
from potluck.run import config
from potluck.run.assemble import Setup, assemble

WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)
VIEWS = ("no masks", "one mask", "[secure]")


class Transcript(Serial):
    """Serial, and all that came from clients."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.seen: dict[str, Model] = {}

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        for result in super().run(envelopes):
            if result.reply is not None and "model" in result.reply.models:
                self.seen[result.task.to] = result.reply.models["model"]
            yield result


def federation(secure: bool, samples: int, epochs: int, cohort: int, widths: Sequence[float] = WIDTHS) -> Setup:
    """Digits, a hundred clients, equal tiers."""
    plain = {
        "rounds": 1000,
        "cohort": cohort,
        "data": {"clients": 50, "samples": samples},
        "model": {"name": "mlp", "hidden": 32, "depth": 1},
        "tier": [{"name": f"x{width:g}", "width": width} for width in widths],
        "method": {"name": "heterofl", "label_mask": False, "weighting": "uniform"},
        "local": {"lr": 0.3, "epochs": epochs, "batch": samples},
        "secure": {"enabled": secure},
    }
    return assemble(config.experiment(plain))


def play(setup: Setup, index: int) -> tuple[Any, Any, dict[str, Model]]:
    """One round from the first model: the state before, the state after, and the uploads that the server saw."""
    context = setup.context
    engine = Transcript(context)
    run = Dispatcher(engine, context.method, context.zoo, samples=context.samples, secure=context.secure)
    run.session_label = f"leak {index}"
    session = run.open(index)
    before = context.method.init(context.zoo, stream(context.seed, "init"))
    after = context.method.round(before, setup.view(index, session))
    return before, after, engine.seen


def own_block(rounds: int) -> list[float]:
    """The share of the first layer that the server can read of one client alone, on average over rounds."""
    setup = federation(True, 20, 1, 10)
    layer, shares, found = setup.context.zoo.shapes(setup.context.zoo.full), [], []
    name = next(each for each in layer if len(layer[each][0]) == 2)
    for index in range(rounds):
        counts = [client.tier.name for client in setup.cohort(index)]
        widest = max(WIDTHS, key=lambda width: (f"x{width:g}" in counts, width))
        single = counts.count(f"x{widest:g}") == 1
        below = max((width for width in WIDTHS if width < widest and f"x{width:g}" in counts), default=0.0)
        shares.append(widest - below if single else 0.0)
        before, after, _ = play(setup, index)
        moved = after.model.arrays[name] != before.model.arrays[name]
        holders = torch.zeros(len(moved))
        for width in WIDTHS:
            holders[: round(width * len(moved))] += counts.count(f"x{width:g}")
        found.append(float((moved.any(1) & (holders < 2)).float().mean()))
    alone = sum(sum(client.tier.width == 1.0 for client in setup.cohort(index)) == 1 for index in range(1000))
    print(f"exactly one full-width client takes part in {alone / 10:.0f} % of 1,000 rounds")
    return [1.0, statistics.mean(shares), statistics.mean(found)]


def membership(rounds: int) -> list[float]:
    """The area under the curve of the guess that a row is one of the client's, averaged over clients."""
    found: list[list[float]] = [[], []]
    for secure in (False, True):
        setup = federation(secure, 20, 20, 10, (1.0,))
        for index in range(rounds):
            _, after, seen = play(setup, index)
            for client in setup.cohort(index)[:3]:
                model = after.model if secure else seen[client.id]
                found[secure].append(_membership(setup, client.id, model))
    alone, summed = (statistics.mean(each) for each in found)
    return [alone, summed, summed]


def _membership(setup: Setup, client: str, model: Model) -> float:
    context = setup.context
    net = context.zoo.build(model, stream(0, "attack"))
    members, others = context.datasets.shard(client).train, context.datasets.shard("server").test
    losses = []
    for examples in (members, others):
        logits, y = predict_logits(net, examples), examples.column("y")
        losses.append(torch.nn.functional.cross_entropy(logits, y, reduction="none"))
    guess, truth = -torch.cat(losses), torch.cat([torch.ones(len(losses[0])), torch.zeros(len(losses[1]))])
    return float(roc_auc_score(truth.numpy(), guess.detach().numpy()))


def inversion(rounds: int) -> list[float]:
    """The correlation of a client's only row with what the server reads off the change of the first layer."""
    found: list[list[float]] = [[], []]
    for secure in (False, True):
        setup = federation(secure, 1, 1, 10, (1.0,))
        for index in range(rounds):
            before, after, seen = play(setup, index)
            client = setup.cohort(index)[0].id
            model = after.model if secure else seen[client]
            row = next(iter(setup.context.datasets.shard(client).train[torch.arange(1)].values())).reshape(-1)
            found[secure].append(_inversion(before.model, model, row.double()))
    alone, summed = (statistics.mean(each) for each in found)
    return [alone, summed, summed]


def _inversion(before: Model, after: Model, row: Tensor) -> float:
    names = list(before.arrays)
    weight = next(name for name in names if before.arrays[name].dim() == 2)
    bias = next(name for name in names if name.removesuffix("bias") == weight.removesuffix("weight"))
    change = {name: after.arrays[name].double() - before.arrays[name].double() for name in (weight, bias)}
    unit = int(change[bias].abs().argmax())
    read = change[weight][unit] / change[bias][unit]
    return float(torch.corrcoef(torch.stack([read, row]))[0, 1]) if bool(read.std() > 0) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    table = {
        "own block: share of the first layer": own_block(rounds),
        "membership: area under the curve": membership(max(3, rounds // 4)),
        "inversion: correlation with the row": inversion(max(3, rounds // 2)),
    }
    print(f"{'':38}" + "".join(f"{name:>12}" for name in VIEWS))
    for name, values in table.items():
        print(f"{name:38}" + "".join(f"{value:12.2f}" for value in values))


if __name__ == "__main__":
    main()
