"""`[score] personal`: clients' models after the clients' local epochs, in two measures."""

from types import SimpleNamespace

import pytest
import torch
from tiny_runs import scores, tiny
from torch.nn import functional

from potluck.core import SERVER, Client, Model, Task, Tier, stream
from potluck.engines import Dispatcher, Serial
from potluck.learn import Classify
from potluck.methods import METHODS
from potluck.run import assemble, experiment, run
from potluck.run.contract import MethodCase
from potluck.run.scoring import personal_scores


def test_both_measures_by_hand():
    """Three classes, right in 2 of 4, 4 of 4 and 0 of 4 rows: 6 of 12 in all. A client of 1, 3 and 0 rows has
    (1 x 0.5 + 3 x 1) / 4 of them right, where always saying the second class has three quarters."""
    tally = {"right": [2, 4, 0], "seen": [4, 4, 4], "loss": 1.0}
    reply = SimpleNamespace(task=SimpleNamespace(to="c0"), metrics={"common": tally, "own": tally, "labels": [1, 3, 0]})
    session = SimpleNamespace(send=lambda tasks: [reply for _ in tasks], entries=[])
    found, faults = personal_scores(session, [Client("c0", Tier("all"))], {"c0": None}, Classify(3))
    assert (found["common"]["mean"], found["own"]["mean"], found["commonest"]) == (0.5, 0.875, 0.75)
    assert found["tiers"]["all"]["own"]["values"] == [0.875]
    assert not faults


def test_a_served_model_is_trained_for_the_local_epochs_before_it_is_scored():
    """Whole batches, so that the order of rows does not matter: two steps of plain gradient descent, written out."""
    local = {"epochs": 2, "batch": 1000, "lr": 0.5}
    setup = assemble(tiny(local=local, score={"clients": 8, "personal": True}, method={"name": "fedavg"}))
    zoo, method = setup.context.zoo, setup.context.method
    state = method.init(zoo, stream(0, "init"))
    clients = [setup.population.client(index, 0) for index in range(8)]
    own = {client.id: method.serve(state, client, zoo) for client in clients}
    session = Dispatcher(Serial(setup.context), method, zoo).open(0, everyone=True)
    found, faults = personal_scores(session, clients, own, setup.context.problem)
    assert not faults
    test = setup.context.datasets.shard(SERVER).test.all()
    for id, scored in zip(found["common"]["ids"], found["common"]["values"], strict=True):
        net, batch = zoo.build(own[id]), setup.context.datasets.shard(id).train.all()
        for _ in range(2):
            gradients = torch.autograd.grad(functional.cross_entropy(net(batch["x"]), batch["y"]), net.parameters())
            with torch.no_grad():
                for weight, gradient in zip(net.parameters(), gradients, strict=True):
                    weight -= 0.5 * gradient
        assert scored == pytest.approx((net(test["x"]).argmax(1) == test["y"]).float().mean().item(), abs=0.003)


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_every_method_has_personal_scores_and_they_change_nothing_else(kind, tmp_path):
    case = MethodCase(kind)
    plain, other = ({"every": 1, "clients": 9, "personal": personal} for personal in (False, True))
    without = case.run(tmp_path / "without", rounds=1, cohort=9, score=plain)
    with_them = case.run(tmp_path / "with", rounds=1, cohort=9, score=other)
    assert with_them.weights_sha256 == without.weights_sha256
    *_, last = scores(tmp_path / "with")
    personal = last.pop("personal")
    assert last == scores(tmp_path / "without")[-1]
    count = 9 if case.name != "exclusivefl" else personal["common"]["count"]
    assert personal["common"]["count"] == personal["own"]["count"] == count > 0
    assert personal["own"]["mean"] > personal["common"]["mean"] or case.name == "fedmask"  # masks learn slowly
    assert 0.1 < personal["commonest"] < 1


def test_the_three_engines_agree_on_personal_scores(tmp_path):
    found = []
    for engine in ("serial", "wire", "pool"):
        run(tiny(rounds=1, score={"personal": True}, run={"engine": engine}), tmp_path / engine)
        found.append(scores(tmp_path / engine)[-1]["personal"])
    assert found[0] == found[1] == found[2]


def test_static_batch_norm_is_trained_as_such_and_scored_with_the_clients_own_statistics(tmp_path):
    """A network that counts statistics cannot be captured on a GPU, so clients train the static one."""
    static = {"name": "cnn", "width": 8, "depth": 1, "norm": "static"}
    plain = tiny(rounds=1, tier=[{"name": "all", "width": 1.0}], method={"name": "heterofl"}, score={"personal": True})
    asked = experiment({**plain.plain(), "model": static})
    setup = assemble(asked)
    method, zoo = setup.context.method, setup.context.zoo
    state = method.init(zoo, stream(0, "init"))
    full = method.serve(state, setup.server, zoo)
    counted = Model(zoo.counting(full.spec), {**zoo.fresh(zoo.counting(full.spec), stream(1)).arrays, **full.arrays})
    task = Task("personalise", "c0", models={"model": counted})
    device = SimpleNamespace(zoo=zoo)
    found = method.personal_start(task, device)
    assert found.spec == full.spec
    assert found.arrays.keys() == full.arrays.keys()
    run(asked, tmp_path / "run")
    assert scores(tmp_path / "run")[-1]["personal"]["common"]["count"] == 2
