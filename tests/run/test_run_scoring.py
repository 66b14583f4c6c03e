from dataclasses import replace

import pytest
import torch
from tiny_runs import Counting, Listener, scores, tiny

from potluck.core import SERVER, Client, Model, SettingsError, stream
from potluck.engines import Dispatcher
from potluck.methods import METHODS
from potluck.run import assemble, run
from potluck.run.scoring import _spread, scored_clients
from potluck.run.scoring import score as score_models


@pytest.fixture
def score():
    """Scores an experiment's first model, or another state; the engine says what it was asked."""

    def ask(wanted, memory=lambda client: None):
        setup = assemble(wanted)
        engine = Counting(setup.context)
        state = setup.context.method.init(setup.context.zoo, stream(0, "init"))
        session = Dispatcher(engine, setup.context.method, setup.context.zoo, recall=memory).open(0, everyone=True)
        found, faults = score_models(setup, session, state, 0)
        assert not faults
        return found, engine.ran, setup, state

    return ask


def accuracy(setup, model, examples):
    """Right answers over examples, counted with nothing but a network."""
    net = setup.context.zoo.build(model).eval()
    batch = examples.all()
    with torch.no_grad():
        return (net(batch["x"]).argmax(1) == batch["y"]).float().mean().item()


def test_the_servers_model_is_scored_on_the_servers_splits(score):
    found, _, setup, state = score(tiny())
    served = setup.context.method.serve(state, setup.server, setup.context.zoo)
    server_data = setup.context.datasets.shard(SERVER)
    assert found["round"] == 0
    assert found["global"]["test"]["accuracy"] == pytest.approx(accuracy(setup, served, server_data.test))
    assert found["global"]["validation"]["accuracy"] == pytest.approx(accuracy(setup, served, server_data.validation))
    assert found["global"]["test"]["count"] == 359
    assert found["tiers"]["large"]["test"] == found["global"]["test"]


def test_each_tier_is_scored_with_its_own_model(score):
    found, _, setup, state = score(tiny())
    small = setup.context.zoo.tiers[0]
    served = setup.context.method.serve(state, Client(SERVER, small), setup.context.zoo)
    assert dict(served.spec.sizes) == {"hidden0": 8, "hidden1": 8}
    test = setup.context.datasets.shard(SERVER).test
    assert found["tiers"]["small"]["test"]["accuracy"] == pytest.approx(accuracy(setup, served, test))


def test_clients_score_their_own_model_on_their_own_test_split(score):
    found, _, setup, state = score(tiny(score={"clients": 8}))
    each = {}
    for index in range(8):
        client = setup.population.client(index, 0)
        served = setup.context.method.serve(state, client, setup.context.zoo)
        each[client.id] = accuracy(setup, served, setup.context.datasets.shard(client.id).test)
    assert found["clients"]["values"] == pytest.approx(sorted(each.values()))
    named = dict(zip(found["clients"]["ids"], found["clients"]["values"], strict=True))
    assert named == pytest.approx(each)
    assert found["clients"]["mean"] == pytest.approx(sum(each.values()) / 8)
    assert found["tiers"]["small"]["clients"]["mean"] == pytest.approx(sum(each[f"c{i}"] for i in range(4)) / 4)
    assert found["tiers"]["large"]["clients"]["values"] == pytest.approx(sorted(each[f"c{i}"] for i in range(4, 8)))


def test_the_spread_over_clients_by_hand():
    assert _spread({"c0": 0.5, "c1": None, "c2": 1.0, "c3": 0.0, "c4": 0.5}) == {
        "mean": 0.5,
        "sd": pytest.approx(0.125**0.5),
        "worst": 0.0,
        "count": 4,
        "values": [0.0, 0.5, 0.5, 1.0],
        "ids": ["c3", "c0", "c4", "c2"],
    }
    twenty = {f"c{value}": value / 20 for value in range(20)}
    assert _spread(twenty)["worst"] == pytest.approx(0.025)  # the two worst of twenty: 0 and 0.05
    assert _spread({"c0": None}) is None
    assert _spread({}) is None


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ({"name": "fedavg"}, [""]),
        ({"name": "fedavg", "share": "layerwise"}, ["", "small"]),
        ({"name": "alllarge"}, [""]),
        ({"name": "allsmall"}, [""]),
        ({"name": "exclusivefl"}, [""]),
        ({"name": "local"}, []),
    ],
)
def test_a_model_served_to_several_tiers_is_scored_once(score, method, asked):
    _, ran, _, _ = score(tiny(method=method, score={"clients": 0}))
    assert ran == [(SERVER, f"{key}/0") for key in asked]


def test_tiers_that_exclusivefl_leaves_out_are_scored_with_its_large_network(score):
    found, _, setup, state = score(tiny(method={"name": "exclusivefl"}, score={"clients": 8}))
    tiers = found["tiers"]
    assert tiers["small"]["test"] == tiers["large"]["test"] == found["global"]["test"]
    assert (tiers["small"]["clients"]["count"], tiers["large"]["clients"]["count"]) == (4, 4)
    weak = tiers["small"]["clients"]
    wanted = accuracy(setup, state.model, setup.context.datasets.shard(weak["ids"][0]).test)
    assert weak["values"][0] == pytest.approx(wanted)


def test_clients_that_cannot_train_have_no_personal_score(score):
    found, _, _, _ = score(tiny(method={"name": "exclusivefl"}, score={"clients": 8, "personal": True}))
    assert found["clients"]["count"] == 8
    assert set(found["personal"]["common"]["ids"]) == {"c4", "c5", "c6", "c7"}


