import errno
import hashlib
import shutil
from pathlib import Path

import pytest
import torch
from tiny_runs import Listener, StopsAfter, cohorts, tiny

import potluck
from potluck.core import SettingsError
from potluck.ledger import FolderError, read_run
from potluck.report import compare_rows, read_record
from potluck.run import Interrupted, assemble, compare, resume, run
from potluck.run.comparison import UnfinishedComparison, refuse_unfinished
from potluck.run.labels import label
from potluck.run.planning import plan_entries
from potluck.run.session import changed_settings, mark

METHODS = [{"name": "fedavg", "share": "layerwise"}, {"name": "alllarge"}, {"name": "local"}]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Three methods over two seeds."""
    out = tmp_path_factory.mktemp("compared")
    return out, compare(tiny(), out, METHODS, [0, 1], lambda label, seed: Listener())


def test_each_method_and_seed_has_a_folder_of_its_own(compared):
    out, results = compared
    names = ["fedavg_share=layerwise", "alllarge", "local"]
    assert [result.folder for result in results] == [out / f"{name}-s{seed}" for seed in (0, 1) for name in names]
    assert [(result.method, result.seed) for result in results] == [
        (method["name"], seed) for seed in (0, 1) for method in METHODS
    ]


def test_every_method_meets_the_same_clients_in_every_round(compared):
    _, results = compared
    for seed in (0, 1):
        first, *others = [cohorts(result.folder) for result in results if result.seed == seed]
        assert set(first) == {1, 2, 3}
        assert others == [first, first]
    assert cohorts(results[0].folder) != cohorts(results[3].folder)


def test_every_method_meets_the_same_data():
    setups = [assemble(tiny(method=method)) for method in METHODS]
    for index in range(8):
        shards = [setup.context.datasets.shard(f"c{index}") for setup in setups]
        rows = [shard.train.rows for shard in shards]
        assert all(torch.equal(rows[0], other) for other in rows[1:])
        assert len(shards[0].train) > 100


def test_methods_that_share_everything_start_from_the_same_model(tmp_path):
    zero = compare(tiny(rounds=0), tmp_path, [{"name": "alllarge"}, {"name": "fedprox"}], [0], lambda *_: Listener())
    assert zero[0].weights_sha256 == zero[1].weights_sha256


def test_what_is_there_already_is_not_run_again(compared):
    out, results = compared
    heard = []

    def watcher(label, seed):
        heard.append(Listener())
        return heard[-1]

    again = compare(tiny(), out, METHODS, [0, 1], watcher)
    assert [result.plain() for result in again] == [result.plain() for result in results]
    assert [watch.rounds for watch in heard] == [[]] * 6
    assert [watch.warnings for watch in heard] == [["resumed at round 3"]] * 6


def test_what_was_stopped_is_gone_on_with(compared, tmp_path):
    _, results = compared
    watches = iter([Listener(), StopsAfter(2)])
    with pytest.raises(Interrupted) as caught:
        compare(tiny(), tmp_path / "all of it", METHODS, [0], lambda label, seed: next(watches))
    assert str(caught.value) == (
        f"interrupted with 1 runs done; go on with: the same command and --out '{tmp_path / 'all of it'}'"
    )
    again = compare(tiny(), tmp_path / "all of it", METHODS, [0], lambda label, seed: Listener())
    assert [result.weights_sha256 for result in again] == [result.weights_sha256 for result in results[:3]]


@pytest.mark.parametrize("changes", [{"local": {"lr": 0.5}}, {"cohort": 4}, {"rounds": 2}, {"data": {"clients": 9}}])
def test_a_folder_of_other_settings_is_not_taken_for_these(changes, compared):
    out, _ = compared
    with pytest.raises(SettingsError, match="holds a run with other settings than were asked for"):
        compare(tiny(**changes), out, METHODS, [0], lambda label, seed: Listener())


def test_a_setting_at_its_default_does_not_change_what_a_run_is():
    """So a folder can be resumed by code that knows more settings."""
    found = {"a": 1, "b": {"c": 2, "new": 0}, "tiers": [1], "d": {}}
    assert changed_settings(found, {"a": 1, "b": {"c": 1, "new": 0}, "tiers": [], "d": {}}) == {
        "b": {"c": 2},
        "tiers": [1],
    }
    gates = ({}, {"gate": {"strikes": 3}}, {"gate": {"strikes": 2}})
    first, second, third = (mark(assemble(tiny(**gate))) for gate in gates)
    assert first == second != third


@pytest.mark.parametrize("where", ["variants", "changes"])
def test_changes_of_a_methods_settings_that_would_be_lost_are_refused(where, tmp_path):
    asked = tiny(compare={where: {"fedavg": ["method.weighting=uniform"]}})
    with pytest.raises(
        SettingsError, match=r"changes 'method.weighting', but every method of a comparison has its own"
    ):
        compare(asked, tmp_path / "out", METHODS, [0], lambda label, seed: Listener())


def test_more_rounds_are_added_to_what_is_there(tmp_path):
    compare(tiny(rounds=1), tmp_path, METHODS[:1], [0], lambda label, seed: Listener())
    more = compare(tiny(rounds=3), tmp_path, METHODS[:1], [0], lambda label, seed: Listener())
    assert more[0].rounds == 3
    assert more[0].weights_sha256 == run(tiny(), tmp_path / "whole").weights_sha256


def test_a_method_that_does_not_exist_is_refused_before_the_first_one_runs(tmp_path):
    with pytest.raises(SettingsError, match="there is no method 'nope'"):
        compare(tiny(), tmp_path / "out", [*METHODS, {"name": "nope"}], [0], lambda label, seed: Listener())
    assert not (tmp_path / "out").exists()


def test_a_seed_that_cannot_be_is_refused_before_the_first_one_runs(tmp_path):
    with pytest.raises(SettingsError, match=r"seed = -1 is below 0\."):
        compare(tiny(), tmp_path / "out", METHODS, [0, -1], lambda label, seed: Listener())
    assert not (tmp_path / "out").exists()


def test_every_method_runs_under_every_variant(tmp_path):
    variants = {"two each": ["data.partition='labels'", "data.labels=2"], "lr = 0": ["local.lr=0.0"]}
    found = tiny(rounds=1, compare={"variants": variants})
    results = compare(found, tmp_path, [{"name": "alllarge"}, {"name": "fedprox"}], [0], lambda *_: Listener())
    folders = ["alllarge_two_each-s0", "fedprox_two_each-s0", "alllarge_lr_=_0-s0", "fedprox_lr_=_0-s0"]
    assert [result.folder.name for result in results] == folders
    assert results[2].weights_sha256 == results[3].weights_sha256 != results[0].weights_sha256
    assert [read_run(result.folder).manifest["variant"] for result in results] == 2 * ["two each"] + 2 * ["lr = 0"]


def test_a_variant_that_cannot_be_is_refused_before_the_first_run(tmp_path):
    for changes, said in (
        ({"a": ["local.lr=-1.0"]}, r"compare\.variants 'a': local\.lr = -1\.0 is below"),
        ({"a": ["local.rate=1.0"]}, r"compare\.variants 'a': \[local\] has no setting 'rate'"),
        ({"a": ["nothing"]}, r"write it as key=value"),
        ({"a/": ["local.lr=0.1"], "a?": ["local.lr=0.2"]}, r"would have the same name"),
    ):
        with pytest.raises(SettingsError, match=said):
            compare(tiny(compare={"variants": changes}), tmp_path, [{"name": "alllarge"}], [0], lambda *_: Listener())
    assert not list(tmp_path.iterdir())


def test_a_method_runs_only_under_the_variants_that_name_it(tmp_path):
    wide = {"wide": ["tier=[{name = 'small', width = 0.5}, {name = 'large'}]"], "deep": []}
    found = tiny(rounds=1, compare={"variants": wide, "only": {"wide": ["heterofl"], "deep": ["fedprox", "alllarge"]}})
    methods = [{"name": "alllarge"}, {"name": "heterofl"}, {"name": "fedprox", "share": "layerwise"}]
    results = compare(found, tmp_path, methods, [0], lambda *_: Listener())
    folders = ["heterofl_wide-s0", "alllarge_deep-s0", "fedprox_share=layerwise_deep-s0"]
    assert [result.folder.name for result in results] == folders


def test_a_method_may_have_tiers_of_its_own_in_a_comparison(tmp_path):
    """The small tier is shallow for FedProx and narrow for HeteroFL, in one comparison, on the same data."""
    narrow = ["tier.small.depth=2", "tier.small.width={'hidden*' = 0.5}"]
    found = tiny(rounds=1, compare={"changes": {"heterofl": narrow}})
    methods = [{"name": "fedprox", "share": "layerwise"}, {"name": "heterofl"}]
    results = compare(found, tmp_path, methods, [0], lambda *_: Listener())
    small = [read_run(result.folder).manifest["tiers"][0] for result in results]
    assert [tier["depth"] for tier in small] == [1, 2]
    assert [tier["width"] for tier in small] == [None, {"hidden0": 0.5, "hidden1": 0.5, "hidden2": 0.5}]


def test_changes_for_a_method_that_is_none_are_refused(tmp_path):
    found = tiny(compare={"changes": {"heterofi": ["local.lr=0.1"]}})
    with pytest.raises(SettingsError, match=r"compare\.changes: there is no method 'heterofi'"):
        compare(found, tmp_path, [{"name": "fedprox"}], [0], lambda *_: Listener())


def test_a_method_that_is_none_is_said_to_be_whatever_variants_there_are(tmp_path):
    found = tiny(compare={"variants": {"deep": []}, "only": {"deep": ["fedprox"]}})
    with pytest.raises(SettingsError, match=r"there is no method 'fedprx'\. Did you mean 'fedprox'\?"):
        compare(found, tmp_path, [{"name": "fedprx"}], [0], lambda *_: Listener())


def test_a_method_that_would_run_nowhere_is_refused_and_so_is_a_variant_that_is_none(tmp_path):
    found = tiny(compare={"variants": {"deep": []}, "only": {"deep": ["fedprox"]}})
    with pytest.raises(
        SettingsError, match=r"'alllarge' runs under no variant; add it to one of the lists of compare\.only"
    ):
        compare(found, tmp_path, [{"name": "fedprox"}, {"name": "alllarge"}], [0], lambda *_: Listener())
    with pytest.raises(SettingsError, match=r"compare\.only names 'shallow', which is not in compare\.variants"):
        tiny(compare={"variants": {"deep": []}, "only": {"shallow": ["fedprox"]}})
    assert not list(tmp_path.iterdir())


def test_the_manifest_calls_a_method_as_its_paper_does(tmp_path):
    found = run(tiny(rounds=0, method={"name": "dsfl", "aggregate": "sa"}, data={"public": 9}), tmp_path / "run")
    assert read_run(found.folder).manifest["label"] == "DS-FL (aggregate=sa)"


ADAM = {"name": "fedadam", "server": {"name": "adam", "lr": 0.1}}
OTHER = {"name": "fedavg", "server": {"name": "adam", "lr": 0.2}, "share": "layerwise"}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "fedavg", "local": {"lr": 0.01}}, "FedAvg (local.lr=0.01)"),
        ({"name": "fedadam"}, "FedAdam"),
        (ADAM, "FedAdam (server.lr=0.1)"),
        (OTHER, "FedAvg (server=adam, server.lr=0.2, share=layerwise)"),
    ],
)
def test_a_label_tells_nested_settings_and_local_training_of_its_own(method, said):
    setup = assemble(tiny(method=method))
    assert label(setup.context.method, setup.experiment.local) == said


@pytest.mark.parametrize(
    ("method", "folder"),
    [
        (OTHER, "fedavg_server=adam_server.lr=0.2_share=layerwise-s0"),
        ({"name": "moss", "wire": {"lr": 0.1, "batch": 5}}, "moss_wire.lr=0.1_wire.batch=5-s0"),
    ],
)
def test_folders_tell_nested_settings_by_their_names(method, folder, tmp_path):
    [entry] = plan_entries(tiny(), [method])
    assert entry.plan(0, tmp_path).folder == tmp_path / folder


def test_entries_of_one_method_that_differ_in_local_training_are_one_row_each_over_their_seeds(tmp_path):
    methods = [{"name": "fedavg", "local": {"lr": rate}} for rate in (0.01, 0.2)]
    results = compare(tiny(rounds=1), tmp_path, methods, [0, 1])
    rows = compare_rows([read_record(result.folder) for result in results])
    assert [(row["label"], row["seeds"]) for row in rows] == [
        ("FedAvg (local.lr=0.01)", [0, 1]),
        ("FedAvg (local.lr=0.2)", [0, 1]),
    ]
    assert [list(row["differences"]) for row in rows] == [["FedAvg (local.lr=0.2)"], ["FedAvg (local.lr=0.01)"]]


def test_the_manifest_names_the_code_that_ran(compared):
    _, results = compared
    total = hashlib.sha256()
    for path in sorted(Path(potluck.__file__).parent.rglob("*.py")):
        total.update(path.relative_to(Path(potluck.__file__).parent).as_posix().encode() + b"\0" + path.read_bytes())
    assert {read_run(result.folder).manifest["code"] for result in results} == {total.hexdigest()[:12]}


def test_the_manifest_holds_what_the_method_declares(compared):
    _, results = compared
    facts = [read_run(result.folder).manifest["facts"] for result in results[:3]]
    assert [(fact["networks"], fact["memory"], fact["bound"]) for fact in facts] == [
        ("any", False, False),
        ("one", False, True),
        ("any", True, False),
    ]


def test_the_same_comparison_with_another_budget_is_looked_at_with_that_budget(tmp_path):
    """And with its targets; how the runs were scored stays as it was."""
    compare(tiny(rounds=1, compare={"budget": {"energy": 1.0}}), tmp_path, METHODS[:1], [0])
    before = read_run(tmp_path / "fedavg_share=layerwise-s0").settings
    asked = tiny(rounds=1, compare={"budget": {"bytes": 5.0}}, score={"targets": [0.3], "clients": 2, "every": 7})
    (found,) = compare(asked, tmp_path, METHODS[:1], [0])
    record = read_record(found.folder)
    assert (record.budget, record.targets) == ({"bytes": 5.0}, (0.3,))
    assert "every = 1\n" in before
    assert "every = 1\n" in record.settings
    assert resume(found.folder).weights_sha256 == found.weights_sha256


DIVERGING = [{"name": "fedavg"}, {"name": "tiny_runs:Diverges", "last": 1}, {"name": "fedprox"}]


def test_a_run_that_diverges_is_marked_and_the_others_go_on(tmp_path):
    results = compare(tiny(run={"retries": 0}), tmp_path, DIVERGING, [0], lambda *_: Listener())
    assert [type(result).__name__ for result in results] == ["Result", "FailedRun", "Result"]
    found = results[1]
    assert (found.how, found.seed, found.method) == ("diverged in round 2", 0, "tiny_runs:Diverges")
    assert "is not finite" in found.reason
    told = read_run(found.folder).manifest
    assert (told["status"], told["fault_round"], told["fault"]) == ("diverged", 2, found.reason)
    assert [read_run(results[place].folder).manifest["status"] for place in (0, 2)] == ["done", "done"]


def test_a_model_of_the_server_that_is_not_finite_after_the_last_round_is_no_result(tmp_path):
    """What the clients send is finite; the server's step overflows."""
    methods = [{"name": "fedadam", "server": {"name": "adam", "lr": 1e39}}, {"name": "fedavg"}]
    results = compare(tiny(rounds=1), tmp_path, methods, [0], lambda *_: Listener())
    assert [type(result).__name__ for result in results] == ["FailedRun", "Result"]
    found = results[0]
    assert found.how == "diverged in round 1"
    assert found.reason.startswith(
        "round 1: the server's model is not finite, though all that clients sent is. The run"
    )
    assert [line["round"] for line in read_run(found.folder).scores] == [0]
    assert found.totals["bytes_up"] == results[1].totals["bytes_up"]


