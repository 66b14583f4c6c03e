"""Worker processes: results that do not depend on them, deaths that cost one task, and nobody left behind."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

import pytest
import torch
from made_context import Echo, Odd, federation, made_context

from potluck.core import SERVER, Local, ResourceError, SettingsError, Task, digest
from potluck.engines import ENGINES, TaskEnvelope
from potluck.engines.batches import Assignment, EnvelopeBatch, _batches
from potluck.methods import FedAdam, FedAvg

LOCAL = Local(lr=0.3, epochs=2, batch=4)
PATIENCE = 20.0


def family(pid):
    """Every process below this one that is not dead, as (pid, start time), which no other process ever shares."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (found := status(int(entry.name))):
            parents[int(entry.name)] = found
    below, wave = set(), {pid}
    while wave:
        wave = {child for child, (parent, _) in parents.items() if parent in wave}
        below |= {(child, parents[child][1]) for child in wave}
    return below - OTHERS


OTHERS = set()


@pytest.fixture(autouse=True)
def _leave_others_out():
    """Processes that tests before this one left to this process are not looked at: Ray's, for example."""
    OTHERS.clear()
    OTHERS.update(family(os.getpid()))


def status(pid):
    """(parent, start time) of a process; None if it is gone or only waits to be buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))


def all_gone(processes):
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not any((found := status(pid)) and found[1] == born for pid, born in processes):
            return True
        time.sleep(0.01)
    return False


# Results


def after(method, engine, workers, rounds=2, count=40):
    with federation(method, engine, workers, count) as made:
        state = made.init()
        for index in range(rounds):
            state = made.round(state, index)
        assert made.session.accepted == count - len(made.method.who if getattr(made.method, "odd", "") else ())
    return digest({**state.model.arrays, **{f"{s} {n}": t for s, a in state.slots.items() for n, t in a.items()}})


@pytest.mark.parametrize("share", ["whole", "layerwise", "per_arch"])
def test_results_are_bit_equal_for_every_engine_and_any_number_of_workers(share):
    """Forty clients fill two blocks and a half; weights are sevenths, so a wrong order of sums would show."""
    method = Odd(LOCAL, share=share)
    reference = after(method, "serial", 1)
    assert after(method, "wire", 1) == reference
    assert [after(method, "pool", workers) for workers in (1, 2, 4)] == [reference] * 3


def test_results_are_bit_equal_with_absent_clients_in_every_block():
    """An absent client leaves a gap: the others stay in their own blocks."""
    method = Odd(LOCAL, odd="boom", who=("c0", "c15", "c16", "c17", "c39"))
    reference = after(method, "serial", 1)
    assert [after(method, "pool", workers) for workers in (1, 2)] == [reference] * 2


def test_the_servers_slots_are_bit_equal_too():
    assert after(FedAdam(LOCAL), "pool", 2) == after(FedAdam(LOCAL), "serial", 1)


def test_tasks_are_spread_over_as_many_workers_as_were_asked_for():
    with federation(Echo(), "pool", workers=3) as made:
        replies = list(made.dispatcher.open(0).send(Task("where", f"c{n}") for n in range(60)))
        workers = {pid for pid, _ in family(os.getpid())} & {reply.metrics["pid"] for reply in replies}
    assert len({reply.metrics["pid"] for reply in replies}) == len(workers) <= 3
    assert os.getpid() not in workers


def test_zero_workers_means_one_per_core():
    with federation(Echo(), "pool", workers=0) as made:
        assert made.dispatcher.engine.count == os.cpu_count()


# Deaths


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_killed_in_mid_task_fails_that_task_only(workers):
    with federation(Odd(LOCAL, odd="bye"), "pool", workers, count=20) as made:
        killed = made.round(made.init())
        assert made.outcomes()["c1"] == ("absent", "failed: unreachable (its worker process died)")
        assert made.session.accepted == 19
        again = made.round(killed, 1)
        assert made.session.accepted == 19
    with federation(Odd(LOCAL, odd="boom"), "serial", count=20) as made:
        first = made.round(made.init())
        assert digest(killed.model.arrays) == digest(first.model.arrays)
        assert digest(again.model.arrays) == digest(made.round(first, 1).model.arrays)


def test_a_worker_that_died_is_replaced():
    with federation(Echo(), "pool", workers=2) as made:
        session = made.dispatcher.open(0)
        before = {r.metrics["pid"] for r in session.send(Task("where", f"c{n}") for n in range(20))}
        list(session.send(Task("die", f"c{n}") for n in range(4)))
        assert [entry.reason for entry in session.entries[-4:]] == ["failed: unreachable (its worker process died)"] * 4
        after = {r.metrics["pid"] for r in session.send(Task("where", f"c{n}", "again") for n in range(20))}
        session.close()
        assert after
        assert not after & before


def test_a_worker_killed_while_idle_is_replaced_and_costs_at_most_its_next_task():
    with federation(Echo(), "pool", workers=1) as made:
        (reply,) = made.dispatcher.open(0).send([Task("where", "c1")])
        born = {(pid, start) for pid, start in family(os.getpid()) if pid == reply.metrics["pid"]}
        os.kill(reply.metrics["pid"], signal.SIGKILL)
        assert all_gone(born)
        session = made.dispatcher.open(1)
        heard = [r.task.to for r in session.send(Task("echo", f"c{n}") for n in range(5))]
    assert heard in (["c0", "c1", "c2", "c3", "c4"], ["c1", "c2", "c3", "c4"])


def test_a_pool_whose_fork_server_was_killed_says_so():
    with federation(Echo(), "pool", workers=1) as made:
        started = family(os.getpid())
        pid = made.dispatcher.engine._pid
        os.kill(pid, signal.SIGKILL)
        assert all_gone(started)
        with pytest.raises(ResourceError) as caught:
            list(made.dispatcher.open(0).send(Task("echo", f"c{n}") for n in range(4)))
    assert str(caught.value) == (
        f"the pool's worker processes cannot be started: their fork server (process {pid}) was killed by SIGKILL, "
        "perhaps for lack of memory. Nothing that was saved is lost: potluck resume goes on."
    )


def test_a_fork_server_that_meets_a_limit_says_which_and_goes_on_when_there_is_room():
    with federation(Echo(), "pool", workers=1) as made:
        server = made.dispatcher.engine._pid
        before = resource.prlimit(server, resource.RLIMIT_NOFILE)
        resource.prlimit(server, resource.RLIMIT_NOFILE, (4, before[1]))
        with pytest.raises(ResourceError, match=r"cannot be started: Too many open files \(a limit on memory, proc"):
            list(made.dispatcher.open(0).send([Task("die", "c0"), Task("echo", "c1")]))
        resource.prlimit(server, resource.RLIMIT_NOFILE, before)
        assert [reply.task.to for reply in made.dispatcher.open(1).send([Task("echo", "c1")])] == ["c1"]


def test_more_workers_than_a_machine_can_use_are_refused_before_any_is_forked():
    most = 32 * os.cpu_count()
    with pytest.raises(SettingsError) as caught:
        ENGINES["pool"](made_context(Echo()), most + 1)
    assert str(caught.value) == (
        f"run.workers = {most + 1} is too many for a machine with {os.cpu_count()} cores: at most {most}. "
        "Leave it out for one per core."
    )
    assert not family(os.getpid())


# The server's own tasks


def own(folder, key="", times=1, to=SERVER, **more):
    return Task("hang_once", to, key, config={"folder": str(folder), "times": times, **more})


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("stack", [0, 4])
def test_the_servers_own_tasks_are_done_again_if_their_worker_dies(tmp_path, times, stack):
    with federation(Echo(), "pool", workers=2, stack=stack) as made:
        session = made.dispatcher.open(0)
        replies = list(session.send(own(tmp_path, f"k{n}", times * (n == 1)) for n in range(3)))
        session.close()
    assert [reply.task.key for reply in replies] == ["k0", "k1", "k2"]
    assert [reply.metrics["calls"] for reply in replies] == [1, times + 1, 1]


def test_a_server_task_whose_worker_dies_three_times_ends_the_send(tmp_path):
    with federation(Echo(), "pool", workers=2) as made, pytest.raises(ResourceError) as caught:
        list(made.dispatcher.open(0).send([own(tmp_path, "small", times=9)]))
    assert (tmp_path / "serversmall").read_text() == "xxx"
    assert str(caught.value) == (
        "the server's own 'hang_once' (small) failed 3 times: unreachable (its worker process died). "
        "Nothing that was saved is lost: potluck resume goes on."
    )


def test_tasks_that_score_are_sent_again_and_a_client_that_always_kills_its_worker_is_lost(tmp_path):
    with federation(Echo(), "pool", workers=1) as made:
        session = made.dispatcher.open(0, everyone=True)
        times = {"c0": 0, "c1": 1, "c2": 99, "c3": 0}
        heard = [reply.task.to for reply in session.send(own(tmp_path, "", n, to) for to, n in times.items())]
        session.close()
    assert heard == ["c0", "c1", "c3"]
    assert {e.task.to: e.reason for e in session.entries if e.verdict == "absent"} == {
        "c2": "failed: unreachable (its worker process died)"
    }


# Deadlines


def test_a_client_that_hangs_is_absent_and_its_worker_is_replaced():
    with federation(Echo(), "pool", workers=1, more={"deadline": 0.3}) as made:
        session = made.dispatcher.open(0)
        started = time.monotonic()
        before = family(os.getpid())
        heard = [r.task.to for r in session.send(Task("hang" if n == 2 else "echo", f"c{n}") for n in range(40))]
        session.close()
        assert time.monotonic() - started < 5
        assert heard == [f"c{n}" for n in range(40) if n != 2]
        (absent,) = (entry for entry in session.entries if entry.verdict == "absent")
        assert (absent.task.to, absent.reason) == ("c2", "failed: no answer within 0.3 s")
        (pid,) = {pid for pid, _ in before} - {made.dispatcher.engine._pid}
        assert all_gone({one for one in before if one[0] == pid})


def test_a_worker_that_is_stopped_is_replaced_too():
    with federation(Echo(), "pool", workers=1, more={"deadline": 0.3}) as made:
        (reply,) = made.dispatcher.open(0).send([Task("where", "c1")])
        os.kill(reply.metrics["pid"], signal.SIGSTOP)
        session = made.dispatcher.open(1)
        heard = [r.task.to for r in session.send(Task("where", f"c{n}") for n in range(3))]
    assert heard == ["c1", "c2"]
    assert [entry.reason for entry in session.entries if entry.reason] == ["failed: no answer within 0.3 s"]


def test_a_server_task_that_hangs_once_is_done_again_and_one_that_always_hangs_ends_the_send(tmp_path):
    with federation(Echo(), "pool", workers=1, more={"deadline": 0.2}) as made:
        (reply,) = made.dispatcher.open(0).send([own(tmp_path, "once", hang=True)])
        assert reply.metrics["calls"] == 2
        with pytest.raises(ResourceError, match=r"'hang_once' \(ever\) failed 3 times: no answer within 0.2 s"):
            list(made.dispatcher.open(1).send([own(tmp_path, "ever", 9, hang=True)]))


def test_stacked_clients_share_the_time_of_all_and_only_the_one_that_hangs_is_absent(tmp_path):
    with federation(Echo(), "pool", workers=1, stack=3, more={"deadline": 0.2}) as made:
        session = made.dispatcher.open(0)
        heard = [r.task.to for r in session.send(Task("hang" if n == 1 else "echo", f"c{n}") for n in range(3))]
    assert heard == ["c0", "c2"]


def test_with_a_deadline_every_task_travels_alone():
    sizes = [len(batch.envelopes) for batch in _batches(iter(envelopes(40, 1)), 2, 0, alone=True)]
    assert sizes == [1] * 40


# Nobody left behind


def test_close_ends_every_process():
    with federation(Echo(), "pool", workers=3) as made:
        list(made.dispatcher.open(0).send(Task("echo", f"c{n}") for n in range(9)))
        started = family(os.getpid())
        assert len(started) >= 4  # the fork server and three workers
    assert all_gone(started)


def test_close_ends_workers_that_are_busy():
    with federation(FedAvg(Local(lr=0.1, steps=10_000_000)), "pool", workers=2) as made:
        state = made.init()
        tasks = (Task("train", f"c{n}", models={"model": state.model}) for n in range(2))
        envelopes = list(made.dispatcher.open(0)._envelopes(tasks, {}, 0))
        for envelope in envelopes:
            made.dispatcher.engine._assign_when_idle(Assignment(EnvelopeBatch([envelope]), [0], deque()))
        assert len(made.dispatcher.engine._busy) == 2
        started = family(os.getpid())
    assert all_gone(started)


def test_a_send_that_is_given_up_holds_nobody_up_and_leaves_nobody_behind():
    with federation(Echo(), "pool", workers=1) as made:
        replies = made.dispatcher.open(0).send([Task("echo", "c0"), Task("hang", "c1"), Task("hang", "c2")])
        next(replies)
        assert len(made.dispatcher.engine._busy) == 1
        replies.close()
        assert not made.dispatcher.engine._busy  # else the next send would wait for ever
        assert [reply.task.to for reply in made.dispatcher.open(1).send([Task("echo", "c3")])] == ["c3"]
        started = family(os.getpid())
    assert all_gone(started)


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from made_context import federation
from potluck.core import Local, Task
from potluck.methods import FedAvg

with federation(FedAvg(Local(lr=0.1, steps=10_000_000)), "pool", 2) as made:
    state = made.init()
    def tasks():
        for n in range(4):
            if n == 1:
                print("ready", flush=True)
            yield Task("train", f"c{n}", models={"model": state.model})
    list(made.dispatcher.open(0).send(tasks()))
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_parent_that_was_killed(sign):
    """The parent dies while a worker is in the middle of a task that would take hours."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        started = family(parent.pid)
        assert len(started) == 3
        parent.send_signal(sign)
        assert all_gone(started)
        parent.wait(PATIENCE)


