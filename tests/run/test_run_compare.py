import pytest
import torch
from tiny_runs import Listener, StopsAfter, cohorts, kept, tiny

from potluck.core import SERVER, Client, InputError, SettingsError
from potluck.ledger import CheckpointError, MissingRun, read_run
from potluck.models import load
from potluck.run import Interrupted, assemble, compare, export, run
from potluck.run.session import state_of

METHODS = [{"name": "fedavg", "share": "layerwise"}, {"name": "alllarge"}, {"name": "local"}]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Three methods over two seeds."""
    out = tmp_path_factory.mktemp("compared")
    return out, compare(tiny(), out, METHODS, [0, 1], lambda label, seed: Listener())


def test_each_method_and_seed_has_a_folder_of_its_own(compared):
    out, results = compared
    names = ["fedavg_share=layerwise", "alllarge", "local"]
    assert [result.folder for result in results] == [out / f"{name}-s{seed}" for seed in (0, 1) for name in names]
    assert [(result.method, result.seed) for result in results] == [
        (method["name"], seed) for seed in (0, 1) for method in METHODS
    ]


def test_every_method_meets_the_same_clients_in_every_round(compared):
    _, results = compared
    for seed in (0, 1):
        first, *others = [cohorts(result.folder) for result in results if result.seed == seed]
        assert set(first) == {1, 2, 3}
        assert others == [first, first]
    assert cohorts(results[0].folder) != cohorts(results[3].folder)


def test_every_method_meets_the_same_data():
    setups = [assemble(tiny(method=method)) for method in METHODS]
    for index in range(8):
        shards = [setup.world.shelf.shard(f"c{index}") for setup in setups]
        rows = [shard.train.rows for shard in shards]
        assert all(torch.equal(rows[0], other) for other in rows[1:])
        assert len(shards[0].train) > 100


def test_methods_that_share_everything_start_from_the_same_model(tmp_path):
    zero = compare(tiny(rounds=0), tmp_path, [{"name": "alllarge"}, {"name": "fedprox"}], [0], lambda *_: Listener())
    assert zero[0].weights_sha256 == zero[1].weights_sha256


def test_what_is_there_already_is_not_run_again(compared):
    out, results = compared
    heard = []

    def watcher(label, seed):
        heard.append(Listener())
        return heard[-1]

    again = compare(tiny(), out, METHODS, [0, 1], watcher)
    assert [result.plain() for result in again] == [result.plain() for result in results]
    assert [watch.rounds for watch in heard] == [[]] * 6
    assert [watch.warnings for watch in heard] == [["resumed at round 3"]] * 6


def test_what_was_stopped_is_gone_on_with(compared, tmp_path):
    _, results = compared
    watches = iter([Listener(), StopsAfter(2)])
    with pytest.raises(Interrupted) as caught:
        compare(tiny(), tmp_path / "all of it", METHODS, [0], lambda label, seed: next(watches))
    assert str(caught.value) == (
        f"interrupted with 1 runs done; go on with: the same command and --out '{tmp_path / 'all of it'}'"
    )
    again = compare(tiny(), tmp_path / "all of it", METHODS, [0], lambda label, seed: Listener())
    assert [result.weights_sha256 for result in again] == [result.weights_sha256 for result in results[:3]]


@pytest.mark.parametrize("changes", [{"local": {"lr": 0.5}}, {"cohort": 4}, {"rounds": 2}, {"data": {"clients": 9}}])
def test_a_folder_of_other_settings_is_not_taken_for_these(changes, compared):
    out, _ = compared
    with pytest.raises(SettingsError, match="holds a run with other settings than were asked for"):
        compare(tiny(**changes), out, METHODS, [0], lambda label, seed: Listener())


def test_more_rounds_are_added_to_what_is_there(tmp_path):
    compare(tiny(rounds=1), tmp_path, METHODS[:1], [0], lambda label, seed: Listener())
    more = compare(tiny(rounds=3), tmp_path, METHODS[:1], [0], lambda label, seed: Listener())
    assert more[0].rounds == 3
    assert more[0].weights_sha256 == run(tiny(), tmp_path / "whole").weights_sha256


def test_a_method_that_does_not_exist_is_refused_before_the_first_one_runs(tmp_path):
    with pytest.raises(SettingsError, match="there is no method 'nope'"):
        compare(tiny(), tmp_path / "out", [*METHODS, {"name": "nope"}], [0], lambda label, seed: Listener())
    assert not (tmp_path / "out").exists()


def test_a_seed_that_cannot_be_is_refused_before_the_first_one_runs(tmp_path):
    with pytest.raises(SettingsError, match=r"seed = -1 is below 0\."):
        compare(tiny(), tmp_path / "out", METHODS, [0, -1], lambda label, seed: Listener())
    assert not (tmp_path / "out").exists()


def scores_of(net, setup):
    with torch.no_grad():
        return net.eval()(setup.world.shelf.shard(SERVER).test.all()["x"])


@pytest.mark.parametrize("tier", ["small", "large", None])
def test_an_exported_model_computes_what_the_served_one_does(tier, compared, tmp_path):
    _, results = compared
    export(results[0].folder, tmp_path / "model", tier=tier)
    setup = assemble(tiny(method=METHODS[0]))
    state = state_of(setup, kept(results[0].folder)[1]["state"])
    chosen = next(each for each in setup.world.zoo.tiers if each.name == (tier or "large"))
    served = setup.world.method.serve(state, Client(SERVER, chosen), setup.world.zoo)
    net = load(tmp_path / "model")
    assert torch.equal(scores_of(net, setup), scores_of(setup.world.zoo.build(served), setup))
    assert len(net.body) == (1 if tier == "small" else 2)
    right = scores_of(net, setup).argmax(1) == setup.world.shelf.shard(SERVER).test.all()["y"]
    wanted = results[0].scores["tiers"][tier or "large"]["test"]["accuracy"]
    assert right.double().mean().item() == pytest.approx(wanted)


def test_a_clients_own_model_is_exported_from_its_memory(compared, tmp_path):
    _, results = compared
    alone = results[2]
    trained = sorted({client for asked in cohorts(alone.folder).values() for client in asked})
    model = export(alone.folder, tmp_path / "model", client=trained[0])
    setup = assemble(tiny(method={"name": "local"}))
    assert model.spec == setup.crew.client(setup.crew.index(trained[0]), 0).tier.spec
    net = load(tmp_path / "model")
    test = setup.world.shelf.shard(trained[0]).test.all()
    with torch.no_grad():
        own = (net(test["x"]).argmax(1) == test["y"]).double().mean().item()
    every = run(tiny(method={"name": "local"}, score={"clients": 8}), tmp_path / "run").scores["clients"]["values"]
    assert any(value == pytest.approx(own) for value in every)


def test_a_client_of_a_method_with_a_server_model_uses_its_tiers(compared, tmp_path):
    _, results = compared
    assert export(results[0].folder, tmp_path / "a", client="c0").spec.depth == 1
    assert export(results[0].folder, tmp_path / "b", client="c7").spec.depth == 2


def test_what_cannot_be_exported_is_refused(compared, tmp_path):
    _, (averaged, _, alone, *_) = compared
    to = tmp_path / "model"
    with pytest.raises(SettingsError, match=r"--tier phone: this run has the tiers small, large\."):
        export(averaged.folder, to, tier="phone")
    with pytest.raises(SettingsError, match=r"--client c8: 'c8' is no client of this fleet; they are c0 to c7\."):
        export(averaged.folder, to, client="c8")
    with pytest.raises(InputError, match="Local has no model for tier 'large' on the server; try --client c0"):
        export(alone.folder, to)
    idle = {f"c{i}" for i in range(8)} - {client for asked in cohorts(alone.folder).values() for client in asked}
    with pytest.raises(InputError, match=r"has no model of its own in this run; it never trained\."):
        export(alone.folder, to, client=min(idle))
    with pytest.raises(MissingRun, match="is not a run folder"):
        export(tmp_path, to)
    assert not to.exists()


def test_a_run_without_a_checkpoint_cannot_be_exported_yet(tmp_path):
    found = run(tiny(rounds=0), tmp_path / "run")
    for path in (found.folder / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="holds no checkpoint yet; let it finish a round first"):
        export(found.folder, tmp_path / "model")


def test_a_static_norm_is_exported_with_the_statistics_that_clients_gather(tmp_path):
    settings = tiny(
        method={"name": "fedrolex"},
        model={"name": "mlp", "hidden": 8, "norm": "static"},
        tier=[{"name": "small", "width": 0.5}, {"name": "large", "width": 1.0}],
    )
    result = run(settings, tmp_path / "run")
    model = export(result.folder, tmp_path / "model", tier="small")
    assert model.spec.options["norm"] == "counted"
    assert model.arrays["stem.norm.running_mean"].shape == (4,)
    net = load(tmp_path / "model")
    one, many = torch.rand(1, 1, 8, 8), torch.rand(3, 1, 8, 8)
    assert torch.allclose(net(one), net(torch.cat([one, many]))[:1], atol=1e-5)


def test_every_method_runs_under_every_variant(tmp_path):
    variants = {"two each": ["data.partition='labels'", "data.labels=2"], "lr = 0": ["local.lr=0.0"]}
    found = tiny(rounds=1, compare={"variants": variants})
    results = compare(found, tmp_path, [{"name": "alllarge"}, {"name": "fedprox"}], [0], lambda *_: Listener())
    folders = ["alllarge_two_each-s0", "fedprox_two_each-s0", "alllarge_lr_=_0-s0", "fedprox_lr_=_0-s0"]
    assert [result.folder.name for result in results] == folders
    assert results[2].weights_sha256 == results[3].weights_sha256 != results[0].weights_sha256
    assert [read_run(result.folder).manifest["variant"] for result in results] == 2 * ["two each"] + 2 * ["lr = 0"]


def test_a_variant_that_cannot_be_is_refused_before_the_first_run(tmp_path):
    for changes, said in (
        ({"a": ["local.lr=-1.0"]}, r"compare\.variants 'a': local\.lr = -1\.0 is below"),
        ({"a": ["local.rate=1.0"]}, r"compare\.variants 'a': \[local\] has no setting 'rate'"),
        ({"a": ["nothing"]}, r"write it as key=value"),
        ({"a/": ["local.lr=0.1"], "a?": ["local.lr=0.2"]}, r"would have the same name"),
    ):
        with pytest.raises(SettingsError, match=said):
            compare(tiny(compare={"variants": changes}), tmp_path, [{"name": "alllarge"}], [0], lambda *_: Listener())
    assert not list(tmp_path.iterdir())


def test_a_method_runs_only_under_the_variants_that_name_it(tmp_path):
    wide = {"wide": ["tier=[{name = 'small', width = 0.5}, {name = 'large'}]"], "deep": []}
    found = tiny(rounds=1, compare={"variants": wide, "only": {"wide": ["heterofl"], "deep": ["fedprox", "alllarge"]}})
    methods = [{"name": "alllarge"}, {"name": "heterofl"}, {"name": "fedprox", "share": "layerwise"}]
    results = compare(found, tmp_path, methods, [0], lambda *_: Listener())
    folders = ["heterofl_wide-s0", "alllarge_deep-s0", "fedprox_share=layerwise_deep-s0"]
    assert [result.folder.name for result in results] == folders


def test_a_method_that_is_none_is_said_to_be_whatever_variants_there_are(tmp_path):
    found = tiny(compare={"variants": {"deep": []}, "only": {"deep": ["fedprox"]}})
    with pytest.raises(SettingsError, match=r"there is no method 'fedprx'\. Did you mean 'fedprox'\?"):
        compare(found, tmp_path, [{"name": "fedprx"}], [0], lambda *_: Listener())


def test_a_method_that_would_run_nowhere_is_refused_and_so_is_a_variant_that_is_none(tmp_path):
    found = tiny(compare={"variants": {"deep": []}, "only": {"deep": ["fedprox"]}})
    with pytest.raises(
        SettingsError, match=r"'alllarge' runs under no variant; add it to one of the lists of compare\.only"
    ):
        compare(found, tmp_path, [{"name": "fedprox"}, {"name": "alllarge"}], [0], lambda *_: Listener())
    with pytest.raises(SettingsError, match=r"compare\.only speaks of 'shallow', which is none of compare\.variants"):
        tiny(compare={"variants": {"deep": []}, "only": {"shallow": ["fedprox"]}})
    assert not list(tmp_path.iterdir())


def test_the_manifest_holds_what_the_method_declares(compared):
    _, results = compared
    facts = [read_run(result.folder).manifest["facts"] for result in results[:3]]
    assert [(fact["networks"], fact["memory"], fact["bound"]) for fact in facts] == [
        ("any", False, False),
        ("one", False, True),
        ("any", True, False),
    ]
