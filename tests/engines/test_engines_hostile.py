"""Hostile replies: whatever a reply holds, it is judged alike on every engine, and the run goes on."""

import json
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch
from hostile_replies import GONE, IN, KINDS, OUT, Hostile, task
from made_context import federation
from tiny_runs import Listener, events, tiny

from potluck.core import Local, Reply, on_client, pack, unpack
from potluck.engines.form import DEPTH, NODES, clean_memory, clean_reply
from potluck.methods import FedAvg
from potluck.run import run
from potluck.run.interrupts import Interrupted, Interrupts

ENGINES = ("serial", "wire", "pool")


@pytest.fixture(scope="module")
def federations():
    """The three engines, each started once."""
    with (
        Interrupts(),  # as in a run, so that a client's KeyboardInterrupt is not taken for the user's
        federation(Hostile(), "serial") as serial,
        federation(Hostile(), "wire") as wire,
        federation(Hostile(), "pool") as pool,
    ):
        yield {"serial": serial, "wire": wire, "pool": pool}


def judged(made, *tasks):
    """The outcomes of these tasks in a session of their own, and the replies."""
    session = made.dispatcher.open(0)
    replies = list(session.send(tasks))
    session.close()
    return session, replies


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_reply_gets_the_same_verdict_on_every_engine(federations, kind):
    _, verdict, reason = KINDS[kind]
    told = {}
    for engine, made in federations.items():
        session, replies = judged(made, task("c0", "honest"), task("c1", kind), task("c2", "honest"))
        first, entry, last = session.entries
        assert (first.verdict, last.verdict) == (IN, IN)
        assert [reply.task.to for reply in replies] == (["c0", "c1", "c2"] if verdict == IN else ["c0", "c2"])
        assert len(entry.reason) <= 600
        assert session.strikes() == ({"c1": 1} if verdict == OUT else {})
        assert ("c1" in session.staged) == (verdict == IN and "memory" in kind)
        json.dumps([entry.reason, dict(entry.metrics), entry.weight]).encode()
        told[engine] = (entry.verdict, entry.reason, repr(entry.metrics), repr(entry.weight), entry.cost.bytes_up)
    assert told["serial"][0] == verdict
    assert reason in told["serial"][1]
    assert told["serial"] == told["wire"] == told["pool"]


@pytest.mark.parametrize("kind", ["caught", "not caught"])
def test_a_loss_that_ends_the_process_ends_the_task_of_its_client_alone(federations, kind):
    told = {}
    for engine, made in federations.items():
        session, _ = judged(made, task("c0", "honest"), task("c1", kind, "fit"), task("c2", "honest"))
        told[engine] = [(entry.verdict, entry.reason, dict(entry.metrics)) for entry in session.entries]
    caught = (IN, "", {"caught": True}) if kind == "caught" else (GONE, "failed: SystemExit: in a loss", {})
    assert told["serial"][1] == caught
    assert told["serial"] == told["wire"] == told["pool"]


def test_a_loss_that_ends_the_process_is_contained_among_clients_that_train_side_by_side():
    with Interrupts(), federation(Hostile(), "serial", stack=3) as made:
        session, _ = judged(made, task("c0", "not caught", "fit"), task("c1", "caught", "fit"))
    assert [entry.verdict for entry in session.entries] == [GONE, IN]


def test_the_same_memories_are_staged_on_every_engine(federations):
    """Tuples become lists and NumPy's numbers Python's, before anybody reads them again."""
    found = []
    for made in federations.values():
        session, _ = judged(made, task("c1", "numpy in the memory"), task("c2", "models and specs in the memory"))
        found.append({client: pack(memory) for client, memory in session.staged.items()})
        assert session.staged["c1"] == {"kept": [3, {"deep": 0.5}]}
        assert [type(item) for item in session.staged["c2"]["kept"][2]] == [int, int]
    assert found[0] == found[1] == found[2]


def wide(count):
    return {f"k{number}": [] for number in range(count)}


def deep(depth):
    found = {"$": 1}
    for _ in range(depth):
        found = {"$": found}
    return found


