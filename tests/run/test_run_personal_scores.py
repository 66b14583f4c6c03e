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


WHOLE_BATCHES = {"epochs": 2, "batch": 1000, "lr": 0.5}
"""So that the order of rows does not matter: two steps of plain gradient descent."""


def accuracy_on_common_rows(setup, model, client=None):
    """Of a model as it is or, for a client, after the two steps on its rows, written out."""
    net, test = setup.context.zoo.build(model), setup.context.datasets.shard(SERVER).test.all()
    for _ in range(2 if client else 0):
        batch = setup.context.datasets.shard(client).train.all()
        gradients = torch.autograd.grad(functional.cross_entropy(net(batch["x"]), batch["y"]), net.parameters())
        with torch.no_grad():
            for weight, gradient in zip(net.parameters(), gradients, strict=True):
                weight -= 0.5 * gradient
    return (net(test["x"]).argmax(1) == test["y"]).float().mean().item()


def common_scores(setup, own, recall=lambda client: None):
    """The personal scores of all eight clients on the common rows, by client."""
    clients = [setup.population.client(index, 0) for index in range(8)]
    method, zoo = setup.context.method, setup.context.zoo
    session = Dispatcher(Serial(setup.context), method, zoo, recall=recall).open(0, everyone=True)
    found, faults = personal_scores(session, clients, {c.id: own(c) for c in clients}, setup.context.problem)
    assert not faults
    return dict(zip(found["common"]["ids"], found["common"]["values"], strict=True))


def test_a_served_model_is_trained_for_the_local_epochs_before_it_is_scored():
    setup = assemble(tiny(local=WHOLE_BATCHES, method={"name": "fedavg"}))
    method, zoo = setup.context.method, setup.context.zoo
    state = method.init(zoo, stream(0, "init"))
    found = common_scores(setup, lambda client: method.serve(state, client, zoo))
    assert len(found) == 8
    for id, scored in found.items():
        served = method.serve(state, setup.population.client(int(id[1:]), 0), zoo)
        assert scored == pytest.approx(accuracy_on_common_rows(setup, served, id), abs=0.003)


@pytest.mark.parametrize(
    ("name", "trained"),
    [("dsfl", True), ("fedgems", True), ("fedmd", False), ("local", False)],
)
def test_a_kept_model_is_trained_before_it_is_scored_only_if_its_round_ends_with_distillation(name, trained):
    setup = assemble(tiny(data={"public": 20}, local=WHOLE_BATCHES, method={"name": name}))
    tiers = {f"c{index}": setup.population.client(index, 0).tier for index in range(8)}
    kept = {id: setup.context.zoo.fresh(tier.spec, stream(0, id)) for id, tier in tiers.items()}
    found = common_scores(setup, lambda client: None, lambda client: (0, {"model": kept[client]}))
    as_kept = {id: accuracy_on_common_rows(setup, model) for id, model in kept.items()}
    after_epochs = {id: accuracy_on_common_rows(setup, model, id) for id, model in kept.items()}
    assert max(abs(after_epochs[id] - as_kept[id]) for id in kept) > 0.05
    assert found == pytest.approx(after_epochs if trained else as_kept, abs=0.003)


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
