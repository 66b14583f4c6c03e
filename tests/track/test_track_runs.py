"""Every tracker holds the same scores as scores.jsonl, whatever happened to the run."""

import json
import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tiny_runs import Diverges, Listener, StopsAfter, killed_after, tiny
from track_reading import (
    COSTS,
    as_float32,
    mlflow_client,
    mlflow_runs,
    only,
    read_mlflow,
    read_tensorboard,
    read_wandb,
    tensorboard_events,
    wandb_folders,
    wandb_processes,
    wandb_records,
    written_scores,
)

from potluck.core import QuorumError
from potluck.run import Interrupted, resume, run

WANTED = {"tensorboard": {"tensorboard": True}, "mlflow": {"mlflow": "file:./mlruns"}, "wandb": {"wandb": "tiny"}}
each_tracker = pytest.mark.parametrize("name", WANTED)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(name):
    """What a tracker holds of the run in the folder `run`, by round."""
    if name == "tensorboard":
        return read_tensorboard("run/tensorboard")
    if name == "wandb":
        return read_wandb("run")
    (found,) = mlflow_runs("file:./mlruns")
    return read_mlflow("file:./mlruns", found.info.run_id)


def holds_the_scores(name):
    found, wanted = only(read(name), costs=False), written_scores("run")
    assert found == (as_float32(wanted) if name == "tensorboard" else wanted)
    return True


class Totals(Listener):
    """A watch that keeps what a run had cost after each round."""

    def __init__(self):
        super().__init__()
        self.totals = {}

    def round(self, done, scores, totals):
        self.totals[done] = {f"cost/{name}": totals[name] for name in COSTS}


@each_tracker
def test_a_tracker_holds_the_scores_of_scores_jsonl_and_the_costs_so_far(name):
    watch = Totals()
    run(tiny(track=WANTED[name]), "run", watch=watch)
    assert watch.warnings == []
    assert holds_the_scores(name)
    assert sorted(only(read(name), costs=False)) == [0, 1, 2, 3]
    told = only(read(name), costs=True)
    assert told == (as_float32(watch.totals) if name == "tensorboard" else watch.totals)


@each_tracker
def test_a_run_killed_after_a_round_that_was_not_saved_goes_on_in_the_same_tracker_run(name):
    settings = tiny(rounds=5, run={"checkpoint_every": 2}, track=WANTED[name])
    killed_after(3, settings, "run")
    id = Path("run/track.json").read_bytes()
    watch = Totals()
    resume("run", watch=watch)
    assert watch.warnings == ["resumed at round 2"]
    assert sorted(watch.totals) == [3, 4, 5]  # round 3 was done twice
    assert Path("run/track.json").read_bytes() == id
    assert holds_the_scores(name)
    told = only(read(name), costs=True)
    wanted = as_float32(watch.totals) if name == "tensorboard" else watch.totals
    assert {round: told[round] for round in (3, 4, 5)} == wanted
    assert sorted(told) == [1, 2, 3, 4, 5]


def test_a_round_that_is_not_saved_yet_is_not_told_yet():
    class Reads(Listener):
        seen = ()

        def round(self, done, scores, totals):
            self.seen += (max(read_tensorboard("run/tensorboard")),)

    watch = Reads()
    run(tiny(rounds=5, run={"checkpoint_every": 2}, track={"tensorboard": True}), "run", watch=watch)
    assert watch.seen == (0, 2, 2, 4, 4)
    assert max(read_tensorboard("run/tensorboard")) == 5


@each_tracker
def test_costs_that_a_resumed_run_reads_from_its_ledger_are_those_of_a_run_that_never_stopped(name):
    watch = Totals()
    run(tiny(), "whole", watch=watch)
    run(tiny(), "run")  # no tracker hears of it
    text = Path("run/settings.toml").read_text()
    for key, value in WANTED[name].items():
        old = f"{key} = {'false' if value is True else chr(34) * 2}"
        assert old in text
        text = text.replace(old, f"{key} = {'true' if value is True else chr(34) + value + chr(34)}")
    Path("run/settings.toml").write_text(text)
    resume("run")
    assert holds_the_scores(name)
    told = only(read(name), costs=True)
    assert told == (as_float32(watch.totals) if name == "tensorboard" else watch.totals)


@each_tracker
def test_an_interrupted_run_and_one_that_is_made_longer_go_on_in_the_same_tracker_run(name):
    with pytest.raises(Interrupted):
        run(tiny(run={"checkpoint_every": 3}, track=WANTED[name]), "run", watch=StopsAfter(2))
    assert holds_the_scores(name)
    resume("run")
    assert holds_the_scores(name)
    watch = Listener()
    resume("run", rounds=5, watch=watch)
    assert watch.warnings == ["resumed at round 3"]
    assert holds_the_scores(name)
    assert max(written_scores("run")) == 5


