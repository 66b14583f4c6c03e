"""Sums in the pool's workers: whole blocks of replies are checked and added up there, with the same bits."""

import json
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from made_context import FULL, ZOO, Odd, federation, made_context

from potluck.core import (
    EMPTY,
    Axis,
    Expected,
    FlatArrays,
    Local,
    Model,
    Task,
    Tier,
    digest,
    join_tensors,
    on_client,
    split_tensors,
    stream,
)
from potluck.engines import Gate, TaskEnvelope, Worker, block_sums
from potluck.engines.batch_messages import read_results, write_results
from potluck.engines.batches import _block_batches
from potluck.engines.block_sums import can_check
from potluck.engines.context import FoldRules, FoldTask
from potluck.engines.usual import Usual
from potluck.methods import SCAFFOLD, FedAvg, FedNova, FedRolex, Hermes, HeteroFL
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.parts import WHOLE, Mask, Median, OverlapMean, Part, part

LOCAL = Local(lr=0.3, epochs=1, batch=4)
WIDE = make_spec("mlp", input=(4,), classes=3, hidden=4, depth=2)
WIDTHS = ModelZoo(WIDE, [Tier(f"w{width}", 1.0, width, None, tier_spec(WIDE, width, None)) for width in (0.5, 1.0)])


def told(made):
    """All that a session tells the run, without seconds, which are measured."""
    session = made.session
    entries = [
        (e.position, e.task.address, e.verdict, e.reason, e.weight, dict(e.metrics), replace(e.cost, seconds=0.0))
        for e in session.entries
    ]
    staged = {client: digest(tensors(memory)) for client, memory in session.staged.items()}
    return entries, session.held, session.coverage, staged, session.strikes(), session.accepted_numbers


