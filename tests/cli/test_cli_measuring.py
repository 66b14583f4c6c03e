"""`potluck measure` and `potluck fit-fleet`."""

import json

import pytest

from potluck.run.devices import read_fit, read_profile

ROUNDS = ("--set", "rounds=1")
LIST = {
    "source": "invented",
    "devices": [{"ram_gb": 2, "score": 100}, {"name": "large", "ram_gb": 8, "score": 900, "count": 1}],
    "traces": [{"active": [0], "inactive": [43200], "finish_time": 86400, "model": "none", "duration": 43200}],
}


def test_measure_writes_a_profile_that_a_tier_can_have(potluck, place):
    code, out, err = potluck(
        *("measure", "mlp", "--input", "6", "--classes", "3", "--set", "model.hidden=12", "--set", "local.batch=4"),
        *("--seconds", "0", "--to", "my.toml", "--down", "5", "--like", "tv"),
    )
    assert code == 0
    assert "wrote my.toml" in out
    assert "1 thread, batches of 4, the fastest step of 2 passes (processor time)" in out
    assert "mlp: pass 0" in err
    found = read_profile(place / "my.toml")
    assert (found.model, found.down, found.up, found.like) == ("mlp", 5.0, None, "tv")
    code, _, _ = potluck("run", "tiny.toml", "--set", "method.name=fedavg", "--set", "tier.0.profile=my.toml", *ROUNDS)
    assert code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("measure", "mpl"), 2, "there is no model family 'mpl'. Did you mean 'mlp'?"),
        (("measure", "gone.toml"), 2, "gone.toml: there is no such file"),
        (("measure", "mlp", "--input", "6x6"), 2, "--input 6x6: write whole numbers with commas, such as 3,32,32."),
        (("measure", "--like", "tvv"), 2, "--like = 'tvv' is not known. Did you mean 'tv'?"),
        (("fit-fleet", "gone.json"), 2, "gone.json: there is no such file"),
        (("fit-fleet", "odd.json"), 2, "has no setting 'ram'. Did you mean 'ram_gb'?"),
        (("fit-fleet", "list.json", "--to", "no/such/fleet.json"), 6, "cannot be written"),
    ],
)
def test_a_mistake_is_one_line(fail, place, words, code, said):
    (place / "list.json").write_text(json.dumps(LIST))
    (place / "odd.json").write_text(json.dumps({**LIST, "devices": [{"ram": 2, "score": 1}]}))
    found, line = fail(*words)
    assert found == code
    assert said in line


def test_fit_fleet_keeps_the_fitted_numbers_alone(potluck, place):
    (place / "list.json").write_text(json.dumps(LIST))
    code, out, err = potluck("fit-fleet", "list.json", "--like", "tv", "--to", "fleet.json")
    assert (code, err) == (0, "")
    assert "2 devices: memory 4 GB (x/ 2.00), 3.8 GFLOP/s (x/ 3.00), correlation 1.00" in out
    assert "available: 0% to 100% by the hour, in blocks of 6 h" in out
    fit = read_fit(place / "fleet.json")
    assert fit.available == (1.0,) * 12 + (0.001,) * 12
    assert "large" not in (place / "fleet.json").read_text()
    code, _, _ = potluck("run", "tiny.toml", "--set", "method.name=fedavg", "--set", "fleet.file=fleet.json", *ROUNDS)
    assert code == 0
