"""Moss by hand-computed numbers: tiers are averaged, teach proxies, and learn from their average.

Networks here are MLPs of two inputs, one unit a layer and two classes.
"""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from made_round import ClientDatasets, Play, Shard, data, zoo
from torch import nn

from potluck.core import SERVER, Client, Examples, Local, Model, Reply, SettingsError, on_client, stream
from potluck.engines import Dispatcher, Serial, SimulationContext
from potluck.learn import Classify
from potluck.methods import FedAvg, Moss
from potluck.methods.moss.fidelity import weighted_mean
from potluck.methods.moss.method import PROXY
from potluck.methods.moss.wire import TransferLoop, WireSettings
from potluck.models import ModelZoo, make_spec, register
from potluck.report import write_report
from potluck.run import assemble, experiment, resume, run

STILL = WireSettings(epochs=0)
"""Transfers without a step."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Federation(Play):
    """Hand-made clients and six public rows."""

    def __post_init__(self):
        x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
        public = Examples({"x": x, "y": torch.arange(6) % 2})
        self.zoo = replace(self.zoo, public=6)
        super().__post_init__()
        datasets = ClientDatasets(
            {id: Shard(train) for id, (_, train) in self.clients.items()} | {SERVER: Shard(public)}
        )
        self.public = datasets.public = public
        context = SimulationContext(self.method, self.zoo, datasets, Classify(2), self.seed)
        self.dispatcher = Dispatcher(Serial(context), self.method, self.zoo, recall=self.memories.get)

    @property
    def transfers(self):
        """The ledger entries of the server's tasks, by their key."""
        return {entry.task.key: entry for entry in self.session.entries if entry.task.to == SERVER}

    def type(self, state, tier):
        return self.method.tier_models(state, self.zoo)[tier].arrays


def saying(method):
    """This method with clients that do not train: all that their model knows is a bias, the values of their data."""

    @dataclass(frozen=True)
    class Saying(type(method)):
        @on_client
        def train(self, task, device):
            said = biased(task.models["model"].spec, device.data.column("x")[0])
            return Reply({"model": said}, weight=float(len(device.data)))

    return Saying(**vars(method))


def biased(spec, scores, **more):
    """A model that says this of everything."""
    shapes = ModelZoo(spec).shapes(spec)
    arrays = {name: torch.zeros(shape) for name, (shape, _) in shapes.items()}
    given = {"head.bias": scores, **more}
    return Model(spec, arrays | {name: torch.as_tensor(value, dtype=torch.float32) for name, value in given.items()})


def three(method, *sizes, norm="none"):
    """Clients of three unequal tiers, so many of each."""
    made = zoo(1, 2, 3, norm=norm)
    clients = {f"c{tier}{at}": (f"d{tier}", data(4, (0.5, 1.0))) for tier in (1, 2, 3) for at in range(sizes[tier - 1])}
    return Federation(method, made, clients)


