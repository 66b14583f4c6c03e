"""Hostile nodes with an admitted key, and a hostile server: refused by name, and the others go on."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hostile_nodes import ANSWERS, NONSENSE, OUT, Bomb, changed, nested, raw, told, with_head
from small_nodes import Heard, identity, make_nodes, run_in_process, settings

from potluck.core import EMPTY, Model, Newborn, Spec, Task, pack_array, stream
from potluck.engines import TaskEnvelope
from potluck.engines.remote import Answer, InProcess
from potluck.engines.remote.messages import mark_of, pack_plain, pack_task
from potluck.federation.server import prepare
from potluck.ledger import read_journal

WITHOUT_ONE = {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 0, "wait_for": 2}


def tasks(folder, name, verb="train"):
    """What became of a node's tasks: (round, outcome, reason)."""
    events = read_journal(folder / "run" / "ledger.jsonl")
    mine = [event for event in events if event["event"] == "task" and event["client"] == identity(name)]
    return [(event["round"], event["outcome"], event.get("reason", "")) for event in mine if event["verb"] == verb]


def kind_of(parts):
    return told(parts)["kind"]


def run_with(folder, respond, experiment, watch=None, name="clinic-c"):
    """A federation in which one node is hostile; it can ask what the honest node would say."""
    nodes = make_nodes(folder)
    made = InProcess({identity(each): node.respond for each, node in nodes.items()})
    honest = made.nodes[identity(name)]
    made.nodes[identity(name)] = lambda parts: respond(parts, honest)
    return run_in_process(experiment, nodes, folder / "run", made, watch)


def test_every_hostile_answer_is_refused_by_name_and_the_others_go_on(tmp_path):
    cases = list(ANSWERS.values())

    def respond(parts, honest):
        answer = honest(parts)
        asked = told(parts)
        if asked["kind"] == "task" and asked["task"].verb == "train":
            return cases[asked["task"].round][0](answer, tmp_path / "unpickled")
        return answer

    experiment = settings(rounds=len(cases), gate={"strikes": 0}, score={"every": len(cases)})
    result = run_with(tmp_path, respond, experiment)
    assert result.rounds == len(cases)
    found = dict(zip(ANSWERS, tasks(tmp_path, "clinic-c"), strict=True))
    for number, (name, (_, verdict, reason)) in enumerate(ANSWERS.items(), 1):
        assert found[name][:2] == (number, verdict), name
        assert found[name][2].startswith(reason) or reason in found[name][2], name
        assert bool(found[name][2]) == (verdict != "accepted"), name
    for honest in ("clinic-a", "clinic-b"):
        assert {outcome for _, outcome, _ in tasks(tmp_path, honest)} == {"accepted"}
    assert not (tmp_path / "unpickled").exists()


def test_a_node_that_answers_nonsense_is_not_asked_again_after_three_strikes(tmp_path):
    def respond(parts, honest):
        return raw(b"garbage") if kind_of(parts) == "task" else honest(parts)

    watch = Heard()
    result = run_with(tmp_path, respond, settings(rounds=5, score={"every": 5}), watch)
    assert result.rounds == 5
    found = [(outcome, reason) for _, outcome, reason in tasks(tmp_path, "clinic-c")]
    assert found == [(OUT, NONSENSE + "not a potluck message")] * 3 + [("absent", "blacklisted")] * 2


def test_a_node_that_claims_to_hold_models_gets_them_when_it_says_that_it_lacks_them(tmp_path):
    lost = []

    def respond(parts, honest):
        asked = told(parts)
        if asked["kind"] == "task" and len(parts) == 1 and asked["models"]:
            lost.append(asked["task"].round)
            return pack_plain("missing", marks=list(asked["models"].values()))
        answer = honest(parts)
        claims = [f"{number:064x}" for number in range(300)]
        return changed(answer, holds=[*claims, *told(answer)["holds"]]) if asked["kind"] == "task" else answer

    run_with(tmp_path, respond, settings(rounds=2))
    assert lost  # some models were not sent, because it held them
    assert {outcome for _, outcome, _ in tasks(tmp_path, "clinic-c")} == {"accepted"}


