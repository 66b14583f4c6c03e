"""What a run records of who holds what: counts that add up, of an even sample of the clients."""

import json

import numpy as np
import pytest
from tiny_runs import tiny

from potluck.data import from_arrays
from potluck.ledger import read_run
from potluck.run import assemble, resume, run
from potluck.run.export_card import known_data
from potluck.run.holdings import LABELS, who_holds_what


def numbered(rows=1000, classes=10, **more):
    return from_arrays(np.arange(rows, dtype=np.float32)[:, None], np.arange(rows) % classes, **more)


def test_counts_are_those_of_the_shards_and_tiers_those_of_the_clients():
    experiment = tiny(data={"partition": "labels", "labels": 2}, tier=[{"name": "a", "share": 3}, {"name": "b"}])
    found = who_holds_what(experiment, numbered())
    datasets = assemble(experiment, numbered()).context.datasets
    assert (found["partition"], found["clients"], found["labels"]) == ("labels", 8, [str(n) for n in range(10)])
    assert found["tiers"] == [
        {"name": "a", "clients": 6, "absent": False},
        {"name": "b", "clients": 2, "absent": False},
    ]
    for each in found["held"]:
        labels = datasets.shard(each["client"]).train.column("y").numpy()
        assert each["counts"] == np.bincount(labels, minlength=10).tolist()
    assert [each["tier"] for each in found["held"]] == ["a"] * 6 + ["b"] * 2
    assert sum(map(sum, (each["counts"] for each in found["held"]))) == 700


def test_of_many_clients_every_tier_gives_an_even_sample():
    rows = [{"name": "a", "share": 98}, {"name": "b", "share": 1, "absent": True}, {"name": "c", "share": 1}]
    found = who_holds_what(tiny(data={"clients": 100_000, "samples": 3}, tier=rows), numbered(), most=50)
    tiers = [each["tier"] for each in found["held"]]
    assert [tiers.count(name) for name in "abc"] == [49, 1, 1]
    assert found["held"][0]["client"] == "c0"
    assert found["held"][48]["client"] == "c97999"
    assert {sum(each["counts"]) for each in found["held"]} == {3}
    assert found["clients"] == 100_000
    assert [tier["absent"] for tier in found["tiers"]] == [False, True, False]


def test_of_many_labels_the_rarest_are_counted_together():
    source = from_arrays(np.zeros((3000, 1), np.float32), np.minimum(np.arange(3000) // 50, 49))
    experiment = tiny(data={"clients": 2, "test": 0.0, "validation": 0.0})
    found = who_holds_what(experiment, source)
    assert len(found["labels"]) == LABELS
    assert found["labels"][-2:] == ["49", "11 others"]  # the last class has 550 rows, the others 50
    assert sum(each["counts"][-2] for each in found["held"]) == 550
    assert sum(each["counts"][-1] for each in found["held"]) == 11 * 50
    assert sum(sum(each["counts"]) for each in found["held"]) == 3000


def test_rows_without_a_single_class_are_counted_and_changing_tiers_are_one():
    source = from_arrays(np.zeros((100, 2), np.float32), np.linspace(0, 1, 100))
    found = who_holds_what(tiny(data={"clients": 5}, fleet={"tiers": "redrawn"}), source)
    assert found["labels"] == []
    assert [each["counts"] for each in found["held"]] == [[14]] * 5
    assert [tier["name"] for tier in found["tiers"]] == [""]


def test_a_run_records_it_and_resuming_keeps_it(tmp_path):
    experiment = tiny(rounds=1, data={"lean": 1.0})
    run(experiment, tmp_path / "run")
    recorded = read_run(tmp_path / "run").holdings()
    assert recorded == json.loads(json.dumps(who_holds_what(experiment)))
    resume(tmp_path / "run", rounds=2)
    assert read_run(tmp_path / "run").holdings() == recorded


def test_a_run_with_skewed_quantities_and_features_that_lean_resumes_to_the_same_bits(tmp_path):
    told = {"lean": 0.7, "lean_by": "features", "quantity_skew": "power", "beta": 1.0, "least": 5}
    whole = run(tiny(rounds=2, data=told), tmp_path / "whole")
    run(tiny(rounds=1, data=told), tmp_path / "part")
    again = resume(tmp_path / "part", rounds=2)
    assert whole.weights_sha256 == again.weights_sha256


def test_the_test_rows_of_a_run_whose_labels_lean_are_found_again(tmp_path):
    """A model that is exported is checked on them."""
    from potluck.run import data_record
    from potluck.run.assemble import assemble_without_data

    experiment = tiny(rounds=1, data={"lean": 1.0})
    run(experiment, tmp_path / "run")
    record = data_record.read(read_run(tmp_path / "run").manifest, tmp_path / "run")
    found = known_data(assemble_without_data(experiment, record), record, nodes=False)
    assert found is not None
    assert len(found.test) == len(assemble(experiment).context.datasets.shard("server").test)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"partition": "dirichlt"}, "data.partition = 'dirichlt': did you mean 'dirichlet'? There are iid, labels"),
        ({"flwr": {"alpha": 1}}, "data.flwr has 'alpha', and data.partition = 'iid' is none of flwr-datasets"),
        ({"quantity_skew": "dirichlet", "partition": "user"}, "'user' has sizes of its own"),
        ({"beta": float("inf")}, "beta = inf is not a finite number"),
    ],
)
def test_settings_that_mean_nothing_are_one_line(told, said):
    from potluck.core import SettingsError

    with pytest.raises(SettingsError) as caught:
        tiny(data=told)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
