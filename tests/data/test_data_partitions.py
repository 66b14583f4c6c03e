"""Who holds which rows: counts that can be checked by hand, and nothing that depends on the order of asking."""

from __future__ import annotations

import tracemalloc
from collections import Counter

import numpy as np
import pytest
import torch

from potluck.core import Examples, SettingsError, numpy_stream
from potluck.data import Data, Federation, Source, from_arrays
from potluck.data.partition import apportion, label_sets, stratified_order


def numbered(rows: int = 1000, classes: int = 10, test: int = 0, users: int = 0) -> Source:
    """Rows that hold their own number; classes in turn; users in turn within each class."""
    y = np.arange(rows) % classes
    x = np.arange(rows, dtype=np.float32)[:, None]
    more = (np.arange(test, dtype=np.float32)[:, None] + 1e6, np.arange(test) % classes) if test else (None, None)
    return from_arrays(x, y, np.arange(rows) // classes % users if users else None, *more)


def ids(examples: Examples) -> list[int]:
    return [int(value) for value in examples.all()["x"][:, 0].tolist()]


def mix(examples: Examples) -> dict[int, int]:
    return dict(sorted(Counter(examples.column("y").tolist()).items()))


def held(federation: Federation) -> list[int]:
    return [row for index in range(federation.clients) for row in ids(federation.shard(index).train)]


ALL = [
    Data(clients=20),
    Data(clients=20, samples=7),
    Data(clients=20, partition="labels"),
    Data(clients=20, partition="labels", labels=3, samples=8),
    Data(clients=20, partition="dirichlet", alpha=0.1),
    Data(clients=20, partition="dirichlet", alpha=0.1, samples=25),
    Data(clients=20, partition="dirichlet", alpha=0.3, balance=True),
    Data(clients=7, partition="user"),
    Data(clients=1000),
    Data(clients=1000, partition="labels", samples=5),
    Data(clients=1000, partition="dirichlet", samples=5),
    Data(clients=7, partition="groups"),
    Data(clients=9, partition="groups", groups=3, held_out="users", samples=20),
    Data(clients=20, partition="dirichlet", alpha=0.1, held_out="users"),
    Data(clients=20, partition="dirichlet", alpha=0.1, public_partition="dirichlet"),
    Data(clients=7, partition="user", alpha=0.1, public_partition="dirichlet"),
    Data(clients=20, public_partition="iid"),
    Data(clients=20, lean=0.7),
    Data(clients=20, lean=0.7, partition="dirichlet", held_out="users"),
]


def make(data: Data, seed: int) -> Federation:
    """A federation of three tiers, with users."""
    return Federation(numbered(users=10), data, seed, tiers=["abc"[index % 3] for index in range(data.clients)])


@pytest.mark.parametrize("data", ALL)
def test_the_servers_sets_and_the_clients_rows_are_disjoint(data: Data) -> None:
    federation = make(Data(**{**vars(data), "public": 30}), 3)
    sets = [ids(federation.test), ids(federation.validation), ids(federation.public)]
    assert [len(rows) for rows in sets] == [200, 100, 30]
    together = [row for rows in sets for row in rows]
    assert len(set(together)) == 330
    assert not set(together) & set(held(federation))


@pytest.mark.parametrize("data", [*ALL[:7], *ALL[-2:]])
def test_no_row_is_held_twice_while_the_data_suffices(data: Data) -> None:
    rows = held(make(data, 3))
    assert len(rows) == len(set(rows)) > 0


@pytest.mark.parametrize("data", [ALL[0], ALL[2], ALL[4], ALL[-2], Data(partition="user")])
def test_divided_data_leaves_no_row_over(data: Data) -> None:
    assert len(held(make(data, 3))) == 700


@pytest.mark.parametrize("data", ALL)
def test_a_shard_depends_on_nothing_but_source_settings_seed_and_index(data: Data) -> None:
    def told(federation: Federation, index: int) -> list[object]:
        shard = federation.shard(index)
        return [ids(shard.train), ids(shard.validation), ids(shard.test), shard.labels]

    one, other = (make(data, 3) for _ in range(2))
    forwards = [told(one, index) for index in range(7)]
    backwards = [told(other, index) for index in reversed(range(7))]
    assert forwards == backwards[::-1]
    third = make(data, 4)
    assert forwards != [told(third, index) for index in range(7)]


def test_the_sources_own_test_set_is_the_servers_and_frees_the_training_rows() -> None:
    federation = Federation(numbered(test=50), Data(), 0)
    assert ids(federation.test) == list(range(1_000_000, 1_000_050))
    assert len(federation.validation) == 100
    assert len(held(federation)) == 900


def test_the_servers_sets_have_the_label_mix_of_the_whole() -> None:
    federation = Federation(numbered(), Data(public=50), 0)
    for examples, each in ((federation.test, 20), (federation.validation, 10), (federation.public, 5)):
        assert all(abs(count - each) <= 2 for count in mix(examples).values())
        assert len(mix(examples)) == 10


def test_public_rows_may_have_a_label_mix_like_one_clients() -> None:
    """With an alpha near 0 nearly all rows are of one class. It has 20 rows, so 10 of the other are added."""
    data = Data(test=0.0, validation=0.0, public=30, alpha=1e-3, public_partition="dirichlet", clients=2)
    seen = [tuple(mix(Federation(numbered(40, 2), data, seed).public).values()) for seed in range(8)]
    assert set(seen) == {(20, 10), (10, 20)}
    even = Data(test=0.0, validation=0.0, public=100, alpha=1e9, public_partition="dirichlet", clients=2)
    found = mix(Federation(numbered(2000, 2), even, 0).public)  # 100 draws of two equal chances
    assert sum(found.values()) == 100
    assert abs(found[0] - 50) <= 20


def test_public_rows_may_be_drawn_without_regard_to_their_class() -> None:
    data = Data(public=100, public_partition="iid")
    seen = {tuple(mix(Federation(numbered(), data, seed).public).items()) for seed in range(4)}
    assert len(seen) == 4
    assert max(count for found in seen for _, count in found) > 13  # of 10 each; stratified ones have 9 to 12


@pytest.mark.parametrize("way", ["iid", "dirichlet"])
def test_testing_and_validation_rows_are_the_same_however_public_rows_are_drawn(way: str) -> None:
    one, other = (Federation(numbered(), Data(public=50, public_partition=each), 0) for each in (way, "stratified"))  # type: ignore[arg-type]
    assert ids(one.test) == ids(other.test)
    assert ids(one.validation) == ids(other.validation)
    assert ids(one.public) != ids(other.public)


def test_a_label_mix_for_public_rows_needs_one_class_per_row() -> None:
    source = from_arrays(np.zeros((40, 2), np.float32), np.zeros((40, 3), np.int64))
    with pytest.raises(SettingsError, match=r"data\.public_partition = 'dirichlet' needs one class per row; choose"):
        Federation(source, Data(clients=2, public=5, public_partition="dirichlet"), 0)


def test_every_stretch_of_a_spread_order_has_nearly_the_mix_of_the_whole() -> None:
    kinds = np.array([0] * 80 + [1] * 20)
    order = stratified_order(kinds, numpy_stream(0, "any"))
    assert sorted(order) == list(range(100))
    assert all(abs(int(kinds[order[at : at + 10]].sum()) - 2) <= 1 for at in range(0, 100, 10))


def test_a_kind_with_a_single_row_may_stand_anywhere_in_a_spread_order() -> None:
    kinds = np.array([0] * 9 + [1])
    places = [stratified_order(kinds, numpy_stream(seed, "any")).tolist().index(9) for seed in range(50)]
    assert min(places) <= 2
    assert max(places) >= 7


def test_iid_clients_hold_equally_many_rows_or_one_more() -> None:
    federation = Federation(numbered(), Data(clients=30), 0)
    assert Counter(len(federation.shard(index).train) for index in range(30)) == {23: 20, 24: 10}


def test_each_client_has_exactly_its_number_of_labels_and_shards_are_equal() -> None:
    # 70 training rows of each class in 20 * 2 / 10 = 4 shards: 17 or 18 rows of each of 2 labels.
    federation = Federation(numbered(test=100), Data(clients=20, partition="labels", validation=0.3), 5)
    owners: Counter[int] = Counter()
    for index in range(20):
        shard = federation.shard(index)
        counts = mix(shard.train)
        assert tuple(counts) == shard.labels
        assert len(counts) == 2
        assert set(counts.values()) <= {16, 17, 18, 19}
        assert set(mix(shard.test)) == set(counts)
        owners.update(shard.labels)
    assert owners == dict.fromkeys(range(10), 4)


@pytest.mark.parametrize(("clients", "labels", "classes"), [(20, 2, 10), (7, 3, 10), (9, 4, 5), (3, 2, 10), (6, 5, 5)])
def test_label_sets_hold_different_labels_and_use_every_class_equally(clients: int, labels: int, classes: int) -> None:
    sets = label_sets(clients, labels, classes, numpy_stream(1, "any"))
    assert all(len(set(row)) == labels for row in sets.tolist())
    uses = np.bincount(sets.reshape(-1), minlength=classes)
    assert uses.max() - uses.min() <= 1


def test_samples_bound_what_a_client_with_labels_holds() -> None:
    federation = Federation(numbered(), Data(clients=20, partition="labels", labels=3, samples=8), 0)
    counts = [mix(federation.shard(index).train) for index in range(20)]
    assert all(sorted(count.values()) == [2, 3, 3] for count in counts)


def test_a_small_alpha_gives_clients_one_label_and_a_large_one_the_whole_mix() -> None:
    skewed = Federation(numbered(), Data(clients=10, partition="dirichlet", alpha=1e-4), 0)
    holders = Counter(label for index in range(10) for label in skewed.shard(index).labels)
    assert holders == dict.fromkeys(range(10), 1)
    even = Federation(numbered(), Data(clients=10, partition="dirichlet", alpha=1e6), 0)
    assert all(set(mix(even.shard(index).train).values()) <= {6, 7, 8} for index in range(10))


def test_balanced_shards_differ_but_a_client_with_its_equal_share_gets_no_further_class() -> None:
    settings = {"clients": 10, "partition": "dirichlet", "alpha": 0.3, "test": 0.0, "validation": 0.0}
    overfull = {True: 0, False: 0}
    for balance in overfull:
        federation = Federation(numbered(), Data(**settings, balance=balance), 0)
        shards = [mix(federation.shard(index).train) for index in range(10)]
        assert sum(sum(shard.values()) for shard in shards) == 1000
        assert len({sum(shard.values()) for shard in shards}) > 5
        for shard in shards:
            *earlier, _last = [shard[label] for label in sorted(shard)]
            overfull[balance] += sum(earlier) >= 100  # 1000 rows, 10 clients
        if balance:
            assert min(sum(shard.values()) for shard in shards) >= 10
    assert overfull[True] == 0
    assert overfull[False] > 0


@pytest.mark.parametrize(
    ("clients", "alpha", "said"), [(101, 1.0, "10 rows for each of 101"), (60, 1e-6, "1000 tries")]
)
def test_balanced_shards_that_cannot_be_are_refused(clients: int, alpha: float, said: str) -> None:
    data = Data(clients=clients, partition="dirichlet", alpha=alpha, balance=True, test=0.0, validation=0.0)
    with pytest.raises(SettingsError, match=rf"data\.balance .*{said}"):
        Federation(numbered(classes=2), data, 0)


def test_dirichlet_with_samples_gives_every_client_as_many_in_a_mix_of_its_own() -> None:
    federation = Federation(numbered(), Data(clients=28, partition="dirichlet", alpha=0.1, samples=25), 0)
    shards = [federation.shard(index) for index in range(28)]
    assert [len(shard.train) for shard in shards] == [25] * 28
    assert len(set(held(federation))) == 700
    assert min(len(shard.labels) for shard in shards[:10]) <= 3


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 1e8])
@pytest.mark.parametrize("samples", [None, 5, 200])
def test_any_alpha_deals_without_trouble(alpha: float, samples: int | None) -> None:
    federation = Federation(numbered(), Data(clients=10, partition="dirichlet", alpha=alpha, samples=samples), 0)
    total = sum(len(federation.shard(index).train) for index in range(10))
    assert total == (700 if samples is None else 10 * samples)


