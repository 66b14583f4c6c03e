"""What a local step costs: the network, and all that its loss computes beside it."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from potluck.core import Examples, Newborn, stream
from potluck.engines.step_counts import StepCounts
from potluck.learn import CrossEntropy, Frozen, JointLoss, MaskedCrossEntropy, StepCount, Turns, turns_of
from potluck.methods.fedin.features import LentFeatures
from potluck.models import ModelZoo, make_spec, tier_spec

SPEC = make_spec("mlp", input=(3,), classes=2, hidden=4, depth=1)
"""Layers 3 -> 4 -> 4 -> 2: 36 weights. A sample takes 72 FLOPs forward, 72 for weights, 48 for inputs of layers."""
OWN, FORWARD = 192, 72
COLUMNS = {"x": torch.zeros(9, 3), "y": torch.zeros(9, dtype=torch.long)}


@dataclass(frozen=True, eq=False)
class NearTo:
    """The distance to the logits of a frozen network."""

    teacher: Frozen
    reads: bool = False

    def __call__(self, net, batch):
        scores = net(batch["x"])
        far = (scores - self.teacher(batch["x"])).square().mean()
        return far * (far.item() if self.reads else 1.0)


class CountingZoo(ModelZoo):
    """A zoo that knows how often a network was made to count with."""

    probes = 0

    def probe(self, spec, batch):
        self.probes += 1
        return super().probe(spec, batch)


def counts(zoo=None):
    return StepCounts(zoo or ModelZoo(SPEC), CrossEntropy())


def unknown(net):
    raise AssertionError("nobody asks whose network this is")


def test_the_plain_loss_costs_what_the_network_costs():
    assert counts().of(SPEC, CrossEntropy(), COLUMNS, unknown) == StepCount(0, OWN, 0, 11 * 4)


def test_lent_features_cost_a_pass_through_the_body_in_every_step_whatever_the_batch():
    """Five lent rows, a body of 16 weights: 160 FLOPs forward and 160 for weights; the lent rows need no gradient."""
    loss = JointLoss(CrossEntropy(), LentFeatures(torch.zeros(5, 4), torch.zeros(5, 4)), "body.", None)
    found = counts().of(SPEC, loss, COLUMNS, unknown)
    assert (found.flops, found.flops_per_sample) == (320, OWN)
    assert found.total_flops(steps=3, samples=20) == 3 * 320 + 20 * OWN


def test_of_two_passes_one_after_the_other_the_larger_counts_as_memory():
    lent = JointLoss(CrossEntropy(), LentFeatures(torch.zeros(500, 4), torch.zeros(500, 4)), "body.", None)
    small, large = counts().of(SPEC, CrossEntropy(), COLUMNS, unknown), counts().of(SPEC, lent, COLUMNS, unknown)
    assert large.activation_bytes(2) > 500 * 4 * 4 > small.activation_bytes(2)


@pytest.mark.parametrize("reads", [False, True])
def test_a_frozen_network_costs_a_forward_pass_even_where_the_loss_cannot_be_counted(reads):
    """A loss that reads a number has none to read here; then the network and its teacher are added up."""
    zoo = ModelZoo(SPEC)
    teacher = zoo.build(Newborn(SPEC), stream(0, "blank"))
    found = counts(zoo).of(SPEC, NearTo(Frozen(teacher), reads), COLUMNS, {teacher: SPEC}.get)
    assert (found.flops, found.flops_per_sample) == (0, OWN + FORWARD)


def test_a_network_that_the_device_did_not_build_costs_nothing_and_breaks_nothing():
    loss = NearTo(Frozen(nn.Linear(3, 2)))
    assert counts().of(SPEC, loss, COLUMNS, lambda net: None).flops_per_sample == OWN


def test_a_loss_is_counted_once_for_all_that_differ_only_in_numbers():
    zoo = CountingZoo(SPEC)
    held = counts(zoo)
    one, other = (
        held.of(SPEC, MaskedCrossEntropy(torch.tensor(owned)), COLUMNS, unknown)
        for owned in ([True, False], [False, True])
    )
    assert one == other
    assert zoo.probes == 2
    held.of(SPEC, MaskedCrossEntropy(torch.tensor([True, False])), {**COLUMNS, "z": torch.zeros(9, 5)}, unknown)
    assert zoo.probes == 4


def test_counting_leaves_the_loss_and_its_networks_as_they_were():
    zoo = ModelZoo(SPEC)
    teacher = zoo.build(Newborn(SPEC), stream(0, "blank"))
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    loss = NearTo(Frozen(teacher))
    counts(zoo).of(SPEC, loss, COLUMNS, {teacher: SPEC}.get)
    assert loss.teacher.net is teacher
    assert not teacher.training
    assert all(tensor.equal(before[name]) for name, tensor in teacher.state_dict().items())
    assert all(weight.grad is None for weight in teacher.parameters())


def test_losses_that_take_turns_have_their_own_number_of_steps():
    one, other = CrossEntropy(), CrossEntropy(inputs="z")
    assert turns_of(Turns((one, other), (1, 0, 1))) == [(one, 1), (other, 2)]
    assert turns_of(one) == [(one, 1)]


IMAGES, WORDS = {"input": (1, 8, 8), "classes": 10}, {"input": (8,), "classes": 10}
FAMILIES = [
    make_spec("lenet", **IMAGES),
    make_spec("cnn", norm="running", **IMAGES),
    make_spec("preresnet18", width=3, **IMAGES),
    make_spec("resnet", block="bottleneck", depth=(1, 2, 1, 1), width=3, **IMAGES),
    tier_spec(make_spec("mobilenet_v2", **IMAGES), 0.1),
    make_spec("transformer", hidden=12, ffn=10, heads=3, **WORDS),
    make_spec("bert", hidden=12, ffn=10, heads=3, **WORDS),
]


@pytest.mark.parametrize("spec", FAMILIES, ids=lambda spec: spec.family)
def test_a_label_mask_costs_nothing_in_any_family(spec):
    zoo = ModelZoo(spec)
    tokens, every = spec.family == "transformer", spec.options["input"]
    x = torch.zeros(9, *every, dtype=torch.long if tokens or spec.family == "bert" else torch.float)
    columns = Examples({"x": x, "y": torch.zeros(9, *(every if tokens else ()), dtype=torch.long)}).columns
    own = zoo.cost(spec, 3)
    held = StepCounts(zoo, CrossEntropy())
    found = held.of(spec, MaskedCrossEntropy(torch.ones(10, dtype=torch.bool)), columns, unknown)
    assert found.flops + 3 * found.flops_per_sample == own.flops
    assert found.activation_bytes(3) > own.activation_bytes  # the mask and the softmax
