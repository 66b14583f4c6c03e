"""Real runs, really killed: what is resumed ends as if nothing had happened, and nobody is left behind."""

import json
import os
import random
import resource
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from cli_life import SETTINGS, SLOW_START, end_with_second_ctrl_c, members, saved, until

from potluck.ledger import read_journal
from potluck.run import read_experiment, resume, run

RUN = ("run", "tiny.toml", "--out", "run")


def equal(out, whole):
    """Whether a run's JSON says the same as the one that never stopped."""
    found, wanted = json.loads(out), whole.plain()
    for name in ("rounds", "scores", "bytes_down", "bytes_up", "joules", "weights_sha256"):
        assert found[name] == wanted[name]
    return True


def ended(process):
    """What a process said, once it and all that it started are gone."""
    out, err = process.communicate(timeout=120)
    until(lambda: not members(process.pid))
    return process.returncode, out, err


def resumed_equal(whole):
    found = resume("run")
    assert found.weights_sha256 == whole.weights_sha256
    assert found.scores == whole.scores
    assert list(read_journal(found.folder / "scores.jsonl")) == list(read_journal(whole.folder / "scores.jsonl"))
    return True


@pytest.mark.parametrize(
    ("engine", "after"),
    [
        ("serial", (1,)),
        pytest.param("pool", (1, 3), marks=pytest.mark.slow),
        pytest.param("serial", (2, 3), marks=pytest.mark.slow),
    ],
)
def test_a_run_killed_after_each_round_and_at_some_instant_ends_as_if_it_never_was(
    engine, after, hold, start, place, whole
):
    command = (*RUN, "--engine", engine)
    for index in after:
        process = hold(f"after {index}", *command)
        assert saved("run") == index
        assert len(members(process.pid)) == (1 if engine == "serial" else 4)  # a fork server and two workers
        os.kill(process.pid, signal.SIGKILL)
        assert ended(process)[0] == -signal.SIGKILL
        command = ("resume", "run")
    (place / "hold").unlink()

    process = start(*command)
    until(lambda: saved("run") >= 5 or process.poll() is not None)
    with suppress(TimeoutExpired):
        process.wait(random.uniform(0, 0.1))
    process.kill()
    assert ended(process)[0] in (-signal.SIGKILL, 0)

    code, out, err = ended(start("resume", "run", "--format", "json"))
    assert code == 0
    assert "tiny: resumed at round " in err
    assert equal(out, whole)


@pytest.mark.slow
def test_a_run_with_client_memories_killed_at_five_instants_ends_as_if_it_never_was(start, place):
    text = SETTINGS.replace('name = "held:Held"\nshare = "layerwise"', 'name = "local"')
    (place / "local.toml").write_text(text)
    wanted = run(read_experiment(place / "local.toml"), place / "whole")
    command = ("run", "local.toml", "--out", "run")
    for index in range(5):
        process = start(*command)
        until(lambda index=index, process=process: saved("run") >= 4 * index or process.poll() is not None)
        with suppress(TimeoutExpired):
            process.wait(random.uniform(0, 0.1))
        process.kill()
        assert ended(process)[0] in (-signal.SIGKILL, 0)
        command = ("resume", "run")
    assert resumed_equal(wanted)
    packs = {folder: sorted(path.name for path in Path(folder, "memory").iterdir()) for folder in ("run", "whole")}
    assert packs["run"] == packs["whole"]


