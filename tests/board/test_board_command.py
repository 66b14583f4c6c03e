"""`potluck board` as a command: what it prints, how it ends, and how it refuses; and how it stops a run."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from board_life import SOURCE, Stream, held_run, make_run, served, settings_and_method, until

from potluck.board.stopping import Refused, Stops
from potluck.cli import main
from potluck.ledger import owner_of, read_run
from potluck.run import resume


@contextmanager
def started(place, *arguments, **environment):
    """The command in a process of its own, once it has said where it is; yields the process and the address."""
    command = [sys.executable, "-m", "potluck", "board", *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(
        command, cwd=place, env=env | {"PYTHONPATH": str(SOURCE)} | environment, start_new_session=True, **pipes
    )
    try:
        line = process.stdout.readline()
        yield process, re.search(r"http://\S+", line)[0]
    finally:
        process.kill()
        process.communicate()


def fails(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["board", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return left.value.code, err.strip()


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_a_signal_closes_it_with_one_line_and_0(kind, tmp_path):
    make_run(tmp_path / "runs" / "a")
    with started(tmp_path) as (process, address):
        assert process.stdout.readline() == "Ctrl-C closes it; runs go on.\n"
        with Stream(address.rstrip("/")) as stream:
            until(lambda: stream.rows)
            assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
            process.send_signal(kind)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "the board is closed.\n", "")


def test_it_opens_a_browser_only_if_asked_or_if_someone_sits_there(tmp_path):
    (tmp_path / "runs").mkdir()
    opens = {"BROWSER": f"{sys.executable} -c \"import sys; open('{tmp_path}/opened', 'w').write(sys.argv[1])\" %s"}
    with started(tmp_path, **opens) as (_, address):
        until(lambda: httpx.get(address, trust_env=False).status_code == 200)
        assert not (tmp_path / "opened").exists()
    with started(tmp_path, "--open", "--token", "my-own-token", **opens) as (_, address):
        until(lambda: (tmp_path / "opened").exists() and (tmp_path / "opened").read_text() == address)
        assert address.endswith("/?token=my-own-token")


def test_a_folder_that_is_none_is_one_line_and_3(tmp_path, capsys):
    code, said = fails(capsys, tmp_path / "nope", "--no-open")
    assert (code, said) == (
        3,
        f"potluck: {tmp_path / 'nope'} is no folder; give one that holds runs, or leave it out for runs/.",
    )


def test_a_port_in_use_is_one_line_and_6(tmp_path, capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = fails(capsys, tmp_path, "--port", port, "--no-open")
    assert (code, said) == (
        6,
        f"potluck: port {port} of 127.0.0.1 is in use; choose another --port, or leave it out.",
    )


@pytest.mark.parametrize("token", ["short", "with space and more", 'quote"quote"', "semi;colon;semi"])
def test_a_token_that_cannot_be_a_link_is_refused(token, tmp_path, capsys):
    code, said = fails(capsys, tmp_path, "--token", token, "--no-open")
    assert (code, "--token must have at least 8 letters" in said) == (2, True)


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_a_missing_library_is_one_line_that_names_the_extra(library, tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == library or name == "potluck.board.server"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    code, said = fails(capsys, tmp_path, "--no-open")
    assert code == 6
    assert said == "potluck: the board needs packages that are not installed: pip install 'potluck[board]'"


def test_a_run_is_stopped_once_saves_and_can_be_resumed(tmp_path):
    path = tmp_path / "runs" / "a"
    with held_run(tmp_path, path, rounds=2) as held, served(tmp_path / "runs", allow_stop=True) as address:
        held.reached(2)
        with Stream(address) as stream:
            id = until(lambda: stream.rows.get("a"))["id"]
            until(lambda: stream.rows["a"]["can_stop"])

            def stop():
                headers = {"Origin": address}
                return httpx.post(f"{address}/stop/{id}", headers=headers, trust_env=False, timeout=60)

            assert stop().json() == {"told": "it saves and stops; `potluck resume` goes on with it."}
            again = stop()  # a second signal would end it without saving
            assert again.status_code == 409
            until(lambda: stream.rows["a"]["status"] == "interrupted")
            _, err = held.process.communicate(timeout=120)
            assert "interrupted after round 2" in err
            assert stop().json() == {"told": "no process runs here."}
            assert not stream.rows["a"]["can_stop"]
    assert read_run(path).manifest["status"] == "interrupted"
    held.allow(6)
    assert resume(path, method=settings_and_method(tmp_path)[1]).rounds == 6


HOLDS = """
import signal, sys, time
from pathlib import Path
from potluck.ledger import Lock
place = Path(sys.argv[1])
signal.signal(signal.SIGINT, lambda *_: open(place / "heard", "a").write("x"))
kept = Lock(place / "lock")
print("ready", flush=True)
while not (place / "again").exists():
    time.sleep(0.01)
kept.release()
kept = Lock(place / "lock")
print("again", flush=True)
time.sleep(600)
"""


def test_a_process_gets_one_signal_for_each_time_that_it_runs(tmp_path):
    path, stops = make_run(tmp_path / "a", status="running"), Stops()
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", HOLDS, str(path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        stops.stop(path)
        until((path / "heard").exists)
        with pytest.raises(Refused, match=r"^it was asked to stop already, and is saving\.$"):
            stops.stop(path)
        (path / "again").touch()
        assert process.stdout.readline() == "again\n"
        stops.stop(path)
        until(lambda: (path / "heard").read_text() == "xx")
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_only_has_the_name_of_the_owner_gets_no_signal(tmp_path):
    path = make_run(tmp_path / "a", status="running")
    innocent = subprocess.Popen(["sleep", "600"])
    try:
        (path / "lock").write_text(f'{{"pid": {innocent.pid}, "host": "{os.uname().nodename}"}}')
        with pytest.raises(Refused, match=r"^no process runs here\.$"):
            Stops().stop(path)
        with open(path / "lock"):  # held open by a process, but by another one
            assert owner_of(path) is None
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_lock_file_that_is_open_but_not_locked_gets_no_signal(tmp_path):
    path = make_run(tmp_path / "a", status="running")
    program = f"import time\nkept = open({str(path / 'lock')!r}); print('x', flush=True)\n"
    (path / "lock").touch()
    command = [sys.executable, "-c", program + "time.sleep(600)"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        reader.stdout.readline()
        (path / "lock").write_text(f'{{"pid": {reader.pid}, "host": "{os.uname().nodename}"}}')
        with pytest.raises(Refused, match=r"^it has just ended\.$"):
            Stops().stop(path)
        assert reader.poll() is None
    finally:
        reader.kill()
        reader.communicate()