def tensors(value, path=""):
    """Every tensor in a memory, by its path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    if isinstance(value, Model):
        return tensors(value.arrays, path)
    items = value.items() if hasattr(value, "items") else ()
    return {name: t for key, item in items for name, t in tensors(item, f"{path}/{key}").items()}


def rounds(method, engine, workers=1, count=40, index=1, gate=None, zoo=ZOO, known=True, **more):
    """The model and what each session told, after some rounds; and for each round, how many sums its replies were in.

    A round's last number counts replies that came as they were.
    """
    with federation(method, engine, workers, count, gate=gate, zoo=zoo, **more) as made:
        made.dispatcher.samples = made_context(method, zoo=zoo).samples if known else None
        carrier, results = made.dispatcher.engine, []
        run = carrier.run

        def watched(envelopes):
            for result in run(envelopes):
                results.append(result)
                yield result

        carrier.run = watched
        state, heard, sums = made.init(), [], []
        for number in range(index):
            results.clear()
            state = made.round(state, number)
            made.dispatcher.usual.add(made.session.accepted_numbers)
            heard.append(told(made))
            came = [result for result in results if result.reply is not None and not result.refused]
            blocks = {id(result.block) for result in came if result.block is not None}
            sums.append((len(blocks), sum(result.block is None for result in came)))
        return digest(tensors(vars(state))), heard, sums


def same(method, sums, **more):
    """Asserts that the pool tells and computes what the serial engine does, and added up so many blocks."""
    model, heard, none = rounds(method, "serial", **more)
    assert all(blocks == 0 for blocks, _ in none)
    found, told_too, made = rounds(method, "pool", **more)
    assert told_too == heard
    assert found == model
    assert made == sums


@pytest.mark.parametrize("share", ["whole", "layerwise", "per_arch"])
@pytest.mark.parametrize("known", [True, False])
def test_sums_in_workers_have_the_bits_of_sums_on_the_server(share, known):
    """Forty clients are two blocks and a half; weights are sevenths, so another order of sums would show."""
    same(Odd(LOCAL, share=share), [(3, 0)], known=known)


@pytest.mark.parametrize(
    "method",
    [
        HeteroFL(LOCAL, label_mask=True),
        HeteroFL(LOCAL, weighting="width"),
        FedRolex(LOCAL, label_mask=True, weighting="samples"),
    ],
    ids=["labels", "width", "rolling"],
)
def test_parts_and_label_masks_are_added_up_in_workers(method):
    same(method, [(3, 0)], zoo=WIDTHS)


@pytest.mark.parametrize("method", [FedNova(LOCAL), SCAFFOLD(LOCAL), Hermes(LOCAL, threshold=0.0)])
def test_replies_keep_their_arrays_metrics_and_memories(method):
    zoo = WIDTHS if isinstance(method, Hermes) else ZOO
    found = rounds(method, "pool", zoo=zoo, index=2)
    assert found[:2] == rounds(method, "serial", zoo=zoo, index=2)[:2]
    assert all(blocks == 3 for blocks, _ in found[2])


@dataclass(frozen=True)
class Sparse(FedAvg):
    """Every client holds the first row of the head and nothing else of it, as a mask."""

    def train_cohort(self, mean, state, now, weigh=None):
        masks = {"head.weight": torch.tensor([[True] * 3, [False] * 3, [False] * 3])}
        held = {client.id: Mask(masks) for client in now.cohort}
        model = Model(state.model.spec, mean.start)
        tasks = (self.train_task(id, model, WHOLE, state, now) for id in held)
        return now.fold(tasks, mean, held), held


def test_masks_are_added_up_in_workers():
    same(Sparse(LOCAL), [(3, 0)])


REFUSED = ("c0", "c15", "c16", "c17", "c39")


@pytest.mark.parametrize("odd", ["boom", "nan", "shape", "missing", "weight 1e18", "spec", "complex", "no model"])
def test_absent_and_refused_clients_inside_a_block_have_the_same_verdict_and_leave_no_trace(odd):
    same(Odd(LOCAL, odd=odd, who=REFUSED), [(3, 0)], gate=Gate(strikes=0))


def test_a_block_in_which_all_are_refused_adds_nothing():
    same(Odd(LOCAL, odd="nan", who=tuple(f"c{n}" for n in range(16))), [(2, 0)])


@pytest.mark.parametrize("gate", [Gate(bound=1e-3), Gate(bound=1.2, strikes=0), Gate(bound="auto"), Gate(heaviest=6.0)])
def test_bounds_are_checked_in_workers(gate):
    """Steps have lengths from 0.4 to 3.6, weights go up to 6.3; nobody moves by less than a thousandth."""
    same(Odd(LOCAL), [(0, 0)] * 2 if gate.bound == 1e-3 else [(3, 0)] * 2, gate=gate, index=2)


def test_a_step_that_is_unusual_is_refused_in_the_worker():
    """The third round knows steps of two rounds; client c20's is then a thousand times as long."""

    @dataclass(frozen=True)
    class Leaps(Odd):
        @on_client
        def train(self, task, device):
            reply = yield from super().train(task, device)
            if device.client != "c20" or device.round < 2:
                return reply
            model = reply.models["model"]
            far = {name: tensor * 1000 for name, tensor in model.arrays.items()}
            return replace(reply, models={"model": Model(model.spec, far)})

    same(Leaps(LOCAL), [(3, 0)] * 3, gate=Gate(bound="auto"), index=3)
    refused = [entry for entry in rounds(Leaps(LOCAL), "pool", gate=Gate(bound="auto"), index=3)[1][2][0] if entry[3]]
    assert [(entry[1][2], entry[2]) for entry in refused] == [("c20", "quarantined")]


@dataclass(frozen=True)
class Mislabelled(HeteroFL):
    """Client c5 says that it has a class that does not exist."""

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        return replace(reply, metrics={**reply.metrics, "labels": [7]}) if device.client == "c5" else reply


def test_labels_are_checked_before_a_worker_uses_them():
    same(Mislabelled(LOCAL), [(3, 0)], zoo=WIDTHS)
    heard = rounds(Mislabelled(LOCAL), "pool", zoo=WIDTHS)[1]
    assert ("quarantined", "its labels are not a list of classes below 3") in [entry[2:4] for entry in heard[0][0]]