@pytest.mark.parametrize(
    ("generation", "command"),
    [
        ("1", RUN),
        ("2", RUN),
        ("2", ("compare", "tiny.toml", "--methods", "held:Endless", "--out", "all")),
    ],
)
def test_a_process_that_is_forked_while_its_parent_is_killed_ends_too(generation, command, start, place):
    """The first generation is the fork server; the second its workers, which have an endless task waiting."""
    (place / "held.py").write_text((place / "held.py").read_text() + SLOW_START)
    (place / "slow").write_text(generation)
    process = start(*command, "--engine", "pool", "--set", "method.name=held:Endless")
    until(lambda: (place / "ready").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    until(lambda: not members(process.pid), seconds=10)


@pytest.mark.parametrize(("kind", "engine"), [(signal.SIGINT, "pool"), (signal.SIGTERM, "serial")])
def test_one_signal_saves_the_run_and_says_how_to_go_on(kind, engine, hold, place, whole):
    process = hold("after 7", *RUN, "--engine", engine, "--set", "run.checkpoint_every=5")
    assert saved("run") == 5
    os.killpg(process.pid, kind)  # a terminal sends Ctrl-C to workers as well
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert saved("run") == 7
    assert err.splitlines()[-1] == "potluck: interrupted after round 7; go on with: potluck resume run"
    assert all(line.startswith("tiny: round ") for line in err.splitlines()[:-1])
    (place / "hold").unlink()
    assert resumed_equal(whole)


def test_a_second_ctrl_c_ends_a_run_that_does_not_heed_the_first(hold, place, whole):
    (place / "stubborn").touch()
    process = hold("after 2", *RUN, "--engine", "pool")
    end_with_second_ctrl_c(process, place)
    (place / "hold").unlink()
    assert resumed_equal(whole)


def test_ctrl_c_before_round_0_is_one_line_and_the_folder_can_be_resumed(hold, place, whole):
    process = hold("init", *RUN)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (
        130,
        "",
        "potluck: interrupted before anything was saved; go on with: potluck resume run\n",
    )
    (place / "hold").unlink()
    assert resumed_equal(whole)


def test_ctrl_c_while_settings_are_read_is_one_line(start, place):
    process = start("run", "gate", "--out", "run")
    pipes = []

    def someone_reads():
        with suppress(OSError):
            pipes.append(os.open("gate", os.O_WRONLY | os.O_NONBLOCK))
        return pipes or process.poll() is not None

    until(someone_reads)
    process.send_signal(signal.SIGINT)
    os.close(pipes[0])  # a signal that comes just before a read does not end it; the end of the pipe does
    assert ended(process) == (130, "", "potluck: interrupted\n")
    assert not (place / "run").exists()


def test_ctrl_c_while_a_run_is_put_together_is_one_line(hold, place):
    process = hold("check", *RUN)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", "potluck: interrupted\n")
    assert not (place / "run").exists()


def test_sigterm_while_a_run_is_put_together_is_one_line(hold, place):
    process = hold("check", *RUN)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (130, "", "potluck: interrupted\n")
    assert not (place / "run").exists()


def test_a_signal_while_libraries_are_imported_is_one_line(start, place):
    """The method's own module waits in its import, as torch's would."""
    (place / "held.py").write_text("import time; open('held', 'w').close()\nwhile True: time.sleep(0.002)")
    process = start(*RUN)
    until(lambda: (place / "held").exists() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (130, "", "potluck: interrupted\n")


def test_both_signals_together_before_a_run_are_one_line(hold):
    process = hold("check", *RUN)
    for kind in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(kind)
    assert ended(process) == (130, "", "potluck: interrupted\n")


def test_both_signals_together_save_the_run_as_one_does(hold):
    process = hold("after 3", *RUN, "--engine", "pool", "--set", "run.checkpoint_every=5")
    for kind in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(kind)
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == "potluck: interrupted after round 3; go on with: potluck resume run"
    assert "Traceback" not in err
    assert saved("run") == 3


def test_a_killed_worker_is_one_absent_client_and_the_run_goes_on(hold, release):
    process = hold("after 2", *RUN, "--engine", "pool", "--format", "json")
    family = members(process.pid)
    (forkserver,) = (pid for pid, parent in family.items() if parent == process.pid)
    workers = [pid for pid, parent in family.items() if parent == forkserver]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    release()
    code, out, _ = ended(process)
    assert code == 0
    assert json.loads(out)["rounds"] == 24
    absent = [event for event in read_ledger() if event["outcome"] == "absent"]
    assert [(event["round"], event["reason"]) for event in absent] == [
        (3, "failed: unreachable (its worker process died)")
    ]


def read_ledger():
    return [event for event in read_journal(Path("run/ledger.jsonl")) if event["event"] == "task"]


def test_a_second_process_in_the_same_folder_is_refused_and_the_first_goes_on_unharmed(hold, release, fail, whole):
    process = hold("after 2", *RUN, "--format", "json")
    line = f"potluck: run is in use by process {process.pid} on host {os.uname().nodename}; wait for it or choose"
    for command in (RUN, ("resume", "run"), ("export", "run", "--to", "model")):
        code, said = fail(*command)
        assert code == 6
        assert said.startswith(line)
    release()
    code, out, _ = ended(process)
    assert code == 0
    assert equal(out, whole)


def test_a_full_disk_ends_with_6_and_the_run_goes_on_once_there_is_room(start, whole):
    most = 24_000  # bytes in a file: the ledger grows beyond that after some rounds

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    code, out, err = ended(start(*RUN, preexec_fn=limit))
    assert (code, out) == (6, "")
    last = err.splitlines()[-1]
    assert last.startswith("potluck: run/ledger.jsonl: cannot add ")
    assert last.endswith(" bytes: File too large. Raise the limit on file sizes (ulimit -f) and try again.")
    assert 0 < saved("run") < 24
    assert resumed_equal(whole)


def test_too_little_memory_ends_with_6_and_one_line(start):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    huge = ("--set", "model.hidden=60000", "--set", "method.name=fedavg")
    code, out, err = ended(start(*RUN, *huge, preexec_fn=limit))
    assert (code, out) == (6, "")
    assert err == "potluck: out of memory. Use fewer workers (--set run.workers=1) or a smaller model.\n"


@pytest.mark.slow
def test_memory_does_not_grow_from_round_to_round(start, place):
    code, _, err = ended(start(*RUN, "--set", "rounds=200", "--set", "score.every=20"))
    assert code == 0, err
    pages = [int(line) for line in (place / "sizes").read_text().split()]
    assert len(pages) == 200
    middle, end = sum(pages[50:100]) / 50, sum(pages[150:]) / 50
    growth = (end - middle) * os.sysconf("SC_PAGE_SIZE") / 100
    assert growth < 4096  # bytes a round; every round's events alone are 1.5 kB, and on the disk
