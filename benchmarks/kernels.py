"""What a round on a GPU is made of: its kernels, how busy they keep the GPU, and where Python's time goes.

    python benchmarks/kernels.py experiments/fedrolex/table3.toml --methods alllarge --variant "L = 2" --rounds 6

The experiment runs as it is, but on noise (speed does not depend on what pixels show) and without scores. After the
warm-up rounds some are timed as they are, one is recorded by torch's profiler, and one by Python's.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potluck.cli.arguments import comparison_methods, with_variants
from potluck.data import Source, from_arrays
from potluck.run import read_experiment, run
from potluck.run.planning import ComparedMethod, plan_entries
from potluck.run.settings import Experiment
from potluck.run.watch import Silent

KINDS = {
    "convolution": ("conv", "xmma", "cudnn", "wgrad", "dgrad", "fprop", "implicit"),
    "matrix product": ("gemm", "cublas", "cutlass"),
    "norm": ("batch_norm", "bn_fw", "bn_bw", "layer_norm", "group_norm"),
    "optimiser": ("multi_tensor", "fused_sgd", "fused_adam", "lpnorm"),
    "copy, cast, layout": ("copy", "Memcpy", "Memset", "nchw", "nhwc", "transpose", "cast", "convert"),
    "elementwise": ("elementwise",),
    "reduction": ("reduce", "softmax", "nll", "scan"),
    "gather": ("index", "gather", "scatter"),
}
"""Words in the names of kernels, by what the kernels do; the first that fits counts."""


@dataclass(frozen=True)
class Kernel:
    """One kernel as the profiler saw it; times in nanoseconds."""

    name: str
    start: int
    end: int

    @property
    def kind(self) -> str:
        low = self.name.lower()
        return next((kind for kind, words in KINDS.items() if any(word.lower() in low for word in words)), "other")


class Profiling(Silent):
    """Times rounds, then records one round's kernels and one round of Python."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.marks: list[float] = []
        self.kernels: list[Kernel] = []
        self.python = cProfile.Profile()
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        torch.cuda.synchronize()
        if done <= self.rounds:
            self.marks.append(time.perf_counter())
        if done == self.rounds:
            self.profiler.start()
        elif done == self.rounds + 1:
            self.profiler.stop()
            self.kernels = kernels(self.profiler)
            self.python.enable()
        elif done == self.rounds + 2:
            self.python.disable()


def kernels(profiler: torch.profiler.profile) -> list[Kernel]:
    """The kernels that a profiler recorded, copies and fills among them, by their start."""
    results = profiler.profiler.kineto_results  # type: ignore[union-attr]
    found = [
        Kernel(event.name(), event.start_ns(), event.start_ns() + event.duration_ns())
        for event in results.events()
        if event.device_type() == torch.profiler.DeviceType.CUDA
    ]
    return sorted(found, key=lambda kernel: kernel.start)


def busy(found: Iterable[Kernel]) -> float:
    """Seconds in which at least one kernel ran."""
    total, end = 0, 0
    for kernel in found:
        total += max(kernel.end - max(kernel.start, end), 0)
        end = max(end, kernel.end)
    return total / 1e9


def table(found: Sequence[Kernel], groups: Iterable[str], most: int) -> None:
    """Prints the groups that took the most time: their kernels, seconds, and mean microseconds."""
    count: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for kernel, group in zip(found, groups, strict=True):
        count[group] += 1
        spent[group] += kernel.end - kernel.start
    for group, time_ in spent.most_common(most):
        print(f"{count[group]:>9,}{time_ / 1e9:>9.3f}{time_ / count[group] / 1e3:>9.1f}  {group[:110]}")


def noise(shape: tuple[int, ...], rows: int) -> Source:
    """Examples of noise in ten classes, as bytes like pictures."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (rows, *shape), dtype=np.uint8)
    y = np.arange(rows) % 10
    return from_arrays(x, y, x_test=x[:100], y_test=y[:100])


def chosen(told: argparse.Namespace) -> list[ComparedMethod]:
    """The methods that the command line names, under its variant."""
    found = with_variants(read_experiment(told.experiment, told.set), [told.variant] if told.variant else [])
    return plan_entries(found, comparison_methods(found, told.methods))


def without_scores(found: Experiment, rounds: int) -> Experiment:
    """The experiment on data of one's own, for so many rounds, scored only before the first and after the last."""
    data = replace(found.data, name="own", path="", size=())
    score = replace(found.score, every=10**6, clients=1, common=False, personal=False, features=False, local=False)
    return replace(found, rounds=rounds + 3, data=data, score=score)


def profile(entry: ComparedMethod, told: argparse.Namespace) -> None:
    watch = Profiling(told.rounds)
    with tempfile.TemporaryDirectory() as folder:
        source = noise(tuple(map(int, told.shape.split(","))), told.rows)
        run(without_scores(entry.experiment, told.rounds), Path(folder) / "run", source=source, watch=watch)
    rounds = [after - before for before, after in zip(watch.marks, watch.marks[1:], strict=False)]
    span = (watch.kernels[-1].end - watch.kernels[0].start) / 1e9
    total = sum(kernel.end - kernel.start for kernel in watch.kernels) / 1e9
    print(f"\n{entry.label}: rounds took {', '.join(f'{one:.3f}' for one in rounds)} s")
    print(f"the last half's median {statistics.median(rounds[len(rounds) // 2 :]):.3f} s", end="; ")
    print(f"recorded: {len(watch.kernels):,} kernels, {total:.3f} s in all, in {span:.3f} s", end=", ")
    print(f"of which the GPU was busy {busy(watch.kernels):.3f} s")
    print(f"{'kernels':>9}{'s':>9}{'us each':>9}")
    table(watch.kernels, [kernel.kind for kernel in watch.kernels], 20)
    print("by name:")
    table(watch.kernels, [kernel.name for kernel in watch.kernels], told.most)
    text = io.StringIO()
    pstats.Stats(watch.python, stream=text).sort_stats("tottime").print_stats(told.most)
    print("Python, by the function's own time:")
    print("\n".join(line for line in text.getvalue().splitlines()[6:] if line.strip()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--methods", help="names with commas (default: all of the file's)")
    parser.add_argument("--variant", help="the variant of the file to run under")
    parser.add_argument("--set", action="append", default=[], help="a setting, such as run.streams=5")
    parser.add_argument("--rounds", type=int, default=6, help="rounds that are timed (default: 6)")
    parser.add_argument("--shape", default="3,32,32", help="the shape of an example (default: 3,32,32)")
    parser.add_argument("--rows", type=int, default=50_000, help="the number of examples (default: 50,000)")
    parser.add_argument("--most", type=int, default=25, help="lines of each table (default: 25)")
    told = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    for entry in chosen(told):
        profile(entry, told)


if __name__ == "__main__":
    main()
