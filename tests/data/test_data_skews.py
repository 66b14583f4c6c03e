"""Features that lean by tier, and clients that hold unequal numbers of rows: numbers that can be checked by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.core import Examples, ResourceError, SettingsError, numpy_stream
from potluck.data import Data, Federation, Source, from_arrays
from potluck.data.feature_order import feature_order, principal_component
from potluck.data.partition import skewed_sizes, stretches

TIERS = ("tv",) * 5 + ("phone",) * 3 + ("flagship",) * 2
"""The tier of each of ten clients."""
WHOLE = {"test": 0.0, "validation": 0.0}
"""All rows are to train on."""


def numbered(rows: int = 1000, classes: int = 10) -> Source:
    """Rows that hold their own number; classes in turn."""
    return from_arrays(np.arange(rows, dtype=np.float32)[:, None], np.arange(rows) % classes)


def divided(source: Source | None = None, seed: int = 0, **told: object) -> Federation:
    data = Data(**{"clients": 10, **WHOLE, **told})  # type: ignore[arg-type]
    return Federation(source or numbered(), data, seed, tiers=TIERS)


def ids(examples: Examples) -> list[int]:
    return [int(value) for value in examples.column("x")[:, 0].tolist()]


def shards(federation: Federation) -> list[list[int]]:
    return [ids(federation.shard(index).train) for index in range(federation.clients)]


def sizes(federation: Federation) -> list[int]:
    return [len(shard) for shard in shards(federation)]


def by_tier(federation: Federation) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {tier: [] for tier in TIERS}
    for tier, shard in zip(TIERS, shards(federation), strict=True):
        found[tier] += shard
    return found


def test_rows_are_ordered_along_the_direction_in_which_they_vary_most() -> None:
    """Points on the line y = 2x, in mixed order, with a little x alone: the direction is (1, 2) over its length."""
    x = np.array([[3.0, 6.0], [1.0, 2.0], [-4.0, -8.0], [0.0, 0.0]], np.float32)
    assert feature_order(Examples({"x": torch.from_numpy(x)})).tolist() == [2, 3, 1, 0]
    found = principal_component(torch.from_numpy(x).double() - torch.from_numpy(x).double().mean(0))
    assert found.tolist() == pytest.approx([1 / 5**0.5, 2 / 5**0.5])
    wide = torch.tensor([[3.0, 0.0, -4.0], [-3.0, 0.0, 4.0]]).double()  # more numbers than rows
    assert principal_component(wide).tolist() == pytest.approx([-0.6, 0.0, 0.8])


def test_the_order_is_that_of_the_inputs_as_networks_get_them() -> None:
    """The second column is large before it is scaled, and varies by nothing after that."""
    x = np.array([[0.0, 900.0], [2.0, 0.0], [1.0, 500.0]], np.float32)
    stored = Examples({"x": torch.from_numpy(x)}, prepare=lambda batch: {"x": batch["x"] / torch.tensor([1.0, 1e9])})
    assert feature_order(stored).tolist() == [0, 2, 1]
    assert feature_order(Examples({"x": torch.from_numpy(x)})).tolist() == [1, 2, 0]


def test_equal_rows_keep_their_order_and_no_rows_are_fine_too() -> None:
    assert feature_order(Examples({"x": torch.ones(4, 3)})).tolist() == [0, 1, 2, 3]
    assert feature_order(Examples({"x": torch.ones(0, 3)})).tolist() == []


def test_the_component_of_many_rows_is_taken_from_a_sample_of_them() -> None:
    x = torch.linspace(-1, 1, 5000)[torch.randperm(5000, generator=torch.Generator().manual_seed(0))]
    both = torch.stack([x, -3 * x], 1)
    assert x[torch.from_numpy(feature_order(Examples({"x": both})))].diff().max() < 0  # -3 is the larger entry


def test_a_tier_is_home_to_a_stretch_as_long_as_its_share_of_the_clients() -> None:
    homes, found = stretches(np.arange(10), np.array([5, 3, 2]), numpy_stream(0, "any"))
    assert sorted(homes.tolist()) == [0, 1, 2]
    assert [len(rows) for rows in found] == [[5, 3, 2][home] for home in homes]
    assert np.concatenate(found).tolist() == list(range(10))


def test_features_that_lean_fully_give_each_tier_its_own_stretch() -> None:
    found = by_tier(divided(lean=1.0, lean_by="features"))
    assert [len(rows) for rows in found.values()] == [500, 300, 200]
    assert all(max(rows) - min(rows) == len(rows) - 1 for rows in found.values())


def test_a_share_of_every_stretch_stays_at_home_and_the_rest_goes_to_all_tiers_alike() -> None:
    """Of the TVs' 500 rows 400 stay. Of the other 200 rows the TVs, half of the clients, get 100: 500 again."""
    whole, part = (by_tier(divided(lean=lean, lean_by="features")) for lean in (1.0, 0.8))
    assert [len(rows) for rows in part.values()] == [500, 300, 200]
    stay = [len(set(part[tier]) & set(whole[tier])) for tier in whole]
    assert [least <= at_home <= least + 100 for least, at_home in zip((400, 240, 160), stay, strict=True)] == [True] * 3
    assert sorted(row for rows in part.values() for row in rows) == list(range(1000))