def test_ms1_proxies_are_averaged_by_their_fidelity():
    spec = make_spec("mlp", input=(2,), classes=2)
    one, other = (Model(spec, {"w": torch.tensor(values)}) for values in ([2.0, 4.0], [5.0, 1.0]))
    start = Model(spec, {"w": torch.zeros(2)})
    assert weighted_mean(start, [(one, 0.5), (other, 1.0)]).arrays["w"].tolist() == [4.0, 2.0]
    assert weighted_mean(start, [(one, 1.0), (other, 1.0)]).arrays["w"].tolist() == [3.5, 2.5]
    assert weighted_mean(start, [(one, 0.0), (other, 0.0)]).arrays["w"].tolist() == [3.5, 2.5]
    assert weighted_mean(start, []).arrays["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("fidelity", "found"), [("samples", [4, 2]), ("flat", [4, 2]), ("equal", [3.5, 2.5])])
def test_ms1_in_a_round(fidelity, found):
    """Tier a says [1, 0] and its proxy [0, 1]; tier b and its proxy agree. No logit depends on the stem."""
    method = saying(Moss(wire=STILL, proxy_sync=False, fidelity=fidelity))
    play = Federation(method, zoo(a=1, b=1), {"x": ("a", data(4, (1.0, 0.0))), "y": ("b", data(4, (1.0, 0.0)))})
    spec = play.zoo.full
    proxies = {
        "a": biased(spec, [0, 1], **{"stem.linear.weight": [[2, 4]]}),
        "b": biased(spec, [1, 0], **{"stem.linear.weight": [[5, 1]]}),
    }
    state = play.round(replace(play.init(), proxies=proxies))
    assert play.transfers[f"a > {PROXY}"].metrics["fidelity"] == pytest.approx(0.5)
    assert play.transfers[f"b > {PROXY}"].metrics["fidelity"] == pytest.approx(1.0)
    assert state.proxy.arrays["stem.linear.weight"].tolist() == [found]
    assert {name: model.arrays["stem.linear.weight"].tolist() for name, model in state.proxies.items()} == {
        "a": [[2, 4]], "b": [[5, 1]],
    }  # fmt: skip


def test_ms6_equal_architectures_with_identity_transfer_are_fedavg_over_tiers():
    """Tier a has means of 1 (ten samples) and 4 (twenty): 3. Tier b says 7. Both count alike: 5."""
    method = saying(Moss(identity_shortcut="both"))
    clients = {"p": ("a", data(10, (1.0, 2.0))), "q": ("a", data(20, (4.0, 8.0))), "r": ("b", data(50, (7.0, 14.0)))}
    play = Federation(method, zoo(a=1, b=1), clients)
    state = play.round(play.init())
    assert play.transfers == {}
    assert {tuple(play.type(state, tier)["head.bias"].tolist()) for tier in ("a", "b")} == {(5.0, 10.0)}
    assert state.proxy.arrays["head.bias"].tolist() == [5.0, 10.0]
    assert play.served(state, "p").arrays["head.bias"].tolist() == [5.0, 10.0]


def test_copying_on_the_way_up_alone_leaves_teaching_on_the_way_down():
    """Tiers a and b say 2 and 6, so their proxies' average says 4; a student without a step keeps its own."""
    method = saying(Moss(identity_shortcut="up", wire=STILL))
    clients = {"p": ("a", data(10, (2.0, 4.0))), "q": ("b", data(20, (6.0, 12.0)))}
    play = Federation(method, zoo(a=1, b=1), clients)
    state = play.round(play.init())
    assert sorted(play.transfers) == [f"{PROXY} > a", f"{PROXY} > b"] == sorted(state.wires)
    assert state.proxy.arrays["head.bias"].tolist() == [4.0, 8.0]
    assert play.type(state, "a")["head.bias"].tolist() == [2.0, 4.0]
    assert play.type(state, "b")["head.bias"].tolist() == [6.0, 12.0]


def test_proxies_and_tiers_of_one_architecture_start_alike():
    play = Federation(Moss(proxy_sync=False), zoo(1, a=2, b=2), {})
    state = play.init()
    for arrays in (play.type(state, "b"), *(model.arrays for model in state.proxies.values())):
        assert all(torch.equal(tensor, play.type(state, "a")[name]) for name, tensor in arrays.items())


@pytest.mark.parametrize("devices", [1, 4])
def test_the_servers_work_grows_with_tiers_not_with_devices(devices):
    for prom, count in ((True, 6), (False, 6)):
        play = three(Moss(prom=prom, wire=WireSettings(epochs=1)), devices, 1, 1)
        play.round(play.init())
        assert len(play.transfers) == count
    two = Federation(Moss(prom=False, wire=STILL), zoo(1, 2), {"x": ("d1", data(4))})
    two.round(two.init())
    assert sorted(two.transfers) == ["d1 > d2", "d2 > d1"]


def test_transfer_loops_are_kept_from_round_to_round(monkeypatch):
    made = []
    monkeypatch.setattr(
        "potluck.methods.moss.wire.TransferLoop", lambda *args: made.append(args) or TransferLoop(*args)
    )
    play = three(Moss(wire=WireSettings(epochs=1)), 1, 1, 1)
    state = play.init()
    for index in range(3):
        state = play.round(state, index)
    assert len(made) == 6


def test_the_cost_of_transfers_is_the_servers():
    play, plain = three(Moss(), 1, 1, 1), three(FedAvg(share="per_arch"), 1, 1, 1)
    play.round(play.init())
    plain.round(plain.init())
    flops = [
        {entry.task.to: entry.cost.flops for entry in each.session.entries if entry.task.to != SERVER}
        for each in (play, plain)
    ]
    assert flops[0] == flops[1]
    assert all(entry.cost.flops > 0 < entry.cost.memory for entry in play.transfers.values())
    joint = three(Moss(wire=WireSettings(train="joint", loc_norm="softmax")), 1, 1, 1)
    joint.round(joint.init())
    key = f"d1 > {PROXY}"
    assert joint.transfers[key].cost.flops * 5 < play.transfers[key].cost.flops


def test_a_transfer_reports_loc_of_each_pair_of_taps():
    play = three(Moss(), 1, 1, 1)
    play.round(play.init())
    loc = play.transfers[f"d1 > {PROXY}"].metrics["loc"]
    assert (len(loc), len(loc[0])) == (2, 4)  # hidden layers of a network of depth 1, and of depth 3
    assert all(0 <= value <= 6 for line in loc for value in line)
    assert json.loads(json.dumps(loc)) == loc


def test_a_tier_without_participants_keeps_its_model_and_learns_from_the_proxies():
    alone, still = three(Moss(wire=WireSettings(lr=0.1)), 1, 1, 1), three(Moss(wire=STILL), 1, 1, 1)
    for play, taught in ((alone, True), (still, False)):
        start = play.init()
        state = play.round(start, only=["c30"])
        same = all(torch.equal(t, play.type(state, "d1")[name]) for name, t in play.type(start, "d1").items())
        assert same != taught


def test_a_transfer_through_proxies_moves_knowledge_from_one_tier_to_another():
    """Only the large tier trains, and its model says [3, -3]; the small one comes nearer to that."""
    method = saying(Moss(wire=WireSettings(lr=0.1, epochs=20, target="soft", loss="ce")))
    play = Federation(method, zoo(1, 2), {"x": ("d2", data(4, (3.0, -3.0)))})
    state = play.round(play.init())
    said = play.type(state, "d1")["head.bias"] - play.type(play.init(), "d1")["head.bias"]
    assert said[0] > 0.5 > -0.5 > said[1]


def public_statistics(play, model):
    """The batch norm statistics of the public rows under this model's weights, all rows in one batch."""
    net = play.zoo.build(model, stream(0)).train()
    for layer in (layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)):
        layer.momentum = 1.0
    with torch.no_grad():
        net(play.public.column("x"))
    return {name: tensor for name, tensor in net.state_dict().items() if name.endswith(("running_mean", "running_var"))}