def test_clients_without_rows_or_with_one_are_served_all_the_same() -> None:
    federation = Federation(numbered(), Data(clients=200, partition="dirichlet", alpha=0.01), 0)
    sizes = Counter(len(federation.shard(index).train) for index in range(200))
    assert sizes[0] > 0
    assert sizes[1] > 0
    empty = next(shard for shard in map(federation.shard, range(200)) if len(shard.train) == 0)
    assert (len(empty.test), len(empty.validation), empty.labels) == (0, 0, ())
    assert empty.train.all()["x"].shape == (0, 1)
    single = next(shard for shard in map(federation.shard, range(200)) if len(shard.train) == 1)
    assert len(single.labels) == 1
    assert tuple(mix(single.test)) == single.labels


def test_one_client_per_user_who_keeps_all_of_its_own_rows() -> None:
    source = numbered(users=10)
    assert source.users is not None
    federation = Federation(source, Data(clients=50, partition="user"), 0)
    assert federation.clients == 10
    seen = set()
    for index in range(10):
        shard = federation.shard(index)
        mine = {int(source.users[row]) for part in (shard.train, shard.validation, shard.test) for row in ids(part)}
        assert len(mine) == 1
        seen |= mine
        # 100 rows a user: a share of 0.2 for testing and 0.1 for validation, give or take one.
        assert abs(len(shard.test) - 20) <= 1
        assert abs(len(shard.validation) - 10) <= 1
        assert len(shard.train) + len(shard.validation) + len(shard.test) == 100
    assert seen == set(range(10))


