"""Epsilon of private sums: equal to dp-accounting called by hand, and sensitivities of trees by hand."""

import importlib
import math

import pytest

from potluck.run.central_epsilon import (
    ORDERS,
    epsilon_of_sums,
    epsilon_of_tree,
    group,
    largest_sensitivity,
    noise_for_sums,
    noise_for_tree,
    tree_sensitivity,
)

dp = importlib.import_module("dp_accounting")
DELTA = 1e-5


def rounds(rate, count, times=1):
    return (((rate, times), count),)


def test_coins_compose_as_privacy_loss_distributions_do():
    made = importlib.import_module("dp_accounting.pld").PLDAccountant(value_discretization_interval=1e-3)
    made.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 20)
    assert epsilon_of_sums("poisson", 2.0, DELTA, rounds(0.1, 20)) == pytest.approx(made.get_epsilon(DELTA))


@pytest.mark.parametrize("draw", ["uniform", "by_tier"])
def test_fixed_cohorts_compose_by_divergence_for_sums_that_are_two_clips_apart(draw):
    rdp = importlib.import_module("dp_accounting.rdp")
    made = rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    made.compose(dp.SampledWithoutReplacementDpEvent(1000, 50, dp.GaussianDpEvent(3.0 / 2)), 20)
    found = epsilon_of_sums(draw, 3.0, DELTA, rounds(0.05, 20))
    assert found == pytest.approx(made.get_epsilon(DELTA))
    assert found > epsilon_of_sums("poisson", 3.0, DELTA, rounds(0.05, 20))


def test_coins_can_be_held_against_a_client_with_other_data():
    pld = importlib.import_module("dp_accounting.pld")
    made = pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3)
    made.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 20)
    found = epsilon_of_sums("poisson", 2.0, DELTA, rounds(0.1, 20), "replace-one")
    assert found == pytest.approx(made.get_epsilon(DELTA))
    assert found > epsilon_of_sums("poisson", 2.0, DELTA, rounds(0.1, 20))
    assert epsilon_of_sums("poisson", 6.0, DELTA, rounds(1.0, 9), "replace-one") == pytest.approx(
        dp.get_epsilon_gaussian(1.0, DELTA)
    )


def test_without_sampling_epsilon_is_that_of_the_gaussian_mechanism():
    assert epsilon_of_sums("poisson", 6.0, DELTA, rounds(1.0, 9)) == pytest.approx(dp.get_epsilon_gaussian(2.0, DELTA))
    assert epsilon_of_sums("uniform", 6.0, DELTA, rounds(1.0, 9)) == pytest.approx(dp.get_epsilon_gaussian(1.0, DELTA))


def test_a_bound_that_is_worse_than_no_sampling_at_all_is_not_stated():
    """Wang et al.'s bound is loose at high rates."""
    assert epsilon_of_sums("uniform", 4.0, DELTA, rounds(0.9, 4)) == pytest.approx(dp.get_epsilon_gaussian(1.0, DELTA))


def test_a_round_that_was_released_twice_had_the_same_cohort_and_half_the_noise_variance():
    twice = epsilon_of_sums("poisson", 2.0, DELTA, rounds(0.1, 1, times=2))
    assert twice == epsilon_of_sums("poisson", 2.0 / math.sqrt(2), DELTA, rounds(0.1, 1))
    assert twice > epsilon_of_sums("poisson", 2.0, DELTA, rounds(0.1, 2))


def test_unequal_rounds_compose_and_none_cost_nothing():
    mixed = group([[0.1, 1], [0.2, 1], [0.1, 1], [0.1, 2]])
    assert mixed == (((0.1, 1), 2), ((0.1, 2), 1), ((0.2, 1), 1))
    low, high = (epsilon_of_sums("poisson", 2.0, DELTA, rounds(rate, 4)) for rate in (0.1, 0.2))
    assert low < epsilon_of_sums("poisson", 2.0, DELTA, mixed) < high
    assert epsilon_of_sums("poisson", 2.0, DELTA, ()) == 0.0


@pytest.mark.parametrize(("draw", "rate"), [("poisson", 0.05), ("uniform", 1.0)])
def test_a_target_gives_the_least_noise_that_meets_it(draw, rate):
    found = noise_for_sums(draw, 2.0, DELTA, rate, 5)
    assert epsilon_of_sums(draw, found, DELTA, rounds(rate, 5)) <= 2.0
    assert epsilon_of_sums(draw, found / 1.002, DELTA, rounds(rate, 5)) > 2.0


@pytest.mark.parametrize(
    ("took", "done", "square"),
    [
        ([1], 1, 1),
        ([1], 3, 2),  # nodes 1 and 1-2
        ([3], 3, 1),  # node 3 alone: 3-4 is not complete
        ([2], 4, 3),  # 2, 1-2, 1-4
        ([1, 2], 4, 2 + 4 + 4),
        ([1, 4], 4, 2 + 2 + 4),
        ([1, 2, 3, 4], 4, 4 + 8 + 16),
    ],
)
def test_a_client_reaches_the_complete_nodes_above_its_rounds(took, done, square):
    assert tree_sensitivity(took, done) ** 2 == pytest.approx(square)


def test_a_single_round_costs_as_much_as_the_accountants_tree():
    """The depth of a tree over 7 rounds is 3, and a client of one round reaches a node at every level."""
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    made = importlib.import_module("dp_accounting.rdp").RdpAccountant(ORDERS, relation)
    made.compose(dp.SingleEpochTreeAggregationDpEvent(4.0, 7))
    far = tree_sensitivity([1], 7)
    assert far**2 == pytest.approx(3)
    assert made.rdp[0] == pytest.approx(ORDERS[0] * far**2 / (2 * 4.0**2))
    assert epsilon_of_tree(4.0, DELTA, far) == pytest.approx(dp.get_epsilon_gaussian(4.0 / far, DELTA))
    assert epsilon_of_tree(noise_for_tree(2.0, DELTA, far), DELTA, far) == pytest.approx(2.0)


def test_a_round_in_vain_is_another_node_over_the_rounds_that_its_node_covers():
    assert tree_sensitivity([1, 2], 2, {2: 1}) ** 2 == pytest.approx(2 + 4 + 4)
    assert tree_sensitivity([1], 3, {3: 5}) == tree_sensitivity([1], 3)


def test_the_largest_sensitivity_is_not_always_that_of_the_busiest_client():
    took = {"busy": [1, 4, 7], "dense": [1, 2, 3], "idle": [5]}
    assert largest_sensitivity(took, 8) == max(tree_sensitivity(rounds, 8) for rounds in took.values())
    assert largest_sensitivity({}, 8) == 0.0
