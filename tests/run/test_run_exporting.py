"""A trained model taken out of a run: a tier's, a client's, the server's."""

import json

import numpy as np
import pytest
import torch
from tiny_runs import cohorts, kept, tiny

from potluck.core import SERVER, Client, InputError, SettingsError
from potluck.data import from_arrays
from potluck.ledger import CheckpointError, MissingRun, RunFolder
from potluck.models import load
from potluck.run import assemble, export, run
from potluck.run.exporting import export_model
from potluck.run.session import state_of

AVERAGED = {"name": "fedavg", "share": "layerwise"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose models the server has, and one whose models live on the clients."""
    out = tmp_path_factory.mktemp("trained")
    return run(tiny(method=AVERAGED), out / "averaged"), run(tiny(method={"name": "local"}), out / "alone")


def scores_of(net, setup):
    with torch.no_grad():
        return net.eval()(setup.context.datasets.shard(SERVER).test.all()["x"])


@pytest.mark.parametrize("tier", ["small", "large", None])
def test_an_exported_model_computes_what_the_served_one_does(tier, trained, tmp_path):
    averaged, _ = trained
    export(averaged.folder, tmp_path / "model", tier=tier)
    setup = assemble(tiny(method=AVERAGED))
    state = state_of(setup, kept(averaged.folder)[1]["state"])
    chosen = next(each for each in setup.context.zoo.tiers if each.name == (tier or "large"))
    served = setup.context.method.serve(state, Client(SERVER, chosen), setup.context.zoo)
    net = load(tmp_path / "model")
    assert torch.equal(scores_of(net, setup), scores_of(setup.context.zoo.build(served), setup))
    assert len(net.body) == (1 if tier == "small" else 2)
    right = scores_of(net, setup).argmax(1) == setup.context.datasets.shard(SERVER).test.all()["y"]
    wanted = averaged.scores["tiers"][tier or "large"]["test"]["accuracy"]
    assert right.double().mean().item() == pytest.approx(wanted)


def test_a_clients_own_model_is_exported_from_its_memory(trained, tmp_path):
    _, alone = trained
    came = sorted({client for asked in cohorts(alone.folder).values() for client in asked})
    model = export(alone.folder, tmp_path / "model", client=came[0])
    setup = assemble(tiny(method={"name": "local"}))
    assert model.spec == setup.population.client(setup.population.index(came[0]), 0).tier.spec
    net = load(tmp_path / "model")
    test = setup.context.datasets.shard(came[0]).test.all()
    with torch.no_grad():
        own = (net(test["x"]).argmax(1) == test["y"]).double().mean().item()
    every = run(tiny(method={"name": "local"}, score={"clients": 8}), tmp_path / "run").scores["clients"]["values"]
    assert any(value == pytest.approx(own) for value in every)


def test_a_client_of_a_method_with_a_server_model_uses_its_tiers(trained, tmp_path):
    averaged, _ = trained
    assert export(averaged.folder, tmp_path / "a", client="c0").spec.depth == 1
    assert export(averaged.folder, tmp_path / "b", client="c7").spec.depth == 2


def test_what_cannot_be_exported_is_refused(trained, tmp_path):
    averaged, alone = trained
    to = tmp_path / "model"
    with pytest.raises(SettingsError, match=r"--tier phone: this run has the tiers small, large\."):
        export(averaged.folder, to, tier="phone")
    with pytest.raises(
        SettingsError, match=r"--client c8: 'c8' is no client of this fleet; its clients are c0 to c7\."
    ):
        export(averaged.folder, to, client="c8")
    with pytest.raises(InputError, match="Local has no model for tier 'large' on the server; try --client c0"):
        export(alone.folder, to)
    idle = {f"c{i}" for i in range(8)} - {client for asked in cohorts(alone.folder).values() for client in asked}
    with pytest.raises(InputError, match=r"has no model of its own in this run; it never trained\."):
        export(alone.folder, to, client=min(idle))
    with pytest.raises(InputError, match=r"Local has no model of the server's own; try --client c0\."):
        export(alone.folder, to, server=True)
    for two in ({"tier": "small", "client": "c0"}, {"tier": "small", "server": True}, {"client": "c0", "server": True}):
        with pytest.raises(SettingsError, match=r"^--tier, --client and --server: name one of them\.$"):
            export(averaged.folder, to, **two)
    with pytest.raises(MissingRun, match="is not a run folder"):
        export(tmp_path, to)
    assert not to.exists()


def test_a_run_without_a_checkpoint_cannot_be_exported_yet(tmp_path):
    text = (run(tiny(rounds=0), tmp_path / "run").folder / "settings.toml").read_text()
    RunFolder.create(tmp_path / "new", text, {}, mark="").close()
    with pytest.raises(CheckpointError, match="holds no checkpoint yet; let it finish a round first"):
        export(tmp_path / "new", tmp_path / "model")


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


def test_a_servers_model_that_no_tier_can_carry_is_exported_whole(tmp_path):
    narrow = [{"name": "small", "width": 0.25}, {"name": "large", "width": 0.5}]
    found = run(tiny(method={"name": "fedrolex"}, tier=narrow), tmp_path / "run")
    tier, own = (export(found.folder, tmp_path / name, server=name == "own") for name in ("tier", "own"))
    assert (len(tier.arrays["head.bias"]), tier.arrays["head.weight"].shape[1]) == (10, 4)
    assert own.arrays["head.weight"].shape[1] == 8
    setup = assemble(tiny(method={"name": "fedrolex"}, tier=narrow))
    right = scores_of(load(tmp_path / "own"), setup).argmax(1) == setup.context.datasets.shard(SERVER).test.all()["y"]
    assert right.double().mean().item() == pytest.approx(found.scores["global"]["test"]["accuracy"])


def test_where_models_live_on_clients_the_servers_own_is_offered(tmp_path):
    found = run(tiny(method={"name": "dsfl"}, data={"public": 20}, rounds=1), tmp_path / "run")
    with pytest.raises(InputError, match=r"no model for tier 'large' on the server; try --client c0, or --server\."):
        export(found.folder, tmp_path / "model")
    assert export(found.folder, tmp_path / "model", server=True).spec.depth == 2


def test_a_lotteryfl_clients_model_is_exported_whole(tmp_path):
    """Its memory keeps only the weights under its masks."""
    plain = {
        "rounds": 3,
        "cohort": 3,
        "data": {"name": "digits", "clients": 3},
        "model": {"name": "mlp", "hidden": 4},
        "tier": [{"name": "everyone"}],
        "method": {"name": "lotteryfl", "threshold": 0.0},
        "run": {"engine": "serial"},
    }
    run(plain, tmp_path / "run")
    model = export(tmp_path / "run", tmp_path / "model", client="c0")
    assert load(tmp_path / "model").state_dict()["stem.linear.weight"].equal(model.arrays["stem.linear.weight"])
    assert model.arrays["stem.linear.weight"].shape == (4, 64)
    assert (model.arrays["stem.linear.weight"] == 0).any()


def test_a_client_that_never_trained_a_private_head_has_no_model_to_export(tmp_path):
    plain = {
        "rounds": 1,
        "cohort": 6,
        "data": {"name": "digits", "clients": 6},
        "model": {"name": "mlp", "hidden": 4, "depth": 2},
        "tier": [{"name": "small", "depth": 1}, {"name": "large"}],
        "method": {"name": "exclusivefl", "private": "head"},
        "run": {"engine": "serial"},
    }
    run(plain, tmp_path / "run")
    with pytest.raises(InputError, match="client c1 has no model of its own in this run; it never trained"):
        export(tmp_path / "run", tmp_path / "weak", client="c1")
    assert "head.weight" in export(tmp_path / "run", tmp_path / "strong", client="c4").arrays


def own_pictures():
    x = np.random.default_rng(0).integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    return from_arrays(x, np.array(["cat", "dog", "owl"] * 20), scale="standard")


def test_an_export_knows_scaling_and_class_names_without_the_data(tmp_path):
    source = own_pictures()
    found = run(tiny(rounds=1), tmp_path / "run", source=source)
    export(found.folder, tmp_path / "model", tier="small", format="pt2")
    told = json.loads((tmp_path / "model" / "model.json").read_text())
    scaling = source.train.prepare
    assert told["output"] == {"problem": "classify", "classes": 3, "names": ["cat", "dog", "owl"]}
    assert (told["input"]["dtype"], told["input"]["shape"]) == ("uint8", [1, 4, 4])
    assert (told["input"]["mean"], told["input"]["std"]) == (list(scaling.mean), list(scaling.std))
    with np.load(tmp_path / "model" / "sample.npz") as made:
        assert not made["real"]
        assert made["x"].dtype == np.uint8
    export(found.folder, tmp_path / "real", tier="small", format="pt2", source=source)
    test = assemble(tiny(rounds=1), source).context.datasets.shard(SERVER).test
    with np.load(tmp_path / "real" / "sample.npz") as kept:
        assert kept["real"]
        assert np.array_equal(kept["x"], test.column("x")[:8])
    assert (tmp_path / "real" / "model.json").read_bytes() == (tmp_path / "model" / "model.json").read_bytes()


def test_an_old_run_says_what_is_missing_and_takes_it_from_its_data(tmp_path):
    source = own_pictures()
    found = run(tiny(rounds=1), tmp_path / "run", source=source)
    told = json.loads((found.folder / "manifest.json").read_text())
    for new in ("names", "form", "columns", "dtype", "mean", "std", "vocabulary"):
        del told["data"][new]
    (found.folder / "manifest.json").write_text(json.dumps(told))
    without = export_model(found.folder, tmp_path / "without", format="pt2")
    assert without.notes == ("how inputs are scaled is not recorded in this run; give rows as the network reads them",)
    written = json.loads((tmp_path / "without" / "model.json").read_text())
    assert (written["input"]["dtype"], written["output"]["names"]) == ("", [])
    with_data = export_model(found.folder, tmp_path / "with", format="pt2", source=source)
    assert with_data.notes == ()
    assert json.loads((tmp_path / "with" / "model.json").read_text())["output"]["names"] == ["cat", "dog", "owl"]


def test_the_costs_of_every_tier_are_told(trained, tmp_path):
    averaged, alone = trained
    found = export_model(averaged.folder, tmp_path / "a", tier="small")
    assert (list(found.tiers), found.written) == (["small", "large"], "small")
    assert found.tiers["small"].parameters == 64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10
    assert found.tiers["small"].flops == 2 * (64 * 8 + 8 * 8 + 8 * 10)
    came = min({client for asked in cohorts(alone.folder).values() for client in asked})
    assert list(export_model(alone.folder, tmp_path / "b", client=came).tiers) == ["small", "large", f"client {came}"]


def test_the_readme_has_the_score_of_the_run(trained, tmp_path):
    averaged, _ = trained
    export(averaged.folder, tmp_path / "model", tier="small")
    scored = averaged.scores["tiers"]["small"]["test"]
    text = (tmp_path / "model" / "README.md").read_text()
    assert f"accuracy {scored['accuracy']:.4f} on {scored['count']} test rows" in text
    assert "trained by FedAvg (share=layerwise) in 3 rounds" in text
