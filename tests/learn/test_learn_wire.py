"""WIRE: transfers, and how small networks are trained beside them, by the numbers of METHODS 14."""

import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from potluck.core import Examples, Local, Model, Work, stream
from potluck.learn import (
    CrossEntropy,
    FeatureMatching,
    Meta,
    Tap,
    TappedNetwork,
    Transfer,
    Wire,
    fidelity,
    fit,
    taps,
    through_steps,
)
from potluck.learn.teach import effort
from potluck.models import ModelZoo, make_spec


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks gain nothing by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ms4_the_gradient_through_simulated_steps():
    def match(weights, shaping):
        return shaping["phi"] * (weights["theta"] - 1) ** 2

    def outer(weights, shaping):
        return (weights["theta"] - 3) ** 2

    theta, phi = {"theta": torch.tensor(0.0)}, {"phi": torch.tensor(1.0)}
    value, grads = through_steps(theta, phi, [match, outer], 0.1, outer)
    assert value.item() == pytest.approx(5.0176)
    assert grads["phi"].item() == pytest.approx(-0.7168)
    assert theta["theta"].item() == 0.0  # as it was


def test_a_step_down_what_nothing_bends_has_no_say():
    """Gradients of a linear loss depend on nothing, so that what might have shaped it learns nothing."""
    start, shaping = {"theta": torch.tensor(2.0)}, {"phi": torch.tensor(1.0)}
    value, grads = through_steps(
        start, shaping, [lambda weights, _: 3 * weights["theta"]], 0.1, lambda weights, _: weights["theta"] ** 2
    )
    assert value.item() == pytest.approx(1.7**2)
    assert grads["phi"].item() == 0.0


def test_transforms_start_where_they_fit_best_unless_told_otherwise():
    distances = {}
    for start in ("fitted", "random"):
        made = transfer(Wire(loss="location", epochs=1, batch=12, transforms=start, meta_lr=0.0))
        distances[start] = made.run(rows(), 0.0, stream(0)).loss
    assert distances["fitted"] < 0.7 * distances["random"]


def test_fidelity_is_the_cosine_of_scores():
    across, same = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert fidelity(across, same).item() == 0.5
    assert fidelity(same, 3 * same).item() == 1.0
    assert fidelity(same, -same).item() == 0.0
    rows, other = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    assert fidelity(rows, other).item() == 0.5
    assert fidelity(rows, other, flat=True).item() == pytest.approx((2 / 20**0.5 + 1) / 2)


def conv(*widths, norm=True):
    """A network of smooth convolutions, so that differences are finite, with norms that have statistics."""
    layers, before = [], 1
    for at, width in enumerate(widths):
        layers += [nn.Conv2d(before, width, 3, stride=1 + (at > 0), padding=1)]
        layers += [nn.BatchNorm2d(width)] if norm else []
        layers, before = [*layers, nn.Tanh()], width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 3))


def rows(count=12, labels=True):
    x = torch.randn(count, 1, 6, 6, generator=stream(5))
    return Examples({"x": x, **({"y": torch.arange(count) % 3} if labels else {})})


def transfer(wire, gather=True):
    """A teacher of three taps and a student of two, ready to start."""
    torch.manual_seed(0)
    teacher, student = conv(3, 4, 5), conv(2, 3)
    ends = [ends_of(net) for net in (teacher, student)]
    learned = wire.loss in ("full", "location")
    bridge = (
        FeatureMatching(*ends, learned, wire.meta_layers, wire.loc_norm == "softmax") if wire.loss != "ce" else None
    )
    return Transfer(teacher, student, bridge, Meta.newborn(bridge, stream(0, "meta")), wire, gather)


def ends_of(net):
    names = taps(net, torch.zeros(2, 1, 6, 6))
    with TappedNetwork(net, names) as watched:
        maps = watched(torch.zeros(2, 1, 6, 6))[1]
    return tuple(Tap(name, *found.shape[1:]) for name, found in zip(names, maps, strict=True))


