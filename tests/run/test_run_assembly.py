import numpy as np
import pytest
from tiny_runs import tiny

from potluck.core import SERVER, SettingsError
from potluck.data import source as sources
from potluck.run import assemble, experiment, run
from potluck.run.assemble import engine_name


def refusal(experiment):
    with pytest.raises(SettingsError) as caught:
        assemble(experiment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"name": "fedavgg"}}, "there is no method 'fedavgg'. Did you mean 'fedavg'?"),
        ({"model": {"name": "mpl"}}, "[model]: "),
        ({"model": {"name": 3}}, '[model] needs a name, such as name = "mlp".'),
        ({"model": {"hiden": 8}}, "[model]: mlp has no option 'hiden'. Did you mean 'hidden'?"),
        ({"model": {"classes": 8}}, "[model]: 'classes' follows from the data; leave it out."),
        ({"model": {"input": [8]}}, "[model]: 'input' follows from the data; leave it out."),
        ({"data": {"name": "digit"}}, "Did you mean 'digits'?"),
        ({"data": {"partition": "user"}}, "data.partition = 'user' needs a user column"),
        ({"data": {"partition": "labels", "labels": 11}}, "data.labels = 11, but digits has 10 classes"),
        ({"data": {"public": 5000}}, "leave none to train on"),
        ({"data": {"lean": 0.5}, "fleet": {"tiers": "redrawn"}}, "data.lean = 0.5 needs clients whose tier stays the"),
        ({"data": {"lean": 0.5}, "tier": [{"name": "a"}]}, "data.lean = 0.5 needs clients of two tiers or more"),
        ({"tier": [{"profile": "tvv"}]}, "tier.profile = 'tvv' is not known. Did you mean 'tv'?"),
        ({"tier": [{"name": "a", "depth": 3}]}, "tier 'a': mlp: depth = 3 is deeper than the 2 there are."),
        ({"tier": [{"name": "a", "depth": [1, 2]}]}, "tier 'a': mlp: depth = (1, 2) must be a whole number"),
        ({"tier": [{"name": "a", "depth": 0}]}, "tier 'a': mlp: depth = 0 must be a whole number from 1 to 200."),
        ({"tier": [{"name": "a", "width": 1.5}]}, "tier 'a': width = 1.5 must be a number above 0 and at most 1."),
        ({"tier": [{"name": "a", "width": {"hiden0": 0.5}}]}, "Did you mean 'hidden0'?"),
        ({"tier": [{"name": "a", "model": {"name": "cnnn"}}]}, "tier 'a': "),
        ({"tier": [{"name": "a", "model": {}}]}, "tier 'a' needs a name"),
        ({"tier": [{"name": "a"}, {"name": "a"}]}, "two tiers have the same name"),
        ({"method": {"name": "fjord"}}, "tier 'small' has width = None, depth = 1."),
        (
            {"method": {"name": "fjord"}, "tier": [{"name": "odd", "model": {"name": "lenet"}}]},
            "Give it one of these widths, no depth, and no model of its own.",
        ),
        ({"method": {"name": "alllarge", "share": "per_arch"}}, "[method] has no setting 'share'"),
        ({"method": {"name": "fjord", "widths": [1.0]}, "tier": [{"width": 0.5}]}, "FjORD draws from [method]"),
        (
            {"method": {"name": "fedrolex"}, "tier": [{"name": "odd", "model": {"name": "lenet"}}]},
            "FedRolex cuts every tier's network out of [model]; tier 'odd' has a model of its own",
        ),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_before_round_0(changes, said, tmp_path):
    wanted = tiny(**changes)
    assert said in refusal(wanted)
    with pytest.raises(SettingsError):
        run(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_depth_per_stage_needs_one_number_for_each():
    plain = {**tiny().plain(), "model": {"name": "resnet10"}, "tier": [{"name": "a", "depth": [1, 1]}]}
    assert "tier 'a': resnet: depth = (1, 1) must be 4 numbers, one per stage" in refusal(experiment(plain))


def test_data_with_one_class_or_several_numbers_a_row_is_refused():
    same = sources.from_arrays(np.zeros((10, 2), "f4"), np.zeros(10, int), name="same")
    with pytest.raises(SettingsError, match="data 'same' has one class"):
        assemble(tiny(), source=same)
    pairs = sources.from_arrays(np.zeros((10, 2), "f4"), np.zeros((10, 2), "f4"), name="pairs")
    with pytest.raises(SettingsError, match="data 'pairs' has several numbers in each row"):
        assemble(tiny(), source=pairs)


def test_tiers_are_ordered_by_their_network_and_the_server_carries_the_full_one():
    setup = assemble(tiny(tier=[{"name": "large"}, {"name": "small", "depth": 1}]))
    assert [tier.name for tier in setup.context.zoo.tiers] == ["small", "large"]
    assert setup.server.id == SERVER
    assert setup.server.tier.spec == setup.context.zoo.full == setup.context.zoo.tiers[-1].spec


def test_a_tier_may_have_a_network_of_its_own():
    setup = assemble(tiny(tier=[{"name": "a", "model": {"name": "mlp", "hidden": 3, "depth": 1}}, {"name": "b"}]))
    assert [dict(tier.spec.sizes) for tier in setup.context.zoo.tiers] == [
        {"hidden0": 3, "hidden1": 3},
        {"hidden0": 8, "hidden1": 8, "hidden2": 8},
    ]


def test_the_servers_device_holds_the_public_set_and_the_servers_splits():
    setup = assemble(tiny(data={"public": 30}))
    server_data = setup.context.datasets.shard(SERVER)
    assert (len(server_data.train), len(server_data.validation), len(server_data.test)) == (30, 180, 359)
    assert server_data.labels == tuple(range(10))
    assert len(setup.context.datasets.public) == 30


def test_a_local_setting_of_the_methods_own_wins_over_the_experiments():
    method = {"name": "fedprox", "mu": 0.5, "local": {"lr": 0.25}}
    made = assemble(tiny(method=method, local={"lr": 0.125, "epochs": 2})).context.method
    assert (made.mu, made.local.lr, made.local.epochs, made.local.batch) == (0.5, 0.25, 2, 32)


def test_auto_is_one_of_the_engines_and_a_name_is_taken_as_it_is():
    assert engine_name(tiny(run={"engine": "auto"})) in ("serial", "pool")
    assert engine_name(tiny(run={"engine": "wire"})) == "wire"


def two_tiers(**weak):
    rows = [{"name": "weak", "depth": 1, **weak}, {"name": "strong", "depth": 2, "server_lr": 0.5}]
    return assemble(tiny(tier=rows, method={"name": "inclusivefl"}))


def test_an_absent_tier_takes_its_data_along_and_the_others_keep_theirs():
    whole, less = two_tiers(), two_tiers(absent=True)
    assert [tier.name for tier in less.context.zoo.tiers] == ["strong"]
    assert (whole.population.present, less.population.present) == (8, 4)
    for client in ("c4", "c7"):
        ours, theirs = (setup.context.datasets.shard(client).train for setup in (less, whole))
        assert ours.column("x").equal(theirs.column("x"))
    assert {client.tier.name for index in range(9) for client in less.cohort(index)} == {"strong"}


def test_labels_lean_by_the_tiers_that_clients_have_and_an_absent_tier_takes_its_labels_along():
    rows = [{"name": "small", "share": 3, "depth": 1}, {"name": "large", "depth": 2}]
    whole, less = (
        assemble(tiny(data={"lean": 1.0}, tier=[{**rows[0], "absent": absent}, rows[1]])) for absent in (False, True)
    )
    theirs = {"small": set(), "large": set()}
    for client in whole.population.everyone(0):
        theirs[client.tier.name] |= set(whole.context.datasets.shard(client.id).labels)
    assert theirs["small"] | theirs["large"] == set(range(10))
    assert [len(labels) for labels in theirs.values()] == [8, 2]  # 7.5 and 2.5 of 10, the first rounded up
    kept = {label for client in less.population.everyone(0) for label in less.context.datasets.shard(client.id).labels}
    assert kept == theirs["large"]


def test_without_the_largest_tier_the_largest_that_is_left_is_scored(tmp_path):
    rows = [{"name": "weak", "depth": 1}, {"name": "strong", "depth": 2, "absent": True}]
    found = run(tiny(rounds=1, tier=rows, method={"name": "inclusivefl"}, score={"clients": 8}), tmp_path / "a")
    assert list(found.scores["tiers"]) == ["weak"]
    assert found.scores["global"] == {split: found.scores["tiers"]["weak"][split] for split in ("validation", "test")}
    assert found.scores["clients"]["ids"]
    assert set(found.scores["clients"]["ids"]) <= {f"c{n}" for n in range(4)}


def test_tiers_that_are_all_absent_and_rates_below_zero_are_refused():
    with pytest.raises(SettingsError, match=r"every \[\[tier\]\] is absent"):
        tiny(tier=[{"name": "weak", "absent": True}])
    with pytest.raises(SettingsError, match=r"tier 'weak' has server_lr = -1\.0; give a number above 0"):
        tiny(tier=[{"name": "weak", "server_lr": -1.0}])
