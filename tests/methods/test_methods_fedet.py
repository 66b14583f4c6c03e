"""Fed-ET: the weighted consensus, those who dissent, and the representation layer that all share, by hand."""

from dataclasses import replace

import pytest
import torch
from constant_logits import PublicPlay, close, echoing_logits, net, unlabelled, value
from made_round import data, people, zoo
from tiny_runs import tiny
from torch import nn

from potluck.core import SERVER, Client, Local, SettingsError, Tier
from potluck.learn import CrossEntropy, kl_divergence
from potluck.methods import FedAvg, FedET
from potluck.methods.fedet import ConsensusLoss, confidence, consensus, dissenting_logits
from potluck.models import ModelZoo, make_spec, register
from potluck.run import config, resume, run

NO_STEPS = replace(FedET().teach, steps=0)
THREE_NETWORKS = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 4.0, 0.0]], [[1.0, 0.0, 0.0]]])


def test_networks_are_weighted_by_the_variance_of_their_logits():
    assert confidence(THREE_NETWORKS).flatten().tolist() == close(0.190476, 0.761905, 0.047619)
    assert consensus(THREE_NETWORKS)[0].tolist() == close(0.428571, 3.047619, 0.0)
    assert consensus(THREE_NETWORKS).argmax(-1).tolist() == [1]
    doubts, doubted = dissenting_logits(THREE_NETWORKS)
    assert doubts[0].tolist() == close(1.8, 0.0, 0.0)
    assert doubted.tolist() == [True]


def test_where_all_agree_only_cross_entropy_is_left():
    alike = torch.tensor([[[2.0, 0.0]], [[3.0, 1.0]]])
    doubts, doubted = dissenting_logits(alike)
    assert (doubts.tolist(), doubted.tolist()) == ([[0.0, 0.0]], [False])
    batch = {"agreed": torch.tensor([0]), "doubts": doubts}
    own = value(CrossEntropy(labels="agreed"), net(0.0, 1.0), **batch)
    assert value(ConsensusLoss(0.05), net(0.0, 1.0), **batch, doubted=doubted) == own
    uniform = float(kl_divergence(torch.zeros(2), torch.tensor([0.0, 1.0])))
    doubting = value(ConsensusLoss(0.05), net(0.0, 1.0), **batch, doubted=torch.tensor([True]))
    assert doubting == pytest.approx(own + 0.05 * uniform, abs=1e-6)


def test_networks_with_equal_logits_for_all_classes_count_alike():
    flat = torch.zeros(2, 1, 3)
    assert confidence(flat).flatten().tolist() == [0.5, 0.5]
    assert all(bool(tensor.isfinite().all()) for tensor in dissenting_logits(flat))


def heads(method):
    """A federation in which a (d1) has logits [1, 3], b and c (d2) have [4, 0], after one round."""
    logits = {"a": [1.0, 3.0], "b": [4.0, 0.0], "c": [4.0, 0.0]}
    clients = {id: ("d1" if id == "a" else "d2", data(2, tuple(own))) for id, own in logits.items()}
    play = PublicPlay(unlabelled(echoing_logits(method)), zoo(1, 2), clients)
    return play, play.round(play.init())


def test_the_representation_layer_is_the_mean_of_the_clients_and_goes_back_to_all():
    """By clients: (1 + 4 + 4) / 3 and (3 + 0 + 0) / 3."""
    play, state = heads(FedET(teach=NO_STEPS))
    assert state.large.arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "a").arrays["head.bias"].tolist() == [3.0, 1.0]
    assert play.served(state, "b").arrays["head.bias"].tolist() == [3.0, 1.0]


def test_the_large_model_learns_the_consensus_and_its_representation_layer_with_it():
    """Scores [4, 0] vary most: all public rows are taken for class 0."""
    play, state = heads(FedET())
    bias = state.large.arrays["head.bias"].tolist()
    assert bias[0] - bias[1] > 2.0
    assert play.served(state, "a").arrays["head.bias"].tolist() == bias
    assert play.method.serve(state, Client(SERVER, play.everyone[0].tier), play.zoo) is state.large
    (learn,) = play.entries("learn")
    assert (learn.task.to, learn.cost.flops > 0) == (SERVER, True)