@pytest.mark.parametrize("layers", [1, 2])
def test_the_gradient_of_small_networks_is_the_difference_they_make(layers):
    """Through two steps down features and one down labels of a network with batch norms, in double precision."""
    made = transfer(Wire(meta_layers=layers))
    made.teacher.net.double(), made.student.net.double()
    # Away from the start, where Deg does not depend on what it is shown.
    small = {n: t.double() + 0.3 * torch.randn(t.shape, generator=stream(3, n)) for n, t in made.meta.small.items()}
    weights = {name: weight.detach() for name, weight in made.student.net.named_parameters()}
    weights |= {f"transform/{name}": tensor.double() for name, tensor in made.meta.transforms.items()}
    batch = rows().all()
    with made.teacher, made.student:
        made._wake()
        scene = made._scene({"x": batch["x"].double(), "y": batch["y"]})

        def features(weights, small):
            return scene.loss("features", weights, small)

        def labels(weights, small):
            return scene.loss("labels", weights, small)

        def outcome(small):
            return through_steps(weights, small, [features, features, labels], 0.3, labels)

        _, grads = outcome(small)
        for group in ("loc.", "deg."):
            names = [name for name in small if name.startswith(group)]
            way = {n: torch.randn(small[n].shape, generator=stream(4, n), dtype=torch.float64) for n in names}
            there, back = (
                outcome({**small, **{n: small[n] + sign * 1e-5 * way[n] for n in names}})[0] for sign in (1, -1)
            )
            along = sum((grads[name] * way[name]).sum().item() for name in names)
            assert along == pytest.approx(((there - back) / 2e-5).item(), rel=1e-5)
    assert max(grad.abs().max() for grad in grads.values()) > 1e-4


def test_looking_ahead_leaves_the_student_where_its_step_took_it():
    """MS-4, step five: only small networks learn from simulated steps."""
    results = []
    for meta_lr in (0.0, 0.5):
        made = transfer(Wire(lr=0.1, epochs=1, batch=12, meta_lr=meta_lr))
        start = {name: tensor.clone() for name, tensor in made.meta.small.items()}
        made.run(rows(), 0.1, stream(0))
        moved = any(not torch.equal(start[name], tensor) for name, tensor in made.meta.small.items())
        assert moved == (meta_lr > 0)
        results.append(made.student.net.state_dict())
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


def test_small_networks_may_look_ahead_less_often():
    """Three batches an epoch, six in all: after the first, third and fifth."""
    seldom = transfer(Wire(epochs=2, batch=4, ahead_every=2))
    told = seldom.run(rows(), 0.1, stream(0))
    assert (seldom.meta.count.item(), told.steps, told.samples, told.ahead) == (3, 6, 24, 12)
    labels = transfer(Wire(epochs=2, batch=4, loss="ce"))
    assert labels.run(rows(), 0.1, stream(0)).ahead == 0
    with pytest.raises(ValueError, match="ahead_every = 0 is below 1"):
        Wire(ahead_every=0)


def test_on_digits_bilevel_training_keeps_what_matters_and_joint_training_switches_it_off():
    """A CNN that has learned digits teaches LeNet a hundred rows."""
    digits = load_digits()
    whole = Examples(
        {"x": torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, "y": torch.tensor(digits.target)}
    )
    learned, public = whole.pick(torch.arange(800)), whole.pick(torch.arange(800, 900))
    wide, small = (make_spec(name, input=(1, 8, 8), classes=10) for name in ("cnn", "lenet"))
    zoo = ModelZoo(wide)
    teacher = zoo.build(Model(wide), stream(0))
    fit(teacher, learned, Local(batch=32), 0.1, CrossEntropy(), rng=stream(1))
    found = {}
    for train, norm in (("bilevel", "none"), ("joint", "none"), ("joint", "softmax")):
        wire = Wire(epochs=15, meta_lr=0.01, train=train, loc_norm=norm)
        bridge, student = wire.bridge(wide, small, zoo), zoo.build(Model(small), stream(2))
        transfer = Transfer(teacher, student, bridge, Meta.newborn(bridge, stream(3)), wire, True)
        found[train, norm] = torch.tensor(transfer.run(public, 0.02, stream(4)).loc)
    assert {tuple(loc.shape) for loc in found.values()} == {(2, 2)}
    assert found["bilevel", "none"].mean() > 0.5
    assert found["joint", "none"].mean() < 0.1
    assert found["joint", "softmax"].sum().item() == pytest.approx(1.0)