def test_after_a_transfer_a_student_has_the_batch_norm_statistics_of_the_public_rows():
    """On the way up, into each tier's own proxy, and on the way down, into each tier's model."""
    method = Moss(Local(steps=0), proxy_sync=False, wire=WireSettings(lr=0.05))
    play = three(method, 1, 1, 1, norm="running")
    state = play.round(play.init())
    models = {f"{PROXY} > {name}": model for name, model in method.tier_models(state, play.zoo).items()}
    models |= {f"{name} > {PROXY}": model for name, model in state.proxies.items()}
    assert len(models) == 6
    for model in models.values():
        found = public_statistics(play, model)
        assert found
        for name, tensor in found.items():
            assert torch.allclose(model.arrays[name], tensor, atol=1e-6), name


@pytest.mark.parametrize("norm", ["running", "group"])
def test_recalibration_costs_the_server_a_forward_pass_of_students_with_batch_norm(norm):
    """The six public rows are one batch."""
    flops = []
    for wanted in (True, False):
        play = three(Moss(wire=WireSettings(recalibrate=wanted)), 1, 1, 1, norm=norm)
        play.round(play.init())
        flops.append({key: entry.cost.flops for key, entry in play.transfers.items()})
    specs = {tier.name: tier.spec for tier in play.zoo.tiers} | {PROXY: play.zoo.full}
    forward = {key: play.zoo.cost(specs[key.split(" > ")[1]], 6).forward_flops for key in flops[0]}
    assert {key: flops[0][key] - flops[1][key] for key in forward} == (
        forward if norm == "running" else dict.fromkeys(forward, 0)
    )


