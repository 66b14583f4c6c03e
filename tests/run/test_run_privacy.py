"""Noise on updates: the promise in figures, the same bits everywhere, and what is refused."""

import importlib
import json
import math
import os
import signal
from dataclasses import dataclass, replace

import pytest
import torch
from tiny_runs import events, kept, tiny

from potluck.cli.display import print_result
from potluck.core import SERVER, Cost, Expected, SettingsError, Task, on_client
from potluck.engines import ENGINES, Graphs, LedgerEntry
from potluck.methods import METHODS, FedAvg
from potluck.report import privacy_guarantee, read_record, render
from potluck.run import assemble, experiment, resume, run
from potluck.run.privacy import count_uploads, epsilon, noise
from potluck.run.world import start_engine

NOISY = {"clip": 0.5, "noise": 0.2}
PUBLIC = {"clients": 8, "public": 20}
MODELS_ONLY = [
    {"name": "fedavg", "share": "layerwise"},
    {"name": "fednova", "share": "layerwise"},
    {"name": "fedadam", "share": "per_arch"},
    {"name": "moon", "share": "layerwise"},
    {"name": "inclusivefl", "private": "head"},
    {"name": "feddf"},
    {"name": "moss", "wire": {"epochs": 1}},
    {"name": "heterofl", "label_mask": False},
]
MORE = ["scaffold", "fedin", "lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel", "fedmd", "dsfl", "fedgems"]
WIDE = [{"name": "small", "width": 0.5, "profile": "tv"}, {"name": "large"}]


def noisy(method=None, privacy=NOISY, **changes):
    tiers = {"tier": WIDE} if method and method["name"] == "heterofl" else {}
    method = {"method": method} if method else {}
    return tiny(privacy=privacy, data=PUBLIC, **method, **tiers, **changes)


def told(folder):
    """The ledger, less what a clock measured."""
    found = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for line in found:
        line.pop("seconds", None)
        line.get("measured", {}).pop("seconds", None)
    return found


def test_epsilon_of_one_gaussian_mechanism_is_the_known_figure():
    """Balle and Wang, 2018: noise as large as the sensitivity is (4.377, 1e-5)-private; that is two clips here."""
    assert epsilon(2.0, 1e-5) == pytest.approx(4.377178, abs=1e-6)
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    e = torch.tensor(epsilon(2.0, 1e-5), dtype=torch.float64)
    assert float(phi(0.5 - e) - torch.exp(e) * phi(-0.5 - e)) == pytest.approx(1e-5, rel=1e-6)


def test_uploads_compose_as_the_accountant_composes_them():
    dp = importlib.import_module("dp_accounting")
    accountant = importlib.import_module("dp_accounting.pld").PLDAccountant()
    accountant.compose(dp.GaussianDpEvent(5.0), 10)
    assert epsilon(10.0, 1e-5, 10) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)
    assert epsilon(10.0, 1e-5, 0) == 0.0


@pytest.mark.parametrize("wanted", [0.1, 1.0, 8.0, 1000.0])
def test_a_target_gives_the_noise_that_meets_it(wanted):
    assert epsilon(noise(wanted, 1e-5, 7), 1e-5, 7) == pytest.approx(wanted, rel=1e-6)
    assert noise(wanted, 1e-5, 9) == pytest.approx(3 * noise(wanted, 1e-5))


@pytest.mark.parametrize("method", MODELS_ONLY, ids=lambda method: method["name"])
def test_every_engine_gives_the_same_bits(method, tmp_path, monkeypatch):
    reference = run(noisy(method), tmp_path / "serial")
    assert reference.weights_sha256 != run(noisy(method, {}), tmp_path / "plain").weights_sha256
    wire = run(noisy(method, run={"engine": "wire"}), tmp_path / "wire")
    pool = run(noisy(method, run={"engine": "pool", "workers": 2}), tmp_path / "pool")
    monkeypatch.setitem(ENGINES, "serial", Graphs)
    graphs = run(noisy(method), tmp_path / "graphs")
    assert {wire.weights_sha256, pool.weights_sha256, graphs.weights_sha256} == {reference.weights_sha256}
    assert told(wire.folder) == told(pool.folder) == told(reference.folder)


def test_a_resumed_run_equals_one_that_never_stopped(tmp_path):
    run(noisy(rounds=2), tmp_path / "run")
    resumed, whole = resume(tmp_path / "run", rounds=4), run(noisy(rounds=4), tmp_path / "whole")
    assert resumed.weights_sha256 == whole.weights_sha256
    assert told(resumed.folder) == told(whole.folder)
    assert resumed.privacy == whole.privacy


def test_off_is_the_default_and_changes_no_bits(tmp_path):
    plain, off = run(tiny(), tmp_path / "plain"), run(tiny(privacy={"clip": 1e-3, "delta": 0.1}), tmp_path / "off")
    assert off.weights_sha256 == plain.weights_sha256
    assert off.privacy is None
    assert "privacy" not in off.plain()
    assert not events(off.folder, "privacy")
    assert privacy_guarantee(read_record(off.folder)) == ""


