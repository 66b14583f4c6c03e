"""Moss: transfers (WIRE), bilevel training of meta-networks, and fidelity (FILE), by hand-computed numbers."""

import warnings

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from potluck.core import Examples, Local, Newborn, Work, stream
from potluck.learn import CrossEntropy, FitJob, run_fit, trainable_weights
from potluck.methods.moss.bilevel import gradient_through_steps
from potluck.methods.moss.feature_matching import FeatureMatching, MetaNetworks
from potluck.methods.moss.fidelity import fidelity
from potluck.methods.moss.recalibrate import recalibrate
from potluck.methods.moss.taps import Tap, TappedNetwork, tap_names
from potluck.methods.moss.wire import TransferLoop, WireSettings, transfer_cost
from potluck.models import ModelZoo, make_spec


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks gain nothing by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_ms4_the_gradient_through_simulated_steps():
    def match(weights, meta):
        return meta["phi"] * (weights["theta"] - 1) ** 2

    def outer(weights, meta):
        return (weights["theta"] - 3) ** 2

    theta, phi = {"theta": torch.tensor(0.0)}, {"phi": torch.tensor(1.0)}
    value, grads = gradient_through_steps(theta, phi, [match, outer], 0.1, outer)
    assert value.item() == pytest.approx(5.0176)
    assert grads["phi"].item() == pytest.approx(-0.7168)
    assert theta["theta"].item() == 0.0  # as it was


def test_a_step_on_a_linear_loss_adds_nothing_to_the_gradient():
    """Gradients of a linear loss depend on nothing, so meta-weights have no gradient."""
    start, meta = {"theta": torch.tensor(2.0)}, {"phi": torch.tensor(1.0)}
    value, grads = gradient_through_steps(
        start, meta, [lambda weights, _: 3 * weights["theta"]], 0.1, lambda weights, _: weights["theta"] ** 2
    )
    assert value.item() == pytest.approx(1.7**2)
    assert grads["phi"].item() == 0.0


def test_transforms_start_as_least_squares_unless_the_settings_say_random():
    distances = {}
    for start in ("fitted", "random"):
        made = transfer(WireSettings(loss="location", epochs=1, batch=12, transforms=start, meta_lr=0.0))
        distances[start] = made.run(rows(), 0.0, stream(0)).loss
    assert distances["fitted"] < 0.7 * distances["random"]


def test_fidelity_is_the_cosine_of_logits():
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


def transfer(wire, update_statistics=True):
    """A teacher of three taps and a student of two, ready to start."""
    torch.manual_seed(0)
    teacher, student = conv(3, 4, 5), conv(2, 3)
    taps = [taps_of(net) for net in (teacher, student)]
    use_meta = wire.loss in ("full", "location")
    matching = (
        FeatureMatching(*taps, use_meta, wire.meta_layers, wire.loc_norm == "softmax") if wire.loss != "ce" else None
    )
    meta = MetaNetworks.initial(matching, stream(0, "meta"))
    return TransferLoop(teacher, student, matching, meta, wire, update_statistics)


def taps_of(net):
    names = tap_names(net, torch.zeros(2, 1, 6, 6))
    _, maps = TappedNetwork(net, names)(torch.zeros(2, 1, 6, 6))
    return tuple(Tap(name, *features.shape[1:]) for name, features in zip(names, maps, strict=True))


@pytest.mark.parametrize("layers", [1, 2])
def test_the_gradient_of_meta_networks_is_the_finite_difference(layers):
    """Through two steps on features and one on labels, of a network with batch norms, in double precision."""
    made = transfer(WireSettings(meta_layers=layers))
    made.teacher.net.double(), made.student.net.double()
    # Away from the start, where Deg does not depend on what it is shown.
    meta = {n: t.double() + 0.3 * torch.randn(t.shape, generator=stream(3, n)) for n, t in made.meta.weights.items()}
    weights = {name: weight.detach() for name, weight in made.student.net.named_parameters()}
    weights |= {f"transform/{name}": tensor.double() for name, tensor in made.meta.transforms.items()}
    batch = rows().all()
    made._set_modes()
    transfer_batch = made._transfer_batch({"x": batch["x"].double(), "y": batch["y"]})

    def features(weights, meta):
        return transfer_batch.loss("features", weights, meta)

    def labels(weights, meta):
        return transfer_batch.loss("labels", weights, meta)

    def outcome(meta):
        return gradient_through_steps(weights, meta, [features, features, labels], 0.3, labels)

    _, grads = outcome(meta)
    for group in ("loc.", "deg."):
        names = [name for name in meta if name.startswith(group)]
        way = {n: torch.randn(meta[n].shape, generator=stream(4, n), dtype=torch.float64) for n in names}
        there, back = (outcome({**meta, **{n: meta[n] + sign * 1e-5 * way[n] for n in names}})[0] for sign in (1, -1))
        along = sum((grads[name] * way[name]).sum().item() for name in names)
        assert along == pytest.approx(((there - back) / 2e-5).item(), rel=1e-5)
    assert max(grad.abs().max() for grad in grads.values()) > 1e-4