def test_joint_training_without_a_norm_is_warned_of():
    with pytest.warns(UserWarning, match="loc_norm"):
        Wire(train="joint").warn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Wire(train="joint", loc_norm="softmax").warn()
        Wire(train="joint", loss="mse").warn()
        Wire().warn()


def test_running_statistics_are_gathered_or_left():
    for gather in (True, False):
        made = transfer(Wire(epochs=1), gather)
        made.run(rows(), 0.1, stream(0))
        moved = any(bool(buffer.abs().sum()) for name, buffer in made.student.net.named_buffers() if "mean" in name)
        assert moved == gather


@pytest.mark.parametrize("loss", ["full", "location", "ce", "mse"])
def test_every_loss_teaches_and_only_some_have_small_networks(loss):
    made = transfer(Wire(loss=loss))
    before = {name: tensor.clone() for name, tensor in made.student.net.named_parameters()}
    done = made.run(rows(), 0.1, stream(0))
    moved = {name for name, tensor in made.student.net.named_parameters() if not torch.equal(tensor, before[name])}
    assert "0.weight" in moved
    assert ("8.weight" in moved) == (loss != "location")
    assert bool(made.meta.small) == (loss in ("full", "location"))
    assert bool(made.meta.transforms) == (loss != "ce")
    assert done.steps == 5
    assert bool(done.loc) == (loss != "ce")


def test_a_full_batch_is_one_step_an_epoch_and_lone_rows_are_left_out():
    assert transfer(Wire(batch=4)).run(rows(12), 0.1, stream(0)).steps == 15
    assert transfer(Wire(batch=4, full_batch=True)).run(rows(12), 0.1, stream(0)).steps == 5
    assert transfer(Wire(batch=4)).run(rows(13), 0.1, stream(0)).steps == 15


def test_rows_without_labels_have_the_teachers_answers_or_its_choice():
    def taught(target, labels):
        made = transfer(Wire(target=target, epochs=2))
        made.run(rows(12, labels), 0.1, stream(0))
        return made.student.net.state_dict()["0.weight"]

    assert torch.equal(taught("labels", False), taught("soft", True))
    assert torch.equal(taught("soft", False), taught("soft", True))
    assert torch.equal(taught("teacher", False), taught("teacher", True))
    assert not torch.equal(taught("labels", True), taught("teacher", True))
    assert not torch.equal(taught("soft", True), taught("teacher", True))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(36, 32), nn.Linear(32, 3)

    def forward(self, x):
        rows = torch.tanh(self.first(x.flatten(1))).view(-1, 1, 4, 8)
        return self.head(functional.scaled_dot_product_attention(rows, rows, rows).flatten(1))


def test_a_users_fused_attention_can_be_looked_through():
    torch.manual_seed(0)
    teacher, student = Attending(), Attending()
    bridge = FeatureMatching(ends_of(teacher), ends_of(student))
    meta = Meta.newborn(bridge, stream(0))
    assert Transfer(teacher, student, bridge, meta, Wire(epochs=1), True).run(rows(), 0.1, stream(0)).steps == 1
    assert meta.count.item() == 1


def test_what_is_kept_between_calls_is_plain_and_comes_back_as_it_was():
    made = transfer(Wire())
    made.run(rows(), 0.1, stream(0))
    kept = made.meta.rest()
    assert {type(tensor) for tensor in kept.values()} == {torch.Tensor}
    assert not any(tensor.requires_grad for tensor in kept.values())
    assert kept["count"].item() == 5
    again = Meta.of(kept, torch.device("cpu")).rest()
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in kept.items())


