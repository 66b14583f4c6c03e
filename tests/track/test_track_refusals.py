"""What cannot be tracked is refused before a run has a folder, in one line."""

import socket
import sys
from dataclasses import replace

import pytest
from tiny_runs import TEXT, tiny

from potluck.cli import main
from potluck.core import ResourceError, SettingsError
from potluck.ledger import LedgerError
from potluck.run import assemble, read_experiment, run
from potluck.run.session import mark
from potluck.run.settings import Track


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def closed():
    """The address of a port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{one.getsockname()[1]}"


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny"), ("wandb", "wandb")]
)
def test_a_tracker_without_its_library_is_refused_with_the_extra_to_install(name, package, monkeypatch, place):
    for module in list(sys.modules):
        if module.partition(".")[0] == name:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it was not installed
    monkeypatch.delitem(sys.modules, f"potluck.track.{name}", raising=False)
    with pytest.raises(ResourceError) as refused:
        run(tiny(track={name: "x"}), "run")
    assert str(refused.value) == f"[track] {name} needs the package {package}: pip install 'potluck[track]'"
    assert not (place / "run").exists()


def test_an_mlflow_server_that_is_not_there_ends_with_6_and_one_line(closed, capfd, place):
    (place / "tiny.toml").write_text(TEXT)
    with pytest.raises(SystemExit) as left:
        main(["run", "tiny.toml", "--out", "run", "--set", f"track.mlflow={closed}"])
    assert left.value.code == 6
    assert capfd.readouterr().err == (
        f"potluck: track.mlflow = '{closed}' cannot be used: connection refused. "
        "Start that server, choose another place, or leave mlflow out of [track].\n"
    )
    assert not (place / "run").exists()


def test_an_mlflow_server_that_does_not_answer_is_waited_for_only_so_long(monkeypatch, place):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(ResourceError, match="cannot be used: timed out"):
            run(tiny(track={"mlflow": f"http://127.0.0.1:{silent.getsockname()[1]}"}), "run")
    assert not (place / "run").exists()


def test_a_kind_of_store_that_mlflow_does_not_have_is_refused():
    with pytest.raises(ResourceError, match="databases need the whole package, pip install mlflow"):
        run(tiny(track={"mlflow": "nonsense://x"}), "run")


def test_wandb_online_without_a_key_is_refused_and_not_asked_for(monkeypatch, closed, place):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", closed)
    monkeypatch.setenv("NETRC", str(place / "none"))
    with pytest.raises(ResourceError, match=f"needs a key for {closed}: run `wandb login`"):
        run(tiny(track={"wandb": "p", "wandb_mode": "online"}), "run")
    assert not (place / "run").exists()


def test_wandb_online_that_cannot_be_reached_is_refused(monkeypatch, closed, place):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", closed)
    with pytest.raises(ResourceError, match=f"W&B at {closed} cannot be reached within 10 s: .*Connection refused"):
        run(tiny(track={"wandb": "p", "wandb_mode": "online"}), "run")
    assert not (place / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_folder_that_cannot_be_made_is_refused(name, place):
    (place / "file").touch()
    with pytest.raises((ResourceError, LedgerError), match="file: cannot make the folder: File exists") as refused:
        run(tiny(track={name: "file"}), "run")
    assert refused.value.exit_code == 6
    assert not (place / "run").exists()


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ({"tensorbord": True}, "[track] has no setting 'tensorbord'. Did you mean 'tensorboard'?"),
        ({"tensorboard": 3}, "track.tensorboard = 3: input should be a valid boolean."),
        ({"wandb": "a/b/c"}, "track.wandb = 'a/b/c' must be a project, or a team and a project: team/project."),
        ({"wandb_mode": "on"}, "track.wandb_mode = 'on': input should be 'offline' or 'online'."),
        ({"mlflow": "https://me:secret@lab"}, "track.mlflow holds a user or password, which every copy"),
    ],
)  # fmt: skip
def test_a_mistake_under_track_is_one_line(wanted, line):
    with pytest.raises(SettingsError) as refused:
        tiny(track=wanted)
    assert str(refused.value).startswith(f"settings: {line}")
    assert "secret" not in str(refused.value)


def test_how_a_run_is_tracked_is_no_part_of_what_identifies_it():
    plain = tiny()
    tracked = replace(plain, track=Track(True, "file:./mlruns", "project", "online"))
    assert mark(assemble(plain)) == mark(assemble(tracked))


def test_track_survives_the_settings_file_of_a_run(place):
    run(tiny(rounds=0, track={"tensorboard": "tb"}), "run")
    assert read_experiment(place / "run" / "settings.toml").track == Track(tensorboard="tb")
