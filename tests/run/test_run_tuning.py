"""Every method chooses its settings by validation score, on seeds and rows that no table shows."""

import json
import tomllib

import numpy as np
import pytest
import torch
from tiny_runs import Listener, tiny

from potluck.cli.arguments import run_folders
from potluck.core import SettingsError
from potluck.data import Federation, from_arrays, load
from potluck.ledger import read_run
from potluck.methods import FedProx
from potluck.report import read_record
from potluck.run import FailedRun, Result, compare, experiment, run
from potluck.run.planning import ComparedMethod
from potluck.run.tuning import Candidate, choose

RATES = {"local.lr": (0.003, 0.03, 0.3, 30.0)}
TWO = [{"name": "fedavg"}, {"name": "fedprox", "mu": 10.0}]
ONE_TIER = [{"name": "all"}]


def settings(grid=RATES, **changes):
    told = {"rounds": 4, "cohort": 4, "tier": ONE_TIER, "method": {"name": "fedavg"}, **changes}
    return tiny(**{**told, "compare": {"tune": grid, **changes.get("compare", {})}, "run": {"retries": 0}})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Two methods, four rates, one seed to choose and two to show."""
    out = tmp_path_factory.mktemp("tuned")
    return out, compare(settings(), out, TWO, [0, 1])


def test_two_methods_choose_different_rates(tuned):
    out, results = tuned
    choices = {choice["label"]: choice for choice in json.loads((out / "tune.json").read_text())}
    assert choices["fedavg"]["values"] == {"local.lr": 0.3}
    assert choices["fedprox (mu=10.0)"]["values"] == {"local.lr": 0.03}
    assert [read_run(one.folder).settings.count("lr = 0.3\n") for one in results] == [1, 0, 1, 0]
    assert [(one.method, one.seed) for one in results] == [("fedavg", 0), ("fedprox", 0), ("fedavg", 1), ("fedprox", 1)]


def test_a_rate_that_diverges_is_never_chosen_and_is_told(tuned):
    out, _ = tuned
    tried = json.loads((out / "tune.json").read_text())[1]["tried"]
    assert [bool(one["failed"]) for one in tried] == [False, False, True, True]
    assert tried[2]["score"] is None


def test_what_diverged_is_part_of_the_cost_of_choosing(tuned):
    out, _ = tuned
    choice = json.loads((out / "tune.json").read_text())[1]
    spent = [read_record(folder).totals for folder in sorted((out / "tune").glob("fedprox*"))]
    assert len(spent) == 4
    assert choice["cost"]["bytes_down"] == sum(one.bytes_down for one in spent)
    assert choice["cost"]["joules"] == pytest.approx(sum(one.joules for one in spent))


def test_the_choice_is_by_the_validation_rows_and_its_cost_is_told(tuned):
    out, results = tuned
    choice = json.loads((out / "tune.json").read_text())[0]
    for one in choice["tried"]:
        last = read_run(out / "tune" / f"fedavg_local.lr={one['values']['local.lr']}-s1000").scores[-1]
        assert one["score"] == last["global"]["validation"]["accuracy"]
        assert one["score"] != last["global"]["test"]["accuracy"]
    assert choice["score"] == max(one["score"] for one in choice["tried"])
    bytes_of_one = results[0].totals["bytes_up"]
    assert choice["cost"]["bytes_up"] == 4 * bytes_of_one
    assert (choice["seeds"], choice["runs"], choice["edge"]) == ([1000], 4, [])


def test_the_settings_of_a_run_say_what_was_chosen(tuned):
    _, results = tuned
    chosen = told_by(results[0].folder).compare.chosen
    assert chosen["values"] == {"local.lr": 0.3}
    assert "tried" not in chosen


def told_by(folder):
    """The settings of a run."""
    return experiment(tomllib.loads(read_run(folder).settings))


def test_the_same_comparison_again_runs_nothing(tuned):
    out, results = tuned
    heard = []

    def watcher(label, seed):
        heard.append(Listener())
        return heard[-1]

    again = compare(settings(), out, TWO, [0, 1], watcher)
    assert [one.plain() for one in again] == [one.plain() for one in results]
    assert len(heard) == 12
    assert [watch.rounds for watch in heard] == [[]] * 12


def test_a_grid_that_has_grown_is_told_in_the_runs_and_a_dropped_choice_is_left_out(tmp_path):
    compare(settings({"local.lr": (0.003, 0.03)}), tmp_path, TWO[:1], [0])
    (first,) = run_folders([tmp_path])
    assert read_record(first).chosen["edge"] == ["local.lr"]
    compare(settings({"local.lr": (0.003, 0.03, 0.0001)}), tmp_path, TWO[:1], [0, 1])
    facts = json.loads((tmp_path / "tune.json").read_text())[0]
    assert [(read_record(one).chosen["runs"], read_record(one).seed) for one in run_folders([tmp_path])] == [
        (3, 0),
        (3, 1),
    ]
    assert read_record(first).chosen["cost"] == facts["cost"]
    compare(settings({"local.lr": (0.03, 0.3)}), tmp_path, TWO[:1], [0])
    found = run_folders([tmp_path])
    assert [one.name for one in found] == ["fedavg_local.lr=0.3-s0"]
    assert first.exists()
    assert run_folders([first]) == [first]


def test_test_rows_are_no_rows_of_the_runs_that_choose(tuned):
    """Digits has no test set of its own: the same rows are held out in all runs, to choose and to show."""
    out, results = tuned
    source = load(settings().data)
    told = [told_by(result.folder) for result in results]
    trial = told_by(out / "tune" / "fedavg_local.lr=0.3-s1000")
    tests = [inputs(Federation(source, one.data, one.seed).test) for one in told]
    assert all(torch.equal(tests[0], other) for other in tests[1:])
    choosing = Federation(source, trial.data, trial.seed)
    held = {row.numpy().tobytes() for row in tests[0]}
    rows = [inputs(choosing.validation), *(inputs(choosing.shard(index).train) for index in range(8))]
    used = {row.numpy().tobytes() for some in rows for row in some}
    twins = {row.numpy().tobytes() for row in inputs(source.train)}
    assert len(used) + len(held) == len(twins) == len(source.train)


def inputs(examples):
    return examples[slice(0, len(examples))]["x"]


def test_other_labels_of_the_test_rows_change_no_choice(tmp_path):
    """The same data with nonsense in place of the test labels: the same choices by the same scores."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = rng.normal(0, 1, (400, 6)).astype(np.float32) + 2 * np.eye(3, 6, dtype=np.float32)[y]
    tests = {"x_test": x[300:], "names": ("a", "b", "c"), "name": "made"}
    honest = from_arrays(x[:300], y[:300], y_test=y[300:], **tests)
    nonsense = from_arrays(x[:300], y[:300], y_test=(y[300:] + 1) % 3, **tests)
    found = []
    for name, source in (("honest", honest), ("nonsense", nonsense)):
        results = compare(settings({"local.lr": (0.001, 0.3)}), tmp_path / name, TWO[:1], [0], source=source)
        choice = json.loads((tmp_path / name / "tune.json").read_text())
        found.append(([(one["values"], one["score"], one["tried"]) for one in choice], results[0]))
    assert found[0][0] == found[1][0]
    assert found[0][1].score > found[1][1].score + 0.1


