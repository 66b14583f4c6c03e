"""What a run writes down for methods that hand out parts."""

import pytest
from tiny_runs import events, scores, tiny

from potluck.run import run


def half(name, **changes):
    """Every client trains half of eight units a layer."""
    return tiny(
        method={"name": name},
        model={"name": "mlp", "hidden": 8, "depth": 1},
        tier=[{"name": "half", "width": 0.5}],
        rounds=8,
        cohort=2,
        **changes,
    )


@pytest.mark.parametrize(("name", "expected"), [("fedrolex", [8] * 8), ("heterofl", [16] * 4 + [0] * 4)])
def test_the_ledger_counts_how_often_each_unit_was_trained(name, expected, tmp_path):
    """Eight rounds of two clients with four of eight units: a window that rolls is even, a prefix is not."""
    run(half(name), tmp_path / "run")
    assert events(tmp_path / "run", "coverage")[-1]["groups"] == {"hidden0": expected, "hidden1": expected}
    assert events(tmp_path / "run", "round")[-1]["least"] == min(expected)


def test_methods_that_train_everything_count_no_units(tmp_path):
    run(tiny(rounds=2), tmp_path / "run")
    assert not events(tmp_path / "run", "coverage")
    assert all("least" not in event for event in events(tmp_path / "run", "round"))


def test_local_accuracy_lets_only_a_clients_own_classes_compete(tmp_path):
    data = {"clients": 6, "partition": "labels", "labels": 1}
    run(half("fedrolex", data=data, score={"every": 8, "clients": 4, "local": True}), tmp_path / "run")
    last = scores(tmp_path / "run")[-1]
    assert last["local"]["count"] == 4
    assert last["local"]["mean"] > last["clients"]["mean"]
