"""The contract of `send` and `fold`, behind every engine."""

import pytest
import torch
from made_context import FULL, ZOO, Echo, Odd, federation, rows

from potluck.core import Expected, Local, Task, digest, shapes_of
from potluck.engines.batches import AHEAD, MANY
from potluck.methods import FedAvg

ENGINES = ["serial", "wire", "pool"]


def asked(count, verb="echo"):
    return [Task(verb, f"c{n}", config={"say": n}) for n in range(count)]


def carrying(arrays, verb, to):
    """A task whose client repeats the arrays that it is sent."""
    return Task(verb, to, arrays=arrays, expects=Expected(arrays=shapes_of(arrays)))


def training(client, model, **more):
    return Task("train", client, models={"model": model}, expects=Expected({"model": model.shapes}), **more)


def said(replies):
    return [reply.metrics["said"] for reply in replies]


@pytest.fixture(params=ENGINES)
def engine(request):
    return request.param


def test_replies_come_in_the_order_of_the_tasks(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(3)
        replies = list(session.send(asked(20)))
        session.close()
    assert said(replies) == list(range(20))
    assert [reply.task.address for reply in replies] == [(3, "echo", f"c{n}", "") for n in range(20)]


def test_order_holds_even_when_the_first_task_is_the_slowest():
    with federation(FedAvg(Local(lr=0.01, steps=1)), "pool", special={"c0": rows(20_000)}) as made:
        model = ZOO.fresh(FULL, torch.Generator())
        session = made.dispatcher.open(0)
        tasks = [training(f"c{n}", model) for n in range(6)]
        assert [reply.task.to for reply in session.send(tasks)] == [f"c{n}" for n in range(6)]


def test_tasks_are_drawn_lazily(engine):
    """One by one; the pool, which has several workers to feed, draws a few large ones ahead, or many small ones."""
    large, small = 2_000_000, 1
    for size, ahead in ((large, (1, AHEAD * 2 + 1)), (small, (1, MANY))):
        drawn = []

        def tasks(size=size, drawn=drawn):
            for number in range(300 if size == small else 30):
                drawn.append(number)
                yield carrying({"x": torch.zeros(size)}, "echo", f"c{number}")

        with federation(Echo(), engine) as made:
            replies = made.dispatcher.open(0).send(tasks())
            assert drawn == []
            number = 0
            for number, _ in enumerate(replies, 1):
                assert len(drawn) - number <= ahead[engine == "pool"]
            assert number == len(drawn)


def test_an_undrained_send_is_an_error(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(0)
        replies = session.send(asked(3))
        with pytest.raises(RuntimeError, match=r"Echo\.round left a send undrained"):
            session.close()
        next(replies)
        with pytest.raises(RuntimeError, match="undrained"):
            session.close()
        assert said(replies) == [1, 2]
        session.close()


def test_a_drained_send_does_not_excuse_an_undrained_one(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(0)
        undrained, drained = session.send(asked(3)), session.send(asked(3, "look"))
        next(undrained)
        list(drained)
        with pytest.raises(RuntimeError, match="undrained"):
            session.close()
        list(undrained)
        session.close()


def test_a_send_that_was_given_up_does_no_harm_to_the_next(engine):
    with federation(Echo(), engine) as made:
        given_up = made.dispatcher.open(0).send(asked(12))
        assert next(given_up).metrics == {"said": 0}
        given_up.close()
        session = made.dispatcher.open(1)
        assert said(session.send(asked(12))) == list(range(12))
        session.close()


def test_two_tasks_with_one_address_are_an_error(engine):
    with federation(Echo(), engine) as made:
        with pytest.raises(RuntimeError, match=r"are both .*'c1'.*give them a key"):
            list(made.dispatcher.open(0).send([Task("echo", "c1"), Task("echo", "c1")]))
        session = made.dispatcher.open(0)
        list(session.send([Task("echo", "c1"), Task("echo", "c1", "again"), Task("look", "c1")]))
        with pytest.raises(RuntimeError, match="give them a key"):
            list(session.send([Task("echo", "c1")]))


def test_two_sends_may_be_read_side_by_side(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(0)
        one, two = session.send(asked(9)), session.send(asked(9, "look"))
        pairs = [(a.task.to, b.task.to) for a, b in zip(one, two, strict=True)]
        session.close()
    assert pairs == [(f"c{n}", f"c{n}") for n in range(9)]


def test_the_replies_of_one_send_may_feed_the_tasks_of_another(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(0)
        first = session.send(asked(15))
        second = session.send(
            Task("echo", reply.task.to, "again", config={"say": reply.metrics["said"] * 10}) for reply in first
        )
        assert said(second) == [10 * n for n in range(15)]
        session.close()
    assert sorted(entry.task.key for entry in session.entries) == [""] * 15 + ["again"] * 15


def test_clients_that_fail_or_have_nothing_to_do_are_absent_and_noted(engine):
    tasks = [Task("echo", "c0"), Task("fail", "c1"), Task("skip", "c2"), Task("nope", "c3"), Task("init", "c4")]
    tasks += [Task("echo", "c5", config={"say": 5})]
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(0)
        assert said(session.send(tasks)) == ["", 5]
        session.close()
    assert [(entry.task.to, entry.verdict, entry.reason) for entry in session.entries] == [
        ("c0", "accepted", ""),
        ("c1", "absent", "failed: ValueError: boom"),
        ("c2", "absent", "nothing to do"),
        ("c3", "absent", "failed: PermissionError: Echo has no client verb 'nope'"),
        ("c4", "absent", "failed: PermissionError: Echo has no client verb 'init'"),
        ("c5", "accepted", ""),
    ]
    assert session.accepted == 2
    assert session.strikes() == {}


def test_a_reply_that_cannot_travel_is_refused(engine):
    with federation(Echo(), engine) as made:
        session = made.dispatcher.open(0)
        replies = list(session.send([Task("echo", "c0"), Task("smuggle", "c1"), Task("echo", "c2")]))
        session.close()
    assert [reply.task.to for reply in replies] == ["c0", "c2"]
    reason = "metrics.thing is a object; plain values are numbers, text, lists and mappings"
    assert (session.entries[1].verdict, session.entries[1].reason) == ("quarantined", reason)


def test_a_client_without_samples_is_skipped_by_name(engine):
    with federation(FedAvg(Local(steps=1)), engine, special={"c2": rows(0)}) as made:
        made.round(made.init())
        assert made.outcomes()["c2"] == ("absent", "no samples")
        assert made.session.accepted == 4


def test_clients_modelled_to_drop_out_are_never_asked(engine):
    lost = {("c1", 0, 0), ("c2", 0, 1)}
    with federation(Echo(), engine, lost=lambda *where: where in lost) as made:
        for attempt, absent in ((0, "c1"), (1, "c2")):
            session = made.dispatcher.open(0, attempt)
            replies = list(session.send(carrying({"x": torch.zeros(3)}, "echo", f"c{n}") for n in range(4)))
            session.close()
            assert [reply.task.to for reply in replies] == sorted({"c0", "c1", "c2", "c3"} - {absent})
            gone = session.entries[int(absent[1])]
            assert (gone.task.to, gone.verdict, gone.reason) == (absent, "absent", "dropped out")
            assert (gone.cost.bytes_down, gone.cost.bytes_up) == (12, 0)


def test_the_server_never_drops_out():
    with federation(Echo(), lost=lambda *where: True) as made:
        session = made.dispatcher.open(0)
        assert said(session.send([Task("echo", "server", config={"say": "here"}), Task("echo", "c1")])) == ["here"]


@pytest.mark.parametrize("odd", ["boom", "nan"])
def test_the_aggregate_equals_the_survivors_aggregate_exactly(engine, odd):
    method = Odd(Local(lr=0.3, epochs=1, batch=4), odd=odd, who=("c1", "c3"))
    with federation(method, engine) as made:
        with_failures = made.round(made.init())
        survivors = made.round(made.init(), without=("c1", "c3"))
    assert digest(with_failures.model.arrays) == digest(survivors.model.arrays)
    assert digest(survivors.model.arrays) != digest(made.init().model.arrays)


class Positions:
    """A mean that remembers only who was added, and where."""

    def __init__(self):
        self.added = []

    def add(self, arrays, held, weight=1.0, position=None):
        self.added.append((held, weight, position))

    def coverage(self):
        return 0.25


def test_fold_adds_every_reply_at_its_tasks_own_position(engine):
    """Absent clients leave gaps, so that blocks of sixteen are the same whoever fails."""
    with federation(Odd(Local(steps=1), odd="boom", who=("c0", "c2")), engine) as made:
        mean, session = Positions(), made.dispatcher.open(0)
        tasks = (training(f"c{n}", ZOO.fresh(FULL, torch.Generator())) for n in range(5))
        held = {f"c{n}": f"part of c{n}" for n in range(5)}
        replies = session.fold(tasks, mean, held, lambda reply: reply.weight * 2)
        session.close()
    assert [reply.task.to for reply in replies] == ["c1", "c3", "c4"]
    sevenths = {n: ((5 + n) / 7 + 0.1) * 2 for n in (1, 3, 4)}
    assert mean.added == [(f"part of c{n}", weight, n) for n, weight in sevenths.items()]
    assert session.coverage == 0.25


def test_every_task_draws_from_a_stream_of_its_own_and_again_the_same(engine):
    tasks = [Task(verb, to, key) for verb in ("draw", "draw_too") for to in ("c0", "c1") for key in ("", "again")]

    def drawn(index):
        return [tuple(reply.metrics["drawn"]) for reply in made.dispatcher.open(index).send(tasks)]

    with federation(Echo(), engine) as made:
        assert drawn(0) == drawn(0)
        assert len({*drawn(0), *drawn(1)}) == 16


def test_fold_gives_replies_back_without_the_folded_numbers():
    seen = []

    class Looking(Odd):
        def round(self, state, now):
            fold = now.fold

            def looking(*given):
                seen.extend(fold(*given))
                return seen

            object.__setattr__(now, "fold", looking)
            return super().round(state, now)

    with federation(Looking(Local(steps=1)), "serial") as made:
        made.round(made.init())
    assert [dict(reply.models["model"].arrays) for reply in seen] == [{}] * 5
    assert [reply.metrics["steps"] for reply in seen] == [1] * 5


def test_replies_own_their_numbers():
    """A worker trains one network after the other in place; what it has sent must not change under the reader."""
    with federation(FedAvg(Local(lr=0.5, steps=3)), "serial") as made:
        model = ZOO.fresh(FULL, torch.Generator())
        before = digest(model.arrays)
        session = made.dispatcher.open(0)
        first, *_ = replies = list(session.send(training(f"c{n}", model) for n in range(3)))
        assert len({digest(reply.models["model"].arrays) for reply in replies}) == 3
        again = next(made.dispatcher.open(0).send([training("c0", model)]))
    assert digest(first.models["model"].arrays) == digest(again.models["model"].arrays)
    assert digest(model.arrays) == before


def test_one_sample_or_one_class_is_enough_to_train(engine):
    normed = type(ZOO)(FULL.__class__(FULL.family, FULL.depth, FULL.sizes, {**FULL.options, "norm": "running"}), ())
    zoo = type(ZOO)(normed.full, [ZOO.tiers[0].__class__("all", spec=normed.full)])
    one_class = rows(7)
    one_class.columns["y"] = torch.ones(7, dtype=torch.long)
    with federation(
        FedAvg(Local(lr=0.1, epochs=2, batch=4)), engine, special={"c1": rows(1), "c2": one_class}, zoo=zoo
    ) as made:
        state = made.method.init(zoo, torch.Generator())
        session = made.dispatcher.open(0)
        tasks = [training(f"c{n}", state.model) for n in range(4)]
        replies = list(session.send(tasks))
    assert [reply.weight for reply in replies] == [5, 1, 7, 8]
    for reply in replies:
        assert all(bool(tensor.isfinite().all()) for tensor in reply.models["model"].arrays.values())


def test_only_a_task_to_score_is_given_the_common_rows(engine):
    """A method of one's own may call anything in its tasks "common"; its clients still train on what is theirs."""
    with federation(FedAvg(Local(lr=0.1, steps=1)), engine) as made:
        session = made.dispatcher.open(0)
        model = ZOO.fresh(ZOO.tiers[0].spec, torch.Generator())
        [reply] = session.send([training("c0", model, config={"common": True})])
        session.close()
    assert reply.weight == 5.0
