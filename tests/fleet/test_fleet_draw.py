"""How cohorts are drawn: shares of each tier, coins, and the odds that epsilon counts on."""

from collections import Counter

import pytest

from potluck.core import Tier
from potluck.fleet import Fleet, Population, odds, tier_sizes


def population(clients, shares, draw, **more):
    tiers = [Tier(name, share, absent=name == "gone") for name, share in shares.items()]
    return Population(tiers, clients, Fleet(draw=draw, **more), seed=3)


@pytest.mark.parametrize(
    ("counts", "size", "wanted"),
    [
        ([50, 30, 20], 10, [5, 3, 2]),
        ([1, 1, 1], 2, [1, 0, 1]),
        ([98, 1, 1], 10, [8, 1, 1]),
        ([2, 8], 20, [2, 8]),
        ([0, 5], 2, [0, 2]),
        ([5, 5], 0, [0, 0]),
    ],
)
def test_a_cohort_by_tier_takes_the_same_share_of_each_and_one_where_it_can(counts, size, wanted):
    assert tier_sizes(counts, size) == wanted


def test_by_tier_the_cohort_of_every_round_has_the_same_number_of_each_tier():
    made = population(100, {"small": 3.0, "large": 1.0}, "by_tier")
    seen = Counter()
    for round in range(40):
        cohort = made.cohort(round, 8)
        assert Counter(client.tier.name for client in cohort) == {"small": 6, "large": 2}
        assert cohort == made.cohort(round, 8)
        seen.update(client.id for client in cohort)
    assert len(seen) > 90


def test_by_coins_the_size_varies_around_the_cohort_and_every_client_comes_as_often():
    made = population(200, {"small": 1.0, "large": 1.0}, "poisson")
    cohorts = [made.cohort(round, 20) for round in range(300)]
    assert cohorts[7] == made.cohort(7, 20)
    sizes = [len(cohort) for cohort in cohorts]
    assert sum(sizes) / 300 == pytest.approx(20, abs=1)
    assert 12 < sum((size - 20) ** 2 for size in sizes) / 300 < 25  # the variance of 200 coins of a tenth is 18
    seen = Counter(client.id for cohort in cohorts for client in cohort)
    assert len(seen) == 200
    assert max(seen.values()) < 60


def test_by_coins_a_million_clients_cost_no_more_than_the_cohort():
    made = population(1_000_000, {"all": 1.0}, "poisson")
    assert 20 < len(made.cohort(0, 50)) < 90


def test_by_coins_a_client_is_drawn_first_and_may_then_be_away():
    """So nobody is drawn more often because others are away."""
    made = population(200, {"all": 1.0}, "poisson", availability=0.5)
    sizes = [len(made.cohort(round, 20)) for round in range(200)]
    assert sum(sizes) / 200 == pytest.approx(10, abs=1)
    assert made.odds(20)["all"] == pytest.approx((10.0, 0.1))


def test_the_odds_are_the_expected_number_of_each_tier_and_the_rate_of_each_client():
    counts = {"small": 90, "large": 10}
    assert odds("uniform", counts, 20) == {"small": (18.0, 0.2), "large": (2.0, 0.2)}
    assert odds("poisson", counts, 20) == {"small": (18.0, 0.2), "large": (2.0, 0.2)}
    assert odds("by_tier", counts, 4) == {"small": (3, 3 / 90), "large": (1, 0.1)}
    assert odds("uniform", counts, 500) == {"small": (90.0, 1.0), "large": (10.0, 1.0)}


def test_an_absent_tier_is_drawn_and_left_out_under_every_draw():
    for draw in ("uniform", "by_tier", "poisson"):
        made = population(100, {"here": 1.0, "gone": 1.0}, draw)
        assert made.odds(20) == {"here": (10.0, 0.2)}
        sizes = [len(made.cohort(round, 20)) for round in range(60)]
        assert sum(sizes) / 60 == pytest.approx(10, abs=2)


def test_shares_of_tiers_need_tiers_that_stay():
    with pytest.raises(ValueError, match="needs tiers that stay the same"):
        Fleet(draw="by_tier", tiers="redrawn")
    with pytest.raises(ValueError, match=r"fleet.draw = 'dice' must be"):
        Fleet(draw="dice")
