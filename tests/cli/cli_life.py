"""Settings and a method with which a real run can be held, at an exact place, for as long as a test needs."""

import os
import re
import signal
import time
from pathlib import Path

SETTINGS = """\
name = "tiny"
rounds = 24
cohort = 3

[data]
clients = 8

[model]
name = "mlp"
hidden = 8
depth = 2

[[tier]]
name = "small"
depth = 1

[[tier]]
name = "large"

[method]
name = "held:Held"
share = "layerwise"

[local]
epochs = 1
batch = 32

[score]
every = 6
clients = 2

[run]
engine = "serial"
workers = 2
"""

METHOD = '''\
import os
import time
from dataclasses import dataclass
from pathlib import Path

from potluck.methods import FedAvg


@dataclass(frozen=True)
class Held(FedAvg):
    """FedAvg that waits at the place which the file `hold` names until that file is gone.

    It looks again every 2 ms: a signal between two bytecodes does not end a system call that begins after it.
    """

    def check(self, zoo):
        wait("check")

    def init(self, zoo, rng):
        wait("init")
        return super().init(zoo, rng)

    def round(self, state, now):
        wait(f"after {now.index}")
        with open("/proc/self/statm") as status, open("sizes", "a") as sizes:
            sizes.write(status.read().split()[1] + "\\n")
        return super().round(state, now)


def wait(place):
    while True:
        try:
            if held_at() != place:
                return
            Path("held").touch()
            Path(f"held-{os.getpid()}").touch()
            time.sleep(0.002)
        except KeyboardInterrupt:
            if not Path("stubborn").exists():
                raise
            Path("heard").touch()


def held_at():
    try:
        return Path("hold").read_text()
    except FileNotFoundError:
        return None
'''
SLOW_START = '''

import os
import socket
import time

from potluck.core import on_client

generation = 0


@dataclass(frozen=True)
class Endless(Held):
    """A method whose first task, to score the model at the start, never ends."""

    @on_client
    def score(self, task, device):
        while True:
            time.sleep(0.01)


def wait_for_orphanhood():
    """Holds a forked process of the generation in the file `slow` before its first line, until its parent is dead."""
    global generation
    generation += 1
    if not Path("slow").exists() or Path("slow").read_text() != str(generation):
        return
    parent = os.getppid()
    while os.getppid() == parent:
        Path("forked").touch()
        if generation == 1 or any(map(holds_a_task, range(3, 64))):
            Path("ready").touch()
        time.sleep(0.001)  # two such processes would keep both cores of a small machine from the run itself


def holds_a_task(descriptor):
    """Whether a message of more than one byte waits in this socket."""
    try:
        end = socket.socket(fileno=os.dup(descriptor))
        with end:
            return len(end.recv(64, socket.MSG_PEEK | socket.MSG_DONTWAIT)) > 1
    except OSError:
        return False


os.register_at_fork(after_in_child=wait_for_orphanhood)
'''
"""Added to METHOD: forked processes that start so slowly that their parent can die first."""

DEADLINE = 120.0


def until(condition, seconds=DEADLINE):
    """Waits until something is the case; an error if it is not within the deadline."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited for {seconds} s in vain")
        time.sleep(0.002)


def saved(folder):
    """The newest round of which a checkpoint is there; -1: none."""
    found = [re.fullmatch(r"round-(\d+)\.ckpt", path.name) for path in (Path(folder) / "checkpoints").glob("*")]
    return max((int(match[1]) for match in found if match), default=-1)


def members(session):
    """The living processes of a session, as {pid: parent}."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent, _, own = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(own) == session and state != "Z":
            found[int(name)] = int(parent)
    return found


def end_with_second_ctrl_c(process, place):
    """Interrupts a process that does not heed the first Ctrl-C: the second ends it, with all its children."""
    process.send_signal(signal.SIGINT)
    until((place / "heard").exists)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=2) == 130
    until(lambda: not members(process.pid), seconds=2)
