"""Several runs of a comparison at once, each in a process of its own."""

import dataclasses
import os

import pytest
from tiny_runs import Listener, StopsAfter, tiny

from potluck.core import InputError, SettingsError
from potluck.engines import usable_cores
from potluck.ledger import FolderError, read_run
from potluck.report import compare_rows, read_record
from potluck.run import FailedRun, Interrupted, Result, compare
from potluck.run.assemble import engine_name
from potluck.run.child import describe_error
from potluck.run.places import LocalPlaces
from potluck.run.scheduler import error_of

METHODS = [
    {"name": "fedavg", "share": "layerwise"},
    {"name": "tiny_runs:Diverges", "last": 1},
    {"name": "local"},
]
BOTH = [{"name": "fedavg"}, {"name": "fedprox"}]


class StateWatch(Listener):
    """A watch that also hears where its run stands."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def round(self, done, scores, totals):
        super().round(done, scores, totals)
        self.heard.append((done, scores, totals["bytes_up"]))

    def waits(self):
        self.heard.append("waits")

    def starts(self):
        self.heard.append("starts")

    def end(self, outcome):
        self.heard.append(outcome)


def compared(experiment, out, methods, seeds=(0,), **options):
    """The outcomes of a comparison, and what the watch of each run heard."""
    watches = []

    def watcher(label, seed):
        watches.append(StateWatch())
        return watches[-1]

    return compare(experiment, out, methods, seeds, watcher, **options), watches


@pytest.fixture(scope="module")
def settings():
    """Settings that leave it to the machine which engine runs the clients."""
    return tiny(run={"engine": "auto", "retries": 0})


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory, settings):
    return compared(settings, tmp_path_factory.mktemp("one by one"), METHODS)


@pytest.fixture(scope="module")
def at_once(tmp_path_factory, settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POTLUCK_CORES", "2")
        return compared(settings, tmp_path_factory.mktemp("at once"), METHODS, jobs=3)


def test_runs_side_by_side_end_as_those_that_run_one_after_the_other(one_by_one, at_once):
    for alone, among in zip(one_by_one[0], at_once[0], strict=True):
        assert alone.folder.name == among.folder.name
        if isinstance(alone, FailedRun):
            assert dataclasses.replace(alone, folder=among.folder) == among
            continue
        assert dataclasses.replace(among, folder=alone.folder, totals=alone.totals) == alone
        assert {**among.totals, "seconds": 0} == {**alone.totals, "seconds": 0}
    assert [type(outcome) for outcome in at_once[0]] == [Result, FailedRun, Result]
    assert at_once[0][1].how == "diverged in round 2"


def test_tables_and_settings_of_runs_side_by_side_are_the_same(one_by_one, at_once):
    first, second = ([read_record(outcome.folder) for outcome in found[0]] for found in (one_by_one, at_once))
    assert compare_rows(first) == compare_rows(second)
    texts = [
        [(outcome.folder / "settings.toml").read_text() for outcome in found[0]] for found in (one_by_one, at_once)
    ]
    assert texts[0] == texts[1]


def test_the_watch_of_each_run_hears_its_rounds_and_where_it_stands(one_by_one, at_once):
    for alone, among, outcome in zip(one_by_one[1], at_once[1], at_once[0], strict=True):
        assert among.heard == ["waits", "starts", *alone.heard[:-1], outcome]
        assert among.warnings == alone.warnings


def test_runs_side_by_side_share_the_cores_out(at_once):
    """Two cores for three runs are one for each, so none starts worker processes."""
    assert [read_run(outcome.folder).manifest["engine"] for outcome in at_once[0]] == ["serial"] * 3
    assert len({read_run(outcome.folder).manifest["pid"] for outcome in at_once[0]} - {os.getpid()}) == 3


@pytest.mark.slow
def test_what_is_there_already_is_kept_and_more_rounds_are_added_to_it(one_by_one, at_once, settings):
    out = at_once[0][0].folder.parent
    again, watches = compared(settings, out, METHODS, jobs=2)
    assert again == at_once[0]
    assert [watch.rounds for watch in watches] == [[], [], []]
    diverged = f"diverged in round 2; to run it again, delete {again[1].folder}"
    assert [watch.warnings for watch in watches] == [["resumed at round 3"], [diverged], ["resumed at round 3"]]
    more, _ = compared(dataclasses.replace(settings, rounds=4), out, METHODS[::2], jobs=2)
    assert [outcome.rounds for outcome in more] == [4, 4]


def test_a_run_whose_process_dies_is_resumed_once_and_given_up_the_second_time(tmp_path):
    methods = [
        {"name": "tiny_runs:Dies", "share": "layerwise", "folder": str(tmp_path), "times": times} for times in (1, 2)
    ]
    (once, twice), watches = compared(tiny(), tmp_path / "out", methods, jobs=2)
    whole = compare(tiny(), tmp_path / "whole", [{"name": "fedavg", "share": "layerwise"}], [0], lambda *_: Listener())
    assert once.weights_sha256 == whole[0].weights_sha256
    assert once.scores == whole[0].scores
    how = "killed by SIGKILL, perhaps for lack of memory"
    note = f"its process died ({how}); it goes on from its last checkpoint"
    assert watches[0].warnings == [note, "resumed at round 1"]
    assert watches[1].warnings[:2] == [note, "resumed at round 1"]
    assert watches[1].warnings[2:] == [f"its process died again ({how}); the other runs go on without it"]
    assert (twice.how, twice.reason) == ("failed in round 2", f"its process died twice ({how})")
    told = read_run(twice.folder).manifest
    assert (told["status"], told["fault"], told["fault_round"]) == ("failed", twice.reason, 2)
    assert watches[1].heard[-1] == twice


LOUD = """\
from dataclasses import dataclass
from potluck.methods import FedAvg


