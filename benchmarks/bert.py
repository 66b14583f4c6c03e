"""BERT written by hand against `transformers`' BERT: a training step, and import and construction, in one run.

    python benchmarks/bert.py [--repeats 15] [--batch 16] [--length 64] [--starts 3]

Both have the same weights and must give the same scores of padded rows before anything is timed. Steps are interleaved
(forward, loss, backward, SGD; dropout 0.1; one thread, as a client has). Starts are whole processes that import the
library and build the network. All figures are processor seconds, medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.core import stream
from potluck.models import ModelZoo, make_spec
from potluck.models.bert import tensor_name

SIZES = {
    "4 layers, 128 wide": {"depth": 4, "hidden": 128, "heads": 2, "ffn": 512},
    "2 layers, 768 wide": {"depth": 2, "hidden": 768, "heads": 12, "ffn": 3072},
}
VOCABULARY, CLASSES = 30_522, 2
TOLERANCE = 1e-5

OURS = """
from potluck.core import stream
from potluck.models import ModelZoo, make_spec
spec = make_spec("bert", input=({length},), classes={classes}, **{size})
zoo = ModelZoo(spec)
zoo.build(zoo.fresh(spec, stream(0, "init")))
"""
THEIRS = """
from transformers import BertConfig, BertForSequenceClassification
BertForSequenceClassification(BertConfig(num_labels={classes}, **{config}))
"""
BARE = "import torch"
TIMED = "import time\n{program}\nprint(time.process_time())"


def config(size: dict[str, int]) -> dict[str, int]:
    """A size in the words of `transformers`."""
    names = {"depth": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"}
    return {names.get(name, "intermediate_size"): value for name, value in size.items()}


def networks(size: dict[str, int], length: int) -> tuple[nn.Module, nn.Module]:
    """Ours and theirs, with the same weights."""
    from transformers import BertConfig, BertForSequenceClassification

    theirs = BertForSequenceClassification(BertConfig(num_labels=CLASSES, **config(size)))
    spec = make_spec("bert", input=(length,), classes=CLASSES, vocab=VOCABULARY, dropout=0.1, **size)
    zoo = ModelZoo(spec)
    ours = zoo.build(zoo.fresh(spec, stream(0, "init")))
    weights = {tensor_name(name): value for name, value in theirs.state_dict().items()}
    ours.load_state_dict({name: weights[name] for name in ours.state_dict()})
    return ours.eval(), theirs.eval()


def batches(count: int, batch: int, length: int) -> list[tuple[Tensor, Tensor]]:
    """Random rows of several lengths, padded with 0, and labels."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        ids = torch.randint(1, VOCABULARY, (batch, length), generator=generator)
        ends = torch.randint(length // 2, length + 1, (batch, 1), generator=generator)
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        found.append((ids.where(torch.arange(length) < ends, 0), labels))
    return found


def seconds_of_steps(
    scores: dict[str, Callable[[Tensor], Tensor]], nets: dict[str, nn.Module], rows: list[tuple[Tensor, Tensor]]
) -> dict[str, float]:
    """Median processor seconds of a training step of each network, taken in turn."""
    rules = {name: torch.optim.SGD(net.parameters(), lr=0.01) for name, net in nets.items()}
    taken: dict[str, list[float]] = {name: [] for name in nets}
    for ids, labels in rows:
        for name, rule in rules.items():
            nets[name].train()
            start = time.process_time()
            functional.cross_entropy(scores[name](ids), labels).backward()
            rule.step()
            rule.zero_grad()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times[2:]) for name, times in taken.items()}


def seconds_of_starts(programs: dict[str, str], count: int) -> dict[str, float]:
    """Median processor seconds of whole processes, taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(count):
        for name, program in programs.items():
            command = [sys.executable, "-c", TIMED.format(program=program)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            taken[name].append(float(done.stdout.split()[-1]))
    return {name: statistics.median(times) for name, times in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("repeats", 15), ("batch", 16), ("length", 64), ("starts", 3)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':32}{'ours':>10}{'transformers':>14}{'theirs/ours':>13}")
    for title, size in SIZES.items():
        ours, theirs = networks(size, asked.length)
        nets = {"ours": ours, "theirs": theirs}
        scores: dict[str, Callable[[Tensor], Tensor]] = {
            "ours": ours,
            "theirs": lambda ids, net=theirs: net(ids, attention_mask=(ids != 0).long()).logits,  # type: ignore[misc]
        }
        rows = batches(asked.repeats + 2, asked.batch, asked.length)
        with torch.no_grad():
            apart = float((scores["ours"](rows[0][0]) - scores["theirs"](rows[0][0])).abs().max())
        if apart > TOLERANCE:
            sys.exit(f"{title}: the scores differ by {apart:.1e}")
        row(f"{title}: step", seconds_of_steps(scores, nets, rows))
        names = {"size": size, "config": config(size), "length": asked.length, "classes": CLASSES}
        programs = {"ours": OURS.format(**names), "theirs": THEIRS.format(**names), "bare": BARE}
        starts = seconds_of_starts(programs, asked.starts)
        row(f"{title}: start", starts)
        print(f"  scores differ by {apart:.1e}; `import torch` alone: {starts['bare']:.2f} s")


def row(title: str, seconds: dict[str, float]) -> None:
    print(f"{title:32}{seconds['ours']:>10.4f}{seconds['theirs']:>14.4f}{seconds['theirs'] / seconds['ours']:>13.2f}")


if __name__ == "__main__":
    main()
