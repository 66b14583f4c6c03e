"""Captured trainers on a CPU: all of captured training but the capture itself. Values of the shapes methods use."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.core import Examples, Local, stream
from potluck.engines.cuda.engine import CHANGES, NetworkTrainers
from potluck.engines.cuda.trainer import CapturedTrainer, capture_key, replay
from potluck.learn import (
    CapturePolicy,
    CrossEntropy,
    FitJob,
    Frozen,
    JointLoss,
    MaskedCrossEntropy,
    ProximalTerm,
    Turns,
    run_fit,
    trainable_weights,
)
from potluck.methods.fedin.features import LentFeatures
from potluck.methods.fedin.gradients import SumGradients
from potluck.methods.moon import ContrastiveLoss
from potluck.methods.scaffold import DriftCorrection


class Chain(nn.Module):
    """Stem, body and head, with a running norm in between."""

    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 6), nn.Sequential(nn.BatchNorm1d(6), nn.ReLU()), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def chain(seed=0):
    net = Chain()
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(torch.randn(weight.shape, generator=stream(seed, "net")))
    return net


def rows(count=11, seed=0):
    x = torch.randn(40, 4, generator=stream(seed, "x"))
    return Examples({"x": x, "y": torch.arange(40) % 3}, torch.arange(count) * 3)


def like(net, seed):
    return {name: torch.randn(w.shape, generator=stream(seed, name)) for name, w in trainable_weights(net).items()}


LOCAL = Local(lr=0.1, epochs=3, batch=4)
WAYS = {
    "plain": lambda net, seed: (CrossEntropy(), ()),
    "masked": lambda net, seed: (MaskedCrossEntropy(torch.tensor([True, seed > 0, True])), ()),
    "a proximal term (FedProx)": lambda net, seed: (CrossEntropy(), (ProximalTerm(like(net, seed), 0.3),)),
    "a drift correction (SCAFFOLD)": lambda net, seed: (CrossEntropy(), (DriftCorrection(like(net, seed)),)),
    "two edits": lambda net, seed: (
        CrossEntropy(),
        (DriftCorrection(like(net, seed)), ProximalTerm(like(net, seed + 1), 0.3)),
    ),
    "lent features, blended (FedIN)": lambda net, seed: (
        JointLoss(CrossEntropy(), lent(seed), "body", SumGradients()),
        (),
    ),
    "lent features, a step apart": lambda net, seed: (JointLoss(CrossEntropy(), lent(seed), "body", None), ()),
    "frozen networks (MOON)": lambda net, seed: (ContrastiveLoss(CrossEntropy(), *FROZEN, 1.0, 0.5), ()),
    "turns": lambda net, seed: (Turns((CrossEntropy(), CrossEntropy("x", "y")), (0, 1, 1, 0, 1, 0, 0, 1, 1)), ()),
}
FROZEN = (Frozen(chain(8)), Frozen(chain(9)))


def lent(seed):
    return LentFeatures(
        torch.randn(5, 6, generator=stream(seed, "in")), torch.randn(5, 6, generator=stream(seed, "out")).relu()
    )


def job(net, way="plain", seed=0, examples=None, local=LOCAL, **more):
    loss, edits = WAYS[way](net, seed)
    data = rows(seed=seed) if examples is None else examples
    return FitJob(net, data, local, local.lr, loss, edits, stream(seed, "rows"), trainable_weights(net), **more)


def numbers(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def made_trainers(heard=None):
    return NetworkTrainers(None, CapturePolicy((heard if heard is not None else []).append))


def replayed(trainer, asked):
    trainer.load(asked)
    assert replay([trainer]) == {}
    return trainer.result(float(trainer.mean_loss()))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", WAYS)
def test_rounds_on_one_trainer_are_the_rounds_of_a_fit_each(way):
    """Three clients in turn on one network: what the first leaves behind does not reach the next."""
    net, other, trainers = chain(), chain(), made_trainers()
    for seed in range(3):
        for each in (net, other):
            each.load_state_dict(chain(seed).state_dict())
        trainer = trainers.find(job(net, way, seed), resident=False)
        captured, alone = replayed(trainer, job(net, way, seed)), run_fit(job(other, way, seed))
        assert same(numbers(net), numbers(other))
        assert captured.loss == alone.loss
        assert (captured.steps, captured.samples) == (alone.steps, alone.samples) == (9, 33)
        assert torch.equal(captured.last, alone.last)
    assert len(trainers._trainers) == 1
    assert {size for size, _ in trainer.graphs.made} == {4}


def test_every_turn_is_captured_as_soon_as_it_is_warm():
    net, trainers = chain(), made_trainers()
    trainer = trainers.find(job(net, "turns"), resident=False)
    replayed(trainer, job(net, "turns"))
    replayed(trainer, job(net, "turns"))
    assert set(trainer.graphs.made) == {(4, 0), (4, 1)}


def test_without_incomplete_batches_clients_of_unequal_size_share_one_captured_step():
    """Clients with 9 to 13 rows in batches of four."""
    net, trainers, local = chain(), made_trainers(), replace(LOCAL, drop_last=True)
    for seed in range(5):
        asked = job(net, seed=seed, examples=rows(9 + seed, seed=seed), local=local)
        trainer = trainers.find(asked, resident=False)
        trainer.load(asked)
        assert {len(batch) for batch in trainer.batches} == {4}
        assert replay([trainer]) == {}
    assert all(set(one.graphs.made) == {(4, 0)} for one in trainers._trainers.values())


def test_smaller_batches_are_captured_only_once_they_came_often():
    """Of three smaller batches a round, sixteen run as they are: the last in the sixth round."""
    net, other, trainers = chain(), chain(), made_trainers()
    sizes = []
    for seed in range(7):
        trainer = trainers.find(job(net, seed=seed), resident=False)
        replayed(trainer, job(net, seed=seed))
        run_fit(job(other, seed=seed))
        assert same(numbers(net), numbers(other))
        sizes.append({size for size, _ in trainer.graphs.made})
    assert sizes == [{4}] * 5 + [{4, 3}] * 2


@pytest.mark.parametrize(
    "local",
    [
        Local(lr=0.1, epochs=2, batch=4, momentum=0.9, weight_decay=0.01),
        Local(lr=0.01, epochs=2, batch=4, optimiser="adam"),
        Local(lr=0.1, epochs=2, batch=4, clip=0.1),
        Local(lr=0.1, steps=7, batch=4),
    ],
    ids=["momentum", "adam", "clip", "steps"],
)
def test_every_way_to_step_starts_afresh_each_round(local):
    net, other, trainers = chain(), chain(), made_trainers()
    for seed in range(3):
        trainer = trainers.find(job(net, seed=seed, local=local), resident=False)
        replayed(trainer, job(net, seed=seed, local=local))
        run_fit(job(other, seed=seed, local=local))
        assert same(numbers(net), numbers(other))


def test_a_schedule_moves_the_rate_on_the_same_trainer():
    net, other, trainers = chain(), chain(), made_trainers()
    for rate in (0.1, 0.03):
        local = Local(lr=rate, epochs=1, batch=4)
        replayed(trainers.find(job(net, local=local), resident=False), job(net, local=local))
        run_fit(job(other, local=local))
    assert same(numbers(net), numbers(other))
    assert len(trainers._trainers) == 1


def test_columns_that_stay_are_read_where_they_are_by_the_clients_own_rows():
    net, other, trainers, data = chain(), chain(), made_trainers(), rows()
    for seed, count in enumerate((11, 6, 11)):
        part = Examples(data.columns, torch.arange(count) + seed)
        trainer = trainers.find(job(net, seed=seed, examples=part), resident=True)
        assert trainer.examples.columns["x"] is data.columns["x"]
        replayed(trainer, job(net, seed=seed, examples=part))
        run_fit(job(other, seed=seed, examples=part))
        assert same(numbers(net), numbers(other))
    assert len(trainers._trainers) == 1


def test_more_rows_than_before_find_room():
    net, other, trainers, data = chain(), chain(), made_trainers(), rows()
    for count in (3, 40):
        part = Examples(data.columns, torch.arange(count))
        replayed(trainers.find(job(net, examples=part), resident=True), job(net, examples=part))
        run_fit(job(other, examples=part))
    assert same(numbers(net), numbers(other))


def test_the_mean_of_gradients_is_that_of_a_fit():
    net, other, trainers = chain(), chain(), made_trainers()
    for seed in range(2):
        asked = job(net, seed=seed, want_gradient=True)
        found = replayed(trainers.find(asked, resident=False), asked)
        assert same(found.gradient, run_fit(job(other, seed=seed, want_gradient=True)).gradient)


@dataclass(frozen=True)
class Nudge:
    """Moves inputs by what was drawn."""

    def draw(self, count, rng):
        return torch.randn(count, 4, generator=rng)

    def __call__(self, batch, drawn):
        return {**batch, "x": batch["x"] + drawn}


def test_augmented_batches_are_augmented_as_in_a_fit():
    net, other, trainers = chain(), chain(), made_trainers()
    data = Examples(rows().columns, torch.arange(11), augment=Nudge())
    for seed in range(2):
        replayed(trainers.find(job(net, seed=seed, examples=data), True), job(net, seed=seed, examples=data))
        run_fit(job(other, seed=seed, examples=data))
    assert same(numbers(net), numbers(other))


def noisy(seed):
    net = chain(seed)
    net.body.add_module("2", nn.Dropout(0.5))
    return net


def test_clients_side_by_side_have_each_its_own_noise_and_torchs_generator_stays():
    nets, others = ([noisy(seed) for seed in range(2)] for _ in range(2))
    trainers = []
    for seed, net in enumerate(nets):
        trainers.append(made_trainers().find(job(net, seed=seed, noise=seed + 7), False))
        trainers[-1].load(job(net, seed=seed, noise=seed + 7))
    before = torch.get_rng_state()
    assert replay(trainers) == {}
    assert torch.equal(torch.get_rng_state(), before)
    for seed, (net, other) in enumerate(zip(nets, others, strict=True)):
        run_fit(job(other, seed=seed, noise=seed + 7))
        assert same(numbers(net), numbers(other))
    quiet = noisy(0)
    run_fit(job(quiet, seed=0, noise=8))
    assert not same(numbers(quiet), numbers(nets[0]))


@dataclass(frozen=True)
class Cut:
    """Cuts inputs to what most rows need; the steady way keeps zeros that add nothing."""

    steady = None

    def __call__(self, batch):
        return {**batch, "x": functional.pad(batch["x"][:, :3], (0, 1))}


def test_batches_cut_to_a_length_of_their_own_are_taken_whole():
    net, other, columns = chain(), chain(), rows().columns
    data = Examples({**columns, "x": functional.pad(columns["x"][:, :3], (0, 1))}, torch.arange(11), Cut())
    trainer = made_trainers().find(job(net, examples=data), True)
    assert trainer.examples.prepare is None
    replayed(trainer, job(net, examples=data))
    run_fit(job(other, examples=data))
    assert same(numbers(net), numbers(other))


def test_capture_keys_tell_apart_what_is_another_operation_and_nothing_else():
    net = chain()
    plain = capture_key(job(net), False)
    assert plain == capture_key(job(net, seed=3), False)
    assert plain == capture_key(job(net, local=Local(lr=0.5, epochs=1, batch=8)), False)
    assert plain != capture_key(job(net, local=Local(lr=0.1, momentum=0.9)), False)
    assert plain != capture_key(job(net, "a proximal term (FedProx)"), False)
    assert plain != capture_key(job(net, want_gradient=True), False)
    assert plain != capture_key(job(net, precision="bf16"), False)
    weak, strong = (
        FitJob(net, rows(), LOCAL, 0.1, CrossEntropy(), (ProximalTerm({}, s),), None, {}) for s in (0.1, 0.2)
    )
    assert capture_key(weak, False) != capture_key(strong, False)


def test_a_loss_that_cannot_be_looked_into_is_not_captured():
    net = chain()
    hidden = FitJob(
        *(net, rows(), LOCAL, 0.1, lambda net, batch: functional.cross_entropy(net(batch["x"]), batch["y"])),
        *((), stream(0, "rows"), trainable_weights(net)),
    )
    with pytest.raises(TypeError, match="a function in a loss or edit may hold hidden numbers"):
        made_trainers().find(hidden, False)


def test_a_network_whose_losses_keep_changing_is_given_up_and_said_to_be():
    heard, net = [], chain()
    trainers = made_trainers(heard)
    for strength in range(CHANGES):
        edits = (ProximalTerm(like(net, 0), float(strength)),)
        other = FitJob(net, rows(), LOCAL, 0.1, CrossEntropy(), edits, stream(0, "rows"), trainable_weights(net))
        assert isinstance(trainers.find(other, False), CapturedTrainer)
    assert trainers.find(job(net), False) is None
    assert heard == ["its losses or edits are new again and again"]


def test_a_client_that_fails_does_not_stop_the_others():
    good, bad = chain(1), chain(2)
    broken = Examples({"x": torch.randn(11, 5), "y": torch.arange(11) % 3})
    trainers = []
    for net, data in ((good, rows()), (bad, broken)):
        trainers.append(made_trainers().find(job(net, examples=data), False))
        trainers[-1].load(job(net, examples=data))
    faults = replay(trainers)
    assert list(faults) == [trainers[1]]
    assert "shapes cannot be multiplied" in str(faults[trainers[1]])
    other = chain(1)
    run_fit(job(other))
    assert same(numbers(good), numbers(other))