def test_fewer_clients_than_users_are_a_seeded_choice_of_users() -> None:
    source = numbered(users=10)
    assert source.users is not None
    users = source.users

    def who(seed: int) -> list[int]:
        federation = Federation(source, Data(clients=4, partition="user", samples=9), seed)
        assert [len(federation.shard(index).train) for index in range(4)] == [9] * 4
        return [int(users[ids(federation.shard(index).train)[0]]) for index in range(4)]

    assert len(set(who(0))) == 4
    assert who(0) == who(0) != who(1)


def test_users_keep_own_test_rows_beside_the_sources_test_set() -> None:
    federation = Federation(numbered(users=10, test=50), Data(partition="user"), 0)
    assert min(ids(federation.test)) == 1_000_000
    shard = federation.shard(0)
    assert abs(len(shard.test) - 20) <= 1
    assert max(ids(shard.test)) < 1000


def test_a_clients_test_rows_follow_its_label_mix_none_twice() -> None:
    # The client's training rows are 3 of class 0 to 1 of class 1; of 40 test rows 30 and 10.
    y = [0] * 30 + [1] * 10
    test = ([[float(n)] for n in range(200)], [0] * 100 + [1] * 100)
    source = from_arrays([[float(n)] for n in range(40)], y, None, *test)
    shard = Federation(source, Data(clients=1, validation=0.0, client_test=40), 0).shard(0)
    assert mix(shard.test) == {0: 30, 1: 10}
    assert len(set(ids(shard.test))) == 40
    assert len(shard.validation) == 0