def test_a_methods_own_setting_is_tuned_for_it_alone(tmp_path):
    grid = {"fedprox.mu": (0.0, 50.0)}
    results = compare(settings(grid, rounds=2), tmp_path, [{"name": "fedavg"}, {"name": "fedprox"}], [0])
    assert len(list((tmp_path / "tune").iterdir())) == 3
    assert [one.folder.name for one in results] == ["fedavg-s0", "fedprox_fedprox.mu=0.0-s0"]


def test_a_method_object_is_tuned_as_well(tmp_path):
    told = settings({"FedProx.mu": (0.0, 50.0), "local.lr": (0.1,)}, rounds=2)
    (found,) = compare(told, tmp_path, [FedProx(local=told.local)], [0])
    named = run(
        settings({}, rounds=2, local={"lr": 0.1}, data={"test_seed": 0}, method={"name": "fedprox", "mu": 0.0}),
        tmp_path / "named",
    )
    assert found.weights_sha256 == named.weights_sha256


def test_a_method_that_diverges_with_every_value_has_no_result_and_the_others_go_on(tmp_path):
    told = settings({"local.lr": (0.1, 0.2)}, rounds=2)
    results = compare(told, tmp_path, [{"name": "tiny_runs:Diverges", "last": 0}, {"name": "fedavg"}], [0, 1])
    assert [type(one) for one in results] == [FailedRun, Result, FailedRun, Result]
    assert results[0].how == "diverged"
    assert "with every value that was tried" in results[0].reason


