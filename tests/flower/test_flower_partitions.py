"""Partitions of flwr-datasets: numbers that can be checked by hand, one line for each mistake, no network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("flwr_datasets", reason="needs the extra flower: make flower")

from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.core import SettingsError
from potluck.data import Data, Federation, Source, from_arrays
from potluck.data.flower_partition import REFUSED

CASES: dict[str, dict[str, object]] = {
    "IidPartitioner": {},
    "DirichletPartitioner": {"alpha": 0.5},
    "PathologicalPartitioner": {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"},
    "ShardPartitioner": {"num_shards_per_partition": 2},
    "LinearPartitioner": {},
    "SquarePartitioner": {},
    "ExponentialPartitioner": {},
    "SizePartitioner": {"partition_sizes": [100, 200, 300, 400]},
    "DistributionPartitioner": {
        "distribution_array": [[1, 3]] * 4,
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 0,
    },
    "InnerDirichletPartitioner": {"partition_sizes": [250] * 4, "alpha": 0.5},
    "NaturalIdPartitioner": {},
    "GroupedNaturalIdPartitioner": {"group_size": 5},
    "ContinuousPartitioner": {"strictness": 1.0},
}
"""Every partitioner that divides rows, with what it needs for four clients."""


def numbered(rows: int = 1000, classes: int = 4, users: int = 20) -> Source:
    """Rows that hold their own number; classes in turn; users in turn within each class."""
    user = np.arange(rows) // classes % users
    return from_arrays(np.arange(rows, dtype=np.float32)[:, None], np.arange(rows) % classes, user)


def divided(name: str, seed: int = 0, source: Source | None = None, **told: object) -> Federation:
    more = {"clients": 4, "flwr": CASES.get(name, {}), "test": 0.0, "validation": 0.0, **told}
    return Federation(source or numbered(), Data(partition=f"flwr:{name}", **more), seed)  # type: ignore[arg-type]


def shards(federation: Federation) -> list[list[int]]:
    return [
        [int(row) for row in federation.shard(index).train.column("x")[:, 0].tolist()]
        for index in range(federation.clients)
    ]


def counts(federation: Federation) -> list[list[int]]:
    return [federation.label_counts(index).tolist() for index in range(federation.clients)]


def sizes(federation: Federation) -> list[int]:
    return [len(shard) for shard in shards(federation)]


def test_there_is_a_case_or_a_reason_for_every_partitioner_of_the_library() -> None:
    from flwr_datasets import partitioner

    assert set(partitioner.__all__) == CASES.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", CASES)
def test_rows_are_held_at_most_once_and_follow_from_the_seed(name: str) -> None:
    held = shards(divided(name, 3))
    assert len(held) == 4
    assert max(Counter(row for shard in held for row in shard).values()) == 1
    assert held == shards(divided(name, 3))
    assert held != shards(divided(name, 4))


def test_what_the_partitioner_draws_follows_from_the_seed_too() -> None:
    one, other = (counts(divided("DirichletPartitioner", seed)) for seed in (3, 4))
    assert one != other


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("IidPartitioner", [250] * 4),
        ("LinearPartitioner", [100, 200, 300, 400]),  # 1 : 2 : 3 : 4
        ("SquarePartitioner", [33, 133, 300, 534]),  # 1 : 4 : 9 : 16 of 30, rounded down; the last has the rest
        ("ExponentialPartitioner", [32, 87, 236, 645]),  # e : e^2 : e^3 : e^4
        ("SizePartitioner", [100, 200, 300, 400]),
        ("InnerDirichletPartitioner", [250] * 4),
    ],
)
def test_sizes_are_those_of_the_partitioner(name: str, expected: list[int]) -> None:
    assert sizes(divided(name)) == expected


def test_pathological_clients_have_two_neighbouring_classes() -> None:
    """250 rows of each of four classes; each class has two clients, and 125 rows for each."""
    assert counts(divided("PathologicalPartitioner")) == [
        [125, 125, 0, 0],
        [0, 125, 125, 0],
        [0, 0, 125, 125],
        [125, 0, 0, 125],
    ]


def test_shards_are_two_stretches_of_sorted_labels() -> None:
    """Eight shards of 125 rows, two of each class."""
    found = counts(divided("ShardPartitioner"))
    assert {count for client in found for count in client} <= {0, 125, 250}
    assert [sum(client) for client in found] == [250] * 4


def test_a_distribution_is_divided_in_the_given_proportions() -> None:
    """One to three of 250 rows: 62.5 and 187.5, rounded down, and the odd row goes to one of the two."""
    found = sorted(count for client in counts(divided("DistributionPartitioner")) for count in client if count)
    assert [62 <= count <= 63 for count in found[:4]] == [True] * 4
    assert [187 <= count <= 188 for count in found[4:]] == [True] * 4
    assert sum(found) == 1000


def test_continuous_labels_are_sorted_into_clients() -> None:
    source = from_arrays(np.arange(1000, dtype=np.float32)[:, None], np.linspace(0, 1, 1000))
    held = shards(divided("ContinuousPartitioner", source=source))
    assert [(min(shard), max(shard)) for shard in held] == [(0, 249), (250, 499), (500, 749), (750, 999)]


def test_clients_are_users_or_groups_of_users_drawn_by_the_seed() -> None:
    users = [{row // 4 % 20 for row in shard} for shard in shards(divided("NaturalIdPartitioner", clients=50))]
    assert sorted(user for client in users for user in client) == list(range(20))
    assert {len(client) for client in users} == {1}
    few = [{row // 4 % 20 for row in shard} for shard in shards(divided("NaturalIdPartitioner", clients=3))]
    assert len(few) == 3
    groups = [{row // 4 % 20 for row in shard} for shard in shards(divided("GroupedNaturalIdPartitioner"))]
    assert [len(client) for client in groups] == [5] * 4


def test_rows_without_a_user_are_left_out_where_users_are_clients() -> None:
    source = from_arrays(np.arange(6, dtype=np.float32)[:, None], [0, 1] * 3, ["a", "", "a", "b", "", "b"])
    assert sorted(map(sorted, shards(divided("NaturalIdPartitioner", source=source)))) == [[0, 2], [3, 5]]


def test_a_class_that_the_training_rows_lack_does_no_harm() -> None:
    """Class 1 of three has no rows at all; the partitioner counts classes from 0."""
    source = from_arrays(np.arange(400, dtype=np.float32)[:, None], np.arange(400) % 2 * 2, names=("a", "b", "c"))
    told = {"flwr": {"partition_sizes": [100] * 4, "alpha": 100.0}}
    assert [sum(client) for client in counts(divided("InnerDirichletPartitioner", source=source, **told))] == [100] * 4


def test_samples_are_the_most_that_a_client_keeps_and_idle_rows_are_counted() -> None:
    federation = divided("LinearPartitioner", samples=150)
    assert sizes(federation) == [100, 150, 150, 150]
    assert federation.idle_rows == 450
    assert divided("LinearPartitioner").idle_rows == 0


@pytest.mark.parametrize(
    ("name", "told", "said"),
    [
        ("PathologicPartitioner", {}, "no such partitioner. Did you mean 'flwr:PathologicalPartitioner'?"),
        ("Nothing", {}, "no such partitioner. There are: ContinuousPartitioner, "),
        ("VerticalSizePartitioner", {}, "cannot be used: it divides columns among clients"),
        ("IdToSizeFncPartitioner", {}, "it takes a function, which settings cannot hold"),
        ("DirichletPartitioner", {"flwr": {}}, "needs data.flwr.alpha; set it"),
        ("DirichletPartitioner", {"flwr": {"alhpa": 1}}, "has no setting 'alhpa' for DirichletPartitioner. Did"),
        ("IidPartitioner", {"flwr": {"alpha": 1}}, "has no setting 'alpha' for IidPartitioner. There are: none."),
        ("DirichletPartitioner", {"flwr": {"seed": 1}}, "data.flwr.seed follows from the seed of the run; leave"),
        ("IidPartitioner", {"flwr": {"num_partitions": 1}}, "data.flwr.num_partitions follows from data.clients"),
        ("DirichletPartitioner", {"flwr": {"alpha": 1, "partition_by": "x"}}, "divides rows by 'x', which this data"),
        ("DirichletPartitioner", {"flwr": {"alpha": "much"}}, "The given alpha format is not supported."),
        ("SizePartitioner", {"flwr": {"partition_sizes": [1, 2]}}, "makes 2 clients, and data.clients = 4; make them"),
        ("SizePartitioner", {"flwr": {"partition_sizes": [1000] * 4}}, "is greater than the size of the dataset 1000"),
        ("IidPartitioner", {"quantity_skew": "power"}, "has sizes of its own"),
        ("IidPartitioner", {"lean": 0.5}, "data.lean = 0.5 needs data.partition = 'iid' or 'dirichlet'"),
        ("DistributionPartitioner", {"flwr": {**CASES["DistributionPartitioner"], "distribution_array": [[1], [1, 2]]}},
         "data.flwr.distribution_array must be a list of lists of numbers"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(name: str, told: dict[str, object], said: str) -> None:
    with pytest.raises((SettingsError, ValueError)) as caught:
        divided(name, **told)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_that_are_numbers_and_users_that_there_are_not_are_refused() -> None:
    source = from_arrays(np.arange(100, dtype=np.float32)[:, None], np.linspace(0, 1, 100))
    with pytest.raises(SettingsError, match="needs one class per row, and labels are numbers; choose ContinuousPart"):
        divided("DirichletPartitioner", source=source)
    with pytest.raises(SettingsError, match="divides rows by 'user', which this data does not have; it can be 'label'"):
        divided("NaturalIdPartitioner", source=source)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["PathologicalPartitioner", "ShardPartitioner", "DirichletPartitioner", "SquarePartitioner"]),
    rows=st.integers(40, 200),
    clients=st.integers(2, 6),
    seed=st.integers(0, 2**40),
)
def test_every_row_is_held_at_most_once(name: str, rows: int, clients: int, seed: int) -> None:
    try:
        federation = divided(name, seed, numbered(rows), clients=clients, validation=0.1)
    except SettingsError:
        return
    held = Counter(row for shard in shards(federation) for row in shard)
    assert max(held.values(), default=0) <= 1
    assert not {int(row) for row in federation.validation.column("x")[:, 0].tolist()} & set(held)


RUN = """
import json, socket, sys