def test_simulated_steps_leave_the_student_where_its_own_step_took_it():
    """After the steps ahead the student is put back: only meta-networks learn from simulated steps."""
    results = []
    for meta_lr in (0.0, 0.5):
        made = transfer(WireSettings(lr=0.1, epochs=1, batch=12, meta_lr=meta_lr))
        start = {name: tensor.clone() for name, tensor in made.meta.weights.items()}
        made.run(rows(), 0.1, stream(0))
        moved = any(not torch.equal(start[name], tensor) for name, tensor in made.meta.weights.items())
        assert moved == (meta_lr > 0)
        results.append(made.student.net.state_dict())
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())


def test_meta_networks_may_train_less_often():
    """Three batches an epoch, six in all: after the first, third and fifth."""
    seldom = transfer(WireSettings(epochs=2, batch=4, ahead_every=2))
    told = seldom.run(rows(), 0.1, stream(0))
    assert (seldom.meta.step.item(), told.steps, told.samples, told.samples_ahead) == (3, 6, 24, 12)
    labels = transfer(WireSettings(epochs=2, batch=4, loss="ce"))
    assert labels.run(rows(), 0.1, stream(0)).samples_ahead == 0
    with pytest.raises(ValueError, match="ahead_every = 0 is below 1"):
        WireSettings(ahead_every=0)


def test_on_digits_bilevel_training_keeps_what_matters_and_joint_training_switches_it_off():
    """A CNN that has learned digits teaches LeNet a hundred rows."""
    digits = load_digits()
    whole = Examples(
        {"x": torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, "y": torch.tensor(digits.target)}
    )
    learned, public = whole.pick(torch.arange(800)), whole.pick(torch.arange(800, 900))
    wide, narrow = (make_spec(name, input=(1, 8, 8), classes=10) for name in ("cnn", "lenet"))
    zoo = ModelZoo(wide)
    teacher = zoo.build(Newborn(wide), stream(0))
    run_fit(FitJob(teacher, learned, Local(batch=32), 0.1, CrossEntropy(), (), stream(1), trainable_weights(teacher)))
    found = {}
    for train, norm in (("bilevel", "none"), ("joint", "none"), ("joint", "softmax")):
        wire = WireSettings(epochs=15, meta_lr=0.01, train=train, loc_norm=norm)
        matching, student = wire.matching(wide, narrow, zoo), zoo.build(Newborn(narrow), stream(2))
        transfer = TransferLoop(teacher, student, matching, MetaNetworks.initial(matching, stream(3)), wire, True)
        found[train, norm] = torch.tensor(transfer.run(public, 0.02, stream(4)).loc)
    assert {tuple(loc.shape) for loc in found.values()} == {(2, 2)}
    assert found["bilevel", "none"].mean() > 0.5
    assert found["joint", "none"].mean() < 0.1
    assert found["joint", "softmax"].sum().item() == pytest.approx(1.0)


def test_joint_training_without_a_norm_gives_a_warning():
    with pytest.warns(UserWarning, match="loc_norm"):
        WireSettings(train="joint").warn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WireSettings(train="joint", loc_norm="softmax").warn()
        WireSettings(train="joint", loss="mse").warn()
        WireSettings().warn()


def test_recalibration_takes_the_mean_of_the_batches_means_and_unbiased_variances():
    """Rows 0, 2, 4, 6, one batch: mean 3 and variance 20 / 3. In two batches, the mean of their means is 3 again."""
    rows = Examples({"x": torch.tensor([[0.0], [2.0], [4.0], [6.0]])})
    norm = nn.BatchNorm1d(1)
    norm.running_mean.fill_(50.0)
    assert recalibrate(norm, rows, 4, stream(0)) == 4
    assert (norm.running_mean.item(), norm.running_var.item()) == pytest.approx((3.0, 20 / 3))
    order = torch.randperm(4, generator=stream(1))
    assert recalibrate(norm, rows, 2, stream(1)) == 4
    one, other = (2.0 * pair.float() for pair in order.split(2))
    assert norm.running_mean.item() == pytest.approx(3.0)
    assert norm.running_var.item() == pytest.approx((one.var() + other.var()).item() / 2)
    assert norm.momentum == 0.1


