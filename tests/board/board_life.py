"""Run folders made by hand, real runs that can be held between rounds, and a board that serves them."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tiny_runs import tiny

from potluck.board.server import BoardServer, listen
from potluck.methods import FedAvg

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src"
DEADLINE = 120.0

MANIFEST = {
    "schema": 2,
    "mark": "m",
    "keep": 2,
    "name": "tiny",
    "method": "fedavg",
    "label": "FedAvg",
    "seed": 0,
    "rounds": 10,
    "cohort": 4,
    "status": "done",
    "started": "2026-01-01T00:00:00+00:00",
    "tiers": [{"name": "small", "clients": 4}, {"name": "large", "clients": 4}],
}


def make_run(path, live=None, scores=(), ledger=(), **manifest):
    """A run folder of plain files, as a run would leave it."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "manifest.json").write_text(json.dumps(MANIFEST | manifest))
    (path / "settings.toml").write_text("")
    if live is not None:
        append(path / "live.jsonl", *live)
    append(path / "scores.jsonl", *scores)
    append(path / "ledger.jsonl", *ledger)
    return path


def append(path, *lines):
    with open(path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def scored(round, whole, **tiers):
    """A line of scores.jsonl."""
    by_tier = {name: {"test": {"accuracy": value}} for name, value in tiers.items()}
    return {"round": round, "metric": "accuracy", "global": {"test": {"accuracy": whole}}, "tiers": by_tier}


def start(time=100.0, done=0, rounds=10):
    return {"event": "start", "time": time, "round": done, "rounds": rounds}


def task(round, client="c1", outcome="accepted", **more):
    tier, verb = "small", "train"
    facts = {"event": "task", "time": 100.5, "round": round, "client": client, "tier": tier, "verb": verb}
    return facts | {"outcome": outcome} | more


def ended_round(round, time, scores=None, asked=4, answered=4, refused=0, **totals):
    facts = {"event": "round", "time": time, "round": round, "asked": asked, "answered": answered, "refused": refused}
    return facts | {"totals": totals} | ({"scores": scores} if scores else {})


def until(condition, seconds=DEADLINE):
    """Waits until something is the case, and returns it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited for {seconds} s in vain"
        time.sleep(0.01)
    return found


@contextmanager
def served(root, token="", allow_stop=False, host="127.0.0.1", port=0):
    """A board in a thread of this process; yields its address."""
    with listen("127.0.0.1", port) as listening:
        server = BoardServer(root, host, token, allow_stop)
        thread = threading.Thread(target=server.serve, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.close()
            thread.join(DEADLINE)
            assert not thread.is_alive()


class Stream:
    """A stream of events, read in a thread: the newest data by kind of event, and the rows and details put together."""

    def __init__(self, address, *chosen):
        self.events, self.rows, self.gone, self.details = [], {}, set(), {}
        host, port = address.removeprefix("http://").split(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=DEADLINE)
        self._path = "/events?" + "&".join(f"run={id}" for id in chosen)
        self._thread = threading.Thread(target=self._read)

    def _read(self):
        self._connection.request("GET", self._path)
        answer = self._connection.getresponse()
        assert answer.status == 200
        while line := answer.readline().decode():
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                self._take(name, json.loads(line.removeprefix("data: ")))

    def _take(self, name, data):
        self.events.append((name, data))
        if name == "runs":
            self.rows |= {row["folder"]: row for row in data["rows"]}
            self.gone |= set(data["gone"])
        if name == "run":
            before = self.details.get(data["id"], {}).get("points", [])
            data["points"] = before[: data["first"]] + data["points"]
            self.details[data["id"]] = data

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        if self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(DEADLINE)
        self._connection.close()


@dataclass(frozen=True)
class Held(FedAvg):
    """FedAvg that does as many rounds as the file `until` says, and then waits."""

    place: str = ""

    def round(self, state, now):
        while int((Path(self.place) / "until").read_text()) <= now.index:
            time.sleep(0.01)
        return super().round(state, now)


def settings_and_method(place, **changes):
    """What a held run is started or resumed with."""
    wanted = tiny(rounds=6, **changes)
    return wanted, Held(local=wanted.local, share="layerwise", place=str(place))


PROGRAM = """
import json, sys
sys.path[:0] = sys.argv[1:3]
from board_life import settings_and_method
from potluck.run import run
wanted, method = settings_and_method(sys.argv[3], **json.loads(sys.argv[5]))
run(wanted, sys.argv[4], method=method)
"""


class HeldRun:
    """A real run in a process of its own, which goes on as far as it is told."""

    def __init__(self, place, folder, rounds, **changes):
        self.place, self.path = place, Path(folder)
        place.mkdir(exist_ok=True)
        self.allow(rounds)
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        told = (str(each) for each in (TESTS, TESTS / "board", place, folder, json.dumps(changes)))
        command = [sys.executable, "-c", PROGRAM, *told]
        self.process = subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)

    def allow(self, rounds):
        """Lets the run go on to this round."""
        (self.place / "part").write_text(str(rounds))
        os.replace(self.place / "part", self.place / "until")

    def reached(self, round):
        """Waits until the run has written this round into its live log."""

        def is_there():
            assert self.process.poll() is None, self.process.communicate()
            try:
                return f'"round":{round},"asked"' in (self.path / "live.jsonl").read_text()
            except FileNotFoundError:
                return False

        return until(is_there)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@contextmanager
def held_run(place, folder, rounds, **changes):
    run = HeldRun(place, folder, rounds, **changes)
    try:
        yield run
    finally:
        run.close()
