"""Tracks on a CPU: all of recorded training but the recording itself. Values of the shapes that methods use."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional

from potluck.core import Examples, Local, stream
from potluck.engines.cuda.engine import CHANGES, Slot
from potluck.engines.cuda.trainer import CapturedTrainer, play, recipe
from potluck.learn import (
    CapturePolicy,
    ContrastiveLoss,
    CrossEntropy,
    FitJob,
    Frozen,
    Joint,
    Lent,
    MaskedCrossEntropy,
    ProximalTerm,
    Shift,
    Sum,
    Turns,
    weights_of,
)


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
    return {name: torch.randn(w.shape, generator=stream(seed, name)) for name, w in weights_of(net).items()}


LOCAL = Local(lr=0.1, epochs=3, batch=4)
WAYS = {
    "plain": lambda net, seed: (CrossEntropy(), ()),
    "masked": lambda net, seed: (MaskedCrossEntropy(torch.tensor([True, seed > 0, True])), ()),
    "a pull (FedProx)": lambda net, seed: (CrossEntropy(), (ProximalTerm(like(net, seed), 0.3),)),
    "a shift (SCAFFOLD)": lambda net, seed: (CrossEntropy(), (Shift(like(net, seed)),)),
    "two edits": lambda net, seed: (CrossEntropy(), (Shift(like(net, seed)), ProximalTerm(like(net, seed + 1), 0.3))),
    "lent features, blended (FedIN)": lambda net, seed: (Joint(CrossEntropy(), lent(seed), "body", Sum()), ()),
    "lent features, a step apart": lambda net, seed: (Joint(CrossEntropy(), lent(seed), "body", None), ()),
    "frozen networks (MOON)": lambda net, seed: (ContrastiveLoss(CrossEntropy(), *FROZEN, 1.0, 0.5), ()),
    "turns": lambda net, seed: (Turns((CrossEntropy(), CrossEntropy("x", "y")), (0, 1, 1, 0, 1, 0, 0, 1, 1)), ()),
}
FROZEN = (Frozen(chain(8)), Frozen(chain(9)))


def lent(seed):
    return Lent(
        torch.randn(5, 6, generator=stream(seed, "in")), torch.randn(5, 6, generator=stream(seed, "out")).relu()
    )


def job(net, way="plain", seed=0, examples=None, local=LOCAL, **more):
    loss, edits = WAYS[way](net, seed)
    data = rows(seed=seed) if examples is None else examples
    return FitJob(None, net, weights_of(net), data, local, local.lr, loss, edits, stream(seed, "rows"), **more)


def numbers(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def slot(heard=None):
    return Slot(None, CapturePolicy((heard if heard is not None else []).append))


def played(track, wished):
    track.load(wished)
    assert play([track]) == {}
    return track.fit(float(track.mean()))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", WAYS)
def test_rounds_on_one_track_are_the_rounds_of_a_fit_each(way):
    """Three clients in turn on one network: what the first leaves behind does not reach the next."""
    net, other, kept = chain(), chain(), slot()
    for seed in range(3):
        for each in (net, other):
            each.load_state_dict(chain(seed).state_dict())
        track = kept.track(job(net, way, seed), resident=False)
        recorded, alone = played(track, job(net, way, seed)), job(other, way, seed).granted()
        assert same(numbers(net), numbers(other))
        assert recorded.loss == alone.loss
        assert (recorded.steps, recorded.samples) == (alone.steps, alone.samples) == (9, 33)
        assert torch.equal(recorded.last, alone.last)
    assert len(kept._tracks) == 1
    assert {size for size, _ in track.tapes.made} == {4}


def test_every_turn_is_recorded_as_soon_as_it_is_warm():
    net, kept = chain(), slot()
    track = kept.track(job(net, "turns"), resident=False)
    played(track, job(net, "turns"))
    played(track, job(net, "turns"))
    assert set(track.tapes.made) == {(4, 0), (4, 1)}


def test_smaller_batches_are_recorded_only_once_they_came_often():
    """Of three smaller batches a round, sixteen run as they are: the last in the sixth round."""
    net, other, kept = chain(), chain(), slot()
    sizes = []
    for seed in range(7):
        track = kept.track(job(net, seed=seed), resident=False)
        played(track, job(net, seed=seed))
        job(other, seed=seed).granted()
        assert same(numbers(net), numbers(other))
        sizes.append({size for size, _ in track.tapes.made})
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
    net, other, kept = chain(), chain(), slot()
    for seed in range(3):
        track = kept.track(job(net, seed=seed, local=local), resident=False)
        played(track, job(net, seed=seed, local=local))
        job(other, seed=seed, local=local).granted()
        assert same(numbers(net), numbers(other))


def test_a_schedule_moves_the_rate_on_the_same_track():
    net, other, kept = chain(), chain(), slot()
    for rate in (0.1, 0.03):
        local = Local(lr=rate, epochs=1, batch=4)
        played(kept.track(job(net, local=local), resident=False), job(net, local=local))
        job(other, local=local).granted()
    assert same(numbers(net), numbers(other))
    assert len(kept._tracks) == 1


def test_columns_that_stay_are_read_where_they_are_by_the_clients_own_rows():
    net, other, kept, data = chain(), chain(), slot(), rows()
    for seed, count in enumerate((11, 6, 11)):
        part = Examples(data.columns, torch.arange(count) + seed)
        track = kept.track(job(net, seed=seed, examples=part), resident=True)
        assert track.examples.columns["x"] is data.columns["x"]
        played(track, job(net, seed=seed, examples=part))
        job(other, seed=seed, examples=part).granted()
        assert same(numbers(net), numbers(other))
    assert len(kept._tracks) == 1


def test_more_rows_than_before_find_room():
    net, other, kept, data = chain(), chain(), slot(), rows()
    for count in (3, 40):
        part = Examples(data.columns, torch.arange(count))
        played(kept.track(job(net, examples=part), resident=True), job(net, examples=part))
        job(other, examples=part).granted()
    assert same(numbers(net), numbers(other))


def test_the_mean_of_gradients_is_that_of_a_fit():
    net, other, kept = chain(), chain(), slot()
    for seed in range(2):
        wished = job(net, seed=seed, want_gradient=True)
        found = played(kept.track(wished, resident=False), wished)
        assert same(found.gradient, job(other, seed=seed, want_gradient=True).granted().gradient)


@dataclass(frozen=True)
class Nudge:
    """Moves inputs by what was drawn."""

    def draw(self, count, rng):
        return torch.randn(count, 4, generator=rng)

    def __call__(self, batch, drawn):
        return {**batch, "x": batch["x"] + drawn}


def test_varied_batches_are_varied_as_in_a_fit():
    net, other, kept = chain(), chain(), slot()
    data = Examples(rows().columns, torch.arange(11), augment=Nudge())
    for seed in range(2):
        played(kept.track(job(net, seed=seed, examples=data), True), job(net, seed=seed, examples=data))
        job(other, seed=seed, examples=data).granted()
    assert same(numbers(net), numbers(other))


def noisy(seed):
    net = chain(seed)
    net.body.add_module("2", nn.Dropout(0.5))
    return net


def test_clients_side_by_side_have_each_its_own_noise_and_torchs_generator_stays():
    nets, others = ([noisy(seed) for seed in range(2)] for _ in range(2))
    tracks = []
    for seed, net in enumerate(nets):
        tracks.append(slot().track(job(net, seed=seed, noise=seed + 7), False))
        tracks[-1].load(job(net, seed=seed, noise=seed + 7))
    before = torch.get_rng_state()
    assert play(tracks) == {}
    assert torch.equal(torch.get_rng_state(), before)
    for seed, (net, other) in enumerate(zip(nets, others, strict=True)):
        job(other, seed=seed, noise=seed + 7).granted()
        assert same(numbers(net), numbers(other))
    quiet = noisy(0)
    job(quiet, seed=0, noise=8).granted()
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
    track = slot().track(job(net, examples=data), True)
    assert track.examples.prepare is None
    played(track, job(net, examples=data))
    job(other, examples=data).granted()
    assert same(numbers(net), numbers(other))


def test_recipes_tell_apart_what_is_another_operation_and_nothing_else():
    net = chain()
    plain = recipe(job(net), False)
    assert plain == recipe(job(net, seed=3), False)
    assert plain == recipe(job(net, local=Local(lr=0.5, epochs=1, batch=8)), False)
    assert plain != recipe(job(net, local=Local(lr=0.1, momentum=0.9)), False)
    assert plain != recipe(job(net, "a pull (FedProx)"), False)
    assert plain != recipe(job(net, want_gradient=True), False)
    assert plain != recipe(job(net, precision="bf16"), False)
    weak, strong = (
        FitJob(None, net, {}, rows(), LOCAL, 0.1, CrossEntropy(), (ProximalTerm({}, s),), None) for s in (0.1, 0.2)
    )
    assert recipe(weak, False) != recipe(strong, False)


def test_a_loss_that_cannot_be_looked_into_is_not_recorded():
    net = chain()
    hidden = FitJob(
        *(None, net, weights_of(net), rows(), LOCAL, 0.1),
        *(lambda net, batch: functional.cross_entropy(net(batch["x"]), batch["y"]), (), stream(0, "rows")),
    )
    with pytest.raises(TypeError, match="a function is no value"):
        slot().track(hidden, False)


def test_a_network_whose_losses_keep_changing_is_given_up_and_said_to_be():
    heard, net = [], chain()
    kept = slot(heard)
    for strength in range(CHANGES):
        edits = (ProximalTerm(like(net, 0), float(strength)),)
        other = FitJob(None, net, weights_of(net), rows(), LOCAL, 0.1, CrossEntropy(), edits, stream(0, "rows"))
        assert isinstance(kept.track(other, False), CapturedTrainer)
    assert kept.track(job(net), False) is None
    assert heard == ["its losses or edits are new again and again"]


def test_a_client_that_fails_does_not_stop_the_others():
    good, bad = chain(1), chain(2)
    broken = Examples({"x": torch.randn(11, 5), "y": torch.arange(11) % 3})
    tracks = []
    for net, data in ((good, rows()), (bad, broken)):
        tracks.append(slot().track(job(net, examples=data), False))
        tracks[-1].load(job(net, examples=data))
    faults = play(tracks)
    assert list(faults) == [tracks[1]]
    assert "shapes cannot be multiplied" in str(faults[tracks[1]])
    other = chain(1)
    job(other).granted()
    assert same(numbers(good), numbers(other))