def test_workers_leave_the_keyboard_to_their_parent():
    with federation(Echo(), "pool", workers=1) as made:
        (reply,) = made.dispatcher.open(0).send([Task("where", "c1")])
        os.kill(reply.metrics["pid"], signal.SIGINT)
        (again,) = made.dispatcher.open(1).send([Task("where", "c1")])
        assert again.metrics["pid"] == reply.metrics["pid"]


def test_every_engine_is_listed_by_name():
    assert set(ENGINES) >= {"serial", "wire", "pool"}


# Batches


def envelopes(count, size):
    shared = torch.zeros(size)
    return [TaskEnvelope(Task("echo", f"c{n}", arrays={"x": shared})) for n in range(count)]


def sizes(count, size=1, workers=2, stack=0):
    return [len(batch.envelopes) for batch in _batches(iter(envelopes(count, size)), workers, stack)]


def test_batches_grow_smaller_towards_the_end_so_that_workers_finish_together():
    assert sizes(10) == [1] * 10
    assert sizes(40)[:4] == [5, 4, 3, 3]
    assert sizes(200)[:2] == [16, 16]
    for count in (1, 40, 200, 600):
        assert sum(sizes(count)) == count
        assert sizes(count)[-8:] == [1] * min(count, 8)


def test_large_envelopes_travel_alone():
    assert sizes(6, size=2_000_000) == [1] * 6
    assert max(sizes(400, size=100)) == 16


def test_stacked_clients_come_in_fixed_batches_whatever_the_workers():
    assert sizes(50, stack=20, workers=1) == sizes(50, stack=20, workers=7) == [20, 20, 10]


def test_a_death_in_a_batch_costs_the_one_that_died():
    with federation(Echo(), "pool", workers=1) as made:
        session = made.dispatcher.open(0)
        verbs = ["die" if n in (3, 17) else "echo" for n in range(40)]
        heard = [reply.task.to for reply in session.send(Task(verb, f"c{n}") for n, verb in enumerate(verbs))]
        session.close()
    assert heard == [f"c{n}" for n in range(40) if n not in (3, 17)]
    assert {entry.task.to for entry in session.entries if entry.verdict == "absent"} == {"c3", "c17"}
