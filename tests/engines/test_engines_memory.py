"""What clients remember: staged while a round runs, kept only when it is accepted and committed."""

import json
from dataclasses import dataclass

import pytest
import torch
from made_context import FULL, ZOO, Echo, federation

from potluck.core import FitRequest, Local, Model, Reply, Task, digest, on_client, stream, to_plain, unpack
from potluck.engines.worker import memory_entries, same_memory
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


# Changes in place


def start():
    """A memory with something of everything."""
    return {
        "w": torch.zeros(2),
        "deep": {"count": 1, "inner": {"w": torch.ones(2)}, "gone": "soon"},
        "log": ["old", ["inner"]],
        "model": ZOO.fresh(FULL, stream(0, "memory")),
    }


@dataclass(frozen=True)
class Editor:
    """Clients that edit what they remember where it lies; none of them puts anything under a new name."""

    @on_client
    def begin(self, task, device):
        device.memory.update(start())
        device.memory["net"] = Model(FULL, device.snapshot(device.build(device.memory["model"])))
        return Reply()

    @on_client
    def edit(self, task, device):
        EDITS[task.config["edit"]](device.memory)
        return Reply()

    @on_client
    def edit_after_fit(self, task, device):
        yield FitRequest(device.memory["model"], device.data, Local(steps=1))
        EDITS[task.config["edit"]](device.memory)
        return Reply()

    @on_client
    def tell(self, task, device):
        """Everything is read: numbers, names, and a network made of them."""
        net = device.build(device.memory["net"])
        device.predict(net, device.data)
        sums = {name: float(tensor.sum()) for name, tensor in device.memory["net"].arrays.items()}
        return Reply(metrics={"told": told(device.memory), "sums": sums})

    @on_client
    def tell_after_fit(self, task, device):
        fit = yield FitRequest(device.memory["net"], device.data, Local(lr=0.5, steps=2))
        assert digest(device.snapshot(fit.net)) != digest(device.memory["net"].arrays)
        return Reply(metrics={"told": told(device.memory)})


def told(memory):
    """A memory in plain values."""
    return {
        "w": memory["w"].tolist(),
        "deep": {**memory["deep"], "inner": {name: w.tolist() for name, w in memory["deep"]["inner"].items()}},
        "log": to_plain(memory["log"]),
        **{name: digest(memory[name].arrays) for name in ("model", "net")},
    }


EDITS = {
    "a tensor": lambda memory: memory["w"].add_(1),
    "a tensor through a view": lambda memory: memory["w"][:1].add_(1),
    "a tensor in a nested dict": lambda memory: memory["deep"]["inner"]["w"].mul_(3),
    "a number in a nested dict": lambda memory: memory["deep"].update(count=2),
    "a name in a nested dict": lambda memory: memory["deep"]["inner"].update(new=torch.ones(1)),
    "a name that goes": lambda memory: memory["deep"].pop("gone"),
    "a list": lambda memory: memory["log"].append("new"),
    "a list in a list": lambda memory: memory["log"][1].append("new"),
    "a list's order": lambda memory: memory["log"].reverse(),
    "a model": lambda memory: memory["model"].arrays["head.bias"].add_(1),
    "a model in one buffer": lambda memory: memory["net"].arrays["head.bias"].add_(1),
}


@pytest.mark.parametrize("verb", ["edit", "edit_after_fit"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_memory_that_is_edited_in_place_is_noticed_and_kept(engine, edit, verb):
    with federation(Editor(), engine) as made:
        made.session = made.dispatcher.open(0)
        ask(made.session, Task("begin", "c1"))
        made.commit()
        [before] = ask(made.dispatcher.open(1), Task("tell", "c1"))
        by_hand = dict(made.memories["c1"][1]) | start()
        by_hand["net"] = Model(FULL, {name: tensor.clone() for name, tensor in by_hand["net"].arrays.items()})
        EDITS[edit](by_hand)
        made.session = made.dispatcher.open(1)
        ask(made.session, Task(verb, "c1", config={"edit": edit}))
        assert set(made.session.staged) == {"c1"}
        assert told(made.session.staged["c1"]) == told(by_hand)
        made.commit()
        session = made.dispatcher.open(2)
        [after] = ask(session, Task("tell", "c1"))
        assert after["told"] == told(by_hand) != before["told"]
        assert session.staged == {}


@pytest.mark.parametrize("verb", ["tell", "tell_after_fit"])
def test_a_memory_that_was_only_read_is_not_written_again(engine, verb):
    with federation(Editor(), engine) as made:
        made.session = made.dispatcher.open(0)
        ask(made.session, Task("begin", "c1"))
        made.commit()
        kept = made.memories["c1"][1]
        for index in (1, 2):
            made.session = made.dispatcher.open(index)
            [reply] = ask(made.session, Task(verb, "c1"))
            assert reply["told"] == told(kept)
            assert made.session.staged == {}
            made.commit()
        assert made.memories["c1"][0] == 0
        assert made.memories["c1"][1] is kept


def test_telling_a_memory_from_a_changed_one_reads_no_number():
    """Tensors on the meta device have none, and are told apart all the same."""
    memory = {"w": torch.zeros(2, device="meta"), "deep": [torch.zeros(1, device="meta")]}
    before = memory_entries(memory)
    assert same_memory(before, memory_entries(memory))
    memory["deep"][0].add_(1)
    assert not same_memory(before, memory_entries(memory))


@dataclass(frozen=True)
class Replacer:
    """Its verbs replace what is nested in a memory; the old values may be freed, and their addresses used again."""

    @on_client
    def put(self, task, device):
        device.memory.update(log=["a"], deep={"w": torch.zeros(2)}, number=1, empty={})
        return Reply()

    @on_client
    def twice(self, task, device):
        for _ in range(2):
            device.memory["deep"]["w"] = device.memory["deep"]["w"] + 1
        return Reply()

    @on_client
    def drop(self, task, device):
        del device.memory["deep"]["w"]
        device.memory["deep"]["w"] = torch.ones(2)
        return Reply()

    @on_client
    def retype(self, task, device):
        device.memory.update(number=True, empty=[])
        return Reply()

    @on_client
    def spoil(self, task, device):
        device.memory["log"].append("spoilt")
        device.memory["deep"]["w"].add_(9)
        raise ValueError("in mid-edit")

    @on_client
    def look(self, task, device):
        return Reply(metrics={"log": device.memory["log"], "w": device.memory["deep"]["w"].tolist()})


@pytest.mark.parametrize("verb", ["twice", "drop", "retype"])
def test_nested_values_that_are_replaced_are_noticed_every_time(engine, verb):
    with federation(Replacer(), engine) as made:
        made.session = made.dispatcher.open(0)
        list(made.session.send([Task("put", "c1")]))
        made.commit()
        for index in range(1, 16):
            session = made.dispatcher.open(index)
            list(session.send([Task(verb, "c1")]))
            assert "c1" in session.staged


def test_a_verb_that_fails_leaves_no_trace_in_what_the_round_has_staged(engine):
    with federation(Replacer(), engine) as made:
        session = made.dispatcher.open(0)
        list(session.send([Task("put", "c1")]))
        list(session.send([Task("spoil", "c1")]))
        (reply,) = session.send([Task("look", "c1")])
        assert reply.metrics == {"log": ["a"], "w": [0.0, 0.0]}


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