@each_tracker
def test_a_run_that_diverges_is_told_up_to_its_last_round(name):
    with pytest.raises(QuorumError):
        run(tiny(track=WANTED[name]), "run", method=Diverges(last=2))
    assert holds_the_scores(name)
    assert max(written_scores("run")) == 2


@each_tracker
def test_scoring_every_other_round_leaves_costs_in_every_round(name):
    run(tiny(rounds=4, score={"every": 2}, track=WANTED[name]), "run")
    assert holds_the_scores(name)
    assert sorted(only(read(name), costs=False)) == [0, 2, 4]
    assert sorted(only(read(name), costs=True)) == [1, 2, 3, 4]


@each_tracker
def test_a_tracker_changes_neither_the_result_nor_the_process(name):
    def state():
        hooks, handlers = (sys.exit, sys.excepthook), [signal.getsignal(kind) for kind in signal.valid_signals()]
        return hooks, handlers, dict(os.environ), threading.enumerate()

    def drawn():
        random.seed(7)
        numpy.random.seed(7)
        torch.manual_seed(7)
        result = run(tiny(track=wanted), out)
        return result.weights_sha256, result.scores, random.random(), numpy.random.rand(), torch.rand(1).item()

    wanted, out = {}, "plain"
    without = drawn()
    wanted, out, before = WANTED[name], "run", state()
    assert drawn() == without
    assert state() == before
    assert wandb_processes() == []


def test_tensorboard_shows_settings_and_tags_as_a_text_and_on_its_hparams_page():
    run(tiny(track={"tensorboard": True}), "run")
    events = tensorboard_events("run/tensorboard")
    (text,) = events.Tensors("settings")
    (table,) = (value.decode() for value in text.tensor_proto.string_val)
    assert "| local.batch | 32 |" in table
    assert "| tag.method | fedavg |" in table
    assert "| tag.data | digits |" in table
    page = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
    assert page.session_start_info.hparams["local.batch"].number_value == 32
    assert "tensorflow" not in sys.modules


def test_each_run_has_a_folder_of_its_own_in_tensorboards_folder(place):
    for out in ("a/run", "b/run"):
        run(tiny(rounds=1, seed=len(out) + ord(out[0]), track={"tensorboard": "tb"}), out)
    resume("a/run", rounds=2)
    assert sorted(path.name for path in (place / "tb").iterdir()) == ["run", "run-2"]
    assert only(read_tensorboard("tb/run"), costs=False) == as_float32(written_scores("a/run"))
    assert only(read_tensorboard("tb/run-2"), costs=False) == as_float32(written_scores("b/run"))


def test_what_a_killed_writer_left_of_an_event_is_cut_off_and_written_again():
    run(tiny(track={"tensorboard": True}), "run")
    (path,) = Path("run/tensorboard").iterdir()
    path.write_bytes(path.read_bytes()[:-5])
    resume("run", rounds=4)
    assert holds_the_scores("tensorboard")


def test_an_event_file_that_is_a_link_is_not_written_to(place):
    run(tiny(rounds=1, track={"tensorboard": True}), "run")
    (path,) = Path("run/tensorboard").iterdir()
    path.rename("elsewhere")
    path.symlink_to(place / "elsewhere")
    before, watch = Path("elsewhere").read_bytes(), Listener()
    resume("run", rounds=2, watch=watch)
    assert "TensorBoard failed, and is left out: " in watch.warnings[1]
    assert "it is a symbolic link, not a file" in watch.warnings[1]
    assert Path("elsewhere").read_bytes() == before


def test_mlflow_holds_settings_tags_status_and_the_report():
    run(tiny(track=WANTED["mlflow"]), "all/run")
    (found,) = mlflow_runs("file:./mlruns")
    params, tags = found.data.params, found.data.tags
    assert (params["local.batch"], params["tier.0.depth"], params["method.name"]) == ("32", "1", "fedavg")
    assert not any(name.startswith("track") for name in params)
    assert tags == {
        "method": "fedavg",
        "label": "FedAvg (share=layerwise)",
        "seed": "0",
        "variant": "",
        "name": "tiny",
        "data": "digits",
        "group": "all",
        "mlflow.runName": "run",
    }
    assert found.info.status == "FINISHED"
    (report,) = mlflow_client("file:./mlruns").list_artifacts(found.info.run_id)
    assert report.path == "report.html"
    kept = Path(found.info.artifact_uri.removeprefix("file://"), "report.html").read_bytes()
    assert kept == Path("all/run/report.html").read_bytes()
    assert b"FedAvg" in kept


def test_a_setting_that_was_changed_at_a_resume_is_a_tag_in_mlflow():
    run(tiny(track=WANTED["mlflow"]), "run")
    resume("run", rounds=4)
    (found,) = mlflow_runs("file:./mlruns")
    assert (found.data.params["rounds"], found.data.tags["resumed.rounds"]) == ("3", "4")