def test_features_may_lean_where_rows_have_no_class() -> None:
    source = from_arrays(np.arange(100, dtype=np.float32)[:, None], np.linspace(0, 1, 100))
    assert [len(rows) for rows in by_tier(divided(source, lean=1.0, lean_by="features")).values()] == [50, 30, 20]


def test_which_tier_has_which_stretch_is_drawn_by_the_seed() -> None:
    first = {seed: min(by_tier(divided(seed=seed, lean=1.0, lean_by="features"))["flagship"]) for seed in range(8)}
    assert len(set(first.values())) > 1
    assert shards(divided(seed=3, lean=0.5, lean_by="features")) == shards(
        divided(seed=3, lean=0.5, lean_by="features")
    )


def test_tokens_have_no_features_to_lean_by() -> None:
    source = from_arrays(np.zeros((100, 4), np.int64), np.arange(100) % 10)
    with pytest.raises(SettingsError, match=r"data\.lean_by = 'features' needs inputs of numbers, and arrays has tok"):
        divided(source, lean=0.5, lean_by="features")


def test_sizes_by_a_power_law_are_as_computed_by_hand() -> None:
    """Three clients have weights of 1, 1/2 and 1/3, which are 6, 3 and 2 of 11. Of 110 rows: 60, 30 and 20."""
    data = Data(clients=3, quantity_skew="power", beta=1.0, least=0)
    assert sorted(skewed_sizes(110, 3, data, numpy_stream(0, "any")).tolist()) == [20, 30, 60]
    five = Data(clients=3, quantity_skew="power", beta=1.0, least=5)  # 5 each first; the law divides 110
    assert sorted(skewed_sizes(125, 3, five, numpy_stream(0, "any")).tolist()) == [25, 35, 65]
    even = Data(clients=3, quantity_skew="power", beta=0.0)
    assert skewed_sizes(120, 3, even, numpy_stream(0, "any")).tolist() == [40, 40, 40]


def test_sizes_by_a_dirichlet_are_its_shares_of_the_rows() -> None:
    """The same stream draws the same shares here; each client has ten rows and its share of the other 900."""
    data = Data(clients=10, quantity_skew="dirichlet", beta=0.5)
    shares = numpy_stream(7, "any").dirichlet(np.full(10, 0.5))
    found = skewed_sizes(1000, 10, data, numpy_stream(7, "any"))
    assert found.sum() == 1000
    assert np.abs(found - 10 - 900 * shares).max() < 1


@pytest.mark.parametrize("partition", ["iid", "labels", "dirichlet"])
@pytest.mark.parametrize("skew", ["dirichlet", "power"])
def test_quantities_are_skewed_under_every_partition_and_nobody_has_too_few(partition: str, skew: str) -> None:
    beta = 0.2 if skew == "dirichlet" else 1.5
    federation = divided(partition=partition, quantity_skew=skew, beta=beta, least=12)
    found = sizes(federation)
    assert sum(found) == 1000
    assert min(found) >= 12
    assert max(found) > (170 if partition == "labels" else 300)  # of 200 that two labels have
    labels = [len(federation.shard(index).labels) for index in range(10)]
    if partition == "labels":
        assert max(labels) == 2
    if partition == "iid":
        assert min(labels) > 4


def test_even_quantities_are_what_an_equal_split_gives() -> None:
    assert sizes(divided(quantity_skew="dirichlet", beta=1e9)) == [100] * 10


def test_with_samples_quantities_have_that_mean() -> None:
    for partition in ("iid", "labels", "dirichlet"):
        found = sizes(divided(partition=partition, quantity_skew="power", beta=1.0, samples=30))
        assert sum(found) == 300
        assert min(found) >= 10
        assert max(found) > (40 if partition == "labels" else 60)