AGREEMENTS = {
    "garbage": (lambda answer: raw(b"\x80\x04garbage"), "its answer makes no sense: not a potluck message"),
    "nothing": (lambda answer: (), "its answer makes no sense: a message without parts"),
    "deep JSON": (lambda answer: with_head('{"kind":' + nested(9_000) + "}"), "its answer makes no sense: a dam"),
    "a megabyte": (lambda answer: changed(answer, more="x" * (1 << 20)), "its answer makes no sense: a message of"),
    "another kind": (lambda answer: changed(answer, kind="result"), "it gave no reason"),
    "no samples": (lambda answer: changed(answer, samples=0), "it says that it has 0 samples"),
    "too many samples": (lambda answer: changed(answer, samples=10**12), "it says that it has 1000000000000 samples"),
    "samples in words": (lambda answer: changed(answer, samples="many"), "it says that it has many samples"),
    "a truth value": (lambda answer: changed(answer, samples=True), "it says that it has True samples"),
    "half a sample": (lambda answer: changed(answer, samples=0.5), "it says that it has 0.5 samples"),
    "another tier": (lambda answer: changed(answer, tier="huge"), "it agreed to another charter, or to a tier that"),
    "a tier that is a list": (lambda answer: changed(answer, tier=["large"]), "it agreed to another charter, or to"),
    "a tier that is a mapping": (lambda answer: changed(answer, tier={}), "it agreed to another charter, or to a t"),
    "another charter": (lambda answer: changed(answer, charter="0" * 64), "it agreed to another charter, or to a"),
    "a rude reason": (
        lambda answer: pack_plain("declined", reason="no\x1b[2J\n" + "x" * 5000),
        "no",
    ),
}


@pytest.mark.parametrize("case", AGREEMENTS)
def test_an_agreement_that_makes_no_sense_is_declined_by_name_and_the_others_begin(tmp_path, case):
    change, reason = AGREEMENTS[case]

    def respond(parts, honest):
        return change(honest(parts)) if kind_of(parts) == "charter" else honest(parts)

    watch = Heard()
    result = run_with(tmp_path, respond, settings(rounds=1, nodes=WITHOUT_ONE, score={"every": 9}), watch)
    assert result.rounds == 1
    (line,) = [line for line in watch.warnings if "clinic-c" in line]
    assert line.startswith(f"clinic-c does not take part: {reason}")
    assert line.isprintable()
    assert len(line) < 400
    assert tasks(tmp_path, "clinic-c") == []
    assert [outcome for _, outcome, _ in tasks(tmp_path, "clinic-a")] == ["accepted"]


class Mixed(InProcess):
    """A transport that also brings answers that nobody asked for, and one of another node."""

    def __init__(self, nodes, liar):
        super().__init__(nodes)
        self.liar, self.odd = liar, 0

    def fetch(self, seconds):
        found = super().fetch(seconds)
        self.odd += 1
        more = [Answer(self.liar, 10**9 + self.odd, raw(b"not asked for"))] if self.odd < 50 else []
        return [*found, *found, *more]  # every answer twice: a replay


def test_replays_and_answers_that_nobody_asked_for_change_nothing(tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "odd").mkdir()
    plain = run_in_process(settings(), make_nodes(tmp_path / "plain"), tmp_path / "plain" / "run")
    nodes = make_nodes(tmp_path / "odd")
    transport = Mixed({identity(name): node.respond for name, node in nodes.items()}, identity("clinic-c"))
    found = run_in_process(settings(), nodes, tmp_path / "odd" / "run", transport)
    assert found.weights_sha256 == plain.weights_sha256
    assert found.scores == plain.scores


def test_a_node_that_declines_again_and_again_does_not_fill_the_ledger(tmp_path):
    nodes = make_nodes(tmp_path)
    made = InProcess({identity(name): node.respond for name, node in nodes.items()})
    hostile, count = identity("clinic-c"), []

    def respond(parts):
        count.append(1)
        return pack_plain("declined", reason=f"reason {len(count)}")

    def present(found=made.present):
        """It comes back at every look, thirty times."""
        return {
            id: replace(one, since=float(min(len(count), 30)) if id == hostile else 0.0) for id, one in found().items()
        }

    made.nodes[hostile], made.present = respond, present
    watch = Heard()
    run_in_process(settings(rounds=12, nodes=WITHOUT_ONE, score={"every": 9}), nodes, tmp_path / "run", made, watch)
    assert len(count) > 30
    assert len([line for line in watch.warnings if "clinic-c" in line]) == 10


# A hostile server.


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    """A node that has agreed to a charter, and the charter."""
    folder = tmp_path_factory.mktemp("agreed")
    made = prepare(settings(), "test")
    node = make_nodes(folder)["clinic-a"]
    answer = node.respond(pack_plain("charter", charter=made.charter.plain))
    assert kind_of(answer) == "agreed"
    return node, made


