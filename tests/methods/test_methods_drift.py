"""FedProx, SCAFFOLD, FedNova and MOON, with the conformance numbers of METHODS.md."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import log

import pytest
import torch
from made_round import Play, data, zoo
from tiny_runs import killed_after
from torch import nn

from potluck.core import Local, Reply, SettingsError, Tier, digest, stream
from potluck.learn import ContrastiveLoss, CrossEntropy, Frozen, ProximalTerm, carried, contrast, recalled
from potluck.ledger import Memories
from potluck.methods import MOON, SCAFFOLD, FedAvg, FedNova, FedProx
from potluck.models import ModelZoo, make_spec, register
from potluck.parts import Adam, Momentum
from potluck.run import experiment, resume, run

DRIFT = {"fedprox": FedProx, "scaffold": SCAFFOLD, "fednova": FedNova, "moon": MOON}
SHARES = ["whole", "layerwise", "per_arch"]


@dataclass(frozen=True)
class Slope:
    """A loss whose gradient is the first value of a client's rows, for every weight and wherever it is."""

    def __call__(self, net, batch):
        return batch["x"][:, 0].mean() * sum(weight.sum() for weight in net.parameters())


@dataclass(frozen=True)
class Bowl:
    """a / 2 * (w - b)^2 for every weight; a and b are the two values of a client's rows."""

    def __call__(self, net, batch):
        steep, bottom = batch["x"].mean(0)
        return steep / 2 * sum((weight - bottom).square().sum() for weight in net.parameters())


def descending(method, loss):
    """This method with another loss."""
    kind = type(method)

    @dataclass(frozen=True)
    class Descending(kind):
        def loss(self, task, device):
            return loss

    return Descending(**vars(method))


def at(state, value):
    """The same state with every number of the server's model at a value."""
    arrays = {name: torch.full_like(tensor, value) for name, tensor in state.model.arrays.items()}
    return replace(state, model=replace(state.model, arrays=arrays))


def everywhere(arrays):
    """The value that all entries of all tensors have."""
    (value,) = {round(value, 5) for tensor in arrays.values() for value in tensor.flatten().tolist()}
    return value


def learning(count, seed):
    """Rows that teach something: the label says which of the two inputs is larger."""
    x = torch.randn(count, 2, generator=stream(seed, "rows"))
    rows = data(count)
    rows.columns.update(x=x, y=(x[:, 0] > x[:, 1]).long())
    return rows


def people(*tiers):
    return {f"c{n}": (tier, learning(12 + 5 * n, n)) for n, tier in enumerate(tiers)}


def after(method, rounds, *tiers, networks=None):
    play = Play(method, networks or zoo(2), people(*(tiers or ("d2", "d2", "d2"))))
    state = play.init()
    for index in range(rounds):
        state = play.round(state, index)
    return state.model.arrays


def near(ours, theirs, within=1e-6):
    return all(torch.allclose(ours[name], tensor, rtol=0, atol=within) for name, tensor in theirs.items())


TRAINING = Local(lr=0.2, epochs=3, batch=4)

# FedProx


def test_fp1_the_pull_is_the_gradient_of_the_penalty():
    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.zeros(2)
    penalty = 0.1 / 2 * (w - x).square().sum()
    assert penalty.item() == pytest.approx(0.25)
    pulled = ProximalTerm({"w": x}, 0.1)({"w": torch.zeros(2)}, {"w": w.detach()})["w"]
    assert pulled.tolist() == pytest.approx([0.1, 0.2])
    assert torch.allclose(pulled, torch.autograd.grad(penalty, w)[0])


def test_fp2_where_it_started_a_client_feels_no_pull():
    w = torch.tensor([1.0, 2.0])
    assert ProximalTerm({"w": w}, 0.1)({"w": torch.zeros(2)}, {"w": w})["w"].tolist() == [0, 0]


@pytest.mark.parametrize("share", SHARES)
def test_fedprox_without_a_leash_is_fedavg(share):
    tiers, networks = ("d1", "d2", "d2"), zoo(1, 2)
    ours = after(FedProx(TRAINING, mu=0.0, share=share), 2, *tiers, networks=networks)
    assert digest(ours) == digest(after(FedAvg(TRAINING, share=share), 2, *tiers, networks=networks))


# SCAFFOLD


