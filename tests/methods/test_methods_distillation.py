"""What FedMD, FedDF, DS-FL, FedGEMS and Fed-ET have in common: they distil predictions."""

import json
from dataclasses import replace

import pytest
import torch
from constant_logits import STILL, PublicPlay, hundred_rows, two_clients
from made_round import data, zoo

from potluck.core import SERVER, Client, Examples, Local, Round, SettingsError, Tier
from potluck.learn import with_columns
from potluck.methods import DSFL, METHODS, FedDF, FedGEMS, FedMD
from potluck.methods.feddf import FedDFDistillation
from potluck.run import config, experiment, run

FIVE = ["fedmd", "feddf", "dsfl", "fedgems", "fedet"]


@pytest.mark.parametrize("name", FIVE)
def test_a_federation_without_public_rows_is_refused_before_round_0(name):
    with pytest.raises(SettingsError, match=r"public rows, and there are none; set data\.public to some") as refused:
        METHODS[name]().check(zoo(1))
    assert "\n" not in str(refused.value)
    METHODS[name]().check(replace(zoo(1), public=1))


def test_the_server_serves_the_models_that_it_has():
    made = replace(zoo(1, 2), public=4)
    server, client = Client(SERVER, Tier("server", spec=made.full)), Client("c0", made.tiers[0])
    found = {}
    for name in FIVE:
        method = METHODS[name]()
        state = method.init(made, torch.Generator().manual_seed(0))
        found[name] = [model and model.spec for model in (method.serve(state, who, made) for who in (server, client))]
    small = made.tiers[0].spec
    assert found["fedmd"] == [None, None]
    assert found["dsfl"] == found["fedgems"] == [made.full, None]
    assert found["feddf"] == found["fedet"] == [made.full, small]


def test_all_clients_of_a_round_predict_the_same_rows_and_each_round_draws_others():
    method = DSFL(rows=3)
    play = two_clients(method)
    drawn = []
    for index in range(6):
        play.round(play.init(), index)
        drawn.append(tuple(method.draw_rows(_now(play, index))["rows"].tolist()))
    assert all(len(set(rows)) == 3 and set(rows) <= set(range(4)) for rows in drawn)
    assert len(set(drawn)) > 1
    assert not DSFL(rows=9).draw_rows(_now(play, 0))


def _now(play, index):
    session = play.dispatcher.open(index)
    return Round(index, play.everyone, 2, play.zoo, 0, session.send, session.fold, lambda wanted: [])


def test_predicting_public_rows_costs_a_forward_pass_of_each_on_clients_and_server():
    work = zoo(1).cost(zoo(1).tiers[0].spec, 4)  # on the four rows
    alone = {"a": ("d1", data(4))}
    asked = PublicPlay(FedMD(STILL, warm_public=0, warm_private=0, digests=0), zoo(1), alone)
    asked.round(asked.init())
    assert [entry.cost.flops for entry in asked.entries("answer")] == [work.forward_flops]
    assert asked.entries("answer")[0].cost.memory == zoo(1).cost(zoo(1).full, 4).parameter_bytes
    taught = PublicPlay(FedDF(STILL, teach=FedDFDistillation(steps=0)), zoo(1), alone)
    taught.round(taught.init())
    assert [(entry.task.to, entry.cost.flops) for entry in taught.entries("answer")] == [(SERVER, work.forward_flops)]
    twice = PublicPlay(FedGEMS(STILL, passes=1), zoo(1), alone)
    twice.round(twice.init())
    (learned,) = twice.entries("learn")
    assert learned.cost.flops == 2 * work.forward_flops + work.flops  # before and after the pass


@pytest.mark.parametrize(
    ("method", "verbs"),
    [(DSFL(STILL, distils=1), ("distil", "learn")), (FedGEMS(STILL, passes=1, lessons=1), ("follow", "learn"))],
)
def test_public_rows_are_learned_in_batches_of_the_clients_size(method, verbs):
    """A hundred rows are four batches of 32, on clients and on the server."""
    play = two_clients(hundred_rows(replace(method, local=replace(STILL, batch=32))))
    play.round(play.init())
    for verb in verbs:
        assert {entry.metrics["steps"] for entry in play.entries(verb)} == {4}


def test_added_columns_follow_the_rows_of_their_examples():
    examples = Examples({"x": torch.arange(4.0)[:, None]}, torch.tensor([3, 1]))
    more = with_columns(examples, scores=torch.tensor([[30.0], [10.0]]))
    assert more[torch.tensor([1])]["x"].tolist() == [[1.0]]
    assert more[torch.tensor([1])]["scores"].tolist() == [[10.0]]


def test_distillation_settings_keep_the_defaults_that_they_do_not_name():
    made = config.method({"name": "feddf", "teach": {"epochs": 2}}, Local())
    assert (made.teach.optimiser, made.teach.lr, made.teach.epochs) == ("adam", 1e-3, 2)
    assert str(made.teach) == "epochs 2"
    made = config.method({"name": "fedet", "teach": {"steps": 3}}, Local())
    assert (made.teach.lr, made.teach.momentum, made.teach.steps) == (5e-3, 0.9, 3)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [("fedmd", "rows", 0), ("fedmd", "digests", -1), ("dsfl", "temperature", 0.0), ("fedgems", "share", 1.5)],
)
def test_settings_out_of_range_are_refused_by_name(name, setting, value):
    with pytest.raises(SettingsError, match=rf"method\.{setting} = {value}"):
        config.method({"name": name, setting: value}, Local())


UNEQUAL = [
    {"name": "small", "model": {"name": "lenet"}},
    {"name": "medium", "model": {"name": "mobilenet_v2"}},
    {"name": "large"},
]


@pytest.mark.parametrize("name", FIVE)
def test_architectures_with_nothing_in_common_take_part(name, tmp_path):
    settings = {
        "rounds": 1,
        "cohort": 3,
        "data": {"clients": 3, "samples": 20, "public": 20, "client_test": 10},
        "model": {"name": "resnet18"},
        "tier": UNEQUAL,
        "method": {"name": name, **({"warm_public": 1, "warm_private": 1} if name == "fedmd" else {})},
        "local": {"lr": 0.05, "epochs": 1, "batch": 20},
        "score": {"every": 5, "clients": 3},
        "run": {"engine": "serial"},
    }
    if name == "fedet":
        settings["method"]["teach"] = {"steps": 1}
    result = run(experiment(settings), tmp_path / "run")
    assert all(tier["clients"]["count"] == 1 for tier in result.scores["tiers"].values())
    tasks = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    tasks = [line for line in tasks if line["event"] == "task"]
    assert {line["outcome"] for line in tasks} == {"accepted"}
    own = [line for line in tasks if line["tier"] == "server"]
    assert bool(own) == (name != "fedmd")
    assert any(line["modelled"]["flops"] > 0 for line in own) or name == "fedmd"