def test_a_transfer_that_is_used_again_is_as_good_as_new():
    """Its optimiser forgets, and what it learned about transferring is what it is given."""
    made, given = transfer(Wire(lr=0.1, momentum=0.9)), transfer(Wire(), gather=False).meta.rest()
    start = {name: tensor.clone() for name, tensor in made.student.net.state_dict().items()}
    results = []
    for lr in (0.1, 0.3, 0.1):
        made.student.net.load_state_dict(start)
        made.meta.fill(given)
        told = made.run(rows(), lr, stream(0))
        found = {**made.meta.rest(), **made.student.net.state_dict()}
        results.append(({name: tensor.clone() for name, tensor in found.items()}, told.loss))
    (first, loss), (_, other), (again, same) = results
    assert loss == same != other
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def test_a_transfer_on_tape_is_the_same_transfer():
    """Without a GPU a tape is its work remembered, on rows at a place of their own: two sizes of batch, two calls."""
    results = []
    for taped in (True, False):
        made = transfer(Wire(lr=0.1, batch=5, ahead_every=2))
        for reel in made.reels:
            reel.recordings.wanted = taped
        losses = [made.run(rows(), 0.1, stream(at)).loss for at in range(2)]
        assert [sorted(reel.tapes.made) for reel in made.reels] == ([[2, 5], [2, 5]] if taped else [[], []])
        results.append((losses, {**made.meta.rest(), **made.student.net.state_dict()}))
    (mine, here), (other, there) = results
    assert mine == other
    assert all(torch.equal(tensor, there[name]) for name, tensor in here.items())


def test_work_that_cannot_be_recorded_is_done_as_it_is(monkeypatch):
    def refuses(*args):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("potluck.learn.capture.Tape", refuses)
    made = transfer(Wire(epochs=4, batch=12))
    made.reels[True].recordings.wanted = True
    with pytest.warns(UserWarning, match="not recorded .* capturing$"):
        assert made.run(rows(), 0.1, stream(0)).steps == 4
    assert not made.reels[True].recordings.wanted


def test_looking_ahead_through_groups_does_not_take_a_convolution_for_each():
    """Thirty-two groups, differentiated twice for each of three steps: torch alone takes more than a hundred."""
    torch.manual_seed(0)
    grouped = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU())
    nets = conv(3, 4), nn.Sequential(*grouped, nn.Flatten(), nn.Linear(128, 3))
    bridge = FeatureMatching(*map(ends_of, nets))
    made = Transfer(*nets, bridge, Meta.newborn(bridge, stream(0)), Wire(epochs=1, batch=12), True)
    with torch.profiler.profile() as seen:
        made.run(rows(), 0.1, stream(0))
    assert 0 < sum(event.count for event in seen.key_averages() if event.key == "aten::convolution") < 100


def test_what_a_transfer_gave_does_not_change_when_it_is_used_again():
    made = transfer(Wire(lr=0.1))
    made.run(rows(), 0.1, stream(0))
    kept = made.meta.rest()
    before = {name: tensor.clone() for name, tensor in kept.items()}
    made.run(rows(), 0.1, stream(1))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in before.items())


def test_adam_is_torchs():
    start, grad = torch.randn(4, 3), torch.randn(5, 4, 3)
    weight = nn.Parameter(start.clone())
    theirs = torch.optim.Adam([weight], lr=0.1, weight_decay=0.01)
    ours = Meta({"w": start}, {}, {"w": torch.zeros(4, 3)}, {"w": torch.zeros(4, 3)})
    for each in grad:
        weight.grad = each
        theirs.step()
        ours.learn({"w": each}, 0.1, 0.01)
    assert torch.allclose(ours.small["w"], weight, atol=1e-6)


def test_work_by_hand():
    """Three states ahead: a step that counts, three, one at the end, and three times three back."""
    teacher, student = Work(300, 40, 100, 10), Work(60, 8, 20, 2)
    bridge = FeatureMatching((Tap("t", 2, 1, 1),), (Tap("s", 2, 1, 1),))
    assert bridge.flops() == 8
    assert effort(Wire(), bridge, teacher, student, 2, 6, 6) == (
        3 * (14 * 60 + 100) + 6 * 3 * 8 * 9,
        7 * 8 + 2 * 20 + 40,
    )
    assert effort(Wire(), bridge, teacher, student, 2, 6, 2)[0] == 3 * 160 + 13 * 60 + (6 + 2 * 8) * 3 * 8
    assert effort(Wire(train="joint"), bridge, teacher, student, 2, 6, 0) == (3 * 160 + 6 * 24, 3 * 8 + 20 + 40)
    assert effort(Wire(loss="ce"), None, teacher, student, 2, 6, 0) == (3 * 160, 3 * 8 + 20 + 40)


def test_impossible_settings_are_refused():
    for name in ("beta", "steps_ahead", "meta_lr", "meta_decay"):
        with pytest.raises(ValueError, match=f"method.wire.{name} = -1 is below 0"):
            Wire(**{name: -1})