def steered(method, networks=None, tier="d1", index=1):
    """SC-1: ten clients, of which c1 alone takes part; x = 1, c = 0.5, c_1 = 0.2, a gradient of one everywhere."""
    clients = {f"c{n}": (tier, data(8, (1.0, 0.0))) for n in range(10)}
    play = Play(descending(method, Slope()), networks or zoo(1), clients)
    state = at(play.init(), 1.0)
    state = replace(state, control={name: torch.full_like(tensor, 0.5) for name, tensor in state.control.items()})
    play.memories["c1"] = (0, {"control": {name: torch.full_like(c, 0.2) for name, c in state.control.items()}})
    return play, play.round(state, index, only={"c1"})


TWO_STEPS = Local(lr=0.1, steps=2, batch=8)


@pytest.mark.parametrize("variate", ["auto", "travel", "start", "mean"])
def test_sc1_and_sc2_the_client_and_the_server_move_their_variates(variate):
    play, new = steered(SCAFFOLD(TWO_STEPS, variate=variate))
    assert everywhere(new.model.arrays) == pytest.approx(0.74)
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    assert everywhere(new.control) == pytest.approx(0.58)


def test_the_variate_follows_the_learning_rate_that_was_applied():
    local = Local(lr=1.0, steps=2, batch=8, schedule="steps", milestones=(1,))
    play, new = steered(SCAFFOLD(local))
    assert everywhere(new.model.arrays) == pytest.approx(0.74)
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    still, same = steered(SCAFFOLD(replace(local, factor=0.0)))
    assert (everywhere(same.model.arrays), everywhere(same.control)) == (1.0, 0.5)
    assert everywhere(still.memories["c1"][1]["control"]) == pytest.approx(0.2)


def test_the_variate_is_a_gradient_under_momentum_and_adam_too():
    play, new = steered(SCAFFOLD(replace(TWO_STEPS, momentum=0.5)))
    assert everywhere(new.model.arrays) == pytest.approx(1 - 0.1 * 1.3 * (1 + 1.5))
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    play, new = steered(SCAFFOLD(replace(TWO_STEPS, optimiser="adam")))
    assert everywhere(new.model.arrays) == pytest.approx(0.8, abs=1e-5)
    assert everywhere(play.memories["c1"][1]["control"]) == pytest.approx(1.0)
    with pytest.raises(SettingsError, match=r'method\.variate = "mean"'):
        SCAFFOLD(replace(TWO_STEPS, optimiser="adam"), variate="travel").check(zoo(1))


def test_the_papers_global_step_size_is_a_server_rule():
    _, new = steered(SCAFFOLD(TWO_STEPS, server=Momentum(lr=0.5, beta=0.0)))
    assert everywhere(new.model.arrays) == pytest.approx(0.87)
    assert everywhere(new.control) == pytest.approx(0.58)


def test_buffers_have_no_variates():
    _, new = steered(SCAFFOLD(TWO_STEPS), zoo(1, norm="running"))
    buffers = zoo(1, norm="running").buffers(zoo(1, norm="running").full)
    assert buffers
    assert new.control.keys() == new.model.arrays.keys() - buffers


def test_a_tensors_variate_is_the_mean_over_those_who_own_it():
    clients = {f"c{n}": (tier, data(8, (1.0, 0.0))) for n, tier in enumerate(["d1", "d1", "d2", "d2"])}
    play = Play(descending(SCAFFOLD(TWO_STEPS, share="layerwise"), Slope()), zoo(1, 2), clients)
    new = play.round(play.init(), only={"c2"})
    assert new.control["body.0.linear.weight"].item() == pytest.approx(1 / 4)
    assert new.control["body.1.linear.weight"].item() == pytest.approx(1 / 2)
    later = play.round(new, 1, only={"c0", "c1", "c3"})
    assert everywhere(later.control) == pytest.approx(1.0)
    alone = play.round(new, 1, only={"c0"})
    assert alone.control["body.1.linear.weight"].equal(new.control["body.1.linear.weight"])


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("variate", ["travel", "start", "mean"])
def test_scaffolds_first_round_is_uniform_fedavg(share, variate):
    tiers, networks = ("d1", "d2", "d2"), zoo(1, 2)
    ours = SCAFFOLD(TRAINING, share=share, variate=variate)
    theirs = FedAvg(TRAINING, share=share, weighting="uniform")
    one, two = (digest(after(ours, rounds, *tiers, networks=networks)) for rounds in (1, 2))
    assert one == digest(after(theirs, 1, *tiers, networks=networks))
    assert two != digest(after(theirs, 2, *tiers, networks=networks))


