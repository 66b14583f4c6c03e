"""Moss: the taps of any network, found by one forward pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.core import Newborn, stream
from potluck.methods.moss.taps import TappedNetwork, tap_names, tap_shapes
from potluck.models import ModelZoo, make_spec


def channels(net, example):
    """The shape of what leaves each tap, without the batch."""
    _, maps = TappedNetwork(net, tap_names(net, example))(example)
    return [tuple(features.shape[1:]) for features in maps]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("resnet18", [(64, 32), (128, 16), (256, 8), (512, 4)]),
        ("mobilenet_v2", [(24, 32), (32, 16), (96, 8), (320, 4)]),
        ("lenet", [(6, 14), (16, 5)]),
        ("preresnet", [(64, 32), (128, 16), (256, 8), (512, 4)]),
    ],
)
def test_the_papers_networks_are_tapped_at_the_last_output_of_each_resolution(name, found):
    spec = make_spec(name, input=(3, 32, 32), classes=10)
    assert [(tap.channels, tap.height) for tap in tap_shapes(spec, ModelZoo(spec))] == found


def test_dense_networks_are_tapped_at_their_hidden_activations():
    spec = make_spec("mlp", input=(1, 8, 8), classes=10, hidden=5, depth=2)
    zoo = ModelZoo(spec)
    assert [(tap.name, tap.channels, tap.positions) for tap in tap_shapes(spec, zoo)] == [
        ("stem", 5, 1), ("body.0", 5, 1), ("body.1", 5, 1),
    ]  # fmt: skip
    net = zoo.build(Newborn(spec), stream(0))
    _, maps = TappedNetwork(net, ["stem"])(torch.randn(3, 1, 8, 8))
    assert (maps[0] >= 0).all()  # after the activation


@pytest.mark.parametrize(("name", "sizes"), [("transformer", {}), ("bert", {"vocab": 30})])
def test_the_blocks_of_a_text_are_columns_of_tokens(name, sizes):
    spec = make_spec(name, depth=2, input=(7,), classes=20, **sizes)
    found = tap_shapes(spec, ModelZoo(spec))
    assert [tap.name for tap in found] == ["body.0", "body.1"]
    assert {(tap.height, tap.width) for tap in found} == {(7, 1)}


def test_a_users_text_is_tapped_at_its_hidden_rows_of_tokens():
    net = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 9))
    tokens = torch.zeros(2, 7, dtype=torch.long)
    assert tap_names(net, tokens) == ("2",)
    assert channels(net, tokens) == [(8, 7, 1)]


class Own(nn.Module):
    """A user's network: one trunk that returns a map, functions between modules, a widening, a shared activation."""

    def __init__(self):
        super().__init__()
        self.act = nn.ReLU()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.GELU(),
            nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Conv2d(6, 20, 1),
        )  # fmt: skip
        self.last = nn.Conv2d(20, 7, 2)
        self.head = nn.Linear(7, 2)

    def forward(self, x):
        wide = self.act(self.trunk(x))
        return self.head(self.act(functional.adaptive_avg_pool2d(self.last(wide), 1)).flatten(1))


def test_a_users_network_is_tapped_without_being_told_how():
    assert tap_names(Own(), torch.zeros(2, 1, 12, 12)) == ("trunk.5", "trunk.6", "last")
    assert channels(Own(), torch.zeros(2, 1, 12, 12)) == [(4, 6, 6), (6, 3, 3), (7, 2, 2)]


def test_a_map_that_is_pooled_to_the_next_ones_size_is_tapped_before_the_pooling():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    assert channels(net, torch.zeros(2, 3, 8, 8)) == [(8, 8, 8), (16, 4, 4)]


def test_finding_taps_leaves_a_network_as_it_was():
    net = Own().train()
    net.trunk[1].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    tap_names(net, torch.randn(2, 1, 12, 12))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert net.training
    assert not net.trunk[1].training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_a_tapped_network_keeps_its_running_statistics_unless_asked_to_update_them():
    net, x = Own().train(), torch.randn(4, 1, 12, 12)
    tapped = TappedNetwork(net, tap_names(net, x))
    tapped(x)
    assert net.trunk[1].running_mean.tolist() == [0.0, 0.0, 0.0]
    tapped(x, update_statistics=True)
    assert net.trunk[1].running_mean.abs().sum() > 0


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.batch_first = batch_first
        self.first = nn.LSTM(3, 4, batch_first=batch_first)
        self.second = nn.GRU(4, 6, batch_first=batch_first)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        steps = self.second(self.first(x if self.batch_first else x.transpose(0, 1))[0])[0]
        return self.head(steps[:, -1] if self.batch_first else steps[-1])


@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_are_tapped_at_every_step(batch_first):
    net, x = Recurrent(batch_first), torch.randn(5, 7, 3)
    assert tap_names(net, x) == ("first", "second")
    logits, (first, second) = TappedNetwork(net, ["first", "second"])(x)
    assert (first.shape, second.shape) == ((5, 4, 7, 1), (5, 6, 7, 1))
    assert torch.equal(net.head(second[:, :, -1, 0]), logits)
