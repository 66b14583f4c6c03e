"""How a network gets its weights: from a generator, or from a model's arrays."""

import pytest
import torch
from model_specs import DIGITS, SPECS, WORDS, every_spec

from potluck.core import Model, Newborn, digest, stream
from potluck.models import ModelZoo, make_spec


@every_spec
def test_a_fresh_model_depends_on_the_generator_alone(spec):
    zoo = ModelZoo(spec)
    torch.manual_seed(1)
    one = zoo.fresh(spec, stream(7, "weights"))
    torch.manual_seed(2)
    same, other = zoo.fresh(spec, stream(7, "weights")), zoo.fresh(spec, stream(8, "weights"))
    assert digest(one.arrays) == digest(same.arrays) != digest(other.arrays)
    assert digest(zoo.build(Newborn(spec), stream(7, "weights")).state_dict()) == digest(one.arrays)


def test_two_models_from_one_generator_differ():
    zoo, rng = ModelZoo(SPECS["mlp"]), stream(0)
    assert digest(zoo.fresh(zoo.full, rng).arrays) != digest(zoo.fresh(zoo.full, rng).arrays)


@pytest.mark.parametrize(
    "spec", [make_spec("resnet10", width=5, norm="running", **DIGITS), make_spec("bert", vocab=50, **WORDS)]
)
def test_neither_fresh_nor_build_nor_cost_touches_torch_s_own_generator(spec):
    zoo = ModelZoo(spec)
    before = torch.get_rng_state()
    model = zoo.fresh(zoo.full, stream(0))
    zoo.build(model)
    zoo.build(Newborn(zoo.full), stream(0))
    zoo.cost(zoo.full, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_built_network_holds_copies():
    zoo = ModelZoo(SPECS["cnn-running"])
    model = zoo.fresh(zoo.full, stream(0))
    before = digest(model.arrays)
    net = zoo.build(model)
    assert digest(net.state_dict()) == before
    for tensor in net.state_dict().values():
        tensor.zero_()
    assert digest(model.arrays) == before
    assert not any(tensor.requires_grad for tensor in model.arrays.values())
    assert all(weight.requires_grad for weight in net.parameters())


def test_a_model_without_arrays_needs_a_generator():
    zoo = ModelZoo(SPECS["mlp"])
    with pytest.raises(ValueError, match="needs a generator"):
        zoo.build(Newborn(zoo.full))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda arrays: arrays.pop("head.bias"), "lack 'head.bias'"),
        (lambda arrays: arrays.update(more=torch.zeros(1)), "hold 'more'"),
        (lambda arrays: arrays.update({"head.bias": torch.zeros(3)}), r"'head.bias' has the shape \(3,\)"),
        (lambda arrays: arrays.update({"head.bias": torch.zeros(10, dtype=torch.long)}), "has the dtype torch.int64"),
    ],
)
def test_arrays_of_another_network_are_refused(change, says):
    zoo = ModelZoo(SPECS["mlp"])
    arrays = dict(zoo.fresh(zoo.full, stream(0)).arrays)
    change(arrays)
    with pytest.raises(ValueError, match=says):
        zoo.build(Model(zoo.full, arrays))
