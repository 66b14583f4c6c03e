import json
import os
import shutil
import signal
from dataclasses import dataclass

import pytest
from tiny_runs import Fragile, Liar, Listener, StopsAfter, TouchesAfter, events, kept, killed_after, scores, tiny

from potluck.core import Model, SettingsError, pack, unpack
from potluck.ledger import CheckpointError, FolderError, MissingRun, RunFolder, read_run
from potluck.methods import FedAvg
from potluck.run import Interrupted, export, resume, run
from potluck.run.client_state import ClientStateCache


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Five rounds that were never stopped, by method."""
    made = {}

    def find(method="fedavg", **changes):
        key = (method, str(changes))
        if key not in made:
            made[key] = run(five(method, **changes), tmp_path_factory.mktemp("whole") / "run")
        return made[key]

    return find


def five(method="fedavg", **changes):
    name = {"name": method, "share": "layerwise"} if method in ("fedavg", "fedadam") else {"name": method}
    return tiny(rounds=5, method=name, **changes)


def same(found, wanted):
    """Whether two runs came to the same weights, scores, events and totals (but for measured time)."""
    assert found.weights_sha256 == wanted.weights_sha256
    assert found.scores == wanted.scores
    assert scores(found.folder) == scores(wanted.folder)
    assert [untimed(event) for event in events(found.folder, "task")] == [
        untimed(event) for event in events(wanted.folder, "task")
    ]
    assert [event["round"] for event in events(found.folder, "round")] == [1, 2, 3, 4, 5]
    assert untimed(found.totals) == untimed(wanted.totals)
    return True


def untimed(event):
    """An event without what was measured by the clock."""
    measured = {"measured": {**event["measured"], "seconds": 0}} if "measured" in event else {}
    return {key: value for key, value in {**event, **measured}.items() if key != "seconds"}


def stopped(last, experiment, out):
    with pytest.raises(KeyboardInterrupt) as caught:
        run(experiment, out, watch=StopsAfter(last))
    return str(caught.value)


@pytest.mark.parametrize("last", [1, 2, 3, 4, 5])
def test_a_run_killed_after_any_round_ends_as_if_it_never_was(last, tmp_path, whole):
    killed_after(last, five(), tmp_path / "run")
    assert same(resume(tmp_path / "run"), whole())


@pytest.mark.parametrize("method", ["local", "fedadam", "exclusivefl"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_memories_and_server_slots_survive_a_kill_however_rarely_they_are_saved(every, method, tmp_path, whole):
    wanted = five(method, run={"checkpoint_every": every})
    killed_after(3, wanted, tmp_path / "run")
    heard = Listener()
    found = resume(tmp_path / "run", watch=heard)
    assert heard.warnings[0] == f"resumed at round {3 // every * every}"
    assert same(found, whole(method))


@pytest.mark.parametrize(("engine", "workers"), [("pool", 1), ("pool", 2), ("wire", 0)])
def test_another_engine_or_number_of_workers_goes_on_to_the_same_end(engine, workers, tmp_path, whole):
    killed_after(2, five(run={"workers": workers}), tmp_path / "run")
    assert same(resume(tmp_path / "run", engine=engine), whole())


def test_what_is_changed_when_resuming_is_checked_like_any_setting(tmp_path):
    run(tiny(rounds=0), tmp_path / "run")
    with pytest.raises(SettingsError, match=r"resume: run\.engine = 'warp': input should be"):
        resume(tmp_path / "run", engine="warp")
    with pytest.raises(SettingsError, match=r"resume: rounds = -1 is below 0\."):
        resume(tmp_path / "run", rounds=-1)


def test_ctrl_c_saves_the_round_and_says_how_to_go_on(tmp_path, whole):
    text = stopped(2, five(run={"checkpoint_every": 100}), tmp_path / "run")
    assert text == f"interrupted after round 2; go on with: potluck resume {tmp_path / 'run'}"
    assert kept(tmp_path / "run")[0] == 2
    manifest = read_run(tmp_path / "run").manifest
    assert (manifest["status"], manifest["fault"]) == ("interrupted", "KeyboardInterrupt:")
    assert same(resume(tmp_path / "run"), whole())
    assert read_run(tmp_path / "run").manifest["status"] == "done"


@dataclass(frozen=True)
class StopsAtStart(FedAvg):
    def init(self, zoo, rng):
        os.kill(os.getpid(), signal.SIGINT)
        return super().init(zoo, rng)


def test_a_run_that_is_stopped_before_its_first_round_says_so(tmp_path):
    with pytest.raises(Interrupted, match=r"^interrupted before anything was saved; go on with: potluck resume "):
        run(five(), tmp_path / "run", method=StopsAtStart(local=five().local))
    assert read_run(tmp_path / "run").manifest["status"] == "interrupted"


def test_the_way_on_is_quoted_for_a_shell(tmp_path):
    with pytest.raises(Interrupted) as caught:
        run(tiny(rounds=2), tmp_path / "a run", watch=StopsAfter(1))
    assert str(caught.value).endswith(f"potluck resume '{tmp_path / 'a run'}'")


def test_a_run_that_was_made_longer_and_stopped_goes_on_to_its_new_end(tmp_path, whole):
    run(tiny(rounds=1), tmp_path / "run")
    with pytest.raises(Interrupted):
        resume(tmp_path / "run", rounds=5, watch=StopsAfter(2))
    assert same(resume(tmp_path / "run"), whole())


def test_a_signal_leaves_the_handlers_as_they_were(tmp_path):
    before = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    stopped(1, tiny(), tmp_path / "run")
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == before


def fragile(tmp_path):
    return Fragile(local=five().local, share="layerwise", folder=str(tmp_path))


@pytest.mark.parametrize("last", [3, 5])
def test_scores_that_an_interruption_prevented_are_made_up_for(last, tmp_path, whole):
    with pytest.raises(Interrupted, match=f"interrupted after round {last};"):
        run(five(), tmp_path / "run", method=fragile(tmp_path), watch=TouchesAfter(last - 1, tmp_path / "stop"))
    assert [row["round"] for row in scores(tmp_path / "run")] == list(range(last))
    (tmp_path / "stop").unlink()
    assert same(resume(tmp_path / "run", method=fragile(tmp_path)), whole())


def test_a_client_that_was_refused_too_often_stays_out_after_a_kill(tmp_path):
    liar = Liar(local=five().local)
    killed_after(2, five(cohort=8, gate={"strikes": 2}), tmp_path / "run", liar)
    resume(tmp_path / "run", method=liar)
    told = [event for event in events(tmp_path / "run", "task") if event["client"] == "c3"]
    refusal = "weight -1 is not in (0, 1e+09]"
    assert [(event["outcome"], event["reason"]) for event in told] == [
        *[("quarantined", refusal)] * 2,
        *[("absent", "blacklisted")] * 3,
    ]


def test_more_rounds_than_were_planned_equal_a_longer_plan(tmp_path, whole):
    run(tiny(rounds=3), tmp_path / "run")
    assert same(resume(tmp_path / "run", rounds=5), whole())


def test_resuming_a_run_that_is_done_changes_nothing(tmp_path, whole):
    shutil.copytree(whole().folder, tmp_path / "run")
    files = {path.name: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert same(resume(tmp_path / "run"), whole())
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / "checkpoints").iterdir()} == files


def test_edited_settings_are_refused(tmp_path):
    stopped(1, tiny(), tmp_path / "run")
    file = tmp_path / "run" / "settings.toml"
    text = file.read_text()
    file.write_text(text.replace("hidden = 8", "hidden = 9"))
    with pytest.raises(SettingsError) as caught:
        resume(tmp_path / "run")
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: its settings.toml was changed since it began; start a new run instead."
    )
    file.write_text(text.replace("hidden = 8", "hiden = 8"))
    with pytest.raises(SettingsError, match=r"mlp has no option 'hiden'. Did you mean 'hidden'\?"):
        resume(tmp_path / "run")
    file.write_text(text.replace("cohort = 3", "cohrt = 3"))
    with pytest.raises(SettingsError, match=r"settings.toml: line 5: the top of the file has no setting 'cohrt'"):
        resume(tmp_path / "run")


@pytest.mark.parametrize("edit", [("workers = 0", "workers = 2"), ("keep = 2", "keep = 3"), ('"serial"', '"wire"')])
def test_settings_that_change_no_result_may_be_edited(edit, tmp_path, whole):
    stopped(2, five(), tmp_path / "run")
    file = tmp_path / "run" / "settings.toml"
    assert edit[0] in file.read_text()
    file.write_text(file.read_text().replace(*edit))
    assert same(resume(tmp_path / "run"), whole())


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "truncated":
        del data[len(data) // 2 :]
    elif how == "empty":
        data.clear()
    else:
        data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty"])
@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(how, method, tmp_path, whole):
    killed_after(3, five(method), tmp_path / "run")
    damage(tmp_path / "run" / "checkpoints" / "round-000003.ckpt", how)
    heard = Listener()
    found = resume(tmp_path / "run", watch=heard)
    assert heard.warnings[0].startswith(f"skipped {tmp_path / 'run' / 'checkpoints' / 'round-000003.ckpt'}: ")
    assert heard.warnings[1] == "resumed at round 2"
    assert same(found, whole(method))


def test_with_every_checkpoint_damaged_the_run_is_refused_and_not_started_over(tmp_path):
    killed_after(3, five(), tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        damage(path, "flipped")
    ledger = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="none of 2 checkpoints can be used") as caught:
        resume(tmp_path / "run")
    assert caught.value.exit_code == 4
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == ledger


def test_another_models_checkpoint_is_never_loaded(tmp_path):
    stopped(2, tiny(), tmp_path / "run")
    stopped(3, tiny(model={"hidden": 9}, rounds=5), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "checkpoints" / "round-000003.ckpt", tmp_path / "run" / "checkpoints")
    heard = Listener()
    resume(tmp_path / "run", watch=heard)
    assert "skipped" in heard.warnings[0]
    assert heard.warnings[1] == "resumed at round 2"


def as_before_the_first_checkpoint(folder):
    """Makes a run folder look as if its run had been killed before it wrote a checkpoint."""
    shutil.rmtree(folder / "checkpoints")
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["saved"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_without_any_checkpoint_the_run_starts_at_round_0_and_says_so(tmp_path, whole):
    killed_after(1, five(), tmp_path / "run")
    as_before_the_first_checkpoint(tmp_path / "run")
    heard = Listener()
    found = resume(tmp_path / "run", watch=heard)
    assert heard.warnings[0] == "no checkpoint was written yet: starting at round 0"
    assert same(found, whole())


def test_if_the_checkpoints_of_a_run_are_gone_it_does_not_start_anew(tmp_path):
    killed_after(1, five(), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="the checkpoints of this run are missing"):
        resume(tmp_path / "run")


def test_if_the_memories_of_clients_are_gone_the_run_does_not_go_on_and_exports_nothing(tmp_path):
    run(tiny(rounds=2, method={"name": "scaffold"}, tier=[{"name": "all"}]), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "memory")
    for use in (lambda: resume(tmp_path / "run", rounds=3), lambda: export(tmp_path / "run", tmp_path / "model")):
        with pytest.raises(CheckpointError, match="memories are missing: at the checkpoint of round 2"):
            use()


def progress(done, **changes):
    return {
        "done": done,
        "strikes": {},
        "seen": {},
        "totals": {},
        "trained": {},
        "uploads": {},
        "stopped": False,
    } | changes


OTHER_CONTENTS = [
    b"no message",
    pack(None),
    pack([1]),
    pack({}),
    pack({"progress": progress(2), "scores": None}),
    pack({"progress": progress(2), "state": {}, "scores": None}),
    pack({"progress": progress(2), "state": {"model": 7}, "scores": None}),
    pack({"progress": progress(3), "state": {"model": 7}, "scores": None}),
    pack({"progress": progress(2, strikes=7), "state": {"model": 7}, "scores": None}),
    pack({"progress": {"other": 1}, "state": {}, "scores": None}),
]


@pytest.mark.parametrize("content", OTHER_CONTENTS, ids=range(len(OTHER_CONTENTS)))
def test_a_valid_checksum_around_something_else_ends_with_4(content, tmp_path, finished):
    shutil.copytree(finished, tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as folder:
        folder.checkpoints.write(2, content, folder.checkpoints.needs(2))
    for use in (lambda: resume(tmp_path / "run", rounds=3), lambda: export(tmp_path / "run", tmp_path / "model")):
        with pytest.raises(CheckpointError, match=r"checkpoint.* is unchanged, but holds no state") as caught:
            use()
        assert caught.value.exit_code == 4


def test_a_checkpoint_whose_model_lacks_a_tensor_ends_with_4(tmp_path, finished):
    shutil.copytree(finished, tmp_path / "run")
    with RunFolder.open(tmp_path / "run") as folder:
        content = unpack(folder.latest(pytest.fail)[1])
        model = content["state"]["model"]
        content["state"]["model"] = Model(model.spec, dict(list(model.arrays.items())[1:]))
        folder.checkpoints.write(2, pack(content), folder.checkpoints.needs(2))
    with pytest.raises(CheckpointError, match="'model' has other tensors than its network"):
        resume(tmp_path / "run", rounds=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a run of two rounds."""
    return run(tiny(rounds=2), tmp_path_factory.mktemp("finished") / "run").folder


