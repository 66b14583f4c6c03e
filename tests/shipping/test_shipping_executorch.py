"""ExecuTorch: every network predicts there as in PyTorch; those that train there do so alike, others are refused."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from shipped_networks import DIGITS, EVERY, QUICK, agrees, made, ship
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from potluck.cli.app import app
from potluck.cli.main import main
from potluck.core import InputError, ResourceError, SettingsError
from potluck.learn.losses import CrossEntropy
from potluck.learn.problems import SquaredError
from potluck.models import families, load, make_spec
from potluck.models.families import FAMILIES
from potluck.models.folder import save
from potluck.run import export, run
from potluck.shipping import verify_device
from potluck.shipping.device_training import TrainingStep, compare, write_training_graph
from potluck.shipping.formats import NoGraph

SMALL_RESNET = {"depth": (1, 1, 1, 1), "width": 4, "input": (1, 16, 16), "classes": 10}
TRAINED = {
    "mlp": make_spec("mlp", hidden=6, depth=1, **DIGITS),
    "device_cnn": make_spec("device_cnn", depth=2, width=4, **DIGITS),
    "device_cnn, no norm": make_spec("device_cnn", depth=1, width=4, norm="none", **DIGITS),
    "resnet, group norm": make_spec("resnet", norm="group", **SMALL_RESNET),
    "resnet, bottleneck, group norm": make_spec("resnet", block="bottleneck", norm="group", **SMALL_RESNET),
    "preresnet, group norm": make_spec("preresnet", norm="group", **SMALL_RESNET),
    "device_mobilenet": EVERY["device_mobilenet"],
    **{name: spec for name, spec in EVERY.items() if name.startswith(("transformer", "bert"))},
}
REFUSED = {
    "lenet": (QUICK["lenet"], "max-pooling (stem.pool, body.0.pool): its gradient is wrong there. Use a convolution"),
    "cnn": (QUICK["cnn"], "batch norm (stem.norm, body.0.norm): it cannot be written in training mode. Use group norm"),
    "cnn, group norm": (make_spec("cnn", depth=1, norm="group", **DIGITS), "max-pooling (body.0.pool): its gradient"),
    "mlp, running norm": (QUICK["mlp, running norm"], "batch norm (stem.norm, body.0.norm): it cannot"),
    "resnet": (EVERY["resnet"], "batch norm (stem.norm, body.0.0.first.norm and 10 more): it cannot"),
    "resnet, stride4": (make_spec("resnet10", stem="stride4", norm="group", width=4, **DIGITS), "max-pooling (stem.po"),
    "preresnet": (EVERY["preresnet"], "batch norm (body.0.0.enter.norm, body.0.0.between.norm and 7 more): it cannot"),
    "mobilenet_v2": (EVERY["mobilenet_v2"], "batch norm (stem.norm, body.0.0.each.norm and 50 more): it cannot"),
}  # fmt: skip
needs_executorch = pytest.mark.skipif(find_spec("executorch") is None, reason="needs the package executorch")


def batch(spec, rows=4):
    _, net, _, sample = made(spec)
    return net, sample.inputs[:rows], sample.labels[:rows]


def trained(net, loss, x, y, place, **options):
    """The comparison after ten steps, of a training graph that is written first."""
    write_training_graph(net, "own", loss, x, y, place / "train.pte")
    return compare(TrainingStep(net, loss), x, y, place / "train.pte", **options)


def test_every_family_is_trained_or_refused():
    specs = [*TRAINED.values(), *(spec for spec, _ in REFUSED.values())]
    assert {spec.family for spec in specs} == {name for name in FAMILIES if name in families()}


@needs_executorch
@pytest.mark.slow
@pytest.mark.parametrize("spec", EVERY.values(), ids=EVERY)
def test_every_network_in_executorch_gives_the_outputs_of_the_original(spec, tmp_path):
    assert agrees(spec, tmp_path / "model", "executorch")


@needs_executorch
@pytest.mark.slow
@pytest.mark.parametrize("spec", TRAINED.values(), ids=TRAINED)
def test_ten_steps_in_executorch_give_the_parameters_of_pytorch(spec, tmp_path):
    net, x, y = batch(spec)
    found = trained(net, CrossEntropy(), x, y, tmp_path)
    assert found.steps == 10
    assert not found.wrong, found.verdict
    assert found.off <= 1e-5
    assert found.tensors[0].moved > 100 * found.off, "parameters that hardly moved would agree in any case"
    assert found.losses[1] < found.losses[0]


@pytest.mark.parametrize(("spec", "reason"), REFUSED.values(), ids=REFUSED)
def test_networks_that_executorch_cannot_train_are_refused_by_name(spec, reason, tmp_path):
    with pytest.raises(NoGraph) as told:
        ship(spec, tmp_path / "model", "executorch", train=4)
    assert f"the network '{spec.family}' cannot be trained by ExecuTorch 1.5.1: " in str(told.value)
    assert reason in str(told.value)
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


class Own(nn.Module):
    """A convolution, something that a person wrote, and a head."""

    def __init__(self, between):
        super().__init__()
        self.conv, self.between, self.head = nn.Conv2d(1, 4, 3), between, nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.between(self.conv(x)).flatten(2).mean(2))


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda x: F.max_pool2d(x, 2), "max-pooling (max_pool2d): its gradient is wrong there"),
        (lambda x: F.adaptive_max_pool2d(x, 1), "max-pooling (adaptive_max_pool2d): its gradient is wrong there"),
        (nn.AdaptiveMaxPool2d(1), "max-pooling (between): its gradient is wrong there"),
        (lambda x: F.avg_pool2d(x, 2), "average pooling (avg_pool2d): it has no gradient there"),
        (lambda x: F.adaptive_avg_pool2d(x, 2), "average pooling (adaptive_avg_pool2d): it has no gradient there"),
        (nn.AdaptiveAvgPool2d((1, 2)), "average pooling (between): it has no gradient there"),
        (nn.AvgPool2d(2), "average pooling (between): it has no gradient there"),
        (lambda x: F.batch_norm(x, None, None, training=True), "batch norm (batch_norm): it cannot be written"),
        (lambda x: F.dropout(x, 0.5), "dropout in a forward function (dropout): what it draws cannot be compared"),
        (lambda x: x * torch.rand(4, 1, 1), "dropout in a forward function (rand)"),
    ],
)
def test_functions_in_a_forward_are_found_in_the_graph(between, reason, tmp_path):
    net, path = Own(between), tmp_path / "train.pte"
    with pytest.raises(NoGraph) as told:
        write_training_graph(net, "own", CrossEntropy(), torch.zeros(2, 1, 8, 8), torch.arange(2), path)
    assert reason in str(told.value)
    assert not path.exists()


@needs_executorch
@pytest.mark.slow
@pytest.mark.parametrize(
    "between",
    [nn.AdaptiveAvgPool2d(1), lambda x: F.adaptive_avg_pool2d(x, (1, 1)), nn.Dropout(0.5), nn.InstanceNorm2d(4)],
    ids=["mean", "mean as a function", "dropout", "instance norm"],
)
def test_means_over_a_map_and_layers_of_dropout_are_welcome(between, tmp_path):
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert not trained(Own(between), CrossEntropy(), x, torch.arange(4), tmp_path).wrong


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head, self.unused = nn.Linear(8, 1), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@needs_executorch
@pytest.mark.slow
def test_attention_and_the_squared_error_train_too_and_unused_layers_stay(tmp_path):
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    found = trained(Attention(), SquaredError(), x, torch.linspace(-1, 1, 4), tmp_path)
    assert not found.wrong, found.verdict
    assert {each.name: each.moved for each in found.tensors}["unused.weight"] == 0


@needs_executorch
@pytest.mark.slow
def test_max_pooling_would_be_found_wrong_if_it_were_not_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("potluck.shipping.device_training.UNTRAINABLE", ())
    net, x, y = batch(QUICK["lenet"])
    with pytest.raises(Exception, match=r"ExecuTorch and PyTorch differ after 2 steps .* Nothing was written") as told:
        trained(net, CrossEntropy(), x, y, tmp_path)
    assert told.value.exit_code == 9


@needs_executorch
@pytest.mark.slow
def test_what_the_runtime_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("potluck.shipping.device_training.UNTRAINABLE", ())
    with pytest.raises(NoGraph, match=r"its runtime lacks avg_pool2d_backward\.$"):
        trained(Own(nn.AvgPool2d(2)), CrossEntropy(), torch.zeros(2, 1, 8, 8), torch.arange(2), tmp_path)


@needs_executorch
@pytest.mark.slow
def test_a_folder_for_training_is_verified_and_an_altered_one_is_not(tmp_path, capsys, monkeypatch):
    place = tmp_path / "model"
    net, sample = ship(QUICK["device_cnn"], place, "executorch", train=8)
    names = {"model.json", "model.pte", "train.pte", "model.safetensors", "predict.py", "requirements.txt"}
    assert {path.name for path in place.iterdir()} == names | {"README.md", "sample.npz"}
    assert torch.equal(load(place)(sample.inputs), net(sample.inputs))
    assert "takes a batch of 8 rows" in " ".join((place / "README.md").read_text().split())
    assert (place / "requirements.txt").read_text().startswith("executorch>=1.5\ntorch>=")

    told = CliRunner().invoke(app, ["verify-device", str(place), "--format", "json"])
    found = json.loads(told.stdout)
    assert found["agrees"]
    assert (found["steps"], found["rows"]) == (10, 8)
    assert found["off"] <= 1e-5 < found["tensors"][0]["moved"]
    told = CliRunner().invoke(app, ["verify-device", str(place)])
    assert "ExecuTorch and PyTorch agree after 10 steps of SGD" in told.stdout
    assert "stem.conv.weight" in told.stdout or "head.weight" in told.stdout

    altered, header = made(QUICK["device_cnn"])[0], json.loads((place / "model.json").read_text())
    altered.arrays["head.bias"][3] += 0.01
    save(place, altered, {name: header[name] for name in ("input", "output", "training")})
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["verify-device", str(place)])
    assert left.value.code == 9
    line = capsys.readouterr().err.strip().splitlines()
    assert len(line) == 1
    assert "ExecuTorch and PyTorch differ after 10 steps" in line[0]
    assert "in 'head.bias'" in line[0]

    with (place / "train.pte").open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match=r"train\.pte does not match the checksum in model\.json"):
        verify_device(place)


@needs_executorch
@pytest.mark.slow
def test_a_tier_of_a_run_is_exported_for_training_and_verified(tmp_path):
    told = {
        "rounds": 1,
        "model": {"name": "device_cnn", "depth": 1, "width": 4},
        "tier": [{"name": "phone", "width": 0.5}, {"name": "laptop"}],
        "method": {"name": "heterofl"},
        "local": {"epochs": 1, "batch": 4},
        "run": {"engine": "serial"},
    }
    run(told, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "phone", tier="phone", format="executorch", train=True)
    with np.load(tmp_path / "phone" / "sample.npz") as sample:
        assert sample["real"]
        assert sample["y"].shape == (8,)
    assert json.loads((tmp_path / "phone" / "model.json").read_text())["training"]["rows"] == 4
    found = verify_device(tmp_path / "phone")
    assert not found.wrong, found.verdict


def test_train_without_executorch_as_the_format_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"--train writes a training graph .* use --format executorch, not pt2"):
        export(tmp_path, tmp_path / "model", format="pt2", train=True)


def test_executorch_without_its_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "executorch", None)
    with pytest.raises(ResourceError, match=r"--format executorch needs .* pip install 'potluck\[executorch\]'"):
        export(tmp_path, tmp_path / "model", format="executorch")
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[executorch\]'"):
        ship(QUICK["mlp"], tmp_path / "model", "executorch")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_training_graph_cannot_be_verified(tmp_path):
    ship(QUICK["mlp"], tmp_path / "model", "safetensors")
    with pytest.raises(InputError, match=r"model holds no training graph; write it with potluck export --train"):
        verify_device(tmp_path / "model")
    with pytest.raises(SettingsError, match=r"--lr 0 must be a number above 0"):
        verify_device(tmp_path / "model", rate=0.0)
