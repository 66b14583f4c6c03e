import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.core import Axis
from potluck.parts import WHOLE, Adagrad, Adam, AdamW, Momentum, OverlapMean, Replace, Yogi, part

NONE = frozenset()


def stepped(rule, steps, start=0.0):
    """A single weight's value after each round whose mean step is given."""
    whole, slots, path = {"w": torch.tensor([start], dtype=torch.float64)}, {}, []
    for step in steps:
        mean = OverlapMean(whole)
        mean.add({"w": whole["w"] + step}, WHOLE)
        whole, slots = rule(whole, mean, slots, NONE)
        path.append(whole["w"].item())
    return path


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(Adam, (0.0990099, 0.2236146)), (Yogi, (0.0990099, 0.2231196)), (Adagrad, (0.0099900, 0.0225008))],
    ids=["adam", "yogi", "adagrad"],
)
def test_adaptive_rules_move_by_the_published_numbers(rule, expected):
    assert stepped(rule(lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3), (1, 0.5)) == pytest.approx(expected, abs=5e-8)


def test_momentum_by_hand():
    assert stepped(Momentum(lr=0.5, beta=0.5), (1, 1)) == [0.5, 1.25]


def test_adamw_is_torchs_adamw():
    weight = torch.nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    torch_rule = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1)
    expected = []
    for step in (1.0, -0.5, 0.25):
        weight.grad = torch.tensor([-step], dtype=torch.float64)
        torch_rule.step()
        expected.append(weight.item())
    assert stepped(AdamW(lr=0.01, weight_decay=0.1), (1.0, -0.5, 0.25), start=0.3) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("rule", [Momentum(), Adam(), Yogi(), Adagrad(), AdamW(weight_decay=0.1)])
def test_entries_that_nobody_trained_skip_the_whole_update(rule):
    whole, slots = {"w": torch.tensor([1.0, 2.0])}, {}
    for units in ([0, 1], [0]):
        mean = OverlapMean(whole)
        held = part({"w": (Axis("a", 2),)}, lambda axis, units=units: units)
        mean.add({"w": held.take(whole)["w"] + 1}, held)
        before, kept = whole, slots
        whole, slots = rule(whole, mean, slots, NONE)
    assert whole["w"][1] == before["w"][1]
    assert whole["w"][0] != before["w"][0]
    assert slots["m"]["w"][1] == kept["m"]["w"][1]


def test_a_tensor_nobody_sent_has_no_slots_yet():
    whole = {"v": torch.ones(1), "w": torch.ones(1)}
    mean = OverlapMean(whole)
    mean.add({"w": torch.tensor([2.0])}, WHOLE)
    out, slots = Adam()(whole, mean, {}, NONE)
    assert out["v"] is whole["v"]
    assert list(slots["m"]) == ["w"]


@pytest.mark.parametrize("rule", [Replace(), Adam()])
def test_buffers_and_whole_numbers_take_the_plain_mean(rule):
    whole = {"running_mean": torch.zeros(1), "count": torch.tensor(1)}
    mean = OverlapMean(whole)
    mean.add({"running_mean": torch.tensor([4.0]), "count": torch.tensor(3)}, WHOLE)
    out, _ = rule(whole, mean, {}, frozenset({"running_mean", "count"}))
    assert (out["running_mean"].item(), out["count"].item()) == (4, 3)


class Operations(TorchDispatchMode):
    """Counts the operations that torch runs."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))


def operations(rule, tensors):
    """How many operations the second step of a rule takes on so many tensors."""
    whole, slots = {f"w{n}": torch.ones(3) for n in range(tensors)}, {}
    for _ in range(2):
        mean = OverlapMean(whole)
        mean.add({name: tensor + 1 for name, tensor in whole.items()}, WHOLE)
        known = Known(mean)
        with Operations() as done:
            _, slots = rule(whole, known, slots, NONE)
    return done.count


class Known(OverlapMean):
    """A mean whose value is already known."""

    def __init__(self, mean):
        self.found, self.covered = mean.value(), mean.covered

    def value(self):
        return self.found


@pytest.mark.parametrize("rule", [Momentum(), Adam(), Yogi(), Adagrad(), AdamW()])
def test_a_step_takes_as_many_operations_for_forty_tensors_as_for_two(rule):
    assert operations(rule, 40) == operations(rule, 2)


@pytest.mark.parametrize("rule", [Momentum(), Adam(), Yogi(), Adagrad(), AdamW(weight_decay=0.1)])
def test_a_step_of_zero_keeps_the_sign_of_zero(rule):
    whole, slots = {"w": torch.tensor([-0.0, 0.0])}, {}
    for _ in range(2):
        mean = OverlapMean(whole)
        mean.add({"w": torch.tensor([0.0, -0.0])}, WHOLE)
        whole, slots = rule(whole, mean, slots, NONE)
        assert torch.signbit(whole["w"]).tolist() == [True, False]


def test_adamw_counts_the_steps_of_each_tensor():
    """A tensor that joins in the second round takes a first step: its lr; the other's steps stay 1 and 1."""
    whole, slots = {"late": torch.zeros(1), "w": torch.zeros(1)}, {}
    for sent in ({"w"}, {"late", "w"}):
        mean = OverlapMean(whole)
        mean.add({name: whole[name] + 1 for name in sent}, WHOLE)
        whole, slots = AdamW(lr=0.5, eps=0.0)(whole, mean, slots, NONE)
    assert {name: int(count) for name, count in slots["steps"].items()} == {"late": 1, "w": 2}
    assert [whole["late"].item(), whole["w"].item()] == pytest.approx([0.5, 1.0])