def test_a_worker_killed_in_the_middle_costs_one_client_and_its_batch_is_added_up_on_the_server():
    """Forty tasks are a batch of two blocks, and one of eight tasks."""
    killed = rounds(Odd(LOCAL, odd="bye", who=("c20",)), "pool")
    failed = rounds(Odd(LOCAL, odd="boom", who=("c20",)), "serial")
    assert killed[0] == failed[0]
    assert killed[2] == [(1, 31)]
    verdicts = [{entry[1][2]: entry[2:4] for entry in heard[0]} for heard in killed[1]]
    assert verdicts[0]["c20"] == ("absent", "failed: unreachable (its worker process died)")
    assert [heard[1:3] for heard in killed[1]] == [heard[1:3] for heard in failed[1]]


def test_replies_of_few_blocks_and_of_robust_means_come_one_by_one():
    """Forty clients are too few for two workers; a median looks at each model."""
    assert rounds(Odd(LOCAL), "pool", workers=2)[2] == [(0, 40)]
    assert rounds(Odd(LOCAL), "pool", workers=2, count=70)[2] == [(5, 0)]
    same(FedAvg(LOCAL, mean=Median()), [(0, 40)])


@dataclass(frozen=True)
class Unable(FedAvg):
    """A method that cannot weigh one of its clients."""

    def weigh(self, reply, zoo):
        if reply.task.to == "c33":
            raise ArithmeticError("no weight for c33")
        return super().weigh(reply, zoo)


@pytest.mark.parametrize("engine", ["serial", "pool"])
def test_an_error_of_the_methods_own_weights_ends_the_run_on_every_engine(engine):
    with pytest.raises(ArithmeticError, match="no weight for c33"):
        rounds(Unable(LOCAL), engine)


@dataclass(frozen=True)
class Checked(FedAvg):
    """The server checks metrics of client c3 with a function that no worker knows."""

    def train_task(self, client, model, part, state, now):
        task = super().train_task(client, model, part, state, now)
        check = (lambda metrics: "never") if client == "c3" else None
        return replace(task, expects=replace(task.expects, metrics=check))


def test_a_block_with_a_check_that_only_the_server_knows_comes_reply_by_reply():
    same(Checked(LOCAL), [(2, 16)])


def test_workers_can_check_with_the_methods_own_functions_and_plain_arguments():
    method, other = HeteroFL(), HeteroFL(label_mask=True)
    assert can_check(Expected(), method)
    assert can_check(Expected(metrics=other.label_check(FULL)), other)
    assert not can_check(Expected(metrics=other.label_check(FULL)), method)
    assert not can_check(Expected(metrics=partial(other.odd_labels, count=[3])), other)
    assert not can_check(Expected(metrics=lambda metrics: None), method)


# The mean


def contributions():
    """Two and a half blocks of tensors: whole and partial, with integers, and with -0.0 among the sums."""
    part = Part({"w": replace(WHOLE.place("w"), dims=((slice(1, 3),),)), "n": WHOLE.place("n")})
    for n in range(40):
        values = torch.randn(3 if n % 3 else 2, generator=stream(n, "values"))
        values[0] = -0.0 if n % 5 else values[0]
        yield n, {"w": values, "n": torch.tensor(n % 7)}, WHOLE if n % 3 else part, n / 7 + 0.1


