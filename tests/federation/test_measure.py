"""What a machine can carry: budgets as texts, measured networks, and the largest tier that fits."""

import pytest
from small_nodes import TIERS, make_nodes, settings

from potluck.core import SettingsError
from potluck.federation.charter import CharterError
from potluck.federation.measure import DeviceBudget, Measured, largest_that_fits, read_budget
from potluck.federation.server import prepare
from potluck.run.measuring import usual_memory

INF = float("inf")


@pytest.mark.parametrize(
    ("text", "memory", "seconds"),
    [
        ("memory=2GB,seconds=30", 2 * 10**9, 30.0),
        ("memory=2gb", 2 * 10**9, INF),
        ("seconds=1.5s, memory = 512 MiB", 512 * 2**20, 1.5),
        ("memory=1e9", 10**9, INF),
        ("memory=700k", 700_000, INF),
        ("seconds=0.5", usual_memory(), 0.5),
    ],
)
def test_a_budget_is_read(text, memory, seconds):
    assert read_budget(text) == DeviceBudget(memory, seconds)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("memory", "'' is no amount of memory; write memory=2GB,seconds=30"),
        ("memory=lots", "'lots' is no amount of memory"),
        ("memory=2XB", "'2XB' is no amount"),
        ("seconds=2GB", "'2GB' is no amount of seconds"),
        ("seconds=nan", "'nan' is no amount"),
        ("seconds=0", "seconds must be above 0"),
        ("memory=0.2", "memory must be above 0"),
        ("memory=-1", "'-1' is no amount"),
        ("memory=1..2", "is no amount"),
        ("seconds=1e999", "seconds must be above 0"),
        ("time=3", "'time' is neither memory nor seconds"),
        ("memory=1GB,memory=2GB", "memory is there twice"),
        ("", "'' is neither"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_with_an_example(text, fault):
    with pytest.raises(SettingsError, match=fault) as found:
        read_budget(text)
    assert f"--budget {text}" in str(found.value)


MEASURED = {"small": Measured(0.1, 100, 10), "large": Measured(0.5, 900, 10)}


@pytest.mark.parametrize(
    ("budget", "tier"),
    [
        (DeviceBudget(1000), "large"),
        (DeviceBudget(1000, 5.0), "large"),
        (DeviceBudget(1000, 4.9), "small"),
        (DeviceBudget(899), "small"),
        (DeviceBudget(100, 1.0), "small"),
    ],
)
def test_the_largest_tier_that_fits_memory_and_seconds_is_taken(budget, tier):
    assert largest_that_fits(MEASURED, budget) == tier


def test_if_no_tier_fits_the_least_that_is_needed_is_told():
    with pytest.raises(CharterError, match=r"the smallest, 'small', takes 0 MB and 1.0 s a round") as found:
        largest_that_fits(MEASURED, DeviceBudget(10_000_000, 0.5))
    assert str(found.value).endswith("the budget is 10 MB and 0.5 s.")
    with pytest.raises(CharterError, match=r"the budget is 0 MB\.$"):
        largest_that_fits(MEASURED, DeviceBudget(10))


def test_a_node_measures_every_tier_smallest_first_and_counts_the_steps_of_a_round(tmp_path):
    node = make_nodes(tmp_path, ("clinic-a",), ("small",))["clinic-a"]
    experiment = settings(local={"epochs": 3, "batch": 16}, model={"hidden": 64})
    found = node.agree(prepare(experiment, "test").charter)
    assert list(found.measured) == list(TIERS)
    for one in found.measured.values():
        assert 0 < one.seconds < 60
        assert 0 < one.memory < 10**10
        assert one.steps == 3 * 4  # 63 rows in batches of 16
        assert one.round == one.seconds * one.steps
    zoo = found.setup.context.zoo
    sizes = [zoo.cost(tier.spec, 1).parameter_bytes for tier in zoo.tiers]
    assert sizes == sorted(sizes)
    assert found.measured["large"].memory >= 3 * sizes[-1]
