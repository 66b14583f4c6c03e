"""How far exported networks are from the original at the sizes that families have by default.

    python benchmarks/exports.py [--only resnet18,device_cnn] [--rows 16] [--batch 4]

For each network, with random weights: the largest difference of outputs in pt2, ONNX and ExecuTorch over some rows, and
the largest difference of a parameter after ten steps of training in ExecuTorch and in PyTorch. Those that ExecuTorch
cannot train are refused by the first layer that is in the way. It needs the extras onnx and executorch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from potluck.core import Model, UserError, stream
from potluck.learn.losses import CrossEntropy
from potluck.models import ModelZoo, make_spec
from potluck.models.families import FAMILIES
from potluck.shipping import ModelCard, Sample, figures, write_bundle
from potluck.shipping.bundle import check
from potluck.shipping.device_training import TrainingStep, compare, write_training_graph

PICTURES: dict[str, Any] = {"input": (3, 32, 32), "classes": 10}
TEXTS: dict[str, Any] = {"input": (32,), "classes": 10}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", PICTURES),
    "lenet": ("lenet", PICTURES),
    "cnn": ("cnn", PICTURES),
    "device_cnn": ("device_cnn", PICTURES),
    "resnet18": ("resnet18", PICTURES),
    "preresnet18": ("preresnet18", {**PICTURES, "norm": "counted"}),
    "mobilenet_v2": ("mobilenet_v2", PICTURES),
    "device_mobilenet": ("device_mobilenet", PICTURES),
    "transformer": ("transformer", TEXTS),
    "bert": ("bert", TEXTS),
}


def made(name: str, options: dict[str, Any], rows: int) -> tuple[Model, nn.Module, Sample]:
    """A network with random weights, and random rows."""
    spec = make_spec(name, **options)
    zoo = ModelZoo(spec)
    net = zoo.build(zoo.fresh(spec, stream(0, "weights")))
    rng, shape = np.random.default_rng(0), tuple(options["input"])
    tokens = FAMILIES[spec.family].tokens
    x = rng.integers(1, 10, (rows, *shape)) if tokens else rng.standard_normal((rows, *shape)).astype(np.float32)
    labels = torch.arange(rows) % 10 if spec.family != "transformer" else torch.from_numpy((x * 7) % 10)
    with torch.no_grad():
        for _ in range(20):  # batch norm gathers its statistics
            net(torch.from_numpy(x))
    net.eval()
    assert float(net(torch.from_numpy(x)).detach().std(0).max()) > 1e-2, "constant outputs agree in any case"
    arrays = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    return Model(spec, arrays), net, Sample(x, torch.from_numpy(x), real=False, labels=labels)


def outputs_apart(model: Model, net: nn.Module, sample: Sample, format: str) -> str:
    shape = tuple(sample.rows.shape[1:])
    card = ModelCard("", "", 0, "", "classify", 10, shape, dtype=str(sample.rows.dtype))
    with tempfile.TemporaryDirectory() as place:
        to = Path(place) / "model"
        write_bundle(to, model, net, card, sample, figures(net, sample.inputs[:1]), format)
        return f"{check(to, net, sample):.1e}"


def parameters_apart(model: Model, net: nn.Module, sample: Sample, batch: int) -> str:
    assert sample.labels is not None
    x, y = sample.inputs[:batch], sample.labels[:batch]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "train.pte"
        try:
            write_training_graph(net, model.spec.family, CrossEntropy(), x, y, path)
            found = compare(TrainingStep(net, CrossEntropy()), x, y, path)
        except UserError as fault:
            return "refused: " + str(fault).split(": ", 1)[1].split(" (")[0]
    return f"{found.off:.1e} (moved by {max(each.moved for each in found.tensors):.1e}, lr {found.rate:g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NETWORKS))
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    asked = parser.parse_args()
    print("| network | parameters | pt2 | ONNX | ExecuTorch | ten steps in ExecuTorch |\n|---|---|---|---|---|---|")
    for name in asked.only.split(","):
        started = time.monotonic()
        torch.manual_seed(0)
        given = made(*NETWORKS[name], rows=asked.rows)
        apart = [outputs_apart(*given, format) for format in ("pt2", "onnx", "executorch")]
        trained = parameters_apart(*given, asked.batch)
        count = sum(each.numel() for each in given[1].parameters())
        print(f"| `{name}` | {count:,} | {' | '.join(apart)} | {trained} |", flush=True)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