@dataclass(frozen=True)
class Loud(FedAvg):
    def check(self, zoo):
        print("hello")
"""
GONE = """\
import os, sys
from potluck.methods import FedAvg as Own
if "pytest" not in sys.modules: os._exit(9)
"""


@pytest.mark.slow
def test_a_process_that_dies_before_its_run_begins_leaves_a_run_that_failed(tmp_path, monkeypatch, capfd):
    """And what a method prints is told with its run, not on standard output."""
    (tmp_path / "loud.py").write_text(LOUD)
    (tmp_path / "gone.py").write_text(GONE)
    monkeypatch.syspath_prepend(tmp_path)
    methods = [{"name": "gone:Own"}, {"name": "loud:Loud"}]
    found, watches = compared(tiny(rounds=0), tmp_path / "out", methods, jobs=2)
    assert (found[0].how, found[0].reason) == ("failed", "its process died twice (exit code 9)")
    assert not found[0].folder.exists()
    assert isinstance(found[1], Result)
    assert watches[1].warnings == ["hello"]
    assert capfd.readouterr() == ("hello\n", "")  # once: the checks before the first run put it together here


def test_a_folder_of_other_settings_ends_the_comparison_as_it_does_one_by_one(at_once):
    out = at_once[0][0].folder.parent
    said = []
    for jobs in (1, 2):
        with pytest.raises(SettingsError) as caught:
            compare(tiny(local={"lr": 0.5}), out, METHODS[::2], [0], lambda *_: Listener(), jobs=jobs)
        said.append(str(caught.value))
    assert "holds a run with other settings than were asked for; choose another --out." in said[0]
    assert said[1] in (said[0], said[0].replace("fedavg_share=layerwise", "local"))


@pytest.mark.slow
def test_an_error_that_nobody_expects_ends_that_run_alone(tmp_path):
    (tmp_path / "break").touch()
    methods = [{"name": "tiny_runs:Fragile", "folder": str(tmp_path)}, {"name": "fedavg"}]
    results = compare(tiny(), tmp_path / "out", methods, [0], lambda *_: Listener(), jobs=2)
    assert [type(one).__name__ for one in results] == ["FailedRun", "Result"]
    assert results[0].reason == "RuntimeError: a wheel came off"
    assert "in round\n    raise RuntimeError" in read_run(results[0].folder).manifest["traceback"]


@pytest.mark.slow
def test_what_was_stopped_is_gone_on_with_side_by_side(tmp_path, one_by_one):
    watches = iter([StopsAfter(1), Listener()])
    settings = tiny(score={"every": 1, "clients": 2}, run={"retries": 0})
    with pytest.raises(Interrupted, match=r"^interrupted with \d runs done; go on with: the same command and --out "):
        compare(settings, tmp_path, METHODS[::2], [0], lambda *_: next(watches), jobs=2)
    again = compare(settings, tmp_path, METHODS[::2], [0], lambda *_: Listener(), jobs=1)
    assert [outcome.weights_sha256 for outcome in again] == [one.weights_sha256 for one in one_by_one[0][::2]]


@pytest.mark.parametrize(
    ("jobs", "methods", "said"),
    [
        (0, BOTH, r"^jobs = 0 is below 1\.$"),
        (-3, BOTH, r"^jobs = -3 is below 1\.$"),
        (
            2,
            [{"name": "__main__:Own"}, {"name": "fedavg"}],
            r"^method '__main__:Own' is in the program",
        ),
    ],
)
def test_jobs_that_cannot_be_are_refused_before_anything_runs(jobs, methods, said, tmp_path, monkeypatch):
    import __main__
    from potluck.methods import FedAvg

    monkeypatch.setattr(__main__, "Own", FedAvg, raising=False)
    with pytest.raises(SettingsError, match=said):
        compare(tiny(), tmp_path / "out", methods, [0], lambda *_: Listener(), jobs=jobs)
    with pytest.raises(SettingsError, match=r"compare\.jobs = 0 is below 1"):
        tiny(compare={"jobs": 0})
    assert not (tmp_path / "out").exists()


def test_one_job_and_one_run_need_no_other_process(tmp_path):
    alone = compare(tiny(rounds=0), tmp_path / "a", BOTH[:1], [0], lambda *_: Listener(), jobs=8)
    several = compare(tiny(rounds=0, compare={"jobs": 2}), tmp_path / "b", BOTH, [0], lambda *_: Listener(), jobs=1)
    for outcome in alone + several:
        assert read_run(outcome.folder).manifest["pid"] == os.getpid()


def test_cores_are_shared_out_and_nobody_gets_less_than_one(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [LocalPlaces(jobs).cores for jobs in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("POTLUCK_CORES", "4")
    assert [LocalPlaces(jobs).cores for jobs in (1, 2, 3)] == [4, 2, 1]


def test_a_process_uses_as_many_cores_as_it_is_told(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    found = {}
    for given in ("", "1", "3", "99"):
        monkeypatch.setenv("POTLUCK_CORES", given)
        found[given] = usable_cores(), engine_name(tiny(run={"engine": "auto"}))
    assert found == {"": (8, "pool"), "1": (1, "serial"), "3": (3, "pool"), "99": (8, "pool")}
    monkeypatch.setenv("POTLUCK_CORES", "1")
    asked = ({"workers": 2}, {"deadline": 9.0}, {"workers": 1})
    assert [engine_name(tiny(run={"engine": "auto", **run})) for run in asked] == ["pool", "pool", "serial"]
    for odd in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("POTLUCK_CORES", odd)
        with pytest.raises(SettingsError, match="is no number of cores"):
            usable_cores()


class OddError(Exception):
    """An error of a class that another process does not know."""

    exit_code = 9


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (SettingsError("a.toml: [method] has no setting 'widht'."), SettingsError),
        (InputError("x"), InputError),
        (FolderError("runs/a is in use"), FolderError),
        (FileNotFoundError(2, "No such file or directory", "a.npz"), FileNotFoundError),
        (MemoryError(), MemoryError),
        (KeyError("a"), Exception),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), Exception),
        (OddError("odd"), Exception),
    ],
)
def test_an_error_of_another_process_says_the_same_and_has_the_same_exit_code(fault, kind):
    found = error_of(describe_error(fault))
    assert isinstance(found, kind)
    assert (type(found).__name__, str(found)) == (type(fault).__name__, str(fault))
    assert getattr(found, "exit_code", None) == getattr(fault, "exit_code", None)
    if isinstance(fault, OSError):
        assert (found.strerror, found.filename) == (fault.strerror, fault.filename)
