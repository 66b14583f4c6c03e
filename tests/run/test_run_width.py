"""What a run writes down for methods that hand out parts."""

from pathlib import Path

import numpy as np
import pytest
from tiny_runs import events, scores, tiny

from potluck.core import SettingsError
from potluck.data import from_arrays
from potluck.ledger import read_run
from potluck.run import assemble, read_experiment, resume, run
from potluck.run.assemble import networks

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


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


def mixed(name: str):
    """An experiment's tiers as they come to be on CIFAR-sized images, 500 a client."""
    found = read_experiment(EXPERIMENTS / "fedrolex" / name)
    source = from_arrays(np.zeros((10, 3, 32, 32), np.uint8), np.arange(10))
    return networks(found, source, 500)[1]


def test_the_papers_mix_of_devices_comes_to_the_papers_widths():
    tiers = mixed("table4.toml")
    assert [tier.share for tier in tiers] == [6, 10, 11, 18, 55]
    assert [tier.width for tier in tiers] == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]
    assert tiers[1].spec.sizes["stage0"] == 32


def test_a_tier_takes_the_widest_network_that_its_device_can_carry(tmp_path):
    fleet = {"seconds": 0.02}
    tiers = [{"name": name, "width": "fit", "profile": name} for name in ("laptop", "camera")]
    result = run(
        tiny(model={"name": "mlp", "hidden": 64}, tier=tiers, fleet=fleet, method={"name": "fedrolex"}), tmp_path / "r"
    )
    widths = {tier["name"]: tier["width"] for tier in read_run(result.folder).manifest["tiers"]}
    assert widths["laptop"] == 1.0
    assert widths["camera"] in (0.5, 0.25, 0.125, 0.0625)
    again = resume(result.folder, rounds=4)
    assert again.rounds == 4


def test_a_device_that_no_width_fits_is_refused_before_round_0():
    tiers = [{"name": "eye", "width": "fit", "profile": "camera"}]
    with pytest.raises(SettingsError, match=r"tier 'eye': no width fits the profile 'camera': the narrowest, 0\.0625"):
        assemble(tiny(tier=tiers, fleet={"seconds": 1e-6}))
    with pytest.raises(SettingsError, match=r"fleet\.widths = \[2\.0\] must hold numbers above 0 and at most 1"):
        tiny(fleet={"widths": [2.0]})
