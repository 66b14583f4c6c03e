"""What trackers are told, as flat names and values."""

from potluck.track.values import Costs, flat_costs, flat_scores, flat_settings


def test_settings_are_named_by_their_path_and_lists_of_plain_values_are_texts():
    plain = {
        "name": "a",
        "local": {"lr": 0.1, "clip": None},
        "tier": [{"depth": 1}, {"depth": 2}],
        "nodes": {"shape": [1, 28, 28], "deadlines": {}},
    }
    assert flat_settings(plain) == {
        "name": "a",
        "local.lr": 0.1,
        "local.clip": None,
        "tier.0.depth": 1,
        "tier.1.depth": 2,
        "nodes.shape": "[1, 28, 28]",
        "nodes.deadlines": "{}",
    }


def test_where_a_run_is_tracked_is_not_told_to_trackers():
    assert flat_settings({"seed": 1, "track": {"mlflow": "http://lab:5000"}}) == {"seed": 1}


def test_scores_are_named_by_their_path_without_lists_texts_and_gaps():
    line = {
        "round": 3,
        "metric": "accuracy",
        "global": {"test": {"accuracy": 0.5, "per_class": [0.0, 1.0]}},
        "tiers": {"phone": {"clients": {"mean": 0.25, "worst": None, "ids": ["c1"]}}},
        "clients": None,
    }
    assert flat_scores(line) == {"global/test/accuracy": 0.5, "tiers/phone/clients/mean": 0.25}


def test_tiers_with_odd_names_stay_apart_under_names_that_every_tracker_takes():
    line = {"tiers": {"../x": {"mean": 1.0}, "<x>": {"mean": 2.0}, "_x_": {"mean": 3.0}, "": {"mean": 4.0}}}
    assert flat_scores(line) == {
        "tiers/_x/mean": 1.0,
        "tiers/_x_/mean": 2.0,
        "tiers/_x_-2/mean": 3.0,
        "tiers/_/mean": 4.0,
    }


def test_numbers_that_are_not_finite_are_left_out():
    assert flat_scores({"a": float("nan"), "b": float("inf"), "c": 1}) == {"c": 1.0}


def test_measured_seconds_are_not_told_because_they_differ_when_a_round_is_done_again():
    assert flat_costs({"seconds": 3.0, "round_seconds": 2.0}) == {"cost/round_seconds": 2.0}


def test_costs_add_up_from_the_ledger_with_the_servers_own_work_apart():
    costs = Costs()
    task = {"event": "task", "measured": {"bytes_down": 10, "bytes_up": 4}, "modelled": {"flops": 7, "joules": 0.5}}
    for event in (
        {**task, "client": "c1"},
        {**task, "client": "server"},
        {"event": "attempt", "device_seconds": 100.0},
        {"event": "round", "device_seconds": 2.0, "round_seconds": 3.0},
        {**task, "client": "c2"},
    ):
        costs.add(event)
    assert costs.totals == {
        "bytes_down": 20,
        "bytes_up": 8,
        "flops": 14,
        "joules": 1.0,
        "server_flops": 7,
        "server_joules": 0.5,
        "device_seconds": 2.0,
        "round_seconds": 3.0,
    }
