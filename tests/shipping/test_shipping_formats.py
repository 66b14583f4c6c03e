"""Every network of the zoo as pt2 and as ONNX gives the outputs of the original; what cannot be written is refused."""

import hashlib
import json
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from shipped_networks import DIGITS, EVERY, QUICK, SMALL, agrees, made, ship
from torch import nn

from potluck.core import InputError, ResourceError, SettingsError
from potluck.models import families, load, make_spec
from potluck.models.families import FAMILIES
from potluck.run import export
from potluck.shipping import figures, predict, write_bundle
from potluck.shipping.bundle import check
from potluck.shipping.formats import NoGraph, write_graph


def test_every_family_of_the_zoo_is_among_them():
    listed = {family.name for family in FAMILIES.values() if family.name in families()}
    assert listed == {spec.family for spec in EVERY.values()}


@pytest.mark.parametrize("spec", QUICK.values(), ids=QUICK)
def test_a_small_network_as_pt2_gives_the_outputs_of_the_original(spec, tmp_path):
    assert agrees(spec, tmp_path / "model", "pt2")


@pytest.mark.slow
@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL)
def test_every_network_as_pt2_gives_the_outputs_of_the_original(spec, tmp_path):
    assert agrees(spec, tmp_path / "model", "pt2")


@pytest.mark.slow
@pytest.mark.parametrize("spec", EVERY.values(), ids=EVERY)
def test_every_network_as_onnx_gives_the_outputs_of_the_original(spec, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the package onnxruntime")
    assert agrees(spec, tmp_path / "model", "onnx")


def test_safetensors_hold_the_weights_and_a_graph_and_can_be_loaded_here(tmp_path):
    net, sample = ship(QUICK["mlp"], tmp_path / "model", "safetensors")
    assert torch.equal(load(tmp_path / "model")(sample.inputs), net(sample.inputs))
    with np.load(tmp_path / "model" / "sample.npz") as kept:
        assert np.array_equal(kept["x"], sample.rows)
        assert np.allclose(kept["expected"], net(sample.inputs).detach().numpy())
    said = predict(tmp_path / "model", sample.rows)
    assert [int(each["class"]) for each in said] == net(sample.inputs).argmax(1).tolist()
    assert sum(said[0]["probabilities"].values()) == pytest.approx(1)


def test_a_graph_of_other_weights_is_refused_and_says_where(tmp_path):
    spec = QUICK["mlp"]
    net, sample = ship(spec, tmp_path / "model", "pt2")
    with torch.no_grad():
        net.head.bias[7] += 0.5
    with pytest.raises(InputError, match=r"^model\.pt2 says .* where its network says .* \(row \d, output '7'\)"):
        check(tmp_path / "model", net, sample)
    with torch.no_grad():
        net.head.bias[7] -= 0.5 - 5e-5
    assert check(tmp_path / "model", net, sample) == pytest.approx(5e-5, rel=0.1)


class Drifts(nn.Module):
    """A network that answers otherwise each time; a graph of it cannot."""

    def __init__(self, net):
        super().__init__()
        self.net, self.calls = net, 0

    def forward(self, x):
        self.calls += 1
        return self.net(x) + self.calls


def test_a_folder_whose_graph_differs_never_appears(tmp_path):
    model, net, card, sample = made(QUICK["mlp"])
    told = figures(net, sample.inputs[:1])
    with pytest.raises(InputError, match=r"a difference above 0\.000\d+; nothing was written"):
        write_bundle(tmp_path / "a" / "model", model, Drifts(net).eval(), card, sample, told, "pt2")
    assert list((tmp_path / "a").iterdir()) == []


def test_an_export_replaces_an_older_one_and_nothing_else(tmp_path):
    ship(QUICK["mlp"], tmp_path / "model", "safetensors")
    ship(QUICK["mlp"], tmp_path / "model", "pt2")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"model.json", "model.pt2", "predict.py", "requirements.txt", "README.md", "sample.npz"}
    with pytest.raises(InputError, match=r"holds no model\.safetensors\. Its model\.pt2 is run by predict\.py"):
        load(tmp_path / "model")
    (tmp_path / "model" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"holds other files \(thesis\.tex\), which would be lost; name a new folder"):
        ship(QUICK["mlp"], tmp_path / "model", "pt2")