def test_a_block_added_at_once_has_the_bits_of_its_contributions_one_by_one():
    start = {"w": torch.zeros(3), "n": torch.tensor(-1)}
    one_by_one, blocks = OverlapMean(start), OverlapMean(start)
    parts = [OverlapMean(start) for _ in range(3)]
    for n, arrays, held, weight in contributions():
        one_by_one.add(arrays, held, weight, n)
        if n % 16 != 2:
            parts[n // 16].add(arrays, held, weight, n)
    for n, block in enumerate(parts):
        blocks.add_block(block.block, 16 * n + 5)
    without = OverlapMean(start)
    for n, arrays, held, weight in contributions():
        if n % 16 != 2:
            without.add(arrays, held, weight, n)
    assert digest(blocks.value()) == digest(without.value()) != digest(one_by_one.value())
    assert blocks.coverage() == without.coverage()
    assert torch.signbit(blocks.value()["w"][0]) == torch.signbit(without.value()["w"][0])


def test_blocks_are_added_in_order():
    mean, block = OverlapMean({"w": torch.zeros(1)}), OverlapMean({"w": torch.zeros(1)}).block
    mean.add({"w": torch.ones(1)}, WHOLE, 1.0, 20)
    with pytest.raises(ValueError, match="block 1 comes after position 20"):
        mean.add_block(block, 31)
    mean.add_block(block, 32)
    with pytest.raises(ValueError, match="position 47 comes after 47"):
        mean.add({"w": torch.ones(1)}, WHOLE, 1.0, 47)


# Batches


def envelopes(count, size=1, without=(), unheld=(), alike=True):
    rules = FoldRules(Gate(), Usual(), False, {}, count, alike)
    shared = torch.zeros(size)
    for n in range(count):
        if n not in without:
            fold = FoldTask(rules, n, None if n in unheld else WHOLE, Expected())
            yield TaskEnvelope(Task("echo", f"c{n}", arrays={"x": shared}), fold=fold)


def blocks(envelopes, workers=2):
    """The sizes of the batches, and which of them are blocks to be added up."""
    found = [batch.envelopes for batch in _block_batches(envelopes, workers)]
    return [len(batch) for batch in found], [batch[0].fold is not None for batch in found]


def test_batches_are_whole_blocks_of_task_positions():
    """Client 3 is absent, so the first block has fifteen tasks: the sixteenth position is in the next one."""
    assert blocks(envelopes(64)) == ([16, 16, 16, 16], [True] * 4)
    assert blocks(envelopes(64, without=(3,))) == ([31, 16, 16], [True] * 3)
    assert blocks(envelopes(70, without=range(16, 48))) == ([32, 6], [True] * 2)


def test_batches_have_several_blocks_and_fewer_towards_the_end():
    """Each is at least a quarter of what is left, for two workers: 50 of 200, 34 of 136, 22 of 88, 14 of 56.

    Two blocks of 3.6 MB are as many as are sent together.
    """
    assert blocks(envelopes(200)) == ([64, 48, 32, 16, 16, 16, 8], [True] * 7)
    assert blocks(envelopes(200, size=300_000)) == ([64, 48, 32, 16, 16, 16, 8], [True] * 7)
    assert blocks(envelopes(200, size=900_000)) == ([32] * 5 + [16, 16, 8], [True] * 8)


def test_tasks_that_take_unequal_time_are_sent_block_by_block():
    assert blocks(envelopes(70, alike=False)) == ([16, 16, 16, 16, 6], [True] * 5)


def test_a_block_with_a_task_that_must_come_as_it_is_is_not_added_up():
    sizes, summed = blocks(envelopes(70, unheld=(20,)))
    assert sum(sizes) == 70
    assert [size for size, whole in zip(sizes, summed, strict=True) if whole] == [16, 16, 16, 6]


def test_few_tasks_and_large_tasks_are_not_added_up():
    assert not any(blocks(envelopes(63))[1])
    assert not any(blocks(envelopes(70, size=2_000_000))[1][:-1])


# Messages


def test_a_reply_in_one_buffer_stays_in_it():
    method = FedAvg(LOCAL)
    worker = Worker(made_context(method))
    envelope = TaskEnvelope(Task("train", "c1", models={"model": ZOO.fresh(FULL, stream(0, "fresh"))}))
    result = worker.run(envelope)
    message, body = write_results([envelope], [result])
    assert len(body) == 1
    (back,) = read_results(message, body, [envelope])
    model, sent = back.reply.models["model"], result.reply.models["model"]
    assert isinstance(model.arrays, FlatArrays)
    assert digest(model.arrays) == digest(sent.arrays)
    assert (back.reply.weight, back.reply.metrics, back.reply.cost) == (6.0, result.reply.metrics, result.reply.cost)
    assert model.spec is envelope.task.models["model"].spec
    assert (back.task.to, back.task.models, back.reply.task) == ("c1", EMPTY, back.task)


def test_a_part_of_attention_heads_reaches_workers_as_it_is():
    """Else workers would add it up head by head, with other roundings than the server."""
    axes = {"q": (Axis("head", 4, outer=12), Axis("stream", 6))}
    held = part(axes, lambda axis: range(axis.size // 2))
    plain, tensors = split_tensors([block_sums._part_fields(held)])
    (fields,) = join_tensors(json.loads(json.dumps(plain)), tensors)
    assert held.places["q"].copies == (12, 1)
    assert block_sums._read_part(fields).places == held.places