def test_no_update_is_longer_than_the_clip_but_for_noise(tmp_path):
    """With next to no noise, a model of one client a round moves by the clip exactly."""
    one = {"cohort": 1, "rounds": 1, "tier": [{"name": "all"}], "method": {"name": "fedavg"}, "local": {"lr": 1.0}}
    setup = assemble(tiny(privacy={"clip": 0.01, "noise": 1e-6}, **one))
    method, zoo = setup.context.method, setup.context.zoo
    state = method.init(zoo, torch.Generator().manual_seed(0))
    engine = start_engine(setup)
    dispatcher = importlib.import_module("potluck.engines").Dispatcher(engine, method, zoo)
    after = method.round(state, setup.view(0, dispatcher.open(0)))
    step = [after.model.arrays[name].double() - old.double() for name, old in state.model.arrays.items()]
    assert float(torch.cat([part.flatten() for part in step]).norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_promise_counts_the_busiest_clients_uploads(tmp_path):
    result = run(noisy(rounds=4), tmp_path / "run")
    asked = [line["client"] for line in events(result.folder, "task") if line["outcome"] == "accepted"]
    most = max(map(asked.count, asked))
    assert 1 < most < 4
    each, composed = epsilon(0.2, 1e-5), epsilon(0.2, 1e-5, most)
    wanted = {"clip": 0.5, "noise": 0.2, "delta": 1e-5, "epsilon_each": each, "uploads": most, "epsilon": composed}
    assert result.privacy == wanted == result.plain()["privacy"]
    assert json.loads((result.folder / "manifest.json").read_text())["privacy"] == wanted
    noted = events(result.folder, "privacy")
    assert [line["round"] for line in noted] == [1, 2, 3, 4]
    assert [line["epsilon"] for line in noted] == sorted(line["epsilon"] for line in noted)
    assert (noted[0]["uploads"], noted[0]["epsilon"]) == (1, each)
    assert noted[-1]["epsilon"] == composed


def test_a_target_over_the_run_is_met_by_the_clients_that_were_drawn(tmp_path):
    result = run(noisy(privacy={"epsilon": 2.0}, rounds=4), tmp_path / "run")
    assert result.privacy["epsilon"] == pytest.approx(2.0, rel=1e-6)
    assert result.privacy["epsilon_each"] < 2.0
    each = run(noisy(privacy={"epsilon": 2.0, "per": "upload"}, rounds=4), tmp_path / "each")
    assert each.privacy["epsilon_each"] == pytest.approx(2.0, rel=1e-6)
    assert each.privacy["epsilon"] > 2.0


def test_a_method_that_chooses_its_clients_may_ask_one_in_every_round():
    drawn = assemble(noisy({"name": "exclusivefl"}, {"epsilon": 1.0}, rounds=9)).context.mechanism
    chosen = assemble(
        noisy({"name": "exclusivefl", "sampling": "eligible"}, {"epsilon": 1.0}, rounds=9)
    ).context.mechanism
    assert chosen.noise == pytest.approx(noise(1.0, 1e-5, 9))
    assert drawn.noise < chosen.noise


def test_what_uploads_nothing_promises_all(tmp_path):
    result = run(noisy({"name": "local"}, {"epsilon": 1.0}), tmp_path / "run")
    assert (result.privacy["uploads"], result.privacy["epsilon"]) == (0, 0.0)
    assert result.weights_sha256 == run(noisy({"name": "local"}, {}), tmp_path / "plain").weights_sha256


def test_a_promise_for_a_run_is_not_stretched_by_resuming(tmp_path):
    run(noisy(privacy={"epsilon": 2.0}), tmp_path / "run")
    with pytest.raises(SettingsError, match="epsilon = 2 is promised for 3 rounds, and resuming to 5 would break"):
        resume(tmp_path / "run", rounds=5)
    assert resume(tmp_path / "run", rounds=3).rounds == 3


@pytest.mark.parametrize("name", MORE)
def test_methods_that_upload_more_than_models_are_refused_before_round_0(name):
    method = {"name": name} | ({"label_mask": False} if hasattr(METHODS[name], "label_mask") else {})
    tiers = WIDE if name in ("tailorfl", "fedmask") else [{"name": "all"}]
    with pytest.raises(SettingsError, match=r"^\[privacy\] adds noise to model updates; [\w-]+'s clients also"):
        assemble(tiny(privacy=NOISY, data=PUBLIC, method=method, tier=tiers))


def test_every_method_is_either_refused_or_uploads_models_alone():
    assert set(MORE).isdisjoint(method["name"] for method in MODELS_ONLY)
    assert set(MORE) <= set(METHODS)


def test_label_masks_and_batch_statistics_are_refused():
    with pytest.raises(SettingsError, match=r"method.label_mask: it shows the server a client's labels"):
        assemble(noisy({"name": "fedavg", "label_mask": True}))
    for norm in ("running", "static"):
        with pytest.raises(SettingsError, match=r"batch norm gathers statistics .* set norm = \"group\""):
            assemble(noisy(model={"norm": norm}))
    assert assemble(noisy({"name": "fedavg", "bn_eval": "batch"}, model={"norm": "static"})).context.mechanism


@dataclass(frozen=True)
class Curious(FedAvg):
    """FedAvg whose server wants something of clients before it scores."""

    def ready(self, state, now):
        expects = Expected({"model": state.model.shapes})
        for _ in now.send(Task("train", c.id, models={"model": state.model}, expects=expects) for c in now.cohort):
            pass
        return state


def test_nothing_may_be_uploaded_to_be_scored():
    one = noisy({"name": "fedavg"})
    with pytest.raises(SettingsError, match=r"Curious's clients also upload 'model' \(in 'train'\)"):
        assemble(one, method=Curious(local=one.local))


@dataclass(frozen=True)
class Talker(FedAvg):
    """FedAvg whose clients send something that they were not asked for."""

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        return replace(reply, arrays={"rows": device.data[slice(0, 1)]["x"]})


def test_what_slips_past_the_door_does_not_leave_the_device(tmp_path):
    one = noisy(rounds=1, run={"engine": "serial", "quorum": 0}, tier=[{"name": "all"}], method=None)
    result = run(one, tmp_path / "run", method=Talker(local=one.local))
    reasons = {line["reason"] for line in events(result.folder, "task")}
    assert reasons == {"failed: PermissionError: [privacy] lets only models leave a device; 'rows' is not part of one"}
    assert result.privacy["uploads"] == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"noise": 1.0, "epsilon": 1.0}, "privacy.noise and privacy.epsilon exclude each other"),
        ({"noise": 0.0}, "privacy.noise = 0.0 must be from 1e-6 to 1e6"),
        ({"epsilon": -1.0}, "privacy.epsilon = -1.0 must be from 1e-6 to 1e6"),
        ({"clip": math.inf}, r"\[privacy\] clip = inf is not a finite number"),
        ({"delta": 1.0}, "privacy.delta = 1.0 must be above 0 and below 1"),
        ({"sigma": 1.0}, "no setting 'sigma'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, said):
    with pytest.raises(SettingsError, match=said):
        experiment({"privacy": given})


def test_without_the_extra_only_runs_with_noise_are_refused(monkeypatch, tmp_path):
    import_module = importlib.import_module

    def bare(name, *more):
        if name == "dp_accounting":
            raise ModuleNotFoundError(name)
        return import_module(name, *more)

    epsilon.cache_clear()
    monkeypatch.setattr(importlib, "import_module", bare)
    with pytest.raises(SettingsError, match=r"needs the package dp-accounting: pip install 'potluck\[privacy\]'$"):
        assemble(noisy())
    assert run(tiny(rounds=1), tmp_path / "run").rounds == 1


def test_the_promise_is_told_at_the_end_and_in_the_report(tmp_path, capsys):
    result = run(noisy(privacy={"epsilon": 2.0}), tmp_path / "run")
    line = privacy_guarantee(read_record(result.folder))
    assert line.startswith("ε = 2 for all that a client uploaded (")
    assert "at δ = 1e-05; updates clipped to 1, with noise of " in line
    print_result(result, as_json=False)
    assert f"privacy: {line}" in capsys.readouterr().out
    assert line in render([read_record(result.folder)], "x")
    print_result(result, as_json=True)
    assert json.loads(capsys.readouterr().out)["privacy"]["epsilon"] == pytest.approx(2.0)


def test_an_update_that_may_have_left_counts_and_work_without_an_update_does_not():
    tasks = [Task("train", client) for client in ("c1", "c2", "c3", SERVER)]
    sent, lost, absent = {"cost": Cost(bytes_up=4)}, {"lost": True}, {}
    entries = [
        LedgerEntry(n, task, "absent", **more)
        for n, (task, more) in enumerate(zip(tasks, (sent, lost, absent, sent), strict=True))
    ]
    assert count_uploads({"c1": 2}, entries) == {"c1": 3, "c2": 1}


@dataclass(frozen=True)
class Doomed(FedAvg):
    """FedAvg whose client c5 kills its worker."""

    @on_client
    def train(self, task, device):
        if task.to == "c5":
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from super().train(task, device))


def test_a_client_that_was_lost_with_its_worker_counts_as_one_that_sent(tmp_path):
    one = noisy(rounds=1, run={"engine": "pool", "workers": 1}, method=None)
    run(one, tmp_path / "run", method=Doomed(local=one.local))
    assert kept(tmp_path / "run")[1]["progress"]["uploads"] == {"c0": 1, "c1": 1, "c5": 1}