@pytest.mark.parametrize("value", [wide(NODES // 2 - 50), deep(DEPTH - 2), ["," * (NODES - 100)], {"$": ["a,[{" * 9]}])
def test_what_has_a_good_form_can_be_packed_and_read(value):
    """The limits of a reply lie within those of a message, also where a mapping takes two levels of it."""
    cpu = torch.device("cpu")
    reply = clean_reply(Reply(metrics={"odd": value}), cpu)
    assert unpack(pack({"reply": reply}))["reply"].metrics == {"odd": value}
    assert unpack(pack(clean_memory({"odd": value}, cpu))) == {"odd": value}


@dataclass(frozen=True)
class Unruly(FedAvg):
    """FedAvg whose client c3 answers every task to train in another hostile way."""

    @on_client
    def train(self, task, device):
        if task.to == "c3":
            kinds = [kind for kind in KINDS if KINDS[kind][1] != IN]
            return KINDS[kinds[task.round % len(kinds)]][0](device)
        return (yield from super().train(task, device))


@dataclass(frozen=True)
class Presses(FedAvg):
    """FedAvg in whose second round the user presses Ctrl-C while a client works."""

    @on_client
    def train(self, task, device):
        if task.round == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return (yield from super().train(task, device))


@pytest.mark.parametrize("engine", ["serial", "wire"])
def test_the_users_own_ctrl_c_still_stops_the_run_while_a_client_works(tmp_path, engine):
    settings = tiny(run={"engine": engine})
    with pytest.raises(Interrupted, match="interrupted after round 1"):
        run(settings, tmp_path / "run", method=Presses(Local(epochs=1, batch=32)))


def test_a_run_in_which_one_client_is_hostile_in_every_round_ends_well_with_a_ledger_of_json(tmp_path):
    rounds = sum(verdict != IN for _, verdict, _ in KINDS.values())
    settings = tiny(
        rounds=rounds, cohort=4, data={"clients": 4}, gate={"strikes": 0}, score={"every": 1000, "clients": 0},
        local={"epochs": 1, "batch": 1000}, run={"engine": "serial", "checkpoint_every": 1000},
    )  # fmt: skip
    run(settings, tmp_path / "run", method=Unruly(Local(epochs=1, batch=1000)))
    told = [event for event in events(tmp_path / "run", "task") if event["client"] == "c3"]
    assert len(told) == rounds
    assert {event["outcome"] for event in told} == {OUT, GONE}
    text = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert len(text) < 4000 * rounds
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


# Metrics that the server reads


@dataclass(frozen=True)
class Mislabels(FedAvg):
    """FedAvg whose client c1 says something odd about its labels."""

    said: object = None

    def report(self, task, device, fit):
        reply = super().report(task, device, fit)
        return replace(reply, metrics={**reply.metrics, "labels": self.said}) if task.to == "c1" else reply


@pytest.mark.parametrize("said", [["x"], [3], [-1], [10**9], [1.5], [[0]], [None], [True], {}, "012", 1])
def test_labels_that_are_no_classes_are_refused_and_do_not_end_the_round(said):
    with federation(Mislabels(Local(steps=1), label_mask=True, said=said)) as made:
        made.round(made.init())
        assert made.outcomes()["c1"] == ("quarantined", "its labels are not a list of classes below 3")
        assert made.session.accepted == 4


@dataclass(frozen=True)
class Miscounts(FedAvg):
    """FedAvg whose clients answer with something odd when they score; the server's own tallies are right."""

    said: object = None

    @on_client
    def score(self, task, device):
        reply = super().score(task, device)
        return reply if task.to == "server" else replace(reply, metrics=self.said)

    @on_client
    def personalise(self, task, device):
        reply = yield from super().personalise(task, device)
        return replace(reply, metrics=self.said)


RIGHT = {"right": [0] * 10, "seen": [1] * 10, "loss": 1.0}
MISCOUNTS = [
    {},
    {"test": RIGHT},
    {"test": None, "validation": None},
    {"test": [], "validation": 3},
    {"test": {**RIGHT, "right": [0] * 9}, "validation": RIGHT},
    {"test": {**RIGHT, "seen": [-1] * 10}, "validation": RIGHT},
    {"test": {**RIGHT, "seen": [2**60] * 10}, "validation": RIGHT},
    {"test": {**RIGHT, "seen": [0.5] * 10}, "validation": RIGHT},
    {"test": {**RIGHT, "seen": ["1"] * 10}, "validation": RIGHT},
    {"test": {**RIGHT, "loss": "much"}, "validation": RIGHT},
    {"test": {**RIGHT, "loss": None}, "validation": RIGHT},
    {"common": RIGHT, "own": RIGHT, "labels": [1] * 9},
    {"common": RIGHT, "own": RIGHT, "labels": "many"},
    {"common": RIGHT, "own": RIGHT},
]


@pytest.mark.parametrize("said", MISCOUNTS)
def test_tallies_from_which_no_score_can_be_computed_are_left_out_and_told(tmp_path, said):
    settings = tiny(rounds=0, score={"clients": 2, "personal": True})
    watch = Listener()
    result = run(settings, tmp_path / "run", method=Miscounts(Local(epochs=1), said=said), watch=watch)
    assert result.scores["clients"] is None
    assert result.scores["personal"]["common"] is None
    assert result.scores["global"]["test"]["count"] == 359
    assert any("tall" in text for text in watch.warnings)