def test_clients_of_unequal_bowls_meet_at_the_common_bottom_only_with_variates():
    """a = 1, b = 0 and a = 4, b = 1: the sum is least at 0.8; after many steps FedAvg settles near the middle, 0.5."""
    clients = {"c0": ("d1", data(8, (1.0, 0.0))), "c1": ("d1", data(8, (4.0, 1.0)))}
    found = {}
    for name, method in {"fedavg": FedAvg, "scaffold": SCAFFOLD}.items():
        play = Play(descending(method(Local(lr=0.1, steps=20, batch=8)), Bowl()), zoo(1), clients)
        state = at(play.init(), 0.0)
        for index in range(20):
            state = play.round(state, index)
        found[name] = everywhere(state.model.arrays)
    assert found["scaffold"] == pytest.approx(0.8, abs=1e-3)
    assert found["fedavg"] < 0.6


def test_a_memory_of_another_shape_counts_as_none():
    like = {"a": torch.ones(2), "b": torch.ones(3)}
    found = recalled({"control": {"a": torch.full((2,), 5.0), "b": torch.ones(4)}}, "control", like)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [5, 5], "b": [0, 0, 0]}


# FedNova


def test_fn2_momentum_carries_further():
    assert carried(Local(momentum=0.5), 0.1, 3) == 4.25


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_steps_carry_as_far_as_unit_gradients_do(momentum, mu):
    """By the loop itself, and by the closed form and the recursion of METHODS.md where these hold."""
    for steps in (0, 1, 2, 7):
        pace = distance = recursion = 0.0
        for _ in range(steps):
            pace = momentum * pace + 1 - 0.1 * mu * distance
            distance += pace
            recursion = recursion * (1 - 0.1 * mu) + 1
        found = carried(Local(momentum=momentum), 0.1, steps, mu)
        assert found == pytest.approx(distance)
        if not mu:
            assert found == pytest.approx((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
        if not momentum:
            assert found == pytest.approx(recursion)
    assert carried(Local(optimiser="adam", momentum=momentum), 0.1, 5, mu) == 5


def sloping(method, networks=None, tiers=("d1", "d1")):
    """Gradients of 1 and 2 everywhere, one step and three, from zero."""
    clients = {"c0": (tiers[0], data(4, (1.0, 0.0))), "c1": (tiers[1], data(12, (2.0, 0.0)))}
    play = Play(descending(method, Slope()), networks or zoo(1), clients)
    return play.round(at(play.init(), 0.0)).model.arrays


EPOCH = Local(lr=1.0, epochs=1, batch=4)


def test_fn1_every_step_counts_alike_whoever_takes_it():
    assert everywhere(sloping(FedNova(EPOCH, weighting="uniform"))) == pytest.approx(-3)
    assert everywhere(sloping(FedAvg(EPOCH, weighting="uniform"))) == pytest.approx(-3.5)


def test_samples_weigh_directions_and_distances():
    """p = 1/4, 3/4: directions 1 and 2 mean 1.75, distances 1 and 3 mean 2.5."""
    assert everywhere(sloping(FedNova(EPOCH))) == pytest.approx(-1.75 * 2.5)


def test_momentum_and_a_pull_are_divided_out():
    """Momentum 0.5: a = 1 and 4.25. A pull of 0.5: a = 1 and 1.75, but the mean is that of the steps, 1 and 3."""
    swift = FedNova(replace(EPOCH, momentum=0.5), weighting="uniform")
    assert everywhere(sloping(swift)) == pytest.approx(-1.5 * (1 + 4.25) / 2)
    assert everywhere(sloping(FedNova(EPOCH, weighting="uniform", mu=0.5))) == pytest.approx(-1.5 * 2)


def test_each_tensor_is_normalised_over_those_who_own_it():
    new = sloping(FedNova(EPOCH, weighting="uniform", share="layerwise"), zoo(1, 2), ("d1", "d2"))
    assert new["body.0.linear.weight"].item() == pytest.approx(-3)
    assert new["body.1.linear.weight"].item() == pytest.approx(-6)


def test_server_momentum_is_a_server_rule():
    assert everywhere(sloping(FedNova(EPOCH, weighting="uniform", server=Momentum(lr=0.5)))) == pytest.approx(-1.5)


def test_buffers_take_the_plain_mean_of_samples():
    networks = zoo(1, norm="running")
    ours, theirs = (after(kind(EPOCH), 1, "d1", "d1", networks=networks) for kind in (FedNova, FedAvg))
    buffers = networks.buffers(networks.full)
    assert near({name: ours[name] for name in buffers}, {name: theirs[name] for name in buffers})
    assert not near(ours, theirs, 1e-4)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_is_fedavg(share, momentum):
    local, tiers, networks = Local(lr=0.1, steps=5, batch=4, momentum=momentum), ("d1", "d2", "d2"), zoo(1, 2)
    ours, theirs = (after(kind(local, share=share), 3, *tiers, networks=networks) for kind in (FedNova, FedAvg))
    assert near(ours, theirs)
    longer = replace(local, steps=None, epochs=5)
    ours, theirs = (after(kind(longer, share="whole"), 3, *tiers, networks=networks) for kind in (FedNova, FedAvg))
    assert not near(ours, theirs, 1e-4)


@pytest.mark.parametrize("told", [10**9, -1, 0, None, "many"])
def test_a_client_is_not_believed_more_steps_than_its_samples_allow(told):
    reply = Reply(weight=12.0, metrics={"steps": told})
    assert FedNova(EPOCH).steps(reply)[0] in (1, 3)


# MOON


@pytest.mark.parametrize(
    ("z", "near_to", "far_from", "value"),
    [
        ([1, 0], [0, 1], [1, 0], 2.126928),
        ([1, 0], [1, 0], [0, 1], 0.126928),
        ([3, 4], [1, 2], [1, 2], log(2)),
    ],
    ids=["MO-1", "MO-2", "MO-3"],
)
def test_mo_the_contrast(z, near_to, far_from, value):
    rows = [torch.tensor([row, row], dtype=torch.float) for row in (z, near_to, far_from)]
    assert contrast(*rows, temperature=0.5).item() == pytest.approx(value, abs=1e-6)


class Projecting(nn.Module):
    """A network with a projection of three units before its classifier."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Flatten(), nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(2), dense=nn.Linear(2, 2)))
        self.head = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3), nn.Linear(3, 2))

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def projected(net, x):
    return net.head[:-1](net.body(net.stem(x)))


def test_the_contrast_is_between_projected_features_where_a_head_projects():
    torch.manual_seed(0)
    net, received, previous = Projecting(), Projecting(), Projecting()
    batch = {"x": torch.randn(6, 2), "y": torch.tensor([0, 1, 0, 1, 0, 1])}
    kept = digest(dict(received.state_dict()))
    loss = ContrastiveLoss(CrossEntropy(), Frozen(received), Frozen(previous), 5.0, 0.5)
    value = loss(net.train(), batch)
    expected = contrast(
        projected(net, batch["x"]), projected(received, batch["x"]), projected(previous, batch["x"]), 0.5
    )
    assert torch.allclose(value, CrossEntropy()(net, batch) + 5.0 * expected)
    value.backward()
    assert all(weight.grad is None for other in (received, previous) for weight in other.parameters())
    assert all(weight.grad is not None for weight in net.parameters())
    assert digest(dict(received.state_dict())) == kept, "a frozen network gathers no statistics"


def test_a_network_with_a_projecting_head_trains():
    register("drift-test-projecting", Projecting)
    spec = make_spec("drift-test-projecting", input=(2,), classes=2)
    networks = ModelZoo(spec, [Tier("phone", spec=spec)])
    local = replace(TRAINING, batch=5)  # a batch of one row has no batch statistics
    methods = (MOON(local, mu=5.0), FedAvg(local))
    ours, theirs = (after(method, 3, "phone", "phone", networks=networks) for method in methods)
    assert ours.keys() == theirs.keys() == dict(Projecting().state_dict()).keys()
    assert not near(ours, theirs, 1e-3)


@pytest.mark.parametrize("kind", DRIFT.values())
def test_label_masks_work_with_it(kind):
    ours, theirs = (after(method(TRAINING, label_mask=True), 2, "d2", "d2") for method in (kind, FedAvg))
    assert all(bool(tensor.isfinite().all()) for tensor in ours.values())
    assert not near(ours, theirs, 1e-6) or kind is MOON, "of a single unit's features none points another way"


def test_the_first_time_there_is_nothing_to_contrast():
    """With features of several entries: those of a single unit all point the same way."""
    spec = make_spec("mlp", input=(2,), classes=2, hidden=6, depth=1)
    wide = ModelZoo(spec, [Tier("phone", spec=spec)])

    def trained(method, rounds):
        return after(method, rounds, "phone", "phone", networks=wide)

    assert near(trained(MOON(TRAINING, mu=5.0), 1), trained(FedAvg(TRAINING), 1), 1e-5)
    assert not near(trained(MOON(TRAINING, mu=5.0), 2), trained(FedAvg(TRAINING), 2), 1e-3)


def test_a_client_remembers_the_model_it_last_trained():
    play = Play(MOON(TRAINING), zoo(2), people("d2", "d2"))
    state = play.round(play.init())
    first, other = (play.memories[id][1]["model"] for id in ("c0", "c1"))
    total = sum(count * model.arrays["head.bias"] for count, model in ((12, first), (17, other)))
    assert torch.allclose(state.model.arrays["head.bias"], total / 29)
    play.round(state, 1, only={"c0"})
    assert play.memories["c1"][1]["model"] is other
    assert digest(play.memories["c0"][1]["model"].arrays) != digest(first.arrays)


def test_clients_are_drawn_to_what_they_received_and_away_from_what_they_had():
    drawn = {}

    @dataclass(frozen=True)
    class TappedNetwork(MOON):
        def loss(self, task, device):
            made = super().loss(task, device)
            drawn[task.to] = [digest(dict(each.net.state_dict())) for each in (made.towards, made.away)]
            return made

    play = Play(TappedNetwork(TRAINING), zoo(2), people("d2", "d2"))
    start = play.init()
    state = play.round(start)
    assert drawn["c0"] == [digest(start.model.arrays)] * 2
    had = digest(play.memories["c0"][1]["model"].arrays)
    play.round(state, 1)
    assert drawn["c0"] == [digest(state.model.arrays), had]
    assert had != digest(state.model.arrays)


def test_a_network_without_a_head_is_refused():
    register("drift-test-headless", lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.Linear(3, 2)))
    spec = make_spec("drift-test-headless", input=(2,), classes=2)
    with pytest.raises(SettingsError, match="no part called head"):
        MOON().check(ModelZoo(spec, [Tier("phone", spec=spec)]))
    MOON().check(zoo(1))
    with pytest.raises(ValueError, match="temperature = 0"):
        MOON(temperature=0.0)


# All of them


def test_training_memory_counts_what_a_method_holds_beside_the_model():
    """A copy of the weights for an anchor or a variate; two for MOON's networks, each asked for a third of a step."""
    costs = {}
    for kind in (FedAvg, *DRIFT.values()):
        play = Play(kind(Local(steps=2, batch=4)), zoo(2), people("d2"))
        play.round(play.init())
        costs[kind] = play.session.entries[0].cost
    weights, base = play.zoo.cost(play.zoo.full, 4).parameter_bytes, costs[FedAvg]
    with_columns = {kind: cost.memory - base.memory for kind, cost in costs.items()}
    assert with_columns == {FedAvg: 0, FedProx: weights, SCAFFOLD: weights, FedNova: 0, MOON: 2 * weights}
    assert costs[MOON].flops == pytest.approx(base.flops * 5 / 3, rel=0.01)
    assert costs[SCAFFOLD].flops == base.flops
    assert costs[SCAFFOLD].bytes_down == costs[SCAFFOLD].bytes_up == 2 * base.bytes_up


def test_the_mean_gradient_takes_room_too():
    sizes = []
    for variate in ("travel", "mean"):
        play = Play(SCAFFOLD(Local(steps=2, batch=4), variate=variate), zoo(2), people("d2"))
        play.round(play.init())
        sizes.append(play.session.entries[0].cost.memory)
    assert sizes[1] - sizes[0] == play.zoo.cost(play.zoo.full, 4).parameter_bytes


@pytest.mark.parametrize("name", DRIFT)
def test_a_tier_that_is_absent_leaves_its_own_tensors_bit_for_bit(name):
    play = Play(DRIFT[name](TRAINING, share="layerwise", server=Adam(lr=0.03)), zoo(1, 2), people("d1", "d2"))
    state = play.round(play.init())
    later = play.round(state, 1, only={"c0"})
    own = [tensor for tensor in state.model.arrays if tensor.startswith("body.1")]
    assert own
    assert all(later.model.arrays[tensor].equal(state.model.arrays[tensor]) for tensor in own)
    assert not later.model.arrays["body.0.linear.weight"].equal(state.model.arrays["body.0.linear.weight"])


def remembered(folder, clients=6):
    found = Memories(folder / "memory")
    return {f"c{n}": found.read(f"c{n}") for n in range(clients)}


@pytest.mark.parametrize("name", ["scaffold", "moon"])
def test_memories_survive_a_kill_bit_for_bit(name, tmp_path):
    settings = {
        "rounds": 4,
        "cohort": 3,
        "data": {"clients": 6},
        "model": {"name": "mlp", "hidden": 4},
        "method": {"name": name},
        "local": {"steps": 3},
        "run": {"engine": "serial"},
    }
    whole = run(experiment(settings), tmp_path / "whole")
    killed_after(2, experiment(settings), tmp_path / "killed")
    before = remembered(tmp_path / "killed")
    assert resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256
    assert remembered(tmp_path / "killed") == remembered(tmp_path / "whole") != before