def three_widths():
    """MLPs of two inputs and two classes whose heads read 1, 2 and 4 features; the server has the widest."""
    specs = [make_spec("mlp", input=(2,), classes=2, hidden=hidden, depth=1) for hidden in (1, 2, 4)]
    return ModelZoo(specs[-1], [Tier(name, spec=spec) for name, spec in zip("sml", specs, strict=True)], public=4)


def one_round(method, made, logits=None):
    """One round of a small, a medium and a large client, which have these logits for every input."""
    logits = logits or {"s": (1.0, 3.0), "m": (4.0, 0.0), "l": (4.0, 2.0)}
    play = PublicPlay(unlabelled(echoing_logits(method)), made, {id: (id, data(2, own)) for id, own in logits.items()})
    return play, play.round(play.init())


def shared_layer(play, state, client):
    arrays = play.served(state, client).arrays
    return {name: arrays[name].tolist() for name in ("head.weight", "head.bias")}


def test_networks_of_unequal_width_share_one_representation_layer():
    """Three clients: (1 + 4 + 4) / 3 and (3 + 0 + 2) / 3."""
    play, state = one_round(FedET(teach=NO_STEPS), three_widths())
    mean = close(3.0, 5 / 3)
    assert state.large.arrays["head.bias"].tolist() == mean
    for client in "sml":
        assert play.served(state, client).arrays["head.bias"].tolist() == mean
        assert tuple(play.served(state, client).arrays["head.weight"].shape) == (2, 4)


def test_after_a_round_every_type_has_the_servers_representation_layer_and_no_type_is_fedavg_within_types():
    made = three_widths()
    play, state = one_round(FedET(), made)
    servers = {name: state.large.arrays[name].tolist() for name in ("head.weight", "head.bias")}
    same, averaged = one_round(FedAvg(share="per_arch"), made)
    for client in "sml":
        assert shared_layer(play, state, client) == servers
        alone = same.served(averaged, client)
        logits = [made.build(model)(torch.ones(1, 2)).tolist() for model in (play.served(state, client), alone)]
        assert logits[0] != logits[1]


def test_a_projection_is_trained_by_its_own_type_sent_and_priced():
    """Small: 3 + 2 weights in stem and body, 4 + 4 in the projection, 8 + 2 in the layer that all share.

    A row costs 2 x (2 + 1 + 4 + 8) FLOPs forward, as many for the weights' gradients, 2 x (1 + 4 + 8) for the inputs'.
    """
    made = three_widths()
    method = FedET(Local(lr=0.1, epochs=1, batch=4), teach=NO_STEPS)
    play = PublicPlay(unlabelled(method), made, people("s", "m", "l"))
    start = play.init()
    state = play.round(start)
    costs = {entry.task.to: entry.cost for entry in play.entries("train")}
    assert [(costs[id].bytes_down, costs[id].bytes_up) for id in ("c0", "c2")] == [(4 * 23, 4 * 23), (4 * 42, 4 * 42)]
    assert costs["c0"].flops == 12 * (30 + 30 + 26)  # twelve rows, once
    before, after = (play.served(each, "c0").arrays["head.projection.bias"] for each in (start, state))
    assert not torch.equal(before, after)


def test_all_networks_begin_with_the_servers_representation_layer():
    made = three_widths()
    play = PublicPlay(unlabelled(FedET()), made, people("s", "m", "l"))
    begun = play.init()
    servers = {name: begun.large.arrays[name].tolist() for name in ("head.weight", "head.bias")}
    assert all(shared_layer(play, begun, client) == servers for client in ("c0", "c1", "c2"))


def test_a_common_size_of_ones_own_gives_the_server_a_projection_too():
    made = three_widths()
    play, state = one_round(FedET(representation=3), made)
    assert state.large.arrays["head.projection.weight"].shape == (3, 4)
    assert all(len(shared_layer(play, state, client)["head.weight"][0]) == 3 for client in "sml")
    assert shared_layer(play, state, "s")["head.weight"] == state.large.arrays["head.weight"].tolist()
    with pytest.raises(SettingsError, match=r"method\.representation = 0 is below 1"):
        config.method({"name": "fedet", "representation": 0}, Local())