def test_a_model_of_the_server_whose_squares_overflow_is_finite_all_the_same(tmp_path):
    methods = [{"name": "fedadam", "server": {"name": "adam", "lr": 1e25}}]
    (found,) = compare(tiny(rounds=1), tmp_path, methods, [0], lambda *_: Listener())
    assert type(found).__name__ == "Result"


def test_the_same_comparison_again_does_not_stop_at_the_run_that_diverged(tmp_path):
    settings = tiny(run={"retries": 0})
    first = compare(settings, tmp_path, DIVERGING, [0], lambda *_: Listener())
    heard = [Listener(), Listener(), Listener()]
    watches = iter(heard)
    again = compare(settings, tmp_path, DIVERGING, [0], lambda *_: next(watches))
    assert [result.plain() for result in again] == [result.plain() for result in first]
    assert [watch.rounds for watch in heard] == [[], [], []]
    assert heard[1].warnings == [f"diverged in round 2; to run it again, delete {first[1].folder}"]


def test_a_run_that_lost_its_quorum_is_marked_and_tried_again_by_the_same_command(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "forever").touch()
    methods = [{"name": "tiny_runs:Moody", "folder": str(marks)}, {"name": "fedprox"}]
    first = compare(tiny(), tmp_path / "out", methods, [0], lambda *_: Listener())
    assert (first[0].how, first[1].rounds) == ("failed in round 1", 3)
    assert "the battery is flat" in first[0].reason
    (marks / "forever").unlink()
    again = compare(tiny(), tmp_path / "out", methods, [0], lambda *_: Listener())
    assert [result.rounds for result in again] == [3, 3]
    manifest = read_run(again[0].folder).manifest
    assert (manifest["status"], manifest.get("fault"), manifest.get("fault_round")) == ("done", None, None)


