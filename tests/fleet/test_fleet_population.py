"""Who takes part: proportions, cohorts and failures as pure functions of seed and round."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import islice

import pytest

from potluck.core import SettingsError, Tier
from potluck.fleet import Fleet, Population


def population(clients: int = 100, shares: tuple[float, ...] = (1, 1), seed: int = 0, **settings: object) -> Population:
    tiers = [Tier(f"t{number}", share) for number, share in enumerate(shares)]
    return Population(tiers, clients, Fleet(**settings), seed)  # type: ignore[arg-type]


def ids(population: Population, round: int, size: int) -> list[str]:
    return [client.id for client in population.cohort(round, size)]


def test_fixed_tiers_are_contiguous_blocks_by_share() -> None:
    # FedRolex's emulated fleet, 6 : 10 : 11 : 18 : 55.
    fleet = population(100, (6, 10, 11, 18, 55))
    assert fleet.counts() == {"t0": 6, "t1": 10, "t2": 11, "t3": 18, "t4": 55}
    names = [fleet.client(index, 0).tier.name for index in range(100)]
    assert names == ["t0"] * 6 + ["t1"] * 10 + ["t2"] * 11 + ["t3"] * 18 + ["t4"] * 55


def test_shares_that_do_not_divide_evenly_are_rounded_along_their_running_sum() -> None:
    # 10 / 3 = 3.33, 20 / 3 = 6.67: blocks end at 3, 7 and 10.
    fleet = population(10, (0.2, 0.2, 0.2))
    assert fleet.counts() == {"t0": 3, "t1": 4, "t2": 3}
    assert Counter(fleet.client(index, 0).tier.name for index in range(10)) == fleet.counts()


@pytest.mark.parametrize("clients", [1, 2, 3, 7, 99, 1000])
@pytest.mark.parametrize("shares", [(1,), (0.1, 0.2, 0.7), (1, 1e-9, 1), (1 / 3, 1 / 3, 1 / 3)])
def test_every_client_has_a_tier_and_counts_add_up(clients: int, shares: tuple[float, ...]) -> None:
    fleet = population(clients, shares)
    found = Counter(fleet.client(index, 5).tier.name for index in range(clients))
    assert {name: count for name, count in fleet.counts().items() if count} == found
    assert sum(fleet.counts().values()) == clients


def test_a_fixed_tier_stays_and_a_redrawn_one_changes_from_round_to_round() -> None:
    fixed, redrawn = population(), population(tiers="redrawn")
    assert {fixed.client(0, round).tier.name for round in range(20)} == {"t0"}
    assert {redrawn.client(0, round).tier.name for round in range(20)} == {"t0", "t1"}
    assert [redrawn.client(3, 8) for _ in range(2)] == [population(tiers="redrawn").client(3, 8)] * 2


def test_redrawn_tiers_follow_the_shares() -> None:
    fleet = population(2000, (1, 3), tiers="redrawn")
    first = sum(fleet.client(index, 0).tier.name == "t0" for index in range(2000))
    assert abs(first - 500) < 80  # four standard deviations: 4 * (2000 * 0.25 * 0.75) ** 0.5 = 77


def test_a_cohort_is_a_pure_function_of_seed_and_round() -> None:
    fleet = population()
    assert fleet.cohort(4, 10) == population().cohort(4, 10)
    assert ids(fleet, 4, 10) != ids(fleet, 5, 10)
    assert ids(fleet, 4, 10) != ids(population(seed=1), 4, 10)
    # Tiers, hence methods, have no part in who is asked.
    assert ids(fleet, 4, 10) == ids(population(100, (1, 2, 3), tiers="redrawn"), 4, 10)


def test_nobody_is_in_a_cohort_twice_and_it_is_sorted() -> None:
    fleet = population()
    for round in range(20):
        indices = [fleet.index(id) for id in ids(fleet, round, 30)]
        assert indices == sorted(set(indices))
        assert len(indices) == 30
        assert 0 <= indices[0] <= indices[-1] < 100


def test_a_cohort_as_large_as_the_population_or_larger_is_everyone() -> None:
    assert ids(population(12), 0, 12) == [f"c{index}" for index in range(12)] == ids(population(12), 3, 50)
    assert population(12).cohort(0, 0) == []


def test_clients_are_asked_equally_often() -> None:
    fleet = population(10)
    asked = Counter(id for round in range(1000) for id in ids(fleet, round, 3))
    assert all(abs(asked[f"c{index}"] - 300) < 65 for index in range(10))  # 4.5 * (1000 * 0.3 * 0.7) ** 0.5 = 65


def test_the_queue_is_a_random_order_of_everyone() -> None:
    orders = [tuple(population(3, seed=seed)._random_order(0)) for seed in range(600)]
    assert len(set(orders)) == 6
    assert all(abs(count - 100) < 41 for count in Counter(orders).values())  # 4.5 * (600 / 6 * 5 / 6) ** 0.5 = 41


def test_a_cohort_out_of_a_million_costs_no_more_than_itself() -> None:
    tracemalloc.start()
    fleet = population(1_000_000)
    assert len(set(ids(fleet, 0, 100))) == 100
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()
    assert len(list(islice(fleet._random_order(0), 5))) == 5


def test_unavailable_clients_are_passed_over_and_the_cohort_filled_with_others() -> None:
    everyone, some = population(), population(availability=0.5)
    assert len(ids(some, 0, 20)) == 20
    there = set(ids(some, 0, 100))
    assert 30 < len(there) < 70
    assert set(ids(some, 0, 20)) <= there
    assert set(islice((f"c{index}" for index in everyone._random_order(0)), 10)) & there <= set(ids(some, 0, 20))
    assert ids(some, 0, 100) != ids(some, 1, 100)


def test_everyone_is_who_is_available_one_by_one_in_order() -> None:
    some = population(availability=0.5)
    assert [client.id for client in some.everyone(0)] == ids(some, 0, 100)
    assert [client.id for client in islice(population(1_000_000).everyone(0), 2)] == ["c0", "c1"]


def test_a_round_in_which_nobody_is_available_has_an_empty_cohort() -> None:
    assert population(50, availability=1e-9).cohort(0, 10) == []


def test_who_drops_is_drawn_by_round_client_and_attempt() -> None:
    fleet = population(dropout=0.5)
    drawn = [fleet.drops(f"c{index}", 3) for index in range(100)]
    assert drawn == [population(dropout=0.5).drops(f"c{index}", 3) for index in range(100)]
    assert 30 < sum(drawn) < 70
    assert drawn != [fleet.drops(f"c{index}", 4) for index in range(100)]
    assert drawn != [fleet.drops(f"c{index}", 3, attempt=1) for index in range(100)]
    assert not any(population().drops(f"c{index}", 3) for index in range(100))


def test_an_id_leads_back_to_its_index() -> None:
    fleet = population(20)
    assert [fleet.index(fleet.client(index, 0).id) for index in range(20)] == list(range(20))


@pytest.mark.parametrize("id", ["c20", "20", "c", "", "c-1", "c01", "c٣", "server", "cc1"])
def test_a_strange_id_is_refused(id: str) -> None:
    with pytest.raises(ValueError, match="is no client of this fleet; its clients are c0 to c19"):
        population(20).index(id)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("availability", 0.0), ("availability", 1.1), ("availability", float("nan")), ("dropout", 1.0), ("dropout", -0.1),
     ("tiers", "loose")],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"fleet\.{setting} = "):
        population(**{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, -1.0, float("nan"), float("inf")])
def test_a_share_must_be_a_number_above_0(share: float) -> None:
    with pytest.raises(SettingsError, match="tier 't1' has share = "):
        population(10, (1.0, share))


def test_a_fleet_needs_a_tier_different_names_and_a_client() -> None:
    with pytest.raises(SettingsError, match="there is no tier"):
        Population([], 10, Fleet(), 0)
    with pytest.raises(SettingsError, match="two tiers have the same name"):
        Population([Tier("a"), Tier("a")], 10, Fleet(), 0)
    with pytest.raises(SettingsError, match="below 1"):
        population(0)
    with pytest.raises(IndexError):
        population(10).client(10, 0)


def test_an_absent_tier_leaves_the_others_as_they_would_be_with_it() -> None:
    shares = [Tier("a", 1), Tier("b", 2, absent=True), Tier("c", 1)]
    with_all = [Tier(tier.name, tier.share) for tier in shares]
    fleet, everyone = Population(shares, 40, Fleet(), 3), Population(with_all, 40, Fleet(), 3)
    assert (fleet.clients, fleet.present, everyone.present) == (40, 20, 40)
    assert {client.tier.name for client in fleet.everyone(0)} == {"a", "c"}
    for index in range(5):
        expected = [client.id for client in everyone.cohort(index, 8) if client.tier.name != "b"]
        assert ids(fleet, index, 8) == expected
        assert len(expected) < 8