def test_methods_without_a_server_model_choose_by_their_tiers(tmp_path):
    told = settings({"local.lr": (0.0001, 0.1)}, rounds=2)
    compare(told, tmp_path, [{"name": "local"}], [0])
    (choice,) = json.loads((tmp_path / "tune.json").read_text())
    last = read_run(tmp_path / "tune" / "local_local.lr=0.1-s1000").scores[-1]
    assert last["global"] is None
    assert choice["tried"][1]["score"] == last["tiers"]["all"]["validation"]["accuracy"]


@pytest.mark.parametrize(
    ("grid", "changes", "said"),
    [
        (
            {"locl.lr": (1,)},
            {},
            r"compare\.tune 'locl\.lr': there is no section or method 'locl' here\. Did you mean 'local'",
        ),
        ({"local.rate": (1,)}, {}, r"\[local\] has no setting 'rate'"),
        ({"method.mu": (1,)}, {}, r"write the name of the method, such as 'fedavg\.mu'"),
        ({"fedavg.mu": (1,)}, {}, r"has no setting 'mu'"),
        (RATES, {"data": {"validation": 0.0}}, "data.validation is 0"),
        ({"local.lr": (0.1, 0.2, 0.1)}, {}, r"compare\.tune 'local\.lr': 0\.1 is given twice"),
        (RATES, {"compare": {"tune_seeds": (3, 3)}}, r"compare\.tune_seeds = \[3, 3\] has a seed twice"),
        *(
            ({name: (1, 2)}, {}, rf"compare\.tune '{name}': methods that differ in {name.split('.')[0]} cannot be")
            for name in ("rounds", "cohort", "data.clients", "fleet.dropout")
        ),
        (
            RATES,
            {"compare": {"tune_seeds": (3, 0)}},
            "seed 0 is a seed of the comparison and one of compare.tune_seeds",
        ),
    ],
)
def test_a_tuning_that_cannot_work_is_refused_before_anything_runs(grid, changes, said, tmp_path):
    with pytest.raises(SettingsError, match=said):
        compare(settings(grid, **changes), tmp_path / "out", [{"name": "fedavg"}], [0])
    assert not (tmp_path / "out").exists()


def outcome(score, seed=0):
    scores = {"metric": "accuracy", "global": {"validation": {"accuracy": score}, "test": {"accuracy": 0.9}}}
    return Result("folder", "fedavg", 1, seed, scores, {}, "")


def chosen(scores, grid):
    entry = ComparedMethod("fedavg", settings({}))
    tried = [
        (Candidate(entry, {"local.lr": value}, entry), [outcome(score) for score in some])
        for value, some in zip(grid, scores, strict=True)
    ]
    return choose(entry, tried, {"local.lr": grid}).facts


def test_the_mean_over_seeds_decides_and_of_equals_the_first():
    assert chosen([(0.5, 0.75), (0.75, 0.5), (0.25, 0.75)], (1, 2, 3))["values"] == {"local.lr": 1}
    assert chosen([(0.5, 0.5), (0.75, 0.5), (0.25, 0.75)], (1, 2, 3))["score"] == 0.625


@pytest.mark.parametrize(
    ("scores", "grid", "edge"),
    [
        ([(0.9,), (0.5,), (0.4,)], (0.1, 0.2, 0.3), ["local.lr"]),
        ([(0.4,), (0.9,), (0.4,)], (0.1, 0.2, 0.3), []),
        ([(0.4,), (0.9,), (0.4,)], (0.2, 0.1, 0.3), ["local.lr"]),
        ([(0.9,)], (0.1,), []),
        ([(0.9,), (0.8,)], ("constant", "cosine"), []),
    ],
)
def test_a_choice_at_the_end_of_the_numbers_that_were_tried_is_at_the_edge(scores, grid, edge):
    assert chosen(scores, grid)["edge"] == edge
