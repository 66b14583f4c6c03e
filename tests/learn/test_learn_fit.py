"""The local loop computes what torch.optim computes, on the rows it says it does."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from potluck.core import Examples, Local, stream
from potluck.learn import CrossEntropy, FitJob, ProximalTerm, batch_rows, run_fit, trainable_weights

DATA = Examples(
    {"x": torch.randn(23, 5, generator=stream(1, "x")), "y": torch.randint(0, 3, (23,), generator=stream(1, "y"))}
)


def small_net(norm=False):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7) if norm else nn.Identity(), nn.Tanh(), nn.Linear(7, 3))


def fit(net, local, loss=None, edits=(), **more):
    """Local training of a network on all rows."""
    rng, weights = stream(0, "fit"), trainable_weights(net)
    return run_fit(FitJob(net, DATA, local, local.lr, loss or CrossEntropy(), edits, rng, weights, **more))


def ours(local, net=None, **more):
    net = net or small_net()
    return net, fit(net, local, **more)


def theirs(local, optimiser, net=None, clip=None):
    """The textbook loop on the same rows."""
    net = net or small_net()
    step = optimiser(net.parameters())
    net.train()
    losses = []
    for batch in batch_rows(len(DATA), local, stream(0, "fit")):
        step.zero_grad()
        loss = nn.functional.cross_entropy(net(DATA[batch]["x"]), DATA[batch]["y"])
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        step.step()
        losses.append(loss.item())
    return net, losses


def apart(a, b):
    """The largest difference between any two numbers of two networks."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"momentum": 0.5, "weight_decay": 0.1},
    ],
)
def test_sgd_is_torchs_sgd_bit_for_bit(settings, norm):
    local = Local(lr=0.2, epochs=3, batch=4, **settings)
    net, _ = ours(local, small_net(norm))
    reference, _ = theirs(local, lambda weights: torch.optim.SGD(weights, lr=0.2, **settings), small_net(norm))
    assert apart(net, reference) == 0
    assert apart(net, small_net(norm)) > 0.01


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.8)])
def test_adam_is_torchs_adam(decay, betas):
    local = Local(lr=0.01, epochs=4, batch=4, optimiser="adam", weight_decay=decay, betas=betas, eps=1e-6)
    net, _ = ours(local)
    reference, _ = theirs(
        local, lambda weights: torch.optim.Adam(weights, lr=0.01, betas=betas, eps=1e-6, weight_decay=decay)
    )
    assert apart(net, reference) < 1e-7
    assert apart(net, small_net()) > 0.01


@pytest.mark.parametrize("clip", [0.05, 0.5, 100.0])
def test_clipping_is_torchs_clip_grad_norm(clip):
    local = Local(lr=0.5, epochs=3, batch=4, momentum=0.9, clip=clip)
    net, _ = ours(local)
    reference, _ = theirs(local, lambda weights: torch.optim.SGD(weights, lr=0.5, momentum=0.9), clip=clip)
    assert apart(net, reference) < 1e-6


def test_a_tight_clip_limits_the_length_of_a_step():
    before, (net, _) = small_net(), ours(Local(lr=2.0, steps=1, clip=0.01))
    pairs = zip(net.parameters(), before.parameters(), strict=True)
    length = math.sqrt(sum(float((a - b).detach().double().square().sum()) for a, b in pairs))
    assert length == pytest.approx(0.02, rel=1e-3)


def test_the_edit_comes_before_the_clip():
    """A pull so strong that it alone decides the direction is clipped with the rest."""
    start = {name: tensor.detach() - 1 for name, tensor in small_net().named_parameters()}
    net, _ = ours(Local(lr=1.0, steps=1, clip=1.0), edits=(ProximalTerm(start, 1e6),))
    moved = [a - b for a, b in zip(net.parameters(), small_net().parameters(), strict=True)]
    assert math.sqrt(sum(float(m.detach().square().sum()) for m in moved)) == pytest.approx(1.0, rel=1e-3)
    assert all(bool((m < 0).all()) for m in moved)


def test_fit_tells_what_it_did():
    local = Local(lr=0.1, epochs=2, batch=10)
    _, told = ours(local)
    _, losses = theirs(local, lambda weights: torch.optim.SGD(weights, lr=0.1))
    assert (told.steps, told.samples, told.lr) == (6, 46, 0.1)
    assert told.loss == pytest.approx(sum(losses) / 6, abs=1e-6)
    assert told.last.tolist() == batch_rows(23, local, stream(0, "fit"))[-1].tolist()
    assert told.gradient is None


