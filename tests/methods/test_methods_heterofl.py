"""HeteroFL: label masks and the scaler, by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from width_rounds import Fixed, client, now, zoo

from potluck.core import Model, Reply, SettingsError, Tier, stream
from potluck.learn import MaskedCrossEntropy, class_mask
from potluck.methods import HeteroFL
from potluck.models import ModelZoo, make_spec, register


def test_logits_of_classes_that_a_client_lacks_are_zero_but_still_count():
    loss = MaskedCrossEntropy(class_mask([0, 1], 3))
    found = loss(Fixed(2.0, -1.0, 5.0), {"x": torch.zeros(1, 1), "y": torch.tensor([0])})
    assert found.item() == pytest.approx(0.169846, abs=1e-6)


def test_rows_of_classes_that_a_client_lacks_are_left_out_of_the_head():
    networks = zoo(0.5, hidden=2, depth=1)
    method = HeteroFL()
    spec, held = method.assign(client(networks), now(networks))
    arrays = held.take(networks.fresh(networks.full, stream(0)).arrays)
    reply = Reply(models={"model": Model(spec, arrays)}, metrics={"labels": [0, 2]})
    weights = method.weigh(reply, networks)
    assert set(networks.class_rows(spec)) == {"head.weight", "head.bias"}
    assert weights["head.bias"].tolist() == [1, 0, 1]
    assert weights["head.weight"].tolist() == [[1], [0], [1]]
    assert weights[""] == 1


@pytest.mark.parametrize(
    ("family", "options", "rows"),
    [
        ("bert", {"input": (4,), "classes": 2, "types": 2, "vocab": 8}, {"head.classifier"}),
        ("bert", {"input": (4,), "classes": 8, "vocab": 8, "positions": 8}, {"head.classifier"}),
        ("transformer", {"input": (5,), "classes": 5}, {"head.output", "stem.token"}),
        ("lenet", {"input": (1, 28, 28), "classes": 10}, {"head"}),
    ],
)
def test_the_classifier_is_known_by_name_whatever_else_has_as_many_rows(family, options, rows):
    """Two classes and two token types: before, the type embeddings were masked as if they were the classifier."""
    spec = make_spec(family, **options)
    found = ModelZoo(spec).class_rows(spec)
    assert {name.rpartition(".")[0] for name in found} == rows


def test_a_projection_in_front_of_the_classifier_has_no_rows_of_classes():
    spec = make_spec("lenet", input=(1, 28, 28), classes=10)
    zoo = ModelZoo(spec)
    assert zoo.class_rows(zoo.projected(spec, 10)) == ("head.weight", "head.bias")


def test_a_label_mask_without_a_classifier_is_refused_before_round_0():
    pytest.importorskip("torch_pruning")

    class Summed(nn.Module):
        def __init__(self, classes: int) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("sums", torch.ones(classes, 4))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(self.layer(x), self.sums)

    register("summed", Summed)
    spec = make_spec("summed", input=(4,), classes=3)
    with pytest.raises(SettingsError, match=r"no tensor of summed has a row for each class.*label_mask = false"):
        HeteroFL().check(ModelZoo(spec, [Tier("all", spec=spec)]))


def test_a_narrow_network_trains_with_a_scaler_and_the_full_one_without():
    networks = zoo(0.25, 1.0, model="preresnet18", width=16)
    small, large = (HeteroFL().assign(client(networks, tier), now(networks))[0] for tier in (0, 1))
    assert (small.options["scaler"], large.options["scaler"]) == (0.25, 1.0)
    assert HeteroFL(scaler=False).assign(client(networks), now(networks))[0].options["scaler"] == 1.0


def test_with_widths_by_group_each_layer_is_scaled_by_its_own_group():
    """Half of the first hidden layer and all of the second: in training, the narrow network gives what the full one
    does, 4, if all weights are one; in evaluation there is no scaler, and it gives 2."""
    networks = zoo({"hidden0": 0.5}, hidden=2, depth=1)
    spec, held = HeteroFL().assign(client(networks), now(networks))
    assert spec.options["scaler"] == {"hidden0": 0.5}
    ones = {name: torch.full_like(t, float("bias" not in name)) for name, t in fresh(networks).items()}
    net = networks.build(Model(spec, held.take(ones)))
    x = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    assert net.stem.scaler(torch.tensor([3.0])).tolist() == [6.0]
    assert net(x).tolist() == networks.build(Model(networks.full, ones))(x).tolist() == [[4.0, 4.0, 4.0]]
    assert net.eval()(x).tolist() == [[2.0, 2.0, 2.0]]


def fresh(networks):
    return networks.fresh(networks.full, stream(0)).arrays


def test_the_scaler_by_group_can_be_switched_off():
    networks = zoo({"hidden0": 0.5}, hidden=2, depth=1)
    assert HeteroFL(scaler=False).assign(client(networks), now(networks))[0].options["scaler"] == 1.0