def test_quantities_are_skewed_within_tiers_if_labels_lean() -> None:
    federation = divided(lean=1.0, quantity_skew="power", beta=1.0)
    assert [len(rows) for rows in by_tier(federation).values()] == [500, 300, 200]
    assert len(set(sizes(federation)[:5])) == 5


def test_rows_are_drawn_by_the_seed_and_sizes_too() -> None:
    told = {"quantity_skew": "dirichlet", "partition": "dirichlet"}
    assert shards(divided(seed=1, **told)) == shards(divided(seed=1, **told))  # type: ignore[arg-type]
    assert sizes(divided(seed=1, **told)) != sizes(divided(seed=2, **told))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"partition": "user"}, "data.quantity_skew = 'power' needs data.partition = 'iid', 'labels' or 'dirichlet'"),
        ({"partition": "dirichlet", "balance": True}, "data.quantity_skew = 'power' and data.balance exclude"),
        ({"beta": -1.0}, "data.beta = -1.0 must be a number above 0"),
        ({"beta": 0.0, "quantity_skew": "dirichlet"}, "data.beta = 0.0 must be a number above 0"),
        ({"least": -1}, "data.least = -1 is below 0"),
        ({"least": 101}, "needs data.least = 101 rows for each of 10 clients, and there are 1000; lower"),
        ({"clients": 1001}, "needs rows for all clients, and 1001 of them want more than the 1000 there are"),
        ({"samples": 101}, "needs rows for all clients"),
        ({"partition": "labels", "labels": 1, "least": 100, "clients": 9}, "wants 100; lower data.least"),
    ],
)  # fmt: skip
def test_quantities_that_mean_nothing_are_refused_in_one_line(told: dict[str, object], said: str) -> None:
    source = from_arrays(np.zeros((1000, 1), np.float32), np.minimum(np.arange(1000), 9)) if "labels" in told else None
    with pytest.raises((SettingsError, ValueError)) as caught:
        divided(source, **{"quantity_skew": "power", "beta": 1.0, **told})  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_partition_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"data\.partition = 'dirichlt': did you mean 'dirichlet'\? There are iid, lab"
    ):
        Data(partition="dirichlt")
    with pytest.raises(
        ValueError, match=r"data\.flwr has 'alpha', and data\.partition = 'iid' is none of flwr-dataset"
    ):
        Data(flwr={"alpha": 0.5})


def test_without_flwr_datasets_its_partitions_name_the_extra_and_vertical_ones_are_refused() -> None:
    with pytest.raises(SettingsError, match="cannot be used: it divides columns among clients"):
        divided(partition="flwr:VerticalEvenPartitioner")
    try:
        import flwr_datasets  # noqa: F401
    except ImportError:
        with pytest.raises(ResourceError, match=r"needs the package flwr_datasets: pip install 'potluck\[flower\]'"):
            divided(partition="flwr:IidPartitioner")


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(40, 200),
    clients=st.integers(2, 9),
    partition=st.sampled_from(["iid", "labels", "dirichlet"]),
    skew=st.sampled_from(["none", "dirichlet", "power"]),
    beta=st.floats(0.05, 5.0),
    least=st.integers(0, 3),
    lean=st.sampled_from([0.0, 0.3, 1.0]),
    lean_by=st.sampled_from(["labels", "features"]),
    samples=st.sampled_from([None, None, 3]),
    seed=st.integers(0, 5),
)
def test_every_row_is_held_at_most_once(
    rows: int, clients: int, partition: str, skew: str, beta: float, least: int, lean: float, lean_by: str,
    samples: int | None, seed: int,
) -> None:  # fmt: skip
    told = {"clients": clients, "partition": partition, "quantity_skew": skew, "beta": beta, "least": least,
            "lean": lean, "lean_by": lean_by, "samples": samples}  # fmt: skip
    tiers = ["ab"[index % 2] for index in range(clients)]
    try:
        federation = Federation(numbered(rows, 5), Data(**told), seed, tiers=tiers)  # type: ignore[arg-type]
    except SettingsError:  # too few rows for these settings
        return
    held = Counter(row for shard in shards(federation) for row in shard)
    assert max(held.values(), default=0) <= 1
    others = {*ids(federation.test), *ids(federation.validation)}
    assert not others & set(held)
    if skew != "none":
        assert min(sizes(federation)) >= least