def test_proxies_update_their_running_statistics_and_tiers_models_do_not_without_recalibration():
    play = three(Moss(Local(steps=0), wire=WireSettings(recalibrate=False)), 1, 1, 1, norm="running")
    start = play.init()
    state = play.round(start)
    means = [name for name in start.proxy.arrays if name.endswith("running_mean")]
    assert means
    assert not all(torch.equal(state.proxy.arrays[name], start.proxy.arrays[name]) for name in means)
    for name in (name for name in means if name in play.type(start, "d1")):
        assert torch.equal(play.type(state, "d1")[name], play.type(start, "d1")[name])
    assert not torch.equal(play.type(state, "d1")["head.bias"], play.type(start, "d1")["head.bias"])


def test_meta_networks_are_kept_between_rounds_or_not():
    play, forgetful = three(Moss(), 1, 1, 1), three(Moss(meta_persist=False), 1, 1, 1)
    start = play.init()
    state = play.round(start)
    key = f"d1 > {PROXY}"
    assert state.wires.keys() == start.wires.keys() == play.transfers.keys()
    assert state.wires[key]["count"].item() == 5
    assert any(not torch.equal(t, start.wires[key][name]) for name, t in state.wires[key].items() if "small" in name)
    assert play.round(state, 1).wires[key]["count"].item() == 10
    assert forgetful.round(forgetful.init()).wires == {}


def test_a_transfer_that_diverges_is_refused_and_its_student_stays():
    play = three(Moss(Local(steps=0), wire=WireSettings(lr=1e30)), 1, 1, 1)
    start = play.init()
    state = play.round(start)
    assert {entry.verdict for entry in play.transfers.values()} == {"quarantined"}
    assert all(torch.equal(tensor, start.model.arrays[name]) for name, tensor in state.model.arrays.items())
    assert all(torch.equal(tensor, start.proxy.arrays[name]) for name, tensor in state.proxy.arrays.items())


def test_a_blown_up_proxy_starts_again_from_the_last_average_that_could_be_taught():
    play = three(Moss(Local(steps=0), wire=WireSettings(lr=0.01)), 1, 1, 1)
    start = play.init()
    good = play.round(start)
    blown = Model(good.proxy.spec, {name: tensor * 1e30 for name, tensor in good.proxy.arrays.items()})
    refused = play.round(replace(good, proxy=blown), 1)
    up = {key: entry.verdict for key, entry in play.transfers.items() if key.endswith(PROXY)}
    assert set(up.values()) == {"quarantined"}
    assert all(torch.equal(tensor, start.proxy.arrays[name]) for name, tensor in refused.proxy.arrays.items())
    again = play.round(refused, 2)
    assert {entry.verdict for entry in play.transfers.values()} == {"accepted"}
    assert not torch.equal(again.proxy.arrays["head.bias"], start.proxy.arrays["head.bias"])


