"""Networks of every family in small, and folders of them, which the tests of exports share."""

import numpy as np
import torch

from potluck.core import Model, stream
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.models.families import FAMILIES
from potluck.shipping import ModelCard, Sample, figures, write_bundle
from potluck.shipping.bundle import check

DIGITS = {"input": (1, 8, 8), "classes": 10}
IMAGES = {"input": (3, 32, 32), "classes": 10}
WORDS = {"input": (8,), "classes": 10}
QUICK = {
    "mlp": make_spec("mlp", hidden=6, depth=1, **DIGITS),
    "mlp, running norm": make_spec("mlp", hidden=6, depth=1, norm="running", **DIGITS),
    "lenet": make_spec("lenet", **DIGITS),
    "cnn": make_spec("cnn", depth=1, width=4, **DIGITS),
    "device_cnn": make_spec("device_cnn", depth=1, width=4, **DIGITS),
}
SMALL = {
    "cnn, counted norm": make_spec("cnn", depth=1, width=4, norm="counted", **DIGITS),
    "resnet": make_spec("resnet", depth=(1, 1, 1, 1), width=4, **DIGITS),
    "resnet, bottleneck": make_spec("resnet", block="bottleneck", depth=(1, 1, 1, 1), width=3, **DIGITS),
    "preresnet": make_spec("preresnet", depth=(1, 1, 1, 1), width=3, norm="counted", **DIGITS),
    "mobilenet_v2": tier_spec(make_spec("mobilenet_v2", **IMAGES), 0.1),
    "device_mobilenet": tier_spec(make_spec("device_mobilenet", depth=(1,) * 7, **IMAGES), 0.1),
    "transformer": make_spec("transformer", hidden=12, ffn=10, heads=3, depth=1, **WORDS),
    "bert": make_spec("bert", hidden=12, ffn=10, heads=3, depth=1, vocab=20, **WORDS),
    "bert, pairs": make_spec("bert", hidden=12, ffn=10, heads=3, depth=1, vocab=20, sep=3, **WORDS),
    "bert, word positions": make_spec("bert", hidden=12, ffn=10, heads=3, depth=1, vocab=20, count="words", **WORDS),
    "bert, tags": make_spec("bert", hidden=12, ffn=10, heads=3, depth=1, output="tokens", vocab=20, **WORDS),
}  # fmt: skip
EVERY = {**QUICK, **SMALL}


def made(spec, seed=0):
    """A model with random weights, its network, a card and a sample of random rows."""
    zoo = ModelZoo(spec)
    model = zoo.fresh(spec, stream(seed, "weights"))
    net = zoo.build(model).eval()
    for name, statistic in net.named_buffers():  # as after training, so that a lost statistic shows
        made_up = torch.rand(statistic.shape, generator=torch.Generator().manual_seed(1))
        if "running" in name:
            statistic.copy_(made_up + 0.5 if name.endswith("var") else (made_up - 0.5) / 5)
    model = Model(model.spec, {name: tensor.clone() for name, tensor in net.state_dict().items()})
    rng, shape = np.random.default_rng(seed), tuple(spec.options["input"])
    tokens = FAMILIES[spec.family].tokens
    rows = rng.integers(0, 10, (5, *shape)) if tokens else rng.standard_normal((5, *shape)).astype(np.float32)
    problem = "tag" if spec.options.get("output") == "tokens" else "nexttoken" if spec.family == "transformer" else ""
    card = ModelCard("tier small", "FedAvg", 2, "", problem or "classify", 10, shape, dtype=str(rows.dtype))
    labels = torch.from_numpy(rng.integers(0, 10, (5, *shape) if problem else 5))
    return model, net, card, Sample(rows, torch.from_numpy(rows), real=False, labels=labels)


def ship(spec, to, format, train=0):
    model, net, card, sample = made(spec)
    write_bundle(to, model, net, card, sample, figures(net, sample.inputs[:1]), format, train)
    return net, sample


def agrees(spec, to, format):
    """The folder's outputs differ from the network's by at most 1e-4, for other rows and another number of them."""
    net, _ = ship(spec, to, format)
    *_, other = made(spec, seed=1)
    other = Sample(np.concatenate([other.rows] * 3), torch.cat([other.inputs] * 3), real=False)
    assert net(other.inputs).std(0).max() > 1e-4, "outputs that do not follow the inputs would agree in any case"
    return check(to, net, other) <= 1e-4
