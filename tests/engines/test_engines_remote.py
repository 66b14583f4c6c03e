"""The engine of a federation and its messages: what is sent once, what counts as absent, what is rounded off."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from made_context import FULL, ZOO, made_context

from potluck.core import SERVER, Cost, Limits, MessageError, Model, Newborn, Reply, Task, on_client, pack_array
from potluck.engines import Dispatcher, Serial, TaskEnvelope, TaskResult, Worker
from potluck.engines.remote import Answer, InProcess, Remote, Terms
from potluck.engines.remote import engine as engine_module
from potluck.engines.remote.messages import ModelCache, pack_plain, pack_result, read_head, read_result
from potluck.engines.remote.updates import model_bytes, pack_model, read_model

LIMITS = Limits()


@dataclass(frozen=True)
class Adding:
    """Clients that add what they are told to a model; the server has a task of its own."""

    @on_client
    def add(self, task, device):
        model = task.models["model"]
        arrays = {name: tensor + task.config["by"] for name, tensor in model.arrays.items()}
        return Reply({"model": Model(model.spec, arrays)}, arrays=task.arrays, weight=1.0)

    @on_client
    def count(self, task, device):
        return Reply(metrics={"who": task.to})


class SmallNode:
    """A node that holds models and runs tasks, without charter and data."""

    def __init__(self, room=1 << 30, updates="exact"):
        self.models, self.updates, self.parts, self.kinds = ModelCache(room), updates, [], []
        self.worker = Worker(made_context(Adding()))

    def respond(self, parts):
        told = read_head(parts, LIMITS)
        self.parts.append(len(parts))
        self.models.add(parts[1:])
        marks = [*told["models"].values(), *([told["arrays"]] if told["arrays"] else [])]
        if missing := self.models.find(marks):
            self.kinds.append("missing")
            return pack_plain("missing", marks=missing)
        models = {key: self.models.model(mark, LIMITS) for key, mark in told["models"].items()}
        arrays = self.models.arrays(told["arrays"], LIMITS) if told["arrays"] else {}
        task = replace(told["task"], models=models, arrays=arrays)
        self.kinds.append("result")
        result = self.worker.run(TaskEnvelope(task))
        return pack_result(result, task, None, False, self.models.prune(), ZOO, self.updates)


def engine(nodes, tmp_path, **terms):
    transport = InProcess({name: node.respond for name, node in nodes.items()})
    return Remote(transport, Serial(made_context(Adding())), Terms("charter", **terms), tmp_path)


def model(value=1.0, spec=FULL):
    shapes = ZOO.shapes(spec)
    return Model(spec, {name: torch.full(shape, value, dtype=dtype) for name, (shape, dtype) in shapes.items()})


def tasks(names, models, by=0.5, key="", arrays=None):
    for name, each in zip(names, models, strict=True):
        task = Task("add", name, key, models={"model": each}, arrays=arrays or {}, config={"by": by})
        yield TaskEnvelope(task)


def test_equal_models_are_packed_once_and_sent_to_each_node_once(tmp_path, monkeypatch):
    nodes = {name: SmallNode() for name in ("c0", "c1", "c2")}
    packed = []
    monkeypatch.setattr(engine_module, "pack_array", lambda value: packed.append(value) or pack_array(value))
    kept = []
    monkeypatch.setattr(engine_module, "keep_in_file", lambda part, folder: kept.append(part) or part)
    found, one = engine(nodes, tmp_path), model()
    for _ in found.run(tasks(nodes, [one, one, model()])):
        pass
    assert (len(packed), len(kept)) == (2, 1)  # two objects, which are equal
    for _ in found.run(tasks(nodes, [one] * 3, key="again")):
        pass
    assert [node.parts for node in nodes.values()] == [[2, 1]] * 3


def test_two_tasks_of_a_node_that_are_on_their_way_share_a_model(tmp_path):
    nodes = {"c0": SmallNode()}
    one = model()
    both = [*tasks(nodes, [one], key="a"), *tasks(nodes, [one], key="b")]
    results = list(engine(nodes, tmp_path).run(both))
    assert nodes["c0"].parts == [2, 1]
    assert all(result.reply is not None for result in results)


def test_equal_arrays_of_several_tasks_are_sent_to_a_node_once_and_come_whole(tmp_path):
    nodes = {"c0": SmallNode()}
    arrays = {"control": torch.arange(4.0), "mask": torch.tensor([True, False])}
    found = engine(nodes, tmp_path)
    (first,) = found.run(tasks(nodes, [model()], arrays=arrays))
    (second,) = found.run(tasks(nodes, [model()], arrays=dict(arrays), key="again"))
    assert nodes["c0"].parts == [3, 1]
    for result in (first, second):
        assert {name: tensor.tolist() for name, tensor in result.reply.arrays.items()} == {
            "control": [0.0, 1.0, 2.0, 3.0],
            "mask": [True, False],
        }


def test_arrays_of_the_same_tensors_under_other_names_are_other_arrays(tmp_path):
    nodes = {"c0": SmallNode(), "c1": SmallNode()}
    a, b = torch.zeros(2), torch.ones(2)
    one = model()
    both = [*tasks(["c0"], [one], arrays={"x": a, "y": b}), *tasks(["c1"], [one], arrays={"y": a, "x": b})]
    first, second = engine(nodes, tmp_path).run(both)
    assert first.reply.arrays["x"].tolist() == [0.0, 0.0]
    assert second.reply.arrays["x"].tolist() == [1.0, 1.0]


def test_a_node_that_lacks_models_gets_all_of_them_once_more(tmp_path):
    nodes = {"c0": SmallNode()}
    found = engine(nodes, tmp_path)
    list(found.run(tasks(nodes, [model()])))
    nodes["c0"].models = ModelCache(1 << 30)  # it was started again
    (result,) = found.run(tasks(nodes, [model()], key="again"))
    assert all((tensor == 1.5).all() for tensor in result.reply.models["model"].arrays.values())
    assert nodes["c0"].parts == [2, 1, 2]
    assert nodes["c0"].kinds == ["result", "missing", "result"]


def test_a_node_that_lacks_models_for_ever_is_refused_and_the_round_goes_on(tmp_path):
    nodes = {"c0": SmallNode()}
    nodes["c0"].respond = lambda parts: pack_plain("missing", marks=[])
    found = engine({}, tmp_path)
    found.transport.nodes["c0"] = nodes["c0"].respond
    (result,) = found.run(tasks(nodes, [model()]))
    assert "lacks models" in result.refused


def test_large_models_are_kept_in_files_that_have_no_name(tmp_path, monkeypatch):
    part = np.arange(100, dtype=np.uint8)
    assert engine_module.keep_in_file(part, tmp_path) is part
    monkeypatch.setattr(engine_module, "LARGE", 100)
    kept = engine_module.keep_in_file(part, tmp_path)
    assert isinstance(kept, np.memmap)
    assert kept.tolist() == part.tolist()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1


def test_the_servers_own_tasks_run_here_and_results_come_in_the_order_of_the_tasks(tmp_path):
    nodes = {name: SmallNode() for name in ("c0", "c1")}
    envelopes = [TaskEnvelope(Task("count", who, key=key)) for who, key in (("c1", ""), (SERVER, ""), ("c0", ""))]
    found = engine(nodes, tmp_path)
    assert [result.reply.metrics["who"] for result in found.run(envelopes)] == ["c1", SERVER, "c0"]
    assert [node.parts for node in nodes.values()] == [[1], [1]]


def test_a_node_that_is_not_there_is_lost_and_counts_as_silent_until_it_answers(tmp_path):
    found = engine({}, tmp_path)
    (result,) = found.run(tasks(["c0"], [model()]))
    assert (result.lost, result.fault, result.reply) == (True, "it is not there", None)
    assert found.silent == {"c0"}
    found.transport.nodes["c0"] = SmallNode().respond
    (result,) = found.run(tasks(["c0"], [model()], key="again"))
    assert result.reply is not None
    assert found.silent == set()


class Recording(InProcess):
    def __init__(self, nodes):
        super().__init__(nodes)
        self.seconds = {}

    def post(self, node, number, parts, seconds):
        self.seconds[node] = seconds
        super().post(node, number, parts, seconds)


def test_each_node_has_the_deadline_that_the_terms_give_it(tmp_path):
    nodes = {name: SmallNode() for name in ("c0", "c1")}
    found = engine(nodes, tmp_path, deadline={"c0": 30.0, "c1": 5.0}.get)
    found.transport = Recording(found.transport.nodes)
    list(found.run(tasks(nodes, [model()] * 2)))
    assert found.transport.seconds == {"c0": 30.0, "c1": 5.0}


def test_a_reader_that_leaves_half_way_does_no_harm(tmp_path):
    nodes = {name: SmallNode() for name in ("c0", "c1", "c2")}
    found = engine(nodes, tmp_path)
    running = found.run(tasks(nodes, [model()] * 3))
    next(running)
    running.close()
    results = list(found.run(tasks(nodes, [model()] * 3, by=2.0, key="next")))
    assert [next(iter(r.reply.models["model"].arrays.values())).flatten()[0].item() for r in results] == [3.0] * 3
    assert found._asked == {}


def test_an_answer_of_another_node_is_believed_by_nobody(tmp_path):
    nodes = {"c0": SmallNode(), "c1": SmallNode()}
    found = engine(nodes, tmp_path)

    class Swapping(InProcess):
        def fetch(self, seconds):
            return [replace(answer, node="c1") for answer in super().fetch(seconds)]

    found.transport = Swapping(found.transport.nodes)
    (result,) = found.run(tasks(["c0"], [model()]))
    assert (result.reply, result.fault) == (None, "another node answered")


@pytest.mark.parametrize("kind", ["declined", "refused"])
def test_a_node_that_says_why_it_cannot_do_a_task_is_absent_without_a_strike(tmp_path, kind):
    found = engine({}, tmp_path)
    found.transport.nodes["c0"] = lambda parts: pack_plain(kind, reason="No space left on device at the node")
    dispatcher = Dispatcher(found, Adding(), ZOO)
    session = dispatcher.open(0)
    assert list(session.send([Task("add", "c0", models={"model": model()}, config={"by": 1.0})])) == []
    session.close()
    (entry,) = session.entries
    assert (entry.verdict, session.strikes()) == ("absent", {})
    assert entry.reason == f"failed: it {kind}: No space left on device at the node"


ENVELOPE = TaskEnvelope(Task("add", "c0", models={"model": model()}))


def told(**odd):
    reply = {"models": {}, "arrays": {}, "weight": 1.0, "metrics": {}, "cost": Cost()}
    return {"kind": "result", "reply": reply, "memory": None, "fault": "", "refused": "", "holds": []} | odd


def in_reply(**odd):
    return {"reply": told()["reply"] | odd}


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "agreed"},
        {"reply": 7},
        {"reply": torch.ones(3)},
        in_reply(models=[]),
        in_reply(models={"model": 3}),
        in_reply(models={"other": {"spec": FULL, "deltas": {}, "scales": {}, "whole": {}}}),
        in_reply(models={"model": {"spec": FULL, "deltas": {"x": 1}, "scales": {"x": 1.0}, "whole": {}}}),
        in_reply(models={"model": {"spec": FULL, "deltas": {}, "scales": {}, "whole": {"x": 1}}}),
        in_reply(cost=Cost(flops=-1)),
        in_reply(cost=Cost(seconds=float("inf"))),
        in_reply(weight=torch.ones(2)),
        {"memory": {"sha256": torch.zeros(10**6)}},
        {"memory": {"sha256": "0" * 1000}},
        {"memory": {"sha256": "0" * 64, "bytes": 3, "tier": "small", "more": 1}},
        {"memory": model()},
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_refused_whatever_it_holds(odd):
    found = read_result((pack_array(told(**odd)),), ENVELOPE, LIMITS)
    assert found.result.refused.startswith("its answer makes no sense")
    assert found.result.memory is None


@pytest.mark.parametrize("odd", [{"fault": torch.ones(2)}, {"refused": torch.ones(2)}, {"holds": 3}, {"fresh": 1}])
def test_odd_values_beside_a_reply_are_nothing(odd):
    found = read_result((pack_array(told(**odd)),), ENVELOPE, LIMITS)
    assert (found.result.refused, found.fresh, found.holds) == ("", False, frozenset())
    nothing = read_result((pack_array(told(**{"reply": None} | odd)),), ENVELOPE, LIMITS)
    assert nothing.result.fault == "it gave no reason"


# Rounded updates.

SENT = Model(FULL, {"w": torch.tensor([1.0, 2.0, 3.0]), "mean": torch.tensor([5.0])})


class OneBuffer:
    """A zoo whose networks have one buffer."""

    def buffers(self, spec):
        return {"mean"}


def there_and_back(arrays, updates, sent=SENT):
    trained = Model(FULL, arrays)
    (packed,) = [unpacked({"m": pack_model(trained, sent, updates, OneBuffer())})["m"]]
    return read_model("model", packed, sent), model_bytes(packed)


def unpacked(value):
    from potluck.core import unpack_array

    return unpack_array(pack_array(value))


def test_8_bit_updates_are_multiples_of_a_127th_of_the_largest_difference():
    # Differences 1.27, -0.634, 0.004: the scale is 0.01, and they are 127, -63.4 and 0.4 of it.
    trained = {"w": torch.tensor([2.27, 1.366, 3.004]), "mean": torch.tensor([5.123456])}
    found, nbytes = there_and_back(trained, "8-bit")
    assert torch.allclose(found.arrays["w"], torch.tensor([2.27, 1.37, 3.0]), atol=1e-6)
    assert found.arrays["mean"].tolist() == trained["mean"].tolist()
    assert nbytes == 3 + 4 + 4  # three bytes, a scale, and the buffer as it is


def test_16_bit_updates_are_halves_of_the_largest_difference():
    trained = {"w": torch.tensor([1.5, 2.0, 2.75]), "mean": torch.tensor([6.0])}
    found, nbytes = there_and_back(trained, "16-bit")
    assert found.arrays["w"].tolist() == [1.5, 2.0, 2.75]  # 1, 0 and -0.5 of 0.5: exact in 16 bits
    third = {"w": torch.tensor([1.0 + 1 / 3, 3.0, 3.0]), "mean": torch.tensor([6.0])}
    rounded, _ = there_and_back(third, "16-bit")
    assert rounded.arrays["w"][0].item() == pytest.approx(1 + float(np.float16(1 / 3)), abs=1e-7)
    assert nbytes == 6 + 4 + 4


@pytest.mark.parametrize("updates", ["16-bit", "8-bit"])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_stays_so_and_is_for_the_gate_to_refuse(updates, odd):
    found, _ = there_and_back({"w": torch.tensor([odd, 2.0, 3.0]), "mean": torch.tensor([5.0])}, updates)
    assert not torch.isfinite(found.arrays["w"]).all()
    assert found.arrays["w"][1:].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("updates", ["16-bit", "8-bit"])
@pytest.mark.parametrize("tiny", [0.0, 1e-45, 1e-38])
def test_a_difference_too_small_for_a_scale_is_none(updates, tiny):
    sent = Model(FULL, {"w": torch.zeros(2), "mean": torch.zeros(1)})
    found, _ = there_and_back({"w": torch.tensor([tiny, -tiny]), "mean": torch.zeros(1)}, updates, sent)
    assert found.arrays["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("updates", ["exact", "16-bit", "8-bit"])
def test_models_that_are_no_update_of_what_was_sent_go_as_they_are(updates):
    other = Model(ZOO.tiers[0].spec, SENT.arrays)
    assert pack_model(other, SENT, updates, OneBuffer()) is other
    assert pack_model(SENT, None, updates, OneBuffer()) is SENT
    assert pack_model(SENT, Newborn(FULL), updates, OneBuffer()) is SENT
    wide = Model(FULL, {"w": torch.ones(4), "mean": torch.ones(1)})
    found, _ = there_and_back(dict(wide.arrays), updates)
    assert found.arrays["w"].tolist() == [1.0] * 4  # of another shape: exact, and for the gate to refuse


def test_a_scale_that_is_no_number_is_refused():
    delta = {"spec": FULL, "deltas": {"w": torch.zeros(3, dtype=torch.int8)}, "scales": {"w": "1"}, "whole": {}}
    with pytest.raises(MessageError, match="no difference"):
        read_model("model", delta, SENT)


def test_the_ledger_counts_the_bytes_of_rounded_updates(tmp_path):
    nodes, one = {"c0": SmallNode(updates="8-bit")}, model()
    (result,) = engine(nodes, tmp_path).run(tasks(nodes, [one]))
    entries = sum(tensor.numel() for tensor in one.arrays.values())
    assert result.reply.cost.bytes_up == entries + 4 * len(one.arrays)
    assert result.reply.cost.bytes_down == one.nbytes
    assert all(
        torch.allclose(tensor, torch.full_like(tensor, 1.5)) for tensor in result.reply.models["model"].arrays.values()
    )


def test_a_node_lets_the_oldest_models_go_and_keeps_the_newest():
    cache = ModelCache(300)
    parts = [np.full(200, number, np.uint8) for number in range(3)]
    for part in parts:
        cache.add([part])
    assert len(cache.prune()) == 1
    assert cache.find([engine_module.mark_of(parts[2])]) == []
    assert cache.find([engine_module.mark_of(parts[0])]) != []


def test_parts_that_hold_something_else_than_they_should_are_no_models_and_no_arrays():
    cache = ModelCache(1 << 20)
    part = pack_array({"a": 1})
    cache.add([part])
    for read in (cache.model, cache.arrays):
        with pytest.raises(MessageError, match="a part that"):
            read(engine_module.mark_of(part), LIMITS)


def test_results_of_tasks_that_failed_say_why():
    failed = pack_result(
        TaskResult(Task("add", "c0"), fault="it broke"), Task("add", "c0"), None, True, [], ZOO, "exact"
    )
    found = read_result(failed, ENVELOPE, LIMITS)
    assert (found.result.fault, found.result.reply, found.fresh) == ("it broke", None, True)
    assert found.result.task.address == ENVELOPE.task.address


def test_an_answer_to_a_message_that_is_no_task_goes_to_whoever_posted_it(tmp_path):
    found, heard = engine({}, tmp_path), []
    found.transport.nodes["c0"] = lambda parts: pack_plain("agreed")
    found.other = heard.append
    number = found.post("c0", pack_plain("charter"))
    found.look(0)
    assert [(answer.node, answer.number) for answer in heard] == [("c0", number)]
    assert isinstance(heard[0], Answer)
    down, up = found.take_traffic()["c0"]
    assert down > 0
    assert up > 0
    assert found.take_traffic() == {}