def test_a_tiers_own_proxy_that_blew_up_starts_again_from_the_average_of_the_others():
    play = three(Moss(Local(steps=0), proxy_sync=False, wire=WireSettings(lr=0.01)), 1, 1, 1)
    good = play.round(play.init())
    blown = Model(good.proxy.spec, {name: tensor * 1e30 for name, tensor in good.proxy.arrays.items()})
    state = play.round(replace(good, proxies={**good.proxies, "d2": blown}), 1)
    assert play.transfers[f"d2 > {PROXY}"].verdict == "quarantined"
    assert all(torch.equal(tensor, state.proxy.arrays[name]) for name, tensor in state.proxies["d2"].arrays.items())
    assert not torch.equal(state.proxies["d1"].arrays["head.bias"], state.proxy.arrays["head.bias"])


def test_the_server_is_served_the_proxies_average_and_it_is_the_largest_tiers_network():
    play = three(Moss(), 1, 1, 1)
    state = play.round(play.init())
    assert play.method.serve(state, Client(SERVER, play.zoo.tiers[0]), play.zoo) is state.proxy
    assert state.proxy.spec == play.zoo.tiers[-1].spec


def test_federations_that_cannot_be_are_refused():
    Moss().check(replace(zoo(1, 2), public=5))
    with pytest.raises(SettingsError, match="public"):
        Moss().check(zoo(1, 2))
    with pytest.raises(SettingsError, match="tier 'd1' has static batch norm"):
        Moss().check(replace(zoo(1, 2, norm="static"), public=5))
    with pytest.warns(UserWarning, match="joint"):
        Moss(wire=WireSettings(train="joint")).check(replace(zoo(1, 2), public=5))


def flat(input, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def own(input, classes, width=6):
    """A network of a user's: convolutions, norms, a residual that no module shows."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
            self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
            self.head = nn.Linear(2 * width, classes)

        def forward(self, x):
            x = self.first(x)
            return self.head(torch.relu(self.down(x + self.second(x))).mean((2, 3)))

    return Own()


DIGITS = {
    "rounds": 4,
    "cohort": 4,
    "data": {"clients": 6, "samples": 30, "public": 40},
    "model": {"name": "cnn"},
    "tier": [
        {"name": "tv", "model": {"name": "mlp", "hidden": 8}},
        {"name": "phone", "model": {"name": "lenet"}},
        {"name": "flagship", "model": {"name": "moss-test-own", "width": 16}},
    ],
    "method": {"name": "moss", "wire": {"epochs": 2, "lr": 0.02}},
    "local": {"lr": 0.05},
    "score": {"every": 2, "clients": 2},
    "run": {"engine": "serial"},
}


def test_a_users_network_takes_part_and_a_run_resumes_bit_for_bit(tmp_path):
    register("moss-test-own", own)
    whole = run(experiment(DIGITS), tmp_path / "whole")
    run(experiment({**DIGITS, "rounds": 1}), tmp_path / "part")
    resumed = resume(tmp_path / "part", rounds=4)
    assert resumed.weights_sha256 == whole.weights_sha256
    lines = [json.loads(line) for line in (whole.folder / "ledger.jsonl").read_text("utf-8").splitlines()]
    transfers = [line for line in lines if line.get("verb") == "teach"]
    assert len(transfers) == 4 * 6
    assert {line["outcome"] for line in transfers} == {"accepted"}
    assert all(line["measured"]["bytes_down"] == 0 < line["modelled"]["flops"] for line in transfers)
    told = transfers[0]["metrics"]
    assert 0 <= told["fidelity"] <= 1
    assert [len(told["loc"]), len(told["loc"][0])] == [len(names) for names in told["taps"]]
    assert "metrics" not in next(line for line in lines if line.get("verb") == "train")
    page = write_report([whole.folder], tmp_path / "report.html").read_text("utf-8")
    assert page.count(f"&gt; {PROXY}, round 4</figcaption>") == 3
    assert "Fidelity over rounds" in page


def test_a_network_without_layers_to_tap_is_refused():
    register("moss-test-flat", flat)
    with pytest.raises(SettingsError, match="no layers to tap in tier 'phone'"):
        assemble(
            experiment({**DIGITS, "tier": [{"name": "phone", "model": {"name": "moss-test-flat"}}, {"name": "tv"}]})
        )
