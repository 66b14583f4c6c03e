"""Robust means by hand: what hostile clients cannot move, what few holders leave unprotected."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from tiny_runs import tiny

from potluck.core import Axis, Local, Model, SettingsError
from potluck.methods import FedAvg, FedRolex
from potluck.parts import WHOLE, Krum, Mask, Median, Momentum, Replace, Trimmed, Weighted, part
from potluck.run import config, run

WIDE = {"w": (Axis("a", 3),)}


def first(count):
    """The part that holds the first units."""
    return part(WIDE, lambda axis: range(count))


def mean_of(rule, *values, start=0.0, weights=None):
    """The mean of a single weight."""
    mean = rule.start({"w": torch.tensor([start])})
    for value, weight in zip(values, weights or [1.0] * len(values), strict=True):
        mean.add({"w": torch.tensor([float(value)])}, WHOLE, weight)
    return mean.value()["w"].item()


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (Weighted(), (1, 2, 3, 4, 90), 20.0),
        (Median(), (1, 2, 3, 4, 90), 3.0),
        (Median(), (1, 2, 4, 90), 3.0),
        (Median(), (7,), 7.0),
        (Median(), (7, 9), 8.0),
        (Trimmed(share=0.2), (1, 2, 3, 4, 90), 3.0),
        (Trimmed(share=0.2), (90, -50, 3, 4, 8), 5.0),
        (Trimmed(share=0.4), (90, -50, 3, 4, 8), 4.0),
        (Trimmed(share=0.0), (1, 2, 6), 3.0),
        (Trimmed(share=0.1), (1, 2, 90), 2.0),  # a tenth of three, rounded up
        (Trimmed(share=0.2), (1, 2), 1.5),
        (Trimmed(share=0.2), (7,), 7.0),
        # Krum: 5 clients, 1 hostile, so 2 neighbours. 1: 1+4; 2: 1+1; 3: 1+1; 4: 1+4.
        (Krum(hostile=0.2), (1, 2, 3, 4, 90), 2.5),
        (Krum(hostile=0.2), (1.5, 2, 3, 4, 90), 2.0),  # 1.5: 0.25+2.25; 2: 0.25+1; 3: 1+1; 4: 1+4
        (Krum(hostile=0.2, best=3), (1.5, 2, 3, 4, 90), 6.5 / 3),
        (Krum(hostile=0.2, best=9), (1, 2, 3, 4, 90), 20.0),
        (Krum(), (1, 90), 45.5),  # nobody can say which of two is hostile
        (Krum(), (7,), 7.0),
    ],
)
def test_means_by_hand(rule, values, expected):
    for order in itertools.islice(itertools.permutations(values), 24):
        assert mean_of(rule, *order) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("rule", [Median(), Trimmed(), Krum()])
def test_the_order_of_clients_changes_no_bit(rule):
    values = torch.randn(7, generator=torch.Generator().manual_seed(0)).tolist()
    found = {mean_of(rule, *order) for order in itertools.islice(itertools.permutations(values), 0, 5040, 97)}
    assert len(found) == 1


@pytest.mark.parametrize("rule", [Median(), Trimmed(), Krum()])
def test_a_claimed_weight_moves_nothing(rule):
    values = (1.0, 2.0, 3.0, 4.0, 9.0)
    assert mean_of(rule, *values, weights=[1.0, 1.0, 1.0, 1.0, 1e9]) == mean_of(rule, *values)


@pytest.mark.parametrize("rule", [Median(), Trimmed(share=0.2), Krum(hostile=0.2)])
def test_every_entry_is_treated_over_those_who_hold_it(rule):
    """Unit 0 is held by all, unit 1 by the two wide clients, unit 2 by nobody: it keeps its value."""
    mean = rule.start({"w": torch.tensor([0.0, 0.0, 5.0])})
    for value in (1.0, 2.0, 900.0):
        mean.add({"w": torch.tensor([value])}, first(1))
    for pair in ([1.0, 10.0], [2.0, 20.0]):
        mean.add({"w": torch.tensor(pair)}, first(2))
    new = mean.value()["w"].tolist()
    expected = {"median": 2.0, "trimmed": (1 + 2 + 2) / 3, "krum": (1 + 2 + 1 + 2) / 4}  # krum: 1 and 2 are as near
    assert new == pytest.approx([expected[rule.name], 15.0, 5.0])
    assert mean.covered("w").tolist() == [True, True, False]
    assert mean.coverage() == pytest.approx(2 / 3)


@pytest.mark.parametrize("rule", [Median(), Trimmed(), Krum()])
def test_an_entry_of_one_holder_has_its_value(rule):
    mean = rule.start({"w": torch.zeros(3)})
    for _ in range(4):
        mean.add({"w": torch.tensor([1.0])}, first(1))
    mean.add({"w": torch.tensor([1.0, 1.0, 900.0])}, first(3))
    assert mean.value()["w"].tolist() == [1.0, 1.0, 900.0]


@pytest.mark.parametrize("rule", [Median(), Trimmed(), Krum()])
def test_rows_of_weight_zero_are_not_held(rule):
    """As label masks say it: one client has no example of the second class."""
    mean = rule.start({"head": torch.zeros(2, 1)})
    mean.add({"head": torch.tensor([[4.0], [900.0]])}, WHOLE, {"": 1.0, "head": torch.tensor([[1.0], [0.0]])})
    mean.add({"head": torch.tensor([[4.0], [6.0]])}, WHOLE, {"": 1.0})
    assert mean.value()["head"].tolist() == [[4.0], [6.0]]


def test_entries_chosen_by_a_mask_and_units_in_any_order():
    mean = Median().start({"w": torch.zeros(3)})
    mean.add({"w": torch.tensor([1.0, 0.0, 3.0])}, Mask({"w": torch.tensor([True, False, True])}))
    mean.add({"w": torch.tensor([30.0, 10.0])}, part(WIDE, lambda axis: torch.tensor([2, 0])))
    assert mean.value()["w"].tolist() == [5.5, 0.0, 16.5]


def test_integers_take_the_lower_median():
    mean = Trimmed().start({"steps": torch.tensor(0), "on": torch.tensor(False)})
    for steps, on in ((3, True), (4, True), (2**62, False), (9, True)):
        mean.add({"steps": torch.tensor(steps), "on": torch.tensor(on)}, WHOLE)
    assert mean.value()["steps"].item() == 4
    assert mean.value()["on"].item() is True


def test_krum_compares_what_two_replies_share_and_only_replies_of_one_network():
    """Two narrow clients, and three wide ones of which one is hostile in the unit that narrow ones lack."""
    mean = Krum(hostile=0.3).start({"w": torch.zeros(3)})
    for value in (5.0, 7.0):
        mean.add({"w": torch.tensor([value])}, first(1))
    for wide in ([1.0, 1.0, 1.0], [1.0, 1.0, 3.0], [1.0, 1.0, 900.0]):
        mean.add({"w": torch.tensor(wide)}, first(3))
    assert mean.value()["w"].tolist() == [(5 + 7 + 1 + 1) / 4, 1.0, 2.0]


def test_server_rules_step_towards_a_robust_mean():
    whole = {"w": torch.tensor([1.0])}
    mean = Median().start(whole)
    for value in (2.0, 3.0, 900.0):
        mean.add({"w": torch.tensor([value])}, WHOLE)
    assert Replace()(whole, mean, {}, frozenset())[0]["w"].tolist() == [3.0]
    assert Momentum(lr=0.5)(whole, mean, {}, frozenset())[0]["w"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Trimmed(share=0.5), "method.mean.share = 0.5 must be at least 0 and below 0.5"),
        (lambda: Krum(hostile=-0.1), "method.mean.hostile = -0.1 must be"),
        (lambda: Krum(best=0), "method.mean.best = 0 is below 1"),
    ],
)
def test_settings_out_of_range_are_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


# In a run


@dataclass(frozen=True)
class Attacked(FedAvg):
    """FedAvg in which client c1 takes a step a million times as long as it should, the other way."""

    def report(self, task, device, fit):
        reply = super().report(task, device, fit)
        if task.to != "c1":
            return reply
        sent, model = task.models["model"].arrays, reply.models["model"]
        far = {name: old - 1e6 * (model.arrays[name] - old) for name, old in sent.items()}
        return replace(reply, models={"model": Model(model.spec, far)})


def attacked(folder, engine="serial", **method):
    settings = tiny(rounds=2, cohort=8, run={"engine": engine, "workers": 2}, tier=[{"name": "all"}])
    return run(settings, folder, method=Attacked(Local(lr=0.1, epochs=1, batch=32), **method))


@pytest.mark.parametrize("rule", [Median(), Trimmed(), Krum()])
def test_a_robust_mean_withstands_one_hostile_client_of_eight(tmp_path, rule):
    loss = attacked(tmp_path / "a", mean=rule).scores["global"]["test"]["loss"]
    assert loss < 2.5  # ten classes: chance is 2.3
    assert not attacked(tmp_path / "b").scores["global"]["test"]["loss"] < 10


@pytest.mark.parametrize("engine", ["wire", "pool"])
@pytest.mark.parametrize("rule", [Trimmed(), Krum()])
def test_a_robust_mean_has_the_same_bits_on_every_engine(tmp_path, rule, engine):
    ours, theirs = (attacked(tmp_path / name, name, mean=rule) for name in ("serial", engine))
    assert ours.weights_sha256 == theirs.weights_sha256


def test_means_are_settings_and_robust_ones_exclude_sums():
    chosen = {"name": "fedrolex", "mean": {"name": "trimmed", "share": 0.1}}
    method = config.method(chosen, Local())
    assert method.mean == Trimmed(share=0.1)
    assert (method.facts.sums, FedRolex().facts.sums, method.facts.larger) == (False, True, True)
    for name in ("fednova", "scaffold", "feddf", "fedet", "fedin"):
        with pytest.raises(SettingsError, match=r"method\.mean\.name = 'median'"):
            config.method({"name": name, "mean": {"name": "median"}}, Local())