@pytest.mark.parametrize(("count", "batch", "sizes"), [(5, 4, [3, 2]), (100, 32, [25] * 4), (3, 1, [3]), (1, 4, [])])
def test_batches_of_recalibration_are_of_nearly_equal_size_and_never_one_row_of_many(count, batch, sizes):
    """Each batch counts alike, so that a last batch of four rows would count as much as one of 32."""
    seen = []
    net = nn.Sequential(nn.BatchNorm2d(1))
    net.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    recalibrate(net, Examples({"x": torch.rand(count, 1, 2, 2)}), batch, stream(0))
    assert seen == sizes


def test_a_network_without_batch_norm_or_with_a_frozen_one_is_not_recalibrated():
    rng, frozen = stream(0), conv(2).eval()
    assert recalibrate(conv(2, norm=False), rows(), 4, rng) == 0
    assert recalibrate(frozen, rows(), 4, rng) == 0
    assert frozen[1].running_var.tolist() == [1.0, 1.0]
    assert torch.equal(torch.rand(1, generator=rng), torch.rand(1, generator=stream(0)))


def test_fidelity_is_taken_with_statistics_of_the_students_last_weights():
    """In evaluation mode a student that was just recalibrated says what it says in training mode."""
    made = transfer(WireSettings(lr=0.1, epochs=2, batch=12))
    found = made.run(rows(), 0.1, stream(0)).logits[1]
    made._set_modes()
    with torch.no_grad():
        trained, _ = made.student(rows().all()["x"])
    # Training mode divides by the biased variance, evaluation mode by the unbiased: one part in 108 or more.
    assert torch.allclose(found, trained, rtol=0.05, atol=0.02)


def test_without_a_step_statistics_stay():
    made = transfer(WireSettings(epochs=0))
    before = {name: tensor.clone() for name, tensor in made.student.net.named_buffers()}
    made.run(rows(), 0.1, stream(0))
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.student.net.named_buffers())


def test_a_clipped_step_is_as_long_as_the_rate_times_the_clip():
    """The gradient is longer than 0.01, so the step of student and transforms together is 0.1 * 0.01 long."""
    made = transfer(WireSettings(epochs=1, batch=12, momentum=0.0, clip=0.01, transforms="random"))
    weights = [*made.student.net.parameters(), *made.meta.transforms.values()]
    before = [weight.detach().clone() for weight in weights]
    made.run(rows(), 0.1, stream(0))
    step = torch.cat([(new.detach() - old).flatten() for new, old in zip(weights, before, strict=True)])
    assert step.norm().item() == pytest.approx(0.001, rel=1e-3)


def test_a_clipped_transfer_stays_finite_where_an_unclipped_one_blows_up():
    """Simulated steps are clipped as the student's own are; otherwise they would blow up the meta-networks."""
    for clip, finite in ((None, False), (1.0, True)):
        made = transfer(WireSettings(batch=12, beta=1e15, clip=clip))
        made.run(rows(), 1.0, stream(0))
        tensors = [*made.student.net.parameters(), *made.meta.snapshot().values()]
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors) == finite


def test_the_gradient_through_clipped_steps_is_the_finite_difference():
    """Where steps are clipped, where the bound is never reached, and without a bound."""

    def match(weights, meta):
        return meta["phi"] * (weights["a"] - 1) ** 2 + (weights["b"] + 2) ** 2

    def outer(weights, meta):
        return (weights["a"] - 3) ** 2 + (weights["b"] - 1) ** 2

    def outcome(phi, clip):
        start = {name: torch.tensor(0.0, dtype=torch.float64) for name in ("a", "b")}
        meta = {"phi": torch.tensor(phi, dtype=torch.float64)}
        return gradient_through_steps(start, meta, [match, outer], 0.1, outer, clip)

    for clip in (1.0, 1e6, None):
        (there, _), (back, _) = outcome(1.5 + 1e-5, clip), outcome(1.5 - 1e-5, clip)
        assert outcome(1.5, clip)[1]["phi"].item() == pytest.approx(((there - back) / 2e-5).item(), rel=1e-6)
    assert outcome(1.5, 1e6)[1]["phi"].item() == pytest.approx(outcome(1.5, None)[1]["phi"].item())


