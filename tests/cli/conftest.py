import os
import shutil
import signal
import subprocess
import sys

import cli_life
import pytest

from potluck.cli import main
from potluck.run import read_experiment, run

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell put into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working folder with settings and a method of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "held", raising=False)
    furnish(tmp_path)
    return tmp_path


def furnish(folder):
    (folder / "tiny.toml").write_text(cli_life.SETTINGS)
    (folder / "held.py").write_text(cli_life.METHOD)
    os.mkfifo(folder / "gate")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The same run, never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "tiny.toml").write_text(cli_life.SETTINGS)
    return run(read_experiment(folder / "tiny.toml", ["method.name=fedavg"]), folder / "run")


@pytest.fixture
def potluck(capfd):
    """Runs a command in this process: its exit code, standard output and standard error."""

    def call(*arguments):
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return left.value.code, out, err

    return call


@pytest.fixture
def fail(potluck):
    """Runs a command that must fail: its exit code, and the one line that it said."""

    def call(*arguments):
        code, out, err = potluck(*arguments)
        assert out == ""
        assert err.startswith("potluck: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return code, err.strip()

    return call


@pytest.fixture
def start():
    """Starts a command in a process and session of its own; whatever still lives at the end of the test is killed."""
    started = []

    def begin(*arguments, **options):
        command = [sys.executable, "-B", "-m", "potluck", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes, start_new_session=True, **options))
        return started[-1]

    yield begin
    for process in started:
        for pid in cli_life.members(process.pid):
            os.kill(pid, 9)
        process.kill()
        process.communicate()


@pytest.fixture
def hold(start, place):
    """Starts a run (or goes on with one) and holds it at a place: `init`, or `after` a number of rounds."""

    def begin(where, *arguments, **options):
        (place / "held").unlink(missing_ok=True)
        (place / "hold").write_text(where)
        process = start(*arguments, **options)
        cli_life.until(lambda: (place / "held").exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    yield begin
    shutil.rmtree(place / "hold", ignore_errors=True)


@pytest.fixture
def release(place):
    """Lets a held run go on."""

    def end_hold():
        (place / "hold").unlink()

    return end_hold
