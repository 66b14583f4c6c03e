"""Moss: layers with cheap second derivatives, compared with PyTorch's own."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.methods.moss.double_backward import DoubleBackward

LAYERS = {
    "depthwise": lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4),
    "groups without a bias": lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=(2, 1), groups=2, bias=False),
    "one group": lambda: nn.Conv2d(4, 6, 3),
    "words for padding": lambda: nn.Conv2d(4, 4, 3, padding="same", groups=4),
    "along a line": lambda: nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 8, 5, padding=2, groups=4)),
    "in space": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Conv3d(2, 4, (1, 3, 3), groups=2)),
    "norm": lambda: nn.BatchNorm2d(4),
    "norm of vectors": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144)),
    "norm without weights": lambda: nn.BatchNorm2d(4, affine=False),
    "norm without memory": lambda: nn.BatchNorm2d(4, track_running_stats=False),
    "norm in evaluation": lambda: nn.BatchNorm2d(4).eval(),
}


def derivatives(net, x, twice):
    """The value of a loss, its gradients, their gradients along some way, and what the network came to remember."""
    wanted = [x, *net.parameters()]
    with DoubleBackward() if twice else contextlib.nullcontext():
        value = torch.tanh(net(x) + 0.1).square().sum()
    grads = torch.autograd.grad(value, wanted, create_graph=True)
    ways = [torch.randn(grad.shape, generator=torch.Generator().manual_seed(1), dtype=grad.dtype) for grad in grads]
    return [value, *grads, *torch.autograd.grad(grads, wanted, ways), *net.buffers()]


@pytest.mark.parametrize("layer", LAYERS)
def test_values_and_both_derivatives_are_torchs(layer):
    torch.manual_seed(0)
    net = LAYERS[layer]().double()
    for weight in net.parameters():
        nn.init.normal_(weight)
    start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64).requires_grad_()
    theirs = [tensor.detach().clone() for tensor in derivatives(net, x, False)]
    net.load_state_dict(start)
    for mine, other in zip(derivatives(net, x, True), theirs, strict=True):
        torch.testing.assert_close(mine.detach(), other, rtol=1e-9, atol=1e-9)


def test_a_network_of_depthwise_convolutions_takes_few_operations():
    """Torch alone takes at least a convolution for each of the sixty-four groups."""
    net, x = nn.Conv2d(64, 64, 3, padding=1, groups=64), torch.randn(2, 64, 6, 6).requires_grad_()
    counts = []
    for twice in (True, False):
        with DoubleBackward() if twice else contextlib.nullcontext():
            value = net(x).square().sum()
        wanted = [x, *net.parameters()]
        grads = torch.autograd.grad(value, wanted, create_graph=True)
        with torch.profiler.profile() as seen:
            torch.autograd.grad(grads, wanted, grads)
        counts.append(sum(event.count for event in seen.key_averages() if event.key == "aten::convolution"))
    assert counts[0] < 8
    assert counts[1] > 64


def test_what_it_does_not_know_is_left_alone():
    x = torch.randn(2, 3)
    with DoubleBackward():
        assert torch.equal(functional.linear(x, torch.eye(3)), x)
        assert torch.equal(functional.conv2d(x.view(1, 2, 3, 1), torch.ones(2, 1, 1, 1), groups=2), x.view(1, 2, 3, 1))
