"""A user's own network behaves as a family: by name, narrow, priced, saved, and refused when the code differs."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from potluck.core import Model, Newborn, SettingsError, Spec, stream
from potluck.models import ModelZoo, complete, load, make_spec, save
from potluck.models.trace.user_family import check, register
from potluck.parts import part

pytest.importorskip("torch_pruning")

SHAPE = {"input": (1, 8, 8), "classes": 4}


def small_net(classes, channels=6, bias=True):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, bias=bias),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * 36, 9),
        nn.ReLU(),
        nn.Linear(9, classes),
    )


def reader(classes):
    return nn.Sequential(nn.Embedding(classes, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))


register("trace-test", small_net)
register("trace-test-reader", reader, tokens=True)


def test_the_spec_answers_every_argument_of_the_factory():
    spec = make_spec("trace-test", channels=5, **SHAPE)
    assert spec.sizes == {"0": 5, "4": 9}
    assert {key: spec.options[key] for key in ("channels", "bias", "classes")} == {
        "channels": 5, "bias": True, "classes": 4,
    }  # fmt: skip
    assert make_spec("trace-test", **SHAPE) == make_spec("trace-test", channels=6, bias=True, **SHAPE)
    assert complete(Spec.of(spec.plain())) == spec


def test_the_zoo_cuts_builds_and_prices_it():
    spec = make_spec("trace-test", **SHAPE)
    zoo, rng = ModelZoo(spec), stream(0)
    narrow = zoo.narrow(spec, 0.5)
    assert narrow.sizes == {"0": 3, "4": 5}
    assert zoo.shapes(narrow)["4.weight"][0] == (5, 108)
    assert zoo.axes(narrow)["4.weight"][1].size == 3
    assert zoo.buffers(narrow) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert zoo.cost(narrow, 2).parameters == 3 * 9 + 3 + 6 + 5 * 108 + 5 + 5 * 4 + 4
    assert zoo.block(spec, "0.weight") is None
    whole = zoo.fresh(spec, rng).arrays
    small = part(zoo.axes(spec), lambda axis: [axis.size - 1, *range(narrow.sizes[axis.group] - 1)]).take(whole)
    net = zoo.build(Model(narrow, small))
    assert torch.equal(net.state_dict()["0.weight"], whole["0.weight"][[5, 0, 1]])
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    assert zoo.build(Newborn(narrow), rng)(torch.zeros(2, 1, 8, 8)).shape == (2, 4)


def test_initialisation_depends_on_the_generator_alone():
    spec = make_spec("trace-test", **SHAPE)
    torch.manual_seed(1)
    one = ModelZoo(spec).fresh(spec, stream(3)).arrays
    torch.manual_seed(2)
    other = ModelZoo(spec).fresh(spec, stream(3)).arrays
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["0.weight"], ModelZoo(spec).fresh(spec, stream(4)).arrays["0.weight"])


def test_token_readers_are_traced_with_token_ids():
    spec = make_spec("trace-test-reader", input=5, classes=11)
    assert spec.sizes == {"0": 6, "1": 8}
    assert ModelZoo(spec).cost(spec, 2).parameters == 66 + 56 + 99


def test_it_is_saved_and_loaded_under_its_name(tmp_path):
    spec = make_spec("trace-test", **SHAPE)
    zoo = ModelZoo(spec)
    model = zoo.fresh(zoo.narrow(spec, 0.5), stream(0))
    save(tmp_path, model)
    assert torch.equal(load(tmp_path).state_dict()["4.weight"], model.arrays["4.weight"])


def test_a_device_whose_network_is_cut_otherwise_refuses_the_spec():
    spec = make_spec("trace-test", **SHAPE)
    with pytest.raises(SettingsError, match="Use the same code on both sides"):
        complete(replace(spec, options={**spec.options, "axes": "0" * 64}))


def test_there_is_one_depth():
    spec = make_spec("trace-test", **SHAPE)
    with pytest.raises(SettingsError, match="trace-test has one depth"):
        ModelZoo(spec).shallow(spec, 1)


def test_the_check_runs_at_the_tiers_sizes():
    spec = make_spec("trace-test", **SHAPE)
    zoo = ModelZoo(spec)
    check(spec, [zoo.narrow(spec, 0.1), zoo.narrow(spec, {"4": 0.3}), spec])
    check(make_spec("lenet", **SHAPE | {"input": (1, 12, 12)}), [])


def test_tiers_with_another_network_than_ones_own_pass_the_check():
    spec = make_spec("trace-test", **SHAPE)
    check(spec, [make_spec("lenet", **SHAPE), make_spec("trace-test-reader", input=(8,), classes=4), spec])


@pytest.fixture
def module_on_disk(tmp_path, monkeypatch):
    (tmp_path / "trace_test_nets.py").write_text(
        "from torch import nn\n"
        "def make(classes, width=6):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))\n"
        "def odd(classes):\n"
        "    return 3\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("trace_test_nets", None)


def test_settings_import_a_factory_by_its_name_and_messages_do_not(module_on_disk):
    name = "trace_test_nets:make"
    with pytest.raises(SettingsError, match="there is no model family 'trace_test_nets:make'"):
        complete(Spec(name, None, {}, SHAPE))
    assert "trace_test_nets" not in sys.modules
    spec = make_spec(name, width=7, **SHAPE)
    assert spec.sizes == {"1": 7}
    assert complete(spec) == spec


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("no_such_package:make", {}, "cannot import 'make' from 'no_such_package'"),
        ("trace_test_nets:lost", {}, "cannot import 'lost' from 'trace_test_nets'"),
        ("trace_test_nets:number", {}, "'number' is not a function that makes a network"),
        ("trace_test_nets:odd", {}, "makes a int, not an nn.Module"),
        ("trace-test", {"chanels": 3}, "no option 'chanels'. Did you mean 'channels'?"),
        ("trace-test", {"channels": -1}, "trace-test cannot make a network"),
        ("trace-test", {"input": (2, 8, 8)}, "trace-test: Sequential cannot run on the example"),
        ("trace-test", {"input": 0}, "whole number"),
        ("trace-test", {"depth": 2}, "one depth"),
    ],
)
def test_mistakes_are_told_in_one_line(module_on_disk, name, options, why):
    with pytest.raises(SettingsError) as refusal:
        make_spec(name, **SHAPE | options)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_factory_must_make_as_many_classes_as_were_asked_for():
    register("trace-test-fixed", lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Linear(6, 10)))
    assert make_spec("trace-test-fixed", input=(1, 8, 8), classes=10).sizes == {"1": 6}
    with pytest.raises(SettingsError, match="no classes = 4"):
        make_spec("trace-test-fixed", **SHAPE)


def test_a_name_is_taken_once():
    register("trace-test", small_net)
    for name in ("trace-test", "resnet18"):
        with pytest.raises(SettingsError, match=f"already a model family '{name}'"):
            register(name, reader)


def test_widths_of_groups_that_are_not_there_are_refused():
    spec = make_spec("trace-test", **SHAPE)
    with pytest.raises(SettingsError, match="no axis group '7'"):
        complete(replace(spec, sizes={"7": 1}))
    with pytest.raises(SettingsError, match="from 1 to 6"):
        complete(replace(spec, sizes={"0": 7}))


class Texts(nn.Module):
    """As many token types, positions and tokens as classes; only the classifier has rows of classes."""

    tokens = True

    def __init__(self, classes: int, every_token: bool = False) -> None:
        super().__init__()
        self.token, self.kind, self.place = (nn.Embedding(classes, 8) for _ in range(3))
        self.hidden, self.classifier = nn.Linear(8, 6), nn.Linear(6, classes)
        self.every_token = every_token

    def forward(self, ids: Tensor) -> Tensor:
        vectors = self.token(ids) + self.kind(torch.zeros_like(ids)) + self.place(torch.arange(ids.shape[1]))
        return self.classifier(torch.tanh(self.hidden(vectors if self.every_token else vectors.mean(1))))


@pytest.mark.parametrize(("every_token", "embedding"), [(False, set()), (True, {"token.weight"})])
def test_the_rows_of_classes_are_found_by_what_they_change(every_token, embedding):
    register(f"texts {every_token}", Texts, tokens=True)
    spec = make_spec(f"texts {every_token}", input=(3,), classes=3, every_token=every_token)
    assert set(ModelZoo(spec).class_rows(spec)) == {"classifier.weight", "classifier.bias"} | embedding