def test_networks_of_any_family_share_the_layer():
    """LeNet's head reads 84 features, the CNN's 32, the MLP's 64, the ResNet's 512."""
    shape = {"input": (1, 8, 8), "classes": 2}
    full = make_spec("resnet10", **shape)
    others = [make_spec(name, **shape) for name in ("lenet", "cnn", "mlp")]
    made = ModelZoo(full, [Tier(spec.family, spec=spec) for spec in (full, *others)], public=4)
    FedET().check(made)
    layers = FedET().layers(made)
    assert sorted(spec.family for spec in layers) == ["cnn", "lenet", "mlp", "resnet"]
    assert {made.shapes(spec)["head.weight"][0] for spec in layers} == {(2, 512)}
    width = {spec.family: made.shapes(spec).get("head.projection.weight", ((),))[0] for spec in layers}
    assert width == {"lenet": (512, 84), "cnn": (512, 32), "mlp": (512, 64), "resnet": ()}


class OwnModule(nn.Module):
    """A user's own network: its head has two layers, of which the last is the classifier."""

    def __init__(self, input, classes, hidden=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(input[0], hidden), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x):
        return self.head(self.body(x))


def test_a_users_own_module_takes_part_by_the_last_layer_of_its_head():
    register("fedet-own", OwnModule)
    own = make_spec("fedet-own", input=(2,), classes=2)
    large = make_spec("mlp", input=(2,), classes=2, hidden=4, depth=1)
    made = ModelZoo(large, [Tier("s", spec=own), Tier("l", spec=large)], public=4)
    method = FedET(Local(lr=0.1, epochs=1, batch=4))
    method.check(made)
    play = PublicPlay(unlabelled(method), made, people("s", "l"))
    begun = play.init()
    for state in (begun, play.round(begun)):
        small = play.served(state, "c0").arrays
        assert small["head.2.weight"].tolist() == state.large.arrays["head.weight"].tolist()
        assert small["head.2.projection.weight"].shape == (4, 3)
    assert {entry.verdict for entry in play.session.entries} == {"accepted"}


class Headless(nn.Module):
    def __init__(self, input, classes):
        super().__init__()
        self.only = nn.Linear(input[0], classes)

    def forward(self, x):
        return self.only(x)


class Unbiased(nn.Module):
    def __init__(self, input, classes):
        super().__init__()
        self.head = nn.Linear(input[0], classes, bias=False)

    def forward(self, x):
        return self.head(x)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (Headless, "which has no linear layer in a part called head"),
        (Unbiased, "only one of this layer and the server's has a bias"),
    ],
)
def test_a_module_without_such_a_layer_is_refused_before_round_0(factory, words):
    name = f"fedet-{factory.__name__}"
    register(name, factory)
    own, large = make_spec(name, input=(2,), classes=2), three_widths().full
    made = ModelZoo(large, [Tier("odd", spec=own), Tier("l", spec=large)], public=4)
    with pytest.raises(SettingsError, match=f"tier 'odd' has a {name}.*{words}") as refused:
        FedET().check(made)
    assert "\n" not in str(refused.value)


def test_engines_and_resumed_runs_agree_on_networks_with_projections(tmp_path):
    tiers = [{"name": "small", "model": {"name": "mlp", "hidden": 4}}, {"name": "large"}]
    method = {"name": "fedet", "teach": {"steps": 2}}

    def made(engine, rounds=2):
        return tiny(data={"public": 12}, tier=tiers, method=method, rounds=rounds, run={"engine": engine, "workers": 2})

    whole = run(made("serial"), tmp_path / "serial")
    run(made("serial", rounds=1), tmp_path / "part")
    again = resume(tmp_path / "part", rounds=2)
    others = [run(made(engine), tmp_path / engine) for engine in ("wire", "pool")]
    assert {found.weights_sha256 for found in (again, *others)} == {whole.weights_sha256}
