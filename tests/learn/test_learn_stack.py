"""Networks trained as one stack end where they end alone."""

import copy

import pytest
import torch
from torch import nn

from potluck.core import Examples, Local, stream
from potluck.learn import (
    CrossEntropy,
    FitJob,
    MaskedCrossEntropy,
    ProximalTerm,
    Turns,
    can_stack,
    fit_stacked,
    run_fit,
    stacking_key,
    trainable_weights,
)

# Doubles: in single precision Adam makes of a gradient near zero what its rounding says, which differs by processor.
X = torch.randn(40, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
COLUMNS = {"x": X, "y": torch.arange(40) % 3}


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.Linear(8, 3)
    ).double()


def job(client, local, loss=None, pulled=False, rows=10):
    """A client with rows of its own, a network of its own, a stream of its own."""
    made = net(client)
    towards = {name: weight.detach().clone() + 0.1 * client for name, weight in made.named_parameters()}
    edits = [ProximalTerm(towards, 0.5)] if pulled else []
    examples = Examples(COLUMNS, torch.arange(client, client + rows))
    return FitJob(
        *(made, examples, local, 0.3, loss or CrossEntropy(), edits, stream(0, "s", client), trainable_weights(made)),
        kind="net",
    )


def masks(client):
    return MaskedCrossEntropy(torch.tensor([True, client % 2 == 0, True]))


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=2, batch=4),
        Local(epochs=1, batch=10, momentum=0.9, weight_decay=0.01),
        Local(steps=5, batch=3, clip=0.2),
        Local(epochs=3, batch=4, optimiser="adam"),
    ],
    ids=["sgd", "momentum", "clip", "adam"],
)
def test_every_client_ends_where_it_ends_alone(local, masked, pulled):
    alone = [job(client, local, masks(client) if masked else None, pulled) for client in range(5)]
    stacked = [job(client, local, masks(client) if masked else None, pulled) for client in range(5)]
    assert len({stacking_key(one) for one in stacked}) == 1
    for one, other, expected, found in zip(
        alone, stacked, [run_fit(one) for one in alone], fit_stacked(stacked), strict=True
    ):
        assert (found.steps, found.samples, found.lr) == (expected.steps, expected.samples, expected.lr)
        assert found.loss == pytest.approx(expected.loss, rel=1e-9)
        assert torch.equal(found.last, expected.last)
        for name, weight in one.weights.items():
            torch.testing.assert_close(other.weights[name], weight, rtol=1e-9, atol=1e-12)


def test_clients_of_a_stack_do_not_reach_each_other():
    """A client beside others that differ ends where it ends beside others again: nothing leaks along the stack."""
    local = Local(epochs=2, batch=4, clip=0.2)
    pairs = [[job(0, local), job(other, local)] for other in (1, 2)]
    for pair in pairs:
        fit_stacked(pair)
    for name, weight in pairs[0][0].weights.items():
        assert torch.equal(weight, pairs[1][0].weights[name])


def test_only_what_is_alike_is_stacked():
    local = Local(epochs=1, batch=4)
    base = stacking_key(job(0, local))
    assert stacking_key(job(3, local)) == base
    assert stacking_key(job(0, local, rows=9)) != base
    assert stacking_key(job(0, Local(epochs=2, batch=4))) != base
    assert stacking_key(job(0, local, pulled=True)) != base
    assert stacking_key(job(0, local, masks(0))) not in (base, None)
    stronger = job(0, local, pulled=True)
    stronger.edits[0] = ProximalTerm(stronger.edits[0].towards, 0.6)
    assert stacking_key(stronger) != stacking_key(job(0, local, pulled=True))


def test_what_cannot_be_stacked_stands_alone():
    local = Local(epochs=1, batch=4)
    assert stacking_key(job(0, local, Turns((CrossEntropy(),), (0, 0, 0)))) is None
    assert stacking_key(job(0, local, rows=0)) is None
    unknown = copy.copy(job(0, local))
    unknown.edits.append(lambda grads, weights: grads)
    assert stacking_key(unknown) is None


def test_convolutions_noise_and_statistics_are_not_stacked():
    assert can_stack(net(0))
    for odd in (nn.Conv2d(1, 1, 1), nn.Dropout(0.1), nn.BatchNorm1d(3), nn.LayerNorm(3), nn.Softmax(1)):
        assert not can_stack(nn.Sequential(nn.Linear(3, 3), odd))


class OwnForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x.flatten(1))


def test_networks_with_a_forward_of_ones_own_are_not_stacked():
    assert not can_stack(OwnForward())