def test_the_mean_raw_gradient_is_of_all_steps_and_before_edits():
    """With a rate of zero every gradient is taken at the same weights."""
    local = Local(lr=0.0, epochs=1, batch=23)
    start = {name: tensor.detach() + 1 for name, tensor in small_net().named_parameters()}
    net, told = ours(local, want_gradient=True, edits=(ProximalTerm(start, 5.0),))
    nn.functional.cross_entropy(net(DATA.all()["x"]), DATA.all()["y"]).backward()
    for name, weight in net.named_parameters():
        assert torch.allclose(told.gradient[name], weight.grad, atol=1e-6)
    _, halves = ours(Local(lr=0.0, epochs=4, batch=23), want_gradient=True)
    for name, gradient in told.gradient.items():
        assert torch.allclose(halves.gradient[name], gradient, atol=1e-6)


def test_zero_steps_move_nothing_and_have_no_loss():
    for local in (Local(epochs=0), Local(steps=0)):
        net, told = ours(local, small_net(norm=True), want_gradient=True)
        assert apart(net, small_net(norm=True)) == 0
        assert (told.steps, told.samples, len(told.last)) == (0, 0, 0)
        assert math.isnan(told.loss)
        assert all(not gradient.any() for gradient in told.gradient.values())


def test_frozen_weights_stay():
    net = small_net()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    assert list(trainable_weights(net)) == ["0.bias", "3.weight", "3.bias"]
    ours(Local(lr=0.5), net)
    assert torch.equal(net[0].weight, before)
    assert not torch.equal(net[0].bias, small_net()[0].bias)


def test_a_weight_that_the_loss_does_not_reach_stays():
    @dataclass(frozen=True)
    class OnlyTheLast:
        def __call__(self, net, batch):
            return net[3].weight.square().sum()

    net = small_net()
    fit(net, Local(lr=0.1, steps=2), OnlyTheLast())
    assert torch.equal(net[0].weight, small_net()[0].weight)
    assert torch.allclose(net[3].weight, small_net()[3].weight * 0.8 * 0.8)


def test_training_switches_a_net_to_training():
    net = small_net(norm=True).eval()
    ours(Local(lr=0.1, steps=2), net)
    assert int(net[1].num_batches_tracked) == 2


# Rows


@pytest.mark.parametrize(("samples", "batch"), [(1, 4), (4, 4), (9, 4), (23, 5), (7, 100)])
def test_every_row_comes_once_per_epoch(samples, batch):
    drawn = batch_rows(samples, Local(epochs=3, batch=batch), stream(0, "r"))
    per_epoch = math.ceil(samples / batch)
    assert len(drawn) == 3 * per_epoch == Local(epochs=3, batch=batch).count(samples)
    for epoch in range(3):
        seen = torch.cat(drawn[epoch * per_epoch : (epoch + 1) * per_epoch])
        assert sorted(seen.tolist()) == list(range(samples))
    assert all(len(one) == batch for one in drawn if one is not drawn[-1]) or samples % batch


def test_epochs_are_shuffled_anew():
    first, second = batch_rows(50, Local(epochs=2, batch=50), stream(0, "r"))
    assert first.tolist() != second.tolist() != list(range(50))


def test_steps_are_exact_and_rows_come_again_only_when_they_ran_out():
    drawn = batch_rows(10, Local(steps=5, batch=4), stream(0, "r"))
    assert [len(one) for one in drawn] == [4, 4, 2, 4, 4]
    assert sorted(torch.cat(drawn[:3]).tolist()) == list(range(10))
    assert len(set(torch.cat(drawn[3:]).tolist())) == 8


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(9, [4, 4, 4, 4]), (8, [4, 4, 4, 4]), (5, [4, 4]), (4, [4, 4]), (3, [3, 3]), (1, [1, 1])],
)
def test_incomplete_batches_are_left_out_unless_a_client_has_no_other(samples, sizes):
    local = Local(epochs=2, batch=4, drop_last=True)
    drawn = batch_rows(samples, local, stream(0, "r"))
    assert [len(one) for one in drawn] == sizes
    assert len(drawn) == local.count(samples)
    kept = batch_rows(samples, Local(epochs=2, batch=4), stream(0, "r"))
    assert [one.tolist() for one in drawn] == [one.tolist() for one in kept if len(one) in (4, samples)]


def test_given_steps_are_done_without_incomplete_batches():
    drawn = batch_rows(10, Local(steps=5, batch=4, drop_last=True), stream(0, "r"))
    assert [len(one) for one in drawn] == [4, 4, 4, 4, 4]


def test_rows_follow_the_stream_alone():
    def drawn(seed):
        return [one.tolist() for one in batch_rows(30, Local(epochs=2), stream(seed, "r"))]

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_no_samples_give_no_rows():
    assert batch_rows(0, Local(epochs=3), stream(0, "r")) == []
    assert batch_rows(0, Local(steps=3), stream(0, "r")) == []
