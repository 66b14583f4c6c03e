"""Does WIRE transfer knowledge? Single transfers from a trained teacher to new students, on a few labelled rows.

    python benchmarks/transfer.py [--student lenet] [--rows 100] [--epochs 60] [--rates 0.03,0.1,0.3] [--seeds 0,1,2]
    python benchmarks/transfer.py --data cifar10 --path data --teacher resnet18 --student mobilenet_v2 --hardware cuda

A teacher trains on many rows. A new student then trains on a few other rows: by their labels alone, by labels and
features of equal weight, and by WIRE with bilevel or with joint training of its meta-networks. Each way tries every
learning rate; validation rows choose the rate. Teacher, initial student, rows and their order are the same for all
ways, so that each seed shows what a way gains over labels alone. The table has this gain and, at the end of training,
Loc (how much pairs of layers count, mean over pairs).
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from potluck.core import Examples, Local, Newborn, Spec, stream
from potluck.data import Data, load
from potluck.learn import CrossEntropy, FitJob, predict_logits, run_fit, trainable_weights
from potluck.methods.moss.feature_matching import MetaNetworks
from potluck.methods.moss.wire import TransferLoop, WireSettings
from potluck.models import ModelZoo, make_spec

WAYS: Mapping[str, Mapping[str, Any]] = {
    "labels": {"loss": "ce"},
    "features": {"loss": "mse"},
    "wire": {},
    "joint": {"train": "joint"},
}


@dataclass(frozen=True)
class Case:
    """A trained teacher, and the rows of students: public, validation and test rows."""

    teacher: tuple[Spec, nn.Module]
    shape: Mapping[str, Any]
    """Shape of an input, and number of classes."""
    public: Examples
    validation: Examples
    testing: Examples
    hardware: torch.device


@dataclass(frozen=True)
class Result:
    """A student's accuracy in % on validation and test rows, and mean Loc."""

    validation: float
    test: float
    loc: float


def make_case(args: argparse.Namespace, seed: int) -> Case:
    """A seed's rows, and its trained teacher."""
    hardware = torch.device(args.hardware)
    source = load(Data(name=args.data, path=args.path))
    rows = torch.randperm(len(source.train), generator=stream(seed, "rows"))
    ends = [args.taught, args.taught + args.rows, args.taught + args.rows + args.choosing]
    columns = {name: column.to(hardware) for name, column in source.train.columns.items()}
    whole = Examples(columns, None, source.train.prepare)
    training, public, validation, rest = (whole.pick(part) for part in rows.tensor_split(ends))
    testing = rest
    if source.test is not None:
        testing = Examples({n: c.to(hardware) for n, c in source.test.columns.items()}, None, source.test.prepare)
    shape: dict[str, Any] = {"input": source.shape, "classes": source.classes}
    spec = make_spec(args.teacher, **shape)
    net = ModelZoo(spec).build(Newborn(spec), stream(seed, "teacher")).to(hardware)
    local = Local(lr=args.teacher_lr, momentum=0.9, epochs=args.teacher_epochs, batch=50)
    run_fit(
        FitJob(net, training, local, local.lr, CrossEntropy(), (), stream(seed, "teaching"), trainable_weights(net))
    )
    return Case((spec, net), shape, public, validation, testing, hardware)


def run_transfer(case: Case, student: str, wire: WireSettings, seed: int) -> Result:
    """One transfer to a new student."""
    spec, teacher = case.teacher
    own, zoo = make_spec(student, **case.shape), ModelZoo(spec)
    net = zoo.build(Newborn(own), stream(seed, "student")).to(case.hardware)
    matching = wire.matching(spec, own, zoo)
    meta = MetaNetworks.from_arrays(MetaNetworks.initial(matching, stream(seed, "wire")).snapshot(), case.hardware)
    loop = TransferLoop(teacher, net, matching, meta, wire, update_statistics=True)
    result = loop.run(case.public, wire.lr, stream(seed, "order"))
    loc = float(torch.tensor(result.loc).mean()) if result.loc else float("nan")
    return Result(accuracy(net, case.validation), accuracy(net, case.testing), loc)


def accuracy(net: nn.Module, examples: Examples) -> float:
    """In %."""
    return 100 * float((predict_logits(net, examples).argmax(1) == examples.column("y")).float().mean())


def summary(results: list[Result]) -> str:
    """Mean and deviation of the test accuracy, validation accuracy, and Loc."""
    spread = statistics.stdev(each.test for each in results) if len(results) > 1 else 0.0
    test, by, loc = (statistics.mean(getattr(one, key) for one in results) for key in ("test", "validation", "loc"))
    return f"{test:5.1f} ± {spread:4.1f} (validation {by:4.1f}) Loc {loc:4.2f}"


def gain_over(results: list[Result], labels: list[Result]) -> str:
    """The gain of a way over labels alone, seed by seed."""
    each = [ours.test - theirs.test for ours, theirs in zip(results, labels, strict=True)]
    spread = statistics.stdev(each) if len(each) > 1 else 0.0
    return (
        f"gains {statistics.mean(each):+.1f} ± {spread:.1f}, in {sum(gain > 0 for gain in each)} of {len(each)} seeds"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--path", default="")
    parser.add_argument("--teacher", default="cnn")
    parser.add_argument("--student", default="lenet")
    parser.add_argument("--hardware", default="cpu")
    counts = {"taught": 1000, "teacher-epochs": 8, "rows": 100, "choosing": 250, "epochs": 60, "batch": 25}
    for name, usual in {**counts, "ahead-every": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    for name, rate in (("teacher-lr", 0.05), ("meta-lr", 1e-3), ("beta", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=rate)
    parser.add_argument("--rates", default="0.03,0.1,0.3")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", default=",".join(WAYS))
    return parser.parse_args()


def main() -> None:
    args = arguments()
    rates, seeds = [float(rate) for rate in args.rates.split(",")], [int(seed) for seed in args.seeds.split(",")]
    warnings.simplefilter("ignore", UserWarning)  # joint training is known to switch itself off
    torch.set_num_threads(1)
    cases = {seed: make_case(args, seed) for seed in seeds}
    accuracies = [accuracy(each.teacher[1], each.testing) for each in cases.values()]
    print(f"{args.teacher}, {min(accuracies):.1f} to {max(accuracies):.1f} %, teaches {args.student} {args.rows} rows")
    alone: list[Result] | None = None
    for name in args.ways.split(","):
        results: dict[float, list[Result]] = {}
        for rate in rates:
            more = {key: getattr(args, key) for key in ("epochs", "batch", "meta_lr", "beta", "ahead_every")}
            wire = WireSettings(lr=rate, **more, **WAYS[name])
            results[rate] = [run_transfer(each, args.student, wire, seed) for seed, each in cases.items()]
            print(f"{name:9} lr {rate:<5g} {summary(results[rate])}", flush=True)
        best = max(results, key=lambda rate: statistics.mean(each.validation for each in results[rate]))
        gain = "" if alone is None else f"; {gain_over(results[best], alone)}"
        print(f"{name:9} at {best:<5g} {summary(results[best])}  <- chosen{gain}", flush=True)
        alone = results[best] if name == "labels" else alone


if __name__ == "__main__":
    main()