def test_local_has_no_global_model_and_only_clients_that_trained_have_a_score(score):
    setup = assemble(tiny(method={"name": "local"}))
    own = setup.context.zoo.fresh(setup.context.zoo.tiers[0].spec, stream(0, "x"))

    def memory(client):
        return (1, {"model": Model(own.spec, own.arrays)}) if client == "c0" else None

    found, _, _, _ = score(tiny(method={"name": "local"}, score={"clients": 8}), memory)
    assert found["global"] is None
    assert found["tiers"]["large"] == {"clients": None}
    wanted = accuracy(setup, own, setup.context.datasets.shard("c0").test)
    assert found["tiers"]["small"]["clients"]["values"] == [pytest.approx(wanted)]
    assert found["clients"]["count"] == 1


def test_models_that_live_with_clients_are_scored_on_the_common_test_set_where_that_is_asked_for(score):
    """Two clients of one tier: the tier's score is their mean; whoever has no model adds nothing."""
    setup = assemble(tiny(method={"name": "local"}))
    zoo, test = setup.context.zoo, setup.context.datasets.shard(SERVER).test
    own = {f"c{n}": zoo.fresh(zoo.tiers[0].spec, stream(n, "x")) for n in range(2)}

    def memory(client):
        return (1, {"model": own[client]}) if client in own else None

    found, _, _, _ = score(tiny(method={"name": "local"}, score={"clients": 8, "common": True}), memory)
    each = [accuracy(setup, model, test) for model in own.values()]
    assert found["tiers"]["small"]["clients"]["values"] == pytest.approx(sorted(each))
    assert found["tiers"]["small"]["test"]["accuracy"] == pytest.approx(sum(each) / 2)
    assert found["tiers"]["small"]["test"]["count"] == 2 * len(test)
    assert found["tiers"]["large"] == {"clients": None}
    assert found["global"] is None


def test_clients_score_a_shared_model_on_their_own_rows_even_then(score):
    plain, _, _, _ = score(tiny(score={"clients": 8}))
    common, _, _, _ = score(tiny(score={"clients": 8, "common": True}))
    assert common == plain


def test_the_same_clients_score_every_time():
    setup = assemble(tiny(score={"clients": 3}))
    first = [client.id for client in scored_clients(setup, 0)]
    assert len(first) == 3
    assert first == [client.id for client in scored_clients(setup, 5)]
    assert first == [
        client.id for client in scored_clients(assemble(tiny(method={"name": "local"}, score={"clients": 3})), 9)
    ]


def test_no_more_clients_score_than_there_are():
    assert len(scored_clients(assemble(tiny(score={"clients": 99})), 0)) == 8


def test_rounds_are_scored_as_often_as_asked_and_at_the_end(tmp_path):
    run(tiny(rounds=5, score={"every": 2, "clients": 0}), tmp_path / "run")
    assert [row["round"] for row in scores(tmp_path / "run")] == [0, 2, 4, 5]


def suited(name):
    """What a method cannot do without: widths, or public rows."""
    wide = {"tier": [{"name": "small", "width": 0.4}, {"name": "large"}]} if name == "fjord" else {}
    return {"method": {"name": name}, "data": {"public": 50}, **wide}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_scored_without_a_fault(name, score):
    found, _, _, _ = score(tiny(**suited(name)))
    assert set(found) == {"round", "metric", "global", "tiers", "clients"}
    assert set(found["tiers"]) == {"small", "large"}


@pytest.mark.parametrize("name", [name for name in METHODS if name != "moss"])
def test_static_norms_are_asked_for_without_a_fault_under_every_method(name, tmp_path):
    listener = Listener()
    run(tiny(model={"norm": "static"}, rounds=1, **suited(name)), tmp_path / "run", watch=listener)
    assert listener.warnings == []


def test_moss_refuses_static_norms_before_the_first_round(tmp_path):
    with pytest.raises(SettingsError, match="tier 'small' has static batch norm"):
        run(tiny(model={"norm": "static"}, **suited("moss")), tmp_path / "run")


def test_splits_scored_in_pieces_give_the_scores_of_the_whole(score, monkeypatch):
    whole, asked, *_ = score(tiny())
    monkeypatch.setattr("potluck.run.scoring.PIECE", 100)
    pieces, more, *_ = score(tiny())
    assert len(more) == len(asked) + 2 * 3  # 359 test rows are four pieces of each of two models
    for split in ("validation", "test"):
        one, other = whole["global"][split], pieces["global"][split]
        assert {**one, "loss": 0} == {**other, "loss": 0}
        assert one["loss"] == pytest.approx(other["loss"])


def test_a_model_of_which_a_piece_was_lost_has_no_score(monkeypatch):
    class Loses(Counting):
        def run(self, envelopes):
            for number, result in enumerate(super().run(envelopes)):
                yield replace(result, reply=None, fault="gone") if number == 2 else result

    monkeypatch.setattr("potluck.run.scoring.PIECE", 100)
    setup = assemble(tiny())
    state = setup.context.method.init(setup.context.zoo, stream(0, "init"))
    session = Dispatcher(Loses(setup.context), setup.context.method, setup.context.zoo).open(0, everyone=True)
    found, faults = score_models(setup, session, state, 0)
    assert faults == ["server: gone"]
    assert found["global"] is None
    assert found["tiers"]["small"]["test"]["count"] == 359
