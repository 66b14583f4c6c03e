"""FedIN in rounds: small numbers by hand, and what the paper leaves open."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data, people, zoo

from potluck.core import Client, Local, Round, SettingsError, Task, Tier, digest, stream
from potluck.learn import JointLoss, ProximalTerm
from potluck.methods import FedIN, FedProx
from potluck.methods.fedin.gradients import ProjectGradients, SumGradients
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.run import experiment, resume, run

LOCAL = Local(lr=0.1, epochs=2, batch=8)


def play(method, norm="none"):
    return Play(method, zoo(1, 2, norm=norm), people("d1", "d2", "d2"))


def rounds(made, count, state=None):
    state = made.init() if state is None else state
    for index in range(count):
        state = made.round(state, index)
    return state


@pytest.mark.parametrize("norm", ["none", "running"])
@pytest.mark.parametrize("share", ["whole", "layerwise", "per_arch"])
@pytest.mark.parametrize("combine", ["sum", "project", "steps"])
def test_with_an_empty_feature_bank_a_round_is_fedproxs_bit_for_bit(share, combine, norm):
    """From the second round on it is something else."""
    ours = play(FedIN(LOCAL, share=share, mu=0.3, combine=combine, outside=0.25), norm)
    theirs = play(FedProx(LOCAL, share=share, mu=0.3), norm)
    one, other = rounds(ours, 1), rounds(theirs, 1)
    assert digest(one.model.arrays) == digest(other.model.arrays)
    assert digest(ours.round(one, 1).model.arrays) != digest(theirs.round(other, 1).model.arrays)


def test_without_lent_features_it_is_fedprox_in_every_round():
    ours, theirs = play(FedIN(LOCAL, lend=0)), play(FedProx(LOCAL, share="layerwise"))
    one, other = rounds(ours, 3), rounds(theirs, 3)
    assert digest(one.model.arrays) == digest(other.model.arrays)
    assert one.bank == {}


def test_the_features_that_a_client_lends_cost_a_forward_pass_of_their_rows():
    """In the first round nobody has lent any yet, so this is all that FedIN costs beside FedProx. A batch is 8 rows."""
    told = []
    for made in (play(FedIN(LOCAL)), play(FedIN(LOCAL, lend=0))):
        made.round(made.init())
        told.append([entry.cost.flops for entry in made.session.entries])
    tiers = {tier.name: made.zoo.cost(tier.spec, 8).forward_flops for tier in made.zoo.tiers}
    assert [ours - theirs for ours, theirs in zip(*told, strict=True)] == [tiers["d1"], tiers["d2"], tiers["d2"]]


def test_the_proximal_term_is_fedproxs_with_mu_a_tenth():
    """w - received = [1, 2]: penalty .25, gradient [.1, .2]."""
    made = play(FedIN(LOCAL))
    state = made.init()
    (proximal,) = made.method.edits(Task("train", "c0", models={"model": state.model}), None)
    assert isinstance(proximal, ProximalTerm)
    moved = {"head.bias": state.model.arrays["head.bias"] + torch.tensor([1.0, 2.0])}
    found = proximal({"head.bias": torch.zeros(2)}, moved)["head.bias"]
    assert found.tolist() == pytest.approx([0.1, 0.2], abs=1e-6)
    assert FedIN().mu / 2 * 5 == 0.25


@dataclass(frozen=True)
class EndingAt(FedIN):
    """Clients whose every weight ends at a value of their own."""

    def report(self, task, device, fit):
        with torch.no_grad():
            for weight in fit.net.parameters():
                weight.fill_({"A": 2.0, "B": 6.0, "C": 9.0}[task.to])
        return super().report(task, device, fit)


def test_layers_are_averaged_over_their_owners_by_samples():
    """A tensor of A (n = 10, value 2) and B (n = 30, value 6), not of C, is 5."""
    made = Play(EndingAt(), zoo(1, 2), {"A": ("d2", data(10)), "B": ("d2", data(30)), "C": ("d1", data(50))})
    new = made.round(made.init())
    assert new.model.arrays["body.1.linear.weight"].item() == 5
    assert "body.1.linear.weight" not in made.served(new, "C").arrays
    assert new.model.arrays["body.0.linear.weight"].item() == pytest.approx((20 + 180 + 450) / 90)


# The feature bank


def test_the_server_keeps_the_newest_batch_of_each_client():
    made = play(FedIN(LOCAL))
    state = made.round(made.init())
    assert list(state.bank) == ["0 c0", "0 c1", "0 c2"]
    assert {end: tuple(tensor.shape) for end, tensor in state.bank["0 c0"].items()} == {"in": (8, 1), "out": (8, 1)}
    later = made.round(state, 1, only={"c1"})
    assert list(later.bank) == ["0 c0", "0 c2", "1 c1"]
    assert list(state.bank) == ["0 c0", "0 c1", "0 c2"]


def test_lent_features_are_those_of_the_trained_network():
    made = play(FedIN(LOCAL))
    state = made.round(made.init(), only={"c2"})
    net = made.zoo.build(made.served(state, "c2"))
    lent, rows = state.bank["0 c2"], made.clients["c2"][1].column("x")
    with torch.no_grad():
        entering = net.stem(rows)
        assert torch.allclose(net.body(lent["in"]), lent["out"])
    assert all(bool(torch.isclose(entering, one, atol=1e-6).all(1).any()) for one in lent["in"])


def test_a_fifo_bank_keeps_the_last_samples():
    made = play(FedIN(LOCAL, fifo=20))
    assert list(rounds(made, 2).bank) == ["1 c1", "1 c2"]


def test_all_clients_of_a_round_get_the_same_lent_samples_unless_their_own_are_left_out():
    made = play(FedIN(LOCAL, draw=5))
    state = made.round(made.init())
    seen = lent_in(made, state)
    assert len({digest(arrays) for arrays in seen.values()}) == 1
    assert all(arrays["in"].shape == (5, 1) for arrays in seen.values())
    seen = lent_in(play(FedIN(LOCAL, exclude_self=True, draw=99)), state)
    for client, arrays in seen.items():
        own = state.bank[f"0 {client}"]["in"]
        assert len(arrays["in"]) == 16
        assert not any(bool((arrays["in"] == one).all(1).any()) for one in own if float(one) != 0.0)


class SeenEnough(Exception):
    """The tasks of a round were seen, and it need not go on."""


def tasks_of(method, state, clients, networks):
    """What each client is asked in a round."""
    found = {}

    def fold(tasks, mean, held, weigh):
        found.update({task.to: task for task in tasks})
        raise SeenEnough

    with pytest.raises(SeenEnough):
        method.round(state, Round(1, clients, len(clients), networks, 0, None, fold, None))
    return found


def lent_in(made, state):
    """What each client is sent beside its model."""
    tasks = tasks_of(made.method, state, made.everyone, made.zoo)
    return {client: task.arrays for client, task in tasks.items()}


def test_a_client_alone_with_its_own_features_trains_without_them():
    made = play(FedIN(LOCAL, exclude_self=True))
    theirs = play(FedProx(LOCAL, share="layerwise"))
    one, other = made.init(), theirs.init()
    for index in range(3):
        one, other = made.round(one, index, only={"c1"}), theirs.round(other, index, only={"c1"})
    assert digest(one.model.arrays) == digest(other.model.arrays)


def test_the_feature_bank_survives_a_stop(tmp_path):
    plain = {
        "rounds": 2, "cohort": 2, "data": {"clients": 6}, "model": {"name": "mlp", "hidden": 4},
        "method": {"name": "fedin"}, "local": {"epochs": 1, "batch": 8}, "score": {"every": 4, "clients": 0},
        "run": {"engine": "serial"},
    }  # fmt: skip
    run(experiment(plain), tmp_path / "stopped")
    stopped = resume(tmp_path / "stopped", rounds=4)
    whole = run(experiment({**plain, "rounds": 4}), tmp_path / "whole")
    without = run(experiment({**plain, "rounds": 4, "method": {"name": "fedin", "lend": 0}}), tmp_path / "without")
    assert stopped.weights_sha256 == whole.weights_sha256 != without.weights_sha256


# What is trained


@pytest.mark.parametrize("norm", ["none", "running"])
@pytest.mark.parametrize("combine", ["sum", "project", "project_all", "steps"])
def test_lent_features_bring_a_body_nearer_to_the_bodies_that_lent_them(combine, norm):
    """With nothing of its own to learn, a client learns what was lent."""
    made = play(FedIN(Local(lr=0.1, steps=30, batch=8), mu=0.0, combine=combine, keep=0.0, share="per_arch"), norm)
    state = made.round(made.init())
    lent = {end: torch.cat([pair[end] for pair in state.bank.values()]) for end in ("in", "out")}

    def distance(state):
        net = made.zoo.build(made.served(state, "c0")).train()
        with torch.no_grad():
            return float((net.body(lent["in"]) - lent["out"]).square().mean())

    assert distance(made.round(state, 1, only={"c0"})) < distance(state)


def test_the_settings_choose_how_gradients_are_combined():
    assert FedIN().blend() == SumGradients(0.5, 0.5)
    assert FedIN(keep=0.1, outside=1.0).blend() == SumGradients(0.1, 1.0)
    assert FedIN(combine="project").blend() == ProjectGradients(False, 0.5)
    assert FedIN(combine="project_all", outside=1.0).blend() == ProjectGradients(True, 1.0)
    assert FedIN(combine="steps").blend() is None


def test_without_lent_features_the_loss_is_the_problems_own():
    class Device:
        problem = type("Problem", (), {"loss": "its own"})()

    assert FedIN().loss(Task("train", "c0"), Device()) == "its own"
    lent = {"in": torch.zeros(1), "out": torch.zeros(1)}
    found = FedIN(gather=True).loss(Task("train", "c0", arrays=lent), Device())
    assert isinstance(found, JointLoss)
    assert (found.main, found.reach, found.aside.gather) == ("its own", "body.", True)


@pytest.mark.parametrize(("gather", "seen"), [(False, 4), (True, 8)])
def test_lent_features_count_in_running_statistics_only_if_asked(gather, seen):
    made = play(FedIN(Local(steps=4, batch=8), gather=gather), "running")
    state = made.round(made.init())
    before = int(state.model.arrays["body.0.norm.num_batches_tracked"])
    after = made.round(state, 1)
    assert int(after.model.arrays["body.0.norm.num_batches_tracked"]) - before == seen
    assert int(after.model.arrays["stem.norm.num_batches_tracked"]) == 8


# What it asks of networks and of the gate


RESNET26 = make_spec("resnet26", input=(3, 32, 32), classes=10, stem="stride4")
DEPTHS = ((1, 1, 1, 1), (1, 1, 2, 2), (2, 2, 2, 2), (2, 2, 3, 3), (3, 3, 3, 3))
RESNETS = [tier_spec(RESNET26, None, depth) for depth in DEPTHS]
"""ResNet-10, 14, 18, 22 and 26."""


def test_an_upload_is_the_model_and_one_batch_of_features():
    """The paper: 12.35 M values against 12.28 M, on ResNet-10/14/18/22/26 at batch 16; .29 MB of features."""
    made = ModelZoo(RESNET26, [Tier(f"resnet{n}", spec=spec) for n, spec in enumerate(RESNETS)])
    clients, method = [Client(tier.name, tier) for tier in made.tiers], FedIN(Local(batch=16))
    tasks = tasks_of(method, method.init(made, stream(0, "init")), clients, made)
    trained, lent = [], []
    for spec, task in zip(RESNETS, tasks.values(), strict=True):
        expected = task.expects
        sizes = {name: math.prod(shape) for name, (shape, _) in expected.models["model"].items()}
        trained.append(sum(size for name, size in sizes.items() if name not in made.buffers(spec)))
        lent.append(sum(math.prod(shape) for shape, _ in expected.arrays.values()))
    assert lent == [16 * (64 * 8 * 8 + 512)] * 5
    assert round(sum(trained) / 5e6, 2) == 12.28
    assert round((sum(trained) + sum(lent)) / 5e6, 2) == 12.35
    assert round(4 * lent[0] / 1e6, 2) == 0.29


def test_blocks_are_owned_as_the_paper_has_it():
    """s.0 by all five; 3.1, 4.1 by four; 1.1, 2.1 by three; 3.2, 4.2 by two; the rest by one."""
    names = [ModelZoo(RESNET26).shapes(spec) for spec in RESNETS]
    owners = {
        block: sum(f"body.{block}.first.conv.weight" in tensors for tensors in names)
        for block in ("0.0", "3.0", "2.1", "3.1", "0.1", "1.1", "2.2", "3.2", "0.2", "1.2")
    }
    assert list(owners.values()) == [5, 5, 4, 4, 3, 3, 2, 2, 1, 1]


def test_the_ledger_shows_the_features_that_were_uploaded_and_lent(tmp_path):
    plain = {
        "rounds": 2, "cohort": 3, "data": {"clients": 3}, "model": {"name": "mlp", "hidden": 4, "depth": 2},
        "method": {"name": "fedin", "lend": 5, "draw": 7}, "local": {"epochs": 1}, "run": {"engine": "wire"},
        "score": {"every": 2, "clients": 0},
    }  # fmt: skip
    result = run(experiment(plain), tmp_path / "run")
    numbers = (64 * 4 + 4) + 2 * (4 * 4 + 4) + (4 * 10 + 10)
    ledger = [json.loads(line) for line in (result.folder / "ledger.jsonl").read_text().splitlines()]
    tasks = [line for line in ledger if line["event"] == "task"]
    assert {line["measured"]["bytes_up"] for line in tasks} == {4 * (numbers + 5 * 8)}
    assert {line["measured"]["bytes_down"] for line in tasks if line["round"] == 1} == {4 * numbers}
    assert {line["measured"]["bytes_down"] for line in tasks if line["round"] == 2} == {4 * (numbers + 7 * 8)}


def test_tiers_whose_features_differ_in_shape_are_refused_before_round_0():
    wide = zoo(1)
    other = replace(wide.tiers[0], name="wide", spec=replace(wide.full, sizes={"hidden0": 3, "hidden1": 3}))
    both = replace(wide, tiers=(*wide.tiers, other))
    with pytest.raises(SettingsError, match=r"tier 'wide' has {'in': \(3,\), 'out': \(3,\)}, tier 'd1' .* depth alone"):
        FedIN().check(both)
    FedIN(lend=0).check(both)
    FedIN(share="whole").check(both)


@pytest.mark.parametrize("name", ["lend", "draw", "fifo"])
def test_negative_numbers_of_samples_are_refused(name):
    with pytest.raises(ValueError, match=f"method.{name} = -1 is below 0"):
        FedIN(**{name: -1})