def test_a_norm_without_statistics_of_its_own_is_refused_by_name_and_kept_as_weights(tmp_path):
    spec = make_spec("preresnet", depth=(1, 1, 1, 1), width=3, norm="static", **DIGITS)
    with pytest.raises(NoGraph, match=r"^the network 'preresnet' cannot be written as pt2: its batch norm has no"):
        ship(spec, tmp_path / "model", "pt2")
    assert list(tmp_path.iterdir()) == []
    model, net, card, sample = made(spec)
    notes = write_bundle(tmp_path / "m", model, net, card, sample, figures(net, sample.inputs[:1]), "safetensors")
    assert notes[0].startswith("no graph and no predict.py: the network 'preresnet' cannot be written as pt2")
    assert torch.equal(load(tmp_path / "m")(sample.inputs), net(sample.inputs))
    assert not (tmp_path / "m" / "predict.py").exists()
    with pytest.raises(InputError, match="holds no graph of its network"):
        predict(tmp_path / "m", sample.rows)


class Moody(nn.Module):
    """A network whose path depends on its data."""

    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x


def test_a_network_that_depends_on_its_data_is_refused_with_the_reason_in_one_line(tmp_path):
    with pytest.raises(NoGraph, match=r"^the network 'moody' cannot be written as pt2: ") as told:
        write_graph(Moody().eval(), "moody", torch.ones(2, 3), tmp_path / "model.pt2", "pt2")
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 300


def test_onnx_without_its_packages_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[onnx\]'"):
        ship(QUICK["mlp"], tmp_path / "model", "onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_altered_graph_is_refused(tmp_path):
    _, sample = ship(QUICK["mlp"], tmp_path / "model", "pt2")
    with (tmp_path / "model" / "model.pt2").open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match=r"model\.pt2 does not match the checksum in model\.json"):
        predict(tmp_path / "model", sample.rows)
    (tmp_path / "model" / "model.json").write_text("[]")
    with pytest.raises(InputError, match=r"holds no model\.json of an exported model"):
        predict(tmp_path / "model", sample.rows)


def rewritten(path, change):
    """The zip file at this path with the entries that `change` makes of its own, and the checksum of the new file."""
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in change(entries).items():
            file.writestr(name, data)
    told = json.loads((path.parent / "model.json").read_text())
    told["graph"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (path.parent / "model.json").write_text(json.dumps(told))


def flagged(entries):
    config = next(name for name in entries if name.endswith("weights_config.json"))
    return {**entries, config: entries[config].replace(b"false", b"true")}


@pytest.mark.parametrize(
    "change",
    [
        flagged,
        lambda entries: {**entries, "model/data/sample_inputs/model.pt": b"a pickle"},
        lambda entries: {**entries, "model/data/aotinductor/model/code.so": b"a library"},
        lambda entries: {**entries, "model/data/constants/opaque_obj_0": b"a pickle"},
    ],
    ids=["weights", "sample inputs", "library", "constant"],
)
def test_whatever_torch_would_unpickle_is_refused(change, tmp_path):
    _, sample = ship(QUICK["mlp"], tmp_path / "model", "pt2")
    rewritten(tmp_path / "model" / "model.pt2", change)
    with pytest.raises(InputError, match=r"model\.pt2 refused: .* may hold a pickle"):
        predict(tmp_path / "model", sample.rows)


def test_figures_of_a_linear_network_can_be_counted_by_hand():
    net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 2, bias=False)).eval()
    found = figures(net, torch.zeros(1, 3))
    assert found.parameters == 3 * 5 + 5 * 2
    assert found.bytes == 4 * 25
    assert found.flops == 2 * 25
    assert found.memory == 4 * 25 + 4 * (5 + 5)  # the ReLU reads five numbers and writes five
    assert found.seconds > 0


def test_the_readme_says_what_it_is_and_names_of_classes_cannot_write_html(tmp_path):
    model, net, card, sample = made(QUICK["mlp"])
    card = replace(card, names=("<b>cat", "a|b", *"cdefghij"), score="accuracy 0.5000 on 8 test rows")
    write_bundle(tmp_path / "m", model, net, card, sample, figures(net, sample.inputs[:1]), "pt2")
    text = (tmp_path / "m" / "README.md").read_text()
    assert "A `mlp` trained by FedAvg in 2 rounds" in text
    assert "accuracy 0.5000 on 8 test rows" in text
    assert f"| parameters | {sum(p.numel() for p in net.parameters()):,} |" in text
    assert "<b>" not in text
    assert "&lt;b>cat, a\\|b" in text


def test_an_unknown_format_names_the_nearest(tmp_path):
    with pytest.raises(SettingsError, match=r"--format onx: there is no such format\. Did you mean 'onnx'\?"):
        export(tmp_path, tmp_path / "model", format="onx")
