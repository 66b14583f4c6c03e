"""Specs of every family in small, which the tests of this room share."""

import pytest

from potluck.models import make_spec, tier_spec

DIGITS = {"input": (1, 8, 8), "classes": 10}
WORDS = {"input": (8,), "classes": 10}
SPECS = {
    "mlp": make_spec("mlp", **DIGITS),
    "mlp-running": make_spec("mlp", norm="running", hidden=6, depth=12, **DIGITS),
    "lenet": make_spec("lenet", **DIGITS),
    "lenet-28": make_spec("lenet", input=(1, 28, 28), classes=10, norm="running"),
    "lenet-oblong": make_spec("lenet", input=(3, 36, 20), classes=5, norm="group"),
    "cnn": make_spec("cnn", **DIGITS),
    "cnn-running": make_spec("cnn", norm="running", depth=1, width=5, **DIGITS),
    "device_cnn": make_spec("device_cnn", **DIGITS),
    "device_cnn-bare": make_spec("device_cnn", norm="none", depth=1, width=5, **DIGITS),
    "resnet": make_spec("resnet14", width=4, **DIGITS),
    "resnet-bare": make_spec("resnet10", width=3, norm="none", stem="stride4", **DIGITS),
    "resnet-running": make_spec("resnet10", width=3, norm="running", **DIGITS),
    "bottleneck": make_spec("resnet", block="bottleneck", depth=(1, 2, 1, 1), width=3, **DIGITS),
    "preresnet": make_spec("preresnet18", width=3, **DIGITS),
    "mobilenet": tier_spec(make_spec("mobilenet_v2", **DIGITS), 0.1),
    "device_mobilenet": tier_spec(make_spec("device_mobilenet", **DIGITS), 0.1),
    "transformer": make_spec("transformer", hidden=12, ffn=10, heads=3, **WORDS),
    "transformer-bare": make_spec("transformer", hidden=12, ffn=10, heads=3, depth=1, norm="none", **WORDS),
    "bert": make_spec("bert", hidden=12, ffn=10, heads=3, **WORDS),
    "bert-tags": make_spec("bert", hidden=12, ffn=10, heads=3, output="tokens", vocab=20, norm="none", **WORDS),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