def test_clients_with_the_same_mix_draw_different_test_rows() -> None:
    source = from_arrays(np.zeros((40, 1)), [0] * 40, None, [[float(n)] for n in range(200)], [0] * 200)
    federation = Federation(source, Data(clients=2, validation=0.0, client_test=20), 0)
    assert set(ids(federation.shard(0).test)) != set(ids(federation.shard(1).test))


def test_a_pool_that_runs_short_of_a_label_keeps_the_mix_and_gives_fewer() -> None:
    test = ([[float(n)] for n in range(30)], [0] * 12 + [1] * 18)
    source = from_arrays([[float(n)] for n in range(40)], [0] * 30 + [1] * 10, None, *test)
    shard = Federation(source, Data(clients=1, validation=0.0), 0).shard(0)
    assert mix(shard.test) == {0: 12, 1: 4}


def test_a_label_that_the_test_set_lacks_is_left_out_of_the_mix() -> None:
    source = from_arrays([[float(n)] for n in range(40)], [0, 1] * 20, None, [[0.0], [1.0]], [1, 1])
    assert mix(Federation(source, Data(clients=1), 0).shard(0).test) == {1: 2}


def test_apportioning_rounds_the_largest_remainders_up() -> None:
    assert apportion(np.array([0.5, 0.3, 0.2]), 4).tolist() == [2, 1, 1]
    assert apportion(np.array([1 / 3, 1 / 3, 1 / 3]), 3).tolist() == [1, 1, 1]
    assert apportion(np.array([0.0, 0.07 * 10, 0.3]), 100).tolist() == [0, 70, 30]