@pytest.mark.parametrize("content", [b"no message", pack(7)])
def test_a_memory_with_a_valid_checksum_around_something_else_ends_with_4(content):
    kept = ClientStateCache(lambda client: (1, content))
    with pytest.raises(CheckpointError, match="the memory of client 'c1' is unchanged, but holds no memory"):
        kept.get("c1", 1)


@dataclass(frozen=True)
class RemovesItsFolder(FedAvg):
    """FedAvg during whose second round somebody removes the run folder."""

    folder: str = ""

    def round(self, state, now):
        if now.index == 1:
            shutil.rmtree(self.folder)
        return super().round(state, now)


def test_a_run_whose_folder_is_removed_stops_at_its_next_write_and_makes_no_new_one(tmp_path):
    heard, path = Listener(), tmp_path / "run"
    with pytest.raises(FolderError, match="run was removed or replaced while the run was going on") as caught:
        run(tiny(rounds=9), path, method=RemovesItsFolder(folder=str(path)), watch=heard)
    assert caught.value.exit_code == 6
    assert heard.warnings == []
    assert not path.exists()


def test_a_folder_that_holds_a_run_takes_no_other_and_stays_as_it_is(tmp_path):
    run(tiny(rounds=1), tmp_path / "run")
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match=r"already holds a run .*potluck resume"):
        run(tiny(rounds=1), tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == files


def test_a_folder_that_is_no_run_cannot_be_resumed(tmp_path):
    with pytest.raises(MissingRun, match=r"is not a run folder: it has no manifest\.json"):
        resume(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["with space", "ünïcødé 漢字", "x" * 255, "quote'\"s", "-dash"])
def test_runs_live_under_any_name(name, tmp_path):
    stopped(1, tiny(), tmp_path / name)
    assert resume(tmp_path / name).rounds == 3


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(FolderError, match=r"File name too long\. Choose a shorter path\."):
        run(tiny(rounds=0), tmp_path / ("x" * 256))


def test_a_run_that_fails_says_so_in_its_manifest_and_can_be_resumed(tmp_path, whole):
    with pytest.raises(RuntimeError, match="a wheel came off"):
        run(five(), tmp_path / "run", method=fragile(tmp_path), watch=TouchesAfter(2, tmp_path / "break"))
    manifest = read_run(tmp_path / "run").manifest
    assert (manifest["status"], manifest["fault"]) == ("failed", "RuntimeError: a wheel came off")
    (tmp_path / "break").unlink()
    assert same(resume(tmp_path / "run", method=fragile(tmp_path)), whole())