def task_for(made, models=None, **changes):
    """The parts of a task for clinic-a, and what its head says; honest but for the changes."""
    zoo = made.setup.context.zoo
    model = zoo.fresh(made.roster.tier("small").spec, stream(0, "made"))
    part = pack_array(model)
    named = {"model": (mark_of(part), part)} if models is None else models
    task = Task(**{"verb": "train", "to": identity("clinic-a"), **changes.pop("task", {})})
    message = pack_task(TaskEnvelope(task, EMPTY, 0), named, None, made.charter.hash, 0)
    return (pack_array(told(message.parts()) | changes), *message.parts()[1:])


def odd_model(value):
    """A part that is no model, as the model of a task."""
    part = value if isinstance(value, np.ndarray) else pack_array(value)
    return {"model": (mark_of(part), part)}


MESSAGES = {
    "nothing": (lambda made: (), "refused", "a message without parts"),
    "noise": (lambda made: raw(b"noise" * 100), "refused", "not a potluck message"),
    "an unknown kind": (lambda made: pack_plain("shell", command="id"), "refused", "a message of the kind 'shell'"),
    "deep JSON": (lambda made: with_head('{"kind":' + nested(100_000) + "}"), "refused", "a damaged message"),
    "a kind that is a number": (lambda made: with_head('{"kind": 7}'), "refused", "a message that does not say what"),
    "a task for another node": (
        lambda made: task_for(made, task={"to": identity("clinic-b")}),
        *("refused", "a task that is none, or for another node"),
    ),
    "a task that is none": (
        lambda made: pack_plain("task", charter=made.charter.hash, task="train", models={}),
        *("refused", "a task that is none, or for another node"),
    ),
    "an unknown charter": (
        lambda made: task_for(made, charter="0" * 64),
        *("declined", "this node has not agreed to that charter"),
    ),
    "a charter that is a path": (
        lambda made: task_for(made, charter="../../etc/passwd"),
        *("declined", "this node has not agreed to that charter"),
    ),
    "a charter that is a list": (
        lambda made: task_for(made, charter=[]),
        *("declined", "this node has not agreed to that charter"),
    ),
    "no place in the run": (lambda made: task_for(made, attempt="x"), "refused", "a task without its place in the run"),
    "a memory that is a text": (lambda made: task_for(made, memory="x"), "refused", "a task without its place in the"),
    "a part that is a list": (lambda made: task_for(made, odd_model([1, 2])), "refused", "a part that is a list, not"),
    "a part that is noise": (
        lambda made: task_for(made, odd_model(raw(b"noise" * 99)[0])),
        *("refused", "not a potluck message"),
    ),
    "models that were not sent": (
        lambda made: task_for(made, models={"model": ("0" * 64, pack_array([]))})[:1],
        *("missing", ""),
    ),
    "an offer of a larger tier": (lambda made: pack_plain("tier", tier="large"), "agreed", ""),
    "an offer that is a list": (lambda made: pack_plain("tier", tier=["small"]), "agreed", ""),
    "no charter": (lambda made: pack_plain("charter"), "declined", "what the server calls a charter is none"),
    "an empty charter": (lambda made: pack_plain("charter", charter={}), "declined", "version None of the protocol"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_node_answers_a_hostile_server_with_a_reason_and_lives_on(agreed, case):
    node, made = agreed
    message, kind, reason = MESSAGES[case]
    answer = told(node.respond(message(made)))
    assert answer["kind"] == kind
    assert reason in answer.get("reason", "")
    assert answer.get("tier", "small") == "small"  # an offer is taken only if it is of a smaller tier
    assert kind_of(node.respond(task_for(made))) == "result"


def test_a_verb_that_the_method_does_not_have_fails_with_a_reason(agreed):
    node, made = agreed
    for verb in ("delete", "__init__", "round", "init", "os.system"):
        answer = told(node.respond(task_for(made, task={"verb": verb})))
        assert answer["reply"] is None
        assert answer["fault"], verb


def test_models_that_do_not_fit_fail_with_a_reason(agreed):
    node, made = agreed
    spec = made.roster.tier("small").spec
    for model in (Model(spec, {}), Model(spec, {"body.0.weight": torch.zeros(2)}), Model(Spec("none"), {})):
        answer = told(node.respond(task_for(made, odd_model(model))))
        assert answer["reply"] is None
        assert answer["fault"]
    vast = Newborn(replace(spec, sizes=dict.fromkeys(spec.sizes, 50_000)))
    answer = told(node.respond(task_for(made, odd_model(vast))))
    assert (answer["kind"], answer["reason"]) == ("refused", "model 'model' is larger than the charter allows")


def within(plain, **changes):
    """The charter with other settings."""
    return plain | {"experiment": plain["experiment"] | changes}


CHARTERS = {
    "another code": (lambda plain: plain | {"code": "0" * 16}, "Install the same version on both sides"),
    "another protocol": (lambda plain: plain | {"protocol": 99}, "the server speaks version 99 of the protocol"),
    "other networks": (
        lambda plain: plain | {"networks": {"server": "0" * 16}},
        "the server's network is another here",
    ),
    "networks that are none": (lambda plain: plain | {"networks": 7}, ""),
    "no experiment": (lambda plain: {name: value for name, value in plain.items() if name != "experiment"}, "is none"),
    "an unknown setting": (
        lambda plain: within(plain, shell={"command": "id"}),
        "no setting",
    ),
    "a method that there is not": (
        lambda plain: plain | {"method": {"class": "nothing.here:Method", "settings": {}}},
        "the server names the module 'nothing.here', which is not Potluck's",
    ),
    "a function as a method": (
        lambda plain: plain | {"method": {"class": "os:system", "settings": {}}},
        "the server names the module 'os', which is not Potluck's",
    ),
    "another class as a method": (
        lambda plain: plain | {"method": {"class": "potluck.core.round:Cost", "settings": {}}},
        "",
    ),
    "settings of another method": (
        lambda plain: plain | {"method": plain["method"] | {"settings": {"width": 3}}},
        "no setting 'width'",
    ),
    "a thousand million classes": (
        lambda plain: within(plain, nodes=plain["experiment"]["nodes"] | {"classes": 10**9}),
        "must be a whole number from 1 to",
    ),
    "a million layers": (
        lambda plain: within(plain, model={"name": "mlp", "hidden": 16, "depth": 10**6}),
        "must be a whole number from 1 to",
    ),
    "networks of terabytes": (
        lambda plain: prepare(settings(model={"hidden": 1_000_000}), "test").charter.plain,
        "its network needs 2,250.3 GB, more than this machine has",
    ),
    "bytes in words": (lambda plain: plain | {"most_bytes": "all"}, "what the server calls a charter is none"),
    "endless bytes": (lambda plain: plain | {"most_bytes": float("inf")}, "what the server calls a charter is none"),
}


@pytest.mark.parametrize("case", CHARTERS)
def test_a_node_does_not_agree_to_a_charter_that_is_not_its_own(agreed, tmp_path, case):
    node, made = agreed
    change, reason = CHARTERS[case]
    answer = told(node.respond(pack_plain("charter", charter=change(dict(made.charter.plain)))))
    assert answer["kind"] == "declined"
    assert answer["reason"]
    assert reason in answer["reason"]
    assert str(node.folder) not in answer["reason"]
    assert kind_of(node.respond(task_for(made))) == "result"  # it goes on under the charter that it agreed to


def test_a_server_cannot_fill_a_nodes_memory_with_models_that_no_task_uses(agreed):
    node, made = agreed
    node._models._room = 1 << 20
    try:
        for number in range(8):
            part = pack_array(torch.full((1 << 17,), float(number)))
            node.respond((*task_for(made, models={"model": ("0" * 64, part)})[:1], part))
        assert node._models._bytes <= 1 << 20
    finally:
        node._models._room = 1 << 30


def test_a_pickle_in_place_of_any_message_is_not_opened(agreed, tmp_path):
    node, made = agreed
    bomb = raw(pickle.dumps(Bomb(tmp_path / "unpickled")))
    assert kind_of(node.respond(bomb)) == "refused"
    assert kind_of(node.respond(task_for(made, odd_model(bomb[0])))) == "refused"
    (node.memory.folder / f"{3:09d}-{mark_of(bomb[0])}.memory").write_bytes(bomb[0].tobytes())
    answer = told(node.respond(task_for(made, memory={"sha256": mark_of(bomb[0]), "bytes": 9, "tier": "small"})))
    assert (answer["fresh"], answer["fault"]) == (True, "")
    assert not (tmp_path / "unpickled").exists()


def test_all_that_a_node_says_stands_in_its_audit_log(agreed):
    node, made = agreed
    log = node.audit.path
    for message in (raw(b"noise"), pack_plain("tier", tier="large"), task_for(made), task_for(made, charter="0" * 64)):
        before = len(log.read_text().splitlines())
        node.respond(message)
        assert len(log.read_text().splitlines()) == before + 1