@pytest.mark.parametrize("partition", ["iid", "labels", "dirichlet"])
def test_a_million_clients_cost_no_more_than_those_who_are_asked(partition: str) -> None:
    source = numbered()
    tracemalloc.start()
    federation = Federation(source, Data(clients=1_000_000, partition=partition, samples=30), 0)  # type: ignore[arg-type]
    shards = [federation.shard(index) for index in range(0, 1_000_000, 10_000)]
    assert tracemalloc.get_traced_memory()[1] < 2e6  # one byte for each client would already be half of it
    tracemalloc.stop()
    assert [len(shard.train) for shard in shards] == [30] * 100
    assert len({tuple(ids(shard.train)) for shard in shards}) == 100
    if partition == "labels":
        assert all(list(mix(shard.train).values()) == [15, 15] for shard in shards)


def test_more_clients_than_rows_draw_twenty_each_unless_told_otherwise() -> None:
    federation = Federation(numbered(), Data(clients=701), 0)
    assert len(federation.shard(700).train) == 20
    assert len(Federation(numbered(), Data(clients=700), 0).shard(699).train) == 1


def test_numbers_to_regress_on_can_be_split_evenly_or_by_user_only() -> None:
    source = from_arrays(np.zeros((100, 2)), np.linspace(0, 1, 100))
    shard = Federation(source, Data(clients=5, client_test=8), 0).shard(4)
    assert (len(shard.train), len(shard.test), shard.labels) == (14, 8, ())
    with pytest.raises(SettingsError, match="needs one class per row"):
        Federation(source, Data(partition="dirichlet"), 0)


def test_settings_at_odds_with_the_data_are_named() -> None:
    with pytest.raises(SettingsError, match="needs a user column, and arrays has none"):
        Federation(numbered(), Data(partition="user"), 0)
    with pytest.raises(SettingsError, match=r"data\.labels = 11, but arrays has 10 classes"):
        Federation(numbered(), Data(partition="labels", labels=11), 0)
    with pytest.raises(SettingsError, match="take 1000 of 1000 rows and leave none to train on"):
        Federation(numbered(), Data(public=700), 0)
    with pytest.raises(IndexError):
        Federation(numbered(), Data(clients=5), 0).shard(5)


def test_shards_share_the_sources_columns() -> None:
    source = numbered()
    shard = Federation(source, Data(), 0).shard(0)
    assert shard.train.columns["x"].data_ptr() == source.train.columns["x"].data_ptr()
    assert shard.train.rows is not None
    assert shard.train.rows.dtype == torch.int64


LEANING = ("tv",) * 5 + ("phone",) * 3 + ("flagship",) * 2
"""The tier of each of ten clients. Ten classes have a home: five among the TVs, three among the phones, two more."""


def leaning(lean: float, seed: int = 0, partition: str = "iid", **more: object) -> Federation:
    """Ten clients of three tiers with a thousand rows to train on, a hundred of each class."""
    told = {"clients": 10, "partition": partition, "lean": lean, "test": 0.0, "validation": 0.0, **more}
    return Federation(numbered(), Data(**told), seed, tiers=LEANING)  # type: ignore[arg-type]


def by_tier(federation: Federation) -> dict[str, Counter[int]]:
    """How many rows of each class the clients of each tier hold together."""
    found: dict[str, Counter[int]] = {tier: Counter() for tier in LEANING}
    for index, tier in enumerate(LEANING):
        found[tier].update(federation.shard(index).train.column("y").tolist())
    return found


def test_labels_that_lean_fully_are_held_by_one_tier_alone() -> None:
    federation = leaning(1.0)
    found = by_tier(federation)
    assert [len(classes) for classes in found.values()] == [5, 3, 2]
    assert all(count == 100 for classes in found.values() for count in classes.values())
    assert sorted(held(federation)) == list(range(1000))