def test_running_statistics_are_updated_or_left_without_recalibration():
    for update in (True, False):
        made = transfer(WireSettings(epochs=1, recalibrate=False), update)
        made.run(rows(), 0.1, stream(0))
        moved = any(bool(buffer.abs().sum()) for name, buffer in made.student.net.named_buffers() if "mean" in name)
        assert moved == update


@pytest.mark.parametrize("loss", ["full", "location", "ce", "mse"])
def test_every_loss_trains_the_student_and_only_some_have_meta_networks(loss):
    made = transfer(WireSettings(loss=loss))
    before = {name: tensor.clone() for name, tensor in made.student.net.named_parameters()}
    done = made.run(rows(), 0.1, stream(0))
    moved = {name for name, tensor in made.student.net.named_parameters() if not torch.equal(tensor, before[name])}
    assert "0.weight" in moved
    assert ("8.weight" in moved) == (loss != "location")
    assert bool(made.meta.weights) == (loss in ("full", "location"))
    assert bool(made.meta.transforms) == (loss != "ce")
    assert done.steps == 5
    assert bool(done.loc) == (loss != "ce")


def test_a_full_batch_is_one_step_an_epoch_and_lone_rows_are_left_out():
    assert transfer(WireSettings(batch=4)).run(rows(12), 0.1, stream(0)).steps == 15
    assert transfer(WireSettings(batch=4, full_batch=True)).run(rows(12), 0.1, stream(0)).steps == 5
    assert transfer(WireSettings(batch=4)).run(rows(13), 0.1, stream(0)).steps == 15


def test_rows_without_labels_have_the_teachers_probabilities_or_its_predicted_class():
    def weight_after(target, labels):
        made = transfer(WireSettings(target=target, epochs=2))
        made.run(rows(12, labels), 0.1, stream(0))
        return made.student.net.state_dict()["0.weight"]

    assert torch.equal(weight_after("labels", False), weight_after("soft", True))
    assert torch.equal(weight_after("soft", False), weight_after("soft", True))
    assert torch.equal(weight_after("teacher", False), weight_after("teacher", True))
    assert not torch.equal(weight_after("labels", True), weight_after("teacher", True))
    assert not torch.equal(weight_after("soft", True), weight_after("teacher", True))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(36, 32), nn.Linear(32, 3)

    def forward(self, x):
        rows = torch.tanh(self.first(x.flatten(1))).view(-1, 1, 4, 8)
        return self.head(functional.scaled_dot_product_attention(rows, rows, rows).flatten(1))


def test_a_users_fused_attention_can_be_differentiated_twice():
    torch.manual_seed(0)
    teacher, student = Attending(), Attending()
    matching = FeatureMatching(taps_of(teacher), taps_of(student))
    meta = MetaNetworks.initial(matching, stream(0))
    loop = TransferLoop(teacher, student, matching, meta, WireSettings(epochs=1), True)
    assert loop.run(rows(), 0.1, stream(0)).steps == 1
    assert meta.step.item() == 1


def test_a_snapshot_holds_plain_tensors_and_loads_as_it_was():
    made = transfer(WireSettings())
    made.run(rows(), 0.1, stream(0))
    kept = made.meta.snapshot()
    assert {type(tensor) for tensor in kept.values()} == {torch.Tensor}
    assert not any(tensor.requires_grad for tensor in kept.values())
    assert kept["count"].item() == 5
    again = MetaNetworks.from_arrays(kept, torch.device("cpu")).snapshot()
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in kept.items())


def test_a_transfer_that_runs_again_starts_like_a_new_one():
    """Its optimiser is reset, and its meta-networks are those that it loads."""
    made = transfer(WireSettings(lr=0.1, momentum=0.9))
    given = transfer(WireSettings(), update_statistics=False).meta.snapshot()
    start = {name: tensor.clone() for name, tensor in made.student.net.state_dict().items()}
    results = []
    for lr in (0.1, 0.3, 0.1):
        made.student.net.load_state_dict(start)
        made.meta.load(given)
        told = made.run(rows(), lr, stream(0))
        found = {**made.meta.snapshot(), **made.student.net.state_dict()}
        results.append(({name: tensor.clone() for name, tensor in found.items()}, told.loss))
    (first, loss), (_, other), (again, same) = results
    assert loss == same != other
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())


