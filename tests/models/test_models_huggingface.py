"""Networks of transformers take part: cut in width by heads, in depth by blocks. Importing that library is slow."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from potluck.core import Newborn, ResourceError, SettingsError, stream
from potluck.data import from_arrays
from potluck.models import ModelZoo, check, make_spec
from potluck.models.huggingface import TextScores, text_classifier
from potluck.models.specs import uncut
from potluck.run import experiment, run

TEXT, IMAGE = (f"potluck.models.huggingface:{kind}_classifier" for kind in ("text", "image"))
BERT = {
    "name": TEXT,
    "kind": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "blocks": "net.bert.encoder.layer",
}
GPT2 = {"name": TEXT, "kind": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}
GPT2["blocks"] = "net.transformer.h"
VIT = {
    "name": IMAGE,
    "kind": "vit",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "patch_size": 4,
    "blocks": "net.vit.layers",
}
SAME = {key: value for key, value in BERT.items() if key not in ("kind", "blocks")}
DEBERTA = {**SAME, "kind": "deberta-v2"}
SCRIPTED = pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
"""DeBERTa's code in transformers uses what PyTorch would rather not have used."""
NETWORKS = {"bert": BERT, "gpt2": GPT2, "vit": VIT}


@pytest.fixture
def library():
    """The library itself: a test that needs it is slow."""
    return pytest.importorskip("transformers")


def spec_of(network, **options):
    shape = {"input": (1, 8, 8)} if network["name"] == IMAGE else {"input": 6, "vocab": 30}
    return make_spec(**network, **shape, classes=3, **options)


def sentences():
    """Rows of six tokens with padding; the first token says the class."""
    rng = np.random.default_rng(0)
    x = rng.integers(4, 30, (120, 6))
    x[::3, 4:] = 0
    x[:, 0] = 1 + np.arange(120) % 3
    return replace(from_arrays(x, np.arange(120) % 3), tokens=30, pad=0)


def pictures():
    rng = np.random.default_rng(0)
    return from_arrays(rng.integers(0, 255, (120, 1, 8, 8), dtype=np.uint8), np.arange(120) % 3)


def settings(network, method, tiers):
    return experiment(
        {
            "name": "hub",
            "rounds": 2,
            "cohort": 3,
            "data": {"clients": 4, "test": 0.2},
            "model": network,
            "tier": tiers,
            "method": method,
            "local": {"steps": 2, "batch": 8},
            "score": {"clients": 2},
            "run": {"engine": "serial"},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize("cut_heads", ["whole", "width"])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_it_is_cut_in_width_and_depth_and_the_numbers_agree(library, network, cut_heads):
    spec = spec_of(network, cut_heads=cut_heads)
    zoo = ModelZoo(spec)
    assert spec.depth == 2
    assert len(spec.sizes) >= 5
    check(spec, [spec, *(zoo.narrow(zoo.shallow(spec, depth), width) for depth in (1, 2) for width in (0.25, 0.5))])
    small = zoo.narrow(zoo.shallow(spec, 1), 0.5)
    assert zoo.cost(small, 2).flops < zoo.cost(spec, 2).flops
    x = torch.zeros(2, 1, 8, 8) if network is VIT else torch.tensor([[1, 2, 3, 4, 0, 0], [2, 3, 4, 5, 6, 7]])
    assert zoo.build(zoo.fresh(small, stream(0)))(x).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_width_methods_train_it_with_whole_heads(library, network, method, tmp_path):
    tiers = [{"name": "half", "width": 0.5}, {"name": "whole"}]
    asked = settings({**network, "cut_heads": "whole"}, {"name": method}, tiers)
    source = pictures() if network is VIT else sentences()
    assert run(asked, tmp_path / "run", source=source).rounds == 2


@pytest.mark.slow
@pytest.mark.parametrize("method", [{"name": "inclusivefl"}, {"name": "fedavg", "share": "layerwise"}])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_depth_methods_train_it_with_its_first_blocks(library, network, method, tmp_path):
    tiers = [{"name": "shallow", "depth": 1}, {"name": "deep"}]
    source = pictures() if network is VIT else sentences()
    assert run(settings(network, method, tiers), tmp_path / "run", source=source).rounds == 2


@pytest.mark.slow
@SCRIPTED
@pytest.mark.parametrize("network", [BERT, GPT2, DEBERTA], ids=["bert", "gpt2", "deberta"])
def test_padding_changes_no_scores(library, network):
    """The same words with more padding behind them."""
    net = ModelZoo(spec_of(network)).build(Newborn(spec_of(network)), stream(0)).eval()
    short, long = torch.tensor([[5, 6, 7, 0]]), torch.tensor([[5, 6, 7, 0, 0, 0]])
    assert torch.allclose(net(short), net(long), atol=1e-6)
    assert not torch.allclose(net(short), net(torch.tensor([[5, 6, 8, 0]])), atol=1e-6)


@pytest.mark.slow
@SCRIPTED
@pytest.mark.parametrize("kind", ["deberta-v2", "modernbert", "llama"])
def test_heads_that_cannot_be_narrowed_stay_or_go_whole(library, kind, tmp_path):
    """Their units are rotated in pairs, or scaled inside the network: half a head computes something else."""
    network = {**SAME, "kind": kind}
    if kind == "modernbert":
        network |= {"cls_token_id": None, "sep_token_id": None}
    narrow = spec_of(network, cut_heads="width")
    assert re.search("does not compute.*set cut_heads = .whole. under", uncut(narrow))
    whole = spec_of(network, cut_heads="whole")
    assert not uncut(whole)
    tiers = [{"name": "half", "width": 0.5}, {"name": "whole"}]
    asked = settings({**network, "cut_heads": "whole"}, {"name": "heterofl"}, tiers)
    assert run(asked, tmp_path / "run", source=sentences()).rounds == 2


@pytest.mark.slow
def test_a_folder_gives_its_weights(library, tmp_path):
    made = text_classifier((6,), 3, kind="bert", vocab=30, **{key: BERT[key] for key in list(BERT)[2:-1]})
    assert isinstance(made, TextScores)
    made.net.save_pretrained(tmp_path / "bert")
    spec = make_spec(TEXT, folder=str(tmp_path / "bert"), input=6, vocab=30, classes=3)
    found = ModelZoo(spec).fresh(spec, stream(0)).arrays
    expected = made.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "it needs either a kind"),
        ({"kind": "brt"}, "transformers cannot make 'brt'"),
        ({"kind": "bert", "hidden_size": 15}, "transformers cannot make 'bert'"),
    ],
)
def test_mistakes_are_told_in_one_line(library, options, why):
    with pytest.raises(SettingsError) as refusal:
        make_spec(TEXT, input=6, classes=3, **options)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_the_library_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[text\]'"):
        make_spec(TEXT, kind="bert", input=6, classes=3)
