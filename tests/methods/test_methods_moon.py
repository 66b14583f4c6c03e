"""MOON: the contrastive loss by hand, and the networks that it compares."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from math import log

import pytest
import torch
from drift_rounds import TRAINING, after, near, people
from made_round import Play, zoo
from torch import nn

from potluck.core import SettingsError, Tier, digest
from potluck.learn import CrossEntropy, Frozen
from potluck.methods import MOON, FedAvg
from potluck.methods.moon import ContrastiveLoss, contrast
from potluck.models import ModelZoo, make_spec, register


@pytest.mark.parametrize(
    ("z", "near_to", "far_from", "value"),
    [
        ([1, 0], [0, 1], [1, 0], 2.126928),
        ([1, 0], [1, 0], [0, 1], 0.126928),
        ([3, 4], [1, 2], [1, 2], log(2)),
    ],
    ids=["near the previous", "near the received", "both alike"],
)
def test_the_contrastive_loss_of_features_of_two_entries(z, near_to, far_from, value):
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


def test_a_client_has_nothing_to_contrast_in_its_first_round():
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


def test_features_are_pulled_towards_the_received_model_and_away_from_the_clients_previous_one():
    compared = {}

    @dataclass(frozen=True)
    class Observed(MOON):
        def loss(self, task, device):
            made = super().loss(task, device)
            compared[task.to] = [digest(dict(each.net.state_dict())) for each in (made.towards, made.away)]
            return made

    play = Play(Observed(TRAINING), zoo(2), people("d2", "d2"))
    start = play.init()
    state = play.round(start)
    assert compared["c0"] == [digest(start.model.arrays)] * 2
    had = digest(play.memories["c0"][1]["model"].arrays)
    play.round(state, 1)
    assert compared["c0"] == [digest(state.model.arrays), had]
    assert had != digest(state.model.arrays)


def test_a_network_without_a_head_is_refused():
    register("drift-test-headless", lambda: nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.Linear(3, 2)))
    spec = make_spec("drift-test-headless", input=(2,), classes=2)
    with pytest.raises(SettingsError, match="no part called head"):
        MOON().check(ModelZoo(spec, [Tier("phone", spec=spec)]))
    MOON().check(zoo(1))
    with pytest.raises(ValueError, match="temperature = 0"):
        MOON(temperature=0.0)
