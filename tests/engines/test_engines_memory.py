"""What clients remember: staged while a round runs, kept only when it is accepted and committed."""

import json
from dataclasses import dataclass

import pytest
import torch
from made_context import Echo, federation

from potluck.core import Expected, Reply, Task, on_client, unpack
from potluck.ledger import RunFolder
from potluck.run import experiment, run


@pytest.fixture(params=["serial", "wire", "pool"])
def engine(request):
    return request.param


def ask(session, *tasks):
    return [reply.metrics for reply in session.send(tasks)]


def test_a_memory_is_staged_and_read_again_only_after_the_commit(engine):
    with federation(Echo(), engine) as made:
        made.session = made.dispatcher.open(0)
        assert ask(made.session, Task("note", "c1")) == [{"log": [0], "version": -1}]
        assert made.session.staged == {"c1": {"log": [0]}}
        other = made.dispatcher.open(0, attempt=1)
        assert ask(other, Task("look", "c1")) == [{"log": None, "version": -1}]
        made.commit()
        assert ask(made.dispatcher.open(1), Task("note", "c1"), Task("look", "c2")) == [
            {"log": [0, 1], "version": 0},
            {"log": None, "version": -1},
        ]
        assert ask(made.dispatcher.open(1), Task("look", "c1")) == [{"log": [0], "version": 0}]


def test_two_verbs_of_one_round_see_each_others_writes(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(4)
        ask(session, Task("note", "c1", "a"), Task("note", "c2", "b"))
        assert ask(session, Task("note", "c1", "c"), Task("look", "c2")) == [
            {"log": ["a", "c"], "version": 4},
            {"log": ["b"], "version": 4},
        ]
        assert session.staged == {"c1": {"log": ["a", "c"]}, "c2": {"log": ["b"]}}


@pytest.mark.parametrize("verb", ["fail", "lie", "skip"])
def test_a_verb_that_fails_or_is_refused_leaves_the_old_memory(engine, verb):
    with federation(Echo(), engine) as made:
        made.memories["c1"] = (2, {"log": ["old"]})
        session = made.dispatcher.open(3)
        assert ask(session, Task(verb, "c1")) == []
        assert session.staged == {}
        assert ask(session, Task("look", "c1")) == [{"log": ["old"], "version": 2}]


def test_reading_writes_nothing(engine):
    with federation(Echo(), engine) as made:
        made.memories["c1"] = (2, {"log": ["old"]})
        session = made.dispatcher.open(3)
        ask(session, Task("look", "c1"), Task("look", "c2"))
        assert session.staged == {}


@dataclass(frozen=True)
class Keeper:
    """Clients that keep tensors, forget, and count how often they were asked."""

    flaky: bool = False

    @on_client
    def keep(self, task, device):
        device.memory["w"] = device.memory.get("w", torch.zeros(2)) + 1
        device.memory["n"] = {"deep": [1, {"$": "x"}]}
        return Reply(metrics={"w": device.memory["w"].tolist()})

    @on_client
    def forget(self, task, device):
        device.memory.clear()
        return Reply()

    @on_client
    def score(self, task, device):
        return Reply(metrics={"validation": EMPTY_TALLY, "test": EMPTY_TALLY})

    def expects(self, task, zoo):
        return Expected()

    def init(self, zoo, rng):
        return Nothing()

    def round(self, state, now):
        list(now.send(Task("keep", client.id) for client in now.cohort))
        return state

    def ready(self, state, now):
        return state

    def serve(self, state, client, zoo):
        return None

    def check(self, zoo):
        pass


@dataclass(frozen=True)
class Nothing:
    pass


EMPTY_TALLY = {"right": [0] * 10, "seen": [0] * 10, "loss": 0.0}


def test_tensors_and_nested_values_are_remembered_and_can_be_forgotten(engine):
    with federation(Keeper(), engine) as made:
        for index in range(3):
            made.session = made.dispatcher.open(index)
            assert ask(made.session, Task("keep", "c1")) == [{"w": [index + 1.0] * 2}]
            made.commit()
        assert made.memories["c1"][1]["n"] == {"deep": [1, {"$": "x"}]}
        made.session = made.dispatcher.open(3)
        ask(made.session, Task("forget", "c1"))
        assert made.session.staged == {"c1": {}}


SMALL = {
    "cohort": 3,
    "data": {"clients": 3},
    "model": {"name": "mlp", "hidden": 4, "depth": 1},
    "score": {"every": 100, "clients": 0},
}


@pytest.mark.parametrize("every", [1, 2, 5])
def test_a_run_remembers_between_checkpoints_too(tmp_path, every):
    settings = experiment({**SMALL, "rounds": 5, "run": {"engine": "serial", "checkpoint_every": every}})
    run(settings, tmp_path / "a", method=Keeper())
    with RunFolder.open(tmp_path / "a") as folder:
        assert {unpack(folder.memories.read(client)[1])["w"].tolist()[0] for client in ("c0", "c1", "c2")} == {5.0}


def test_a_memorys_version_is_the_round_it_was_written_in(tmp_path):
    """Clients that were not asked are not written again."""
    settings = experiment({**SMALL, "cohort": 1, "data": {"clients": 4}, "rounds": 6, "run": {"engine": "serial"}})
    run(settings, tmp_path / "a", method=Keeper())
    lines = [json.loads(line) for line in (tmp_path / "a" / "ledger.jsonl").read_text().splitlines()]
    asked = {line["client"]: line["round"] for line in lines if line["event"] == "task"}
    with RunFolder.open(tmp_path / "a") as folder:
        assert len(asked) > 1
        assert {client: folder.memories.read(client)[0] for client in asked} == asked


def test_an_attempt_that_missed_its_quorum_leaves_no_memory(tmp_path):
    """Half of the attempts lose somebody; each client still remembers exactly one visit a round."""
    settings = experiment(
        {
            **SMALL,
            "rounds": 4,
            "fleet": {"dropout": 0.3},
            "run": {"engine": "serial", "quorum": 3, "retries": 40},
        }
    )
    run(settings, tmp_path / "a", method=Keeper())
    lines = (tmp_path / "a" / "ledger.jsonl").read_text()
    assert "run.quorum is 3 (try 1 of 41)" in lines
    with RunFolder.open(tmp_path / "a") as folder:
        assert [unpack(folder.memories.read(client)[1])["w"].tolist()[0] for client in ("c0", "c1", "c2")] == [4.0] * 3