def test_a_captured_transfer_gives_the_same_result():
    """Without a GPU a graph is a function on input tensors of its own: two sizes of batch, two calls."""
    results = []
    for captured in (True, False):
        made = transfer(WireSettings(lr=0.1, batch=5, ahead_every=2))
        for step in made.captured_steps:
            step.policy.wanted = captured
        losses = [made.run(rows(), 0.1, stream(at)).loss for at in range(2)]
        assert [sorted(step.graphs.made) for step in made.captured_steps] == (
            [[2, 5], [2, 5]] if captured else [[], []]
        )
        results.append((losses, {**made.meta.snapshot(), **made.student.net.state_dict()}))
    (mine, here), (other, there) = results
    assert mine == other
    assert all(torch.equal(tensor, there[name]) for name, tensor in here.items())


def test_steps_that_cannot_be_captured_run_as_they_are(monkeypatch):
    def refuses(*args):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr("potluck.learn.capture.CudaGraph", refuses)
    made = transfer(WireSettings(epochs=4, batch=12))
    made.captured_steps[True].policy.wanted = True
    with pytest.warns(UserWarning, match="not captured .* capturing$"):
        assert made.run(rows(), 0.1, stream(0)).steps == 4
    assert not made.captured_steps[True].policy.wanted


def test_the_gradient_through_groups_does_not_take_a_convolution_for_each():
    """Thirty-two groups, differentiated twice for each of three steps: torch alone takes more than a hundred."""
    torch.manual_seed(0)
    grouped = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU())
    nets = conv(3, 4), nn.Sequential(*grouped, nn.Flatten(), nn.Linear(128, 3))
    matching = FeatureMatching(*map(taps_of, nets))
    meta = MetaNetworks.initial(matching, stream(0))
    made = TransferLoop(*nets, matching, meta, WireSettings(epochs=1, batch=12), True)
    with torch.profiler.profile() as seen:
        made.run(rows(), 0.1, stream(0))
    assert 0 < sum(event.count for event in seen.key_averages() if event.key == "aten::convolution") < 100


def test_a_snapshot_does_not_change_when_the_transfer_runs_again():
    made = transfer(WireSettings(lr=0.1))
    made.run(rows(), 0.1, stream(0))
    kept = made.meta.snapshot()
    before = {name: tensor.clone() for name, tensor in kept.items()}
    made.run(rows(), 0.1, stream(1))
    assert all(torch.equal(tensor, kept[name]) for name, tensor in before.items())


def test_adam_is_pytorchs():
    start, grad = torch.randn(4, 3), torch.randn(5, 4, 3)
    weight = nn.Parameter(start.clone())
    theirs = torch.optim.Adam([weight], lr=0.1, weight_decay=0.01)
    ours = MetaNetworks({"w": start}, {}, {"w": torch.zeros(4, 3)}, {"w": torch.zeros(4, 3)})
    for each in grad:
        weight.grad = each
        theirs.step()
        ours.adam_step({"w": each}, 0.1, 0.01)
    assert torch.allclose(ours.weights["w"], weight, atol=1e-6)


def test_the_cost_of_a_transfer_by_hand():
    """The student's own step, three simulated ones, one at the end, and three times three on the way back."""
    teacher, student = Work(300, 120, 40, 100, 10), Work(60, 25, 8, 20, 2)
    matching = FeatureMatching((Tap("t", 2, 1, 1),), (Tap("s", 2, 1, 1),))
    # Loc: a linear layer of 2 inputs and one output; Deg: of two.
    assert (matching.flops(), matching.meta_flops()) == (8, 2 * 2 * (1 + 2))
    flops, memory = transfer_cost(WireSettings(), matching, teacher, student, 2, 6, 6)
    assert (flops, memory) == (3 * (14 * 60 + 120) + 6 * 3 * 8 * 9 + 6 * 12 * 7, 7 * 8 + 2 * 20 + 40)
    flops, _ = transfer_cost(WireSettings(), matching, teacher, student, 2, 6, 2)
    assert flops == 3 * 180 + 13 * 60 + (6 + 2 * 8) * 3 * 8 + (6 + 2 * 6) * 12
    joint, labels = WireSettings(train="joint"), WireSettings(loss="ce")
    assert transfer_cost(joint, matching, teacher, student, 2, 6, 0) == (3 * 180 + 6 * 24 + 6 * 12, 3 * 8 + 20 + 40)
    assert transfer_cost(labels, None, teacher, student, 2, 6, 0) == (3 * 180, 3 * 8 + 20 + 40)


def test_impossible_settings_are_refused():
    for name in ("beta", "steps_ahead", "meta_lr", "meta_decay"):
        with pytest.raises(ValueError, match=f"method.wire.{name} = -1 is below 0"):
            WireSettings(**{name: -1})