def test_a_run_that_an_error_ends_is_marked_with_its_traceback_and_the_others_go_on(tmp_path):
    (tmp_path / "break").touch()
    methods = [{"name": "tiny_runs:Fragile", "folder": str(tmp_path)}, {"name": "fedprox"}]
    heard = [Listener(), Listener()]
    watches = iter(heard)
    results = compare(tiny(), tmp_path / "out", methods, [0], lambda *_: next(watches))
    assert [type(one).__name__ for one in results] == ["FailedRun", "Result"]
    assert (results[0].how, results[0].reason) == ("failed", "RuntimeError: a wheel came off")
    assert heard[0].warnings == ["failed: RuntimeError: a wheel came off; the other runs go on without it"]
    told = read_run(results[0].folder).manifest
    assert (told["status"], told["fault"]) == ("failed", "RuntimeError: a wheel came off")
    assert "in round\n    raise RuntimeError" in told["traceback"]
    with pytest.raises(UnfinishedComparison, match="1 of 2 runs has no result") as caught:
        refuse_unfinished(results)
    assert caught.value.exit_code == 8
    (tmp_path / "break").unlink()
    again = compare(tiny(), tmp_path / "out", methods, [0])
    assert [one.rounds for one in again] == [3, 3]
    assert read_run(again[0].folder).manifest["traceback"] is None


class Removes(Listener):
    """A watch that deletes the folder of its run after the first round."""

    def start(self, folder, manifest, done):
        self.folder = folder

    def round(self, done, scores, totals):
        shutil.rmtree(self.folder, ignore_errors=True)


def test_a_run_folder_that_is_deleted_meanwhile_ends_no_other_run(tmp_path):
    watches = iter([Removes(), Listener()])
    results = compare(tiny(), tmp_path, [{"name": "fedavg"}, {"name": "fedprox"}], [0], lambda *_: next(watches))
    assert [type(one).__name__ for one in results] == ["FailedRun", "Result"]
    assert results[0].status == "failed"
    assert "fedavg-s0" in results[0].reason


class Fills(Listener):
    """A watch under which the disk is full after the first round."""

    def round(self, done, scores, totals):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as fault:
            raise FolderError("the disk is full") from fault


def test_a_full_disk_ends_the_comparison(tmp_path):
    with pytest.raises(FolderError, match="the disk is full"):
        compare(tiny(), tmp_path, [{"name": "fedavg"}, {"name": "fedprox"}], [0], lambda *_: Fills())
    assert not (tmp_path / "fedprox-s0").exists()