def refuse(*given, **named):
    raise SystemExit("something reached for the network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from potluck.run import experiment, run, resume
settings = {"rounds": 2, "cohort": 4, "data": {"clients": 4, "partition": "flwr:PathologicalPartitioner",
            "flwr": {"num_classes_per_partition": 1}}, "run": {"engine": "serial"}}
said = []

class Heard:
    def warn(self, text):
        said.append(text)

whole = run(experiment(settings), sys.argv[1] + "/whole")
run(experiment({**settings, "rounds": 1}), sys.argv[1] + "/part", watch=Heard())
more = resume(sys.argv[1] + "/part", rounds=2)
from flwr_datasets.common.telemetry import FLWR_TELEMETRY_ENABLED
print(json.dumps([whole.scores == more.scores, FLWR_TELEMETRY_ENABLED, said[0]]))
"""


@pytest.mark.slow
def test_a_run_reaches_for_no_network_writes_no_cache_and_resumes_to_the_same_scores(tmp_path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # Of what the library draws with: matplotlib may keep a list of fonts. It is told where, and is not looked at.
    kept = {"HOME": str(home), "HF_HOME": str(home / "hf"), "MPLCONFIGDIR": str(tmp_path / "fonts")}
    told = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")} | kept
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)], env=told, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    same, telemetry, said = json.loads(done.stdout.splitlines()[-1])
    assert same
    assert telemetry == "0"
    assert re.fullmatch(r"data\.partition = 'flwr:PathologicalPartitioner' leaves \d+ training rows to nobody\.", said)
    assert list(home.rglob("*")) == []
