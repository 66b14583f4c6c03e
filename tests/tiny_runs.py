"""Runs so small that a test can afford many, and ways to stop, spoil and read them."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from potluck.core import on_client, unpack
from potluck.engines import Serial
from potluck.ledger import RunFolder, read_journal
from potluck.methods import FedAvg
from potluck.run import experiment, run

TEXT = """\
name = "tiny"
rounds = 3
cohort = 3

[data]
name = "digits"
clients = 8

[model]
name = "mlp"
hidden = 8
depth = 2

[[tier]]
name = "small"
depth = 1
profile = "tv"

[[tier]]
name = "large"

[method]
name = "fedavg"
share = "layerwise"

[local]
epochs = 1
batch = 32

[score]
clients = 2

[run]
engine = "serial"
"""


def tiny(**changes):
    """Settings of two tiers and eight clients; a section given as a mapping is merged into the tiny one."""
    plain = {
        "name": "tiny",
        "rounds": 3,
        "cohort": 3,
        "data": {"clients": 8},
        "model": {"name": "mlp", "hidden": 8, "depth": 2},
        "tier": [{"name": "small", "depth": 1, "profile": "tv"}, {"name": "large"}],
        "method": {"name": "fedavg", "share": "layerwise"},
        "local": {"epochs": 1, "batch": 32},
        "score": {"clients": 2},
        "run": {"engine": "serial"},
    }
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(plain.get(key), dict) and key != "method"
        plain[key] = {**plain[key], **value} if both else value
    return experiment(plain)


class Listener:
    """A watch that remembers."""

    def __init__(self):
        self.warnings, self.rounds = [], []

    def round(self, done, scores, totals):
        self.rounds.append(done)

    def warn(self, text):
        self.warnings.append(text)


class StopsAfter(Listener):
    """A watch that presses Ctrl-C after a round."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def round(self, done, scores, totals):
        super().round(done, scores, totals)
        if done == self.last:
            os.kill(os.getpid(), signal.SIGINT)


class DiesAfter(Listener):
    """A watch that kills its process after a round."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def round(self, done, scores, totals):
        if done == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def killed_after(last, experiment, out, method=None, source=None):
    """A run in a process of its own, which is killed after a round without a chance to save anything."""
    pid = os.fork()
    if pid == 0:
        try:
            run(experiment, out, source=source, method=method, watch=DiesAfter(last))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


class Counting(Serial):
    """The serial engine, with a list of what it ran."""

    def run(self, envelopes):
        self.ran = []
        for envelope in envelopes:
            self.ran.append((envelope.task.to, envelope.task.key))
            yield self.worker.run(envelope)


@dataclass(frozen=True)
class Moody(FedAvg):
    """FedAvg whose clients fail at the first try of every round, and at every try while a file `forever` is there."""

    folder: str = ""

    @on_client
    def train(self, task, device):
        tried = Path(self.folder) / f"{task.round}-{task.to}"
        if (Path(self.folder) / "forever").exists() or not tried.exists():
            tried.touch()
            raise OSError("the battery is flat")
        return super().train(task, device)


@dataclass(frozen=True)
class Fragile(FedAvg):
    """FedAvg that is interrupted at its scoring while a file `stop` is there, and fails while `break` is."""

    folder: str = ""

    def serve(self, state, client, zoo):
        if (Path(self.folder) / "stop").exists():
            raise KeyboardInterrupt
        return super().serve(state, client, zoo)

    def round(self, state, now):
        if (Path(self.folder) / "break").exists():
            raise RuntimeError("a wheel came off")
        return super().round(state, now)


@dataclass(frozen=True)
class Liar(FedAvg):
    """FedAvg in which client c3 claims a weight that is none."""

    def report(self, task, device, fit):
        found = super().report(task, device, fit)
        return replace(found, weight=-1.0) if task.to == "c3" else found


@dataclass(frozen=True)
class Diverges(FedAvg):
    """FedAvg whose clients reply with numbers that are not finite after `last` rounds."""

    last: int = 1

    def report(self, task, device, fit):
        found = super().report(task, device, fit)
        if task.round >= self.last:
            for tensor in found.models["model"].arrays.values():
                tensor.fill_(float("nan"))
        return found


@dataclass(frozen=True)
class Dies(FedAvg):
    """FedAvg whose process is killed in its second round, as often as `times` says."""

    folder: str = ""
    times: int = 1

    def round(self, state, now):
        deaths = Path(self.folder) / f"deaths-of-{self.times}"
        died = len(deaths.read_text()) if deaths.exists() else 0
        if now.index == 1 and died < self.times:
            deaths.write_text("x" * (died + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().round(state, now)


class TouchesAfter(Listener):
    """A watch that makes a file after a round."""

    def __init__(self, last, file):
        super().__init__()
        self.last, self.file = last, file

    def round(self, done, scores, totals):
        if done == self.last:
            self.file.touch()


def events(folder, kind):
    return [event for event in read_journal(Path(folder) / "ledger.jsonl") if event["event"] == kind]


def scores(folder):
    return list(read_journal(Path(folder) / "scores.jsonl"))


def cohorts(folder):
    """Who was asked in each round; attempts that missed their quorum do not count."""
    asked = {}
    for event in events(folder, "task"):
        if "attempt" in event:
            continue
        asked.setdefault(event["round"], []).append(event["client"])
    return asked


def kept(folder):
    """The newest checkpoint's round and what it holds."""
    with RunFolder.open(Path(folder)) as opened:
        round, payload = opened.checkpoints.latest(lambda text: None)
    return round, unpack(payload)