def test_a_share_of_every_class_stays_at_home_and_the_rest_goes_to_all_tiers_alike() -> None:
    """Of a class's 100 rows 80 stay at home. The other 200 rows go to 10 clients: 100, 60 and 40 to the tiers."""
    federation = leaning(0.8)
    found = by_tier(federation)
    homes = {tier: [label for label in classes if classes[label] >= 80] for tier, classes in found.items()}
    assert sorted(label for own in homes.values() for label in own) == list(range(10))
    assert [len(own) for own in homes.values()] == [5, 3, 2]
    assert [classes.total() for classes in found.values()] == [500, 300, 200]
    assert sum(found["flagship"][label] for label in homes["tv"]) < 40  # of 500
    assert (
        min(found["tv"][label] for label in range(10)) >= 4
    )  # 10 are to be expected of every class that is not at home there
    assert [len(federation.shard(index).train) for index in range(10)] == [100] * 10
    assert sorted(held(federation)) == list(range(1000))


def test_which_labels_a_tier_has_is_drawn_by_the_seed() -> None:
    homes = {tuple(sorted(by_tier(leaning(1.0, seed))["flagship"])) for seed in range(6)}
    assert len(homes) > 1
    assert held(leaning(0.5, 3)) == held(leaning(0.5, 3))
    assert held(leaning(0.5, 3)) != held(leaning(0.5, 4))


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_without_a_lean_the_tiers_of_clients_change_nothing(partition: str) -> None:
    data = Data(clients=10, partition=partition)  # type: ignore[arg-type]
    assert held(Federation(numbered(), data, 3, tiers=LEANING)) == held(Federation(numbered(), data, 3))


def test_within_a_tier_rows_are_divided_as_the_partition_says() -> None:
    even, skewed = leaning(1.0), leaning(1.0, partition="dirichlet", alpha=1e-3)
    assert [len(mix(even.shard(index).train)) for index in range(10)] == [5] * 5 + [3] * 3 + [2] * 2
    assert by_tier(skewed) == by_tier(even)
    assert {count for index in range(10) for count in mix(skewed.shard(index).train).values()} == {100}
    few = leaning(1.0, samples=12)
    assert [len(few.shard(index).train) for index in range(10)] == [12] * 10


def test_a_tier_may_be_spread_over_the_clients_and_one_of_few_clients_has_a_class_too() -> None:
    """One client of eleven would get less than one of ten classes; it gets one, from the tier with the most."""
    tiers = ["a"] * 5 + ["b"] + ["a"] * 5
    federation = Federation(numbered(), Data(clients=11, lean=1.0, test=0.0, validation=0.0), 0, tiers=tiers)
    assert [len(mix(federation.shard(index).train)) for index in (0, 5, 10)] == [9, 1, 9]


def test_a_lean_at_odds_with_the_data_or_the_tiers_is_refused_in_one_line() -> None:
    def refused(match: str, tiers: tuple[str, ...] = LEANING, source: Source | None = None, **told: object) -> None:
        data = Data(**{"clients": 10, "lean": 0.5, **told})  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match=match) as caught:
            Federation(source or numbered(users=10), data, 0, tiers=tiers)
        assert "\n" not in str(caught.value)

    refused("data.lean = 0.5 needs clients of two tiers or more, and there is one", ("tv",) * 10)
    refused("needs data.partition = 'iid' or 'dirichlet', not 'labels'", partition="labels")
    refused("needs data.partition = 'iid' or 'dirichlet', not 'user'", partition="user")
    refused("10 classes for 11 tiers", tuple("abcdefghijk"), clients=11)
    refused("leaves tier 'tv' 3.. rows for 5 clients with data.samples = 80", samples=80)
    refused("leaves tier 'tv' 3.. rows for 500 clients", ("tv",) * 500 + ("phone",) * 500, clients=1000)
    refused("needs one class per row", source=from_arrays(np.zeros((100, 2)), np.linspace(0, 1, 100)))
    for odd in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"data\.lean = .* must be from 0 to 1"):
            Data(lean=odd)