def test_how_a_run_ended_is_its_status_in_mlflow():
    with pytest.raises(Interrupted):
        run(tiny(track=WANTED["mlflow"]), "run", watch=StopsAfter(1))
    assert [found.info.status for found in mlflow_runs("file:./mlruns")] == ["KILLED"]
    resume("run")
    assert [found.info.status for found in mlflow_runs("file:./mlruns")] == ["FINISHED"]
    with pytest.raises(QuorumError):
        run(tiny(track=WANTED["mlflow"], name="other"), "other", method=Diverges())
    assert [found.info.status for found in mlflow_runs("file:./mlruns", "other")] == ["FAILED"]


def test_values_that_mlflow_has_already_are_not_logged_again_and_missing_ones_are():
    run(tiny(track=WANTED["mlflow"]), "run")
    (found,) = mlflow_runs("file:./mlruns")
    one, other = (
        Path(found.info.artifact_uri.removeprefix("file://")).parent / "metrics" / name
        for name in ("global/test/accuracy", "clients/mean")
    )
    before = one.read_text()
    one.write_text("".join(before.splitlines(keepends=True)[:-2]))  # as if it was killed within a batch
    kept = other.read_text()
    resume("run")
    assert holds_the_scores("mlflow")
    assert other.read_text() == kept


def test_a_tracker_that_fails_is_left_out_with_a_warning_and_hears_the_rest_at_the_next_resume():
    class Removes(Listener):
        def round(self, done, scores, totals):
            if done == 1:
                Path("mlruns").rename("away")
                Path("mlruns").touch()

    without, watch = run(tiny(), "plain"), Removes()
    result = run(tiny(track={"mlflow": "file:./mlruns", "tensorboard": True}), "run", watch=watch)
    (warning,) = watch.warnings
    assert warning.startswith("MLflow failed, and is left out: ")
    assert result.weights_sha256 == without.weights_sha256
    assert holds_the_scores("tensorboard")
    Path("mlruns").unlink()
    Path("away").rename("mlruns")
    watch = Listener()
    resume("run", watch=watch)
    assert watch.warnings == ["resumed at round 3"]
    assert holds_the_scores("mlflow")


def test_wandb_holds_settings_tags_group_and_the_report_and_nothing_of_the_machine_or_the_command_line(place):
    run(tiny(track={"wandb": "lab/models"}), "all/run")
    records = wandb_records("all/run")
    (told,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    config = {item.key or "/".join(item.nested_key): item.value_json for item in told.config.update}
    assert (config["local.batch"], config["tag.label"]) == ("32", '"FedAvg (share=layerwise)"')
    assert not any(name.startswith("track") for name in config)
    assert (told.entity, told.project, told.display_name, told.run_group) == ("lab", "models", "run", "all")
    assert list(told.tags) == ["fedavg", "digits"]
    assert (told.host, told.git.remote_url, told.git.commit) == ("", "", "")
    (report,) = (record.artifact for record in records if record.WhichOneof("record_type") == "artifact")
    assert (report.type, [entry.path for entry in report.manifest.contents]) == ("report", ["report.html"])
    assert Path(report.manifest.contents[0].local_path) == place / "all" / "run" / "report.html"
    kinds = {record.WhichOneof("record_type") for record in records}
    assert not kinds & {"environment", "output", "output_raw", "stats", "files"}, kinds
    (folder,) = wandb_folders("all/run")
    assert [path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"] == [
        f"run-{told.run_id}.wandb"
    ]


def test_after_a_kill_and_a_resume_one_offline_folder_holds_the_whole_wandb_run():
    killed_after(2, tiny(track=WANTED["wandb"]), "run")
    (first,) = wandb_folders("run")
    resume("run")
    (second,) = wandb_folders("run")
    assert first != second
    (kept,) = second.glob("run-*.wandb")
    assert kept.stem.removeprefix("run-") == json.loads(Path("run/track.json").read_text())["id"]
    assert kept.stem.removeprefix("run-") in first.name
    assert holds_the_scores("wandb")


def test_ids_in_track_json_that_could_name_another_folder_are_not_used(place):
    run(tiny(rounds=1, track={"tensorboard": True}), "run")
    shutil.rmtree("run/tensorboard")
    Path("run/track.json").write_text('{"id": "../../escaped", "mlflow": 3}')
    resume("run", rounds=2)
    assert holds_the_scores("tensorboard")
    assert not list(place.rglob("*escaped*"))


def test_a_damaged_track_json_begins_a_new_tracker_run():
    run(tiny(rounds=1, track=WANTED["mlflow"]), "run")
    Path("run/track.json").write_text("{")
    resume("run", rounds=2)
    newest, older = mlflow_runs("file:./mlruns")
    assert newest.info.run_id != older.info.run_id
    assert only(read_mlflow("file:./mlruns", newest.info.run_id), costs=False) == written_scores("run")
