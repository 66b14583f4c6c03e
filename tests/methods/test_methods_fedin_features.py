"""Lent features: the loss on the side, two gradients made one, and the bank, with numbers from paper and pencil."""

import pytest
import torch
from torch import nn

from potluck.core import Examples, Local, stream
from potluck.learn import CrossEntropy, FitJob, JointLoss, ProximalTerm, run_fit, trainable_weights
from potluck.methods.fedin.features import (
    LentFeatures,
    add_to_bank,
    body_features,
    body_shapes,
    draw_from_bank,
    feature_rows,
)
from potluck.methods.fedin.gradients import ProjectGradients, SumGradients
from potluck.models import ModelZoo, make_spec, register

DATA = Examples(
    {"x": torch.randn(24, 1, 8, 8, generator=stream(1, "x")), "y": torch.randint(0, 3, (24,), generator=stream(1, "y"))}
)
SPEC = make_spec("cnn", input=(1, 8, 8), classes=3, width=4, depth=2)
IN, OUT = torch.randn(6, 4, 8, 8, generator=stream(2, "in")), torch.randn(6, 4, generator=stream(2, "out"))


def small_net(spec=SPEC):
    return ModelZoo(spec).build(ModelZoo(spec).fresh(spec, stream(0, "net")))


def fit(net, local, loss, edits=()):
    """Local training of a network on all rows."""
    rng, weights = stream(0, "fit"), trainable_weights(net)
    return run_fit(FitJob(net, DATA, local, local.lr, loss, edits, rng, weights))


def apart(a, b, begin=""):
    """The largest difference between any two numbers of two networks, of tensors whose names begin so."""
    other = b.state_dict()
    return max(
        float((tensor.double() - other[name].double()).abs().max())
        for name, tensor in a.state_dict().items()
        if name.startswith(begin)
    )


def vectors(**named):
    return {name: torch.tensor(values) for name, values in named.items()}


# Two gradients


def test_the_projection_takes_out_what_points_against_the_main_gradient():
    main = vectors(m=[1.0, 0.0])
    assert ProjectGradients()(main, vectors(m=[-2.0, 1.0]))["m"].tolist() == [0, 1]
    assert ProjectGradients()(main, vectors(m=[2.0, 1.0]))["m"].tolist() == [2, 1]


def test_the_sum_is_no_projection():
    main = vectors(m=[1.0, 0.0])
    found = SumGradients()(main, vectors(m=[-2.0, 1.0]))["m"]
    assert found.tolist() == [-1.5, 1]
    assert torch.dot(found, main["m"]).item() == -1.5


@pytest.mark.parametrize("blend", [ProjectGradients(), ProjectGradients(together=True)])
def test_without_a_main_gradient_the_projection_is_the_lent_one(blend):
    assert blend(vectors(m=[0.0, 0.0]), vectors(m=[-2.0, 1.0]))["m"].tolist() == [-2, 1]


def test_projecting_all_tensors_as_one_asks_for_one_angle():
    """<main, aside> = -2 + 3 = 1 in all: nothing to take out, though 'a' alone points against."""
    main, aside = vectors(a=[1.0, 0.0], b=[0.0, 3.0]), vectors(a=[-2.0, 1.0], b=[5.0, 1.0])
    assert ProjectGradients(together=True)(main, aside)["a"].tolist() == [-2, 1]
    assert ProjectGradients()(main, aside)["a"].tolist() == [0, 1]
    # <main, aside> = -2 - 3 = -5, <main, main> = 10: half of the main gradient is added.
    against = vectors(a=[-2.0, 1.0], b=[5.0, -1.0])
    found = ProjectGradients(together=True)(main, against)
    assert (found["a"].tolist(), found["b"].tolist()) == ([-1.5, 1], [5, 0.5])


@pytest.mark.parametrize("seed", range(5))
def test_the_projection_is_the_nearest_that_does_not_point_against(seed):
    main, aside = torch.randn(2, 7, generator=stream(seed, "vectors")).double()
    found = ProjectGradients()({"m": main}, {"m": aside})["m"]
    assert torch.dot(found, main) >= -1e-12
    for step in torch.randn(200, 7, generator=stream(seed, "steps")).double() * 0.1:
        other = found + step
        if torch.dot(other, main) >= 0:
            assert (aside - other).norm() >= (aside - found).norm() - 1e-12


def test_weights_that_the_aside_does_not_reach_take_their_share_of_the_main_gradient():
    main, aside = vectors(m=[1.0], c=[4.0]), vectors(m=[3.0])
    assert SumGradients(0.5, 0.5)(main, aside)["c"].item() == 2
    assert SumGradients(0.5, 1.0)(main, aside)["c"].item() == 4
    assert SumGradients(0.25, 1.0)(main, aside)["m"].item() == 3.25
    assert ProjectGradients(rest=0.5)(main, aside)["c"].item() == 2


# The lent loss


class Same(nn.Module):
    """A network whose body changes nothing."""

    def __init__(self):
        super().__init__()
        self.body = nn.Identity()


def test_fi4_the_lent_loss_is_the_mean_squared_error_over_samples_and_entries():
    """(1 + 0 + 0 + 4) / 4."""
    lent = LentFeatures(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 2.0], [3.0, 2.0]]))
    assert lent(Same(), {}).item() == 1.25


def test_the_lent_loss_reaches_the_body_alone():
    net = small_net()
    found = torch.autograd.grad(LentFeatures(IN, OUT)(net.train(), {}), list(net.parameters()), allow_unused=True)
    reached = {name for (name, _), grad in zip(net.named_parameters(), found, strict=True) if grad is not None}
    assert reached == {name for name, _ in net.named_parameters() if name.startswith("body.")}


def test_lent_features_are_normalised_by_their_own_batch_and_leave_no_trace_unless_asked():
    net, before = small_net().train(), small_net()
    value = LentFeatures(IN, OUT)(net, {})
    assert apart(net, before) == 0
    assert torch.equal(value, LentFeatures(IN, OUT, gather=True)(net, {}))
    assert apart(net, before, "body.0.norm.running_mean") > 0
    assert apart(net, before, "stem.") == 0
    assert not torch.equal(value, LentFeatures(IN, OUT)(before.eval(), {}))


# Steps


def test_the_sum_descends_the_lent_loss_plus_half_the_local_one():
    """Equation 14 as one scalar, by autograd: l_IN + 1/2 (CE + mu/2 |w - x|^2)."""
    net, hand = small_net(), small_net().train()
    start = {name: tensor.detach() + 0.1 for name, tensor in hand.named_parameters()}
    loss = JointLoss(CrossEntropy(), LentFeatures(IN, OUT), "body.", SumGradients())
    local = Local(lr=0.3, steps=3, batch=24)
    told = fit(net, local, loss, (ProximalTerm(start, 0.1),))
    weights = trainable_weights(hand)
    for _ in range(3):
        own = CrossEntropy()(hand, DATA.all())
        prox = sum((weight - start[name]).square().sum() for name, weight in weights.items())
        total = LentFeatures(IN, OUT)(hand, {}) + 0.5 * (own + 0.05 * prox)
        grads = torch.autograd.grad(total, list(weights.values()))
        with torch.no_grad():
            for weight, grad in zip(weights.values(), grads, strict=True):
                weight.sub_(0.3 * grad)
    assert apart(net, hand) < 1e-5
    assert apart(net, small_net()) > 0.01
    assert told.loss < 2


@pytest.mark.parametrize("together", [False, True])
def test_the_projection_in_a_step_is_of_the_gradient_with_the_pull(together):
    net, hand = small_net(), small_net().train()
    start = {name: tensor.detach() + 0.5 for name, tensor in hand.named_parameters()}
    loss = JointLoss(CrossEntropy(), LentFeatures(IN, OUT), "body.", ProjectGradients(together, 1.0))
    fit(net, Local(lr=1.0, steps=1, batch=24), loss, (ProximalTerm(start, 3.0),))
    weights = trainable_weights(hand)
    own = torch.autograd.grad(CrossEntropy()(hand, DATA.all()), list(weights.values()))
    pulled = {name: g + 3.0 * (weights[name].detach() - start[name]) for name, g in zip(weights, own, strict=True)}
    inside = {name: weight for name, weight in weights.items() if name.startswith("body.")}
    lent = dict(zip(inside, torch.autograd.grad(LentFeatures(IN, OUT)(hand, {}), list(inside.values())), strict=True))
    expected = ProjectGradients(together, 1.0)(pulled, lent)
    for name, weight in weights.items():
        assert torch.allclose(trainable_weights(net)[name], weight - expected[name], atol=1e-5), name
    assert any(float((pulled[name] * lent[name]).sum()) < 0 for name in lent)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_apart_the_lent_loss_takes_a_step_of_its_own_after_the_local_one(optimiser):
    """Torch's own optimiser does the same: no gradient, no step; its counts are kept for every tensor."""
    net, hand = small_net(), small_net().train()
    local = Local(lr=0.05, steps=4, batch=24, optimiser=optimiser, momentum=0.9 if optimiser == "sgd" else 0.0)
    fit(net, local, JointLoss(CrossEntropy(), LentFeatures(IN, OUT), "body.", None))
    kind = torch.optim.Adam if optimiser == "adam" else lambda w, lr: torch.optim.SGD(w, lr=lr, momentum=0.9)
    theirs = kind(hand.parameters(), lr=0.05)
    for _ in range(4):
        for loss in (CrossEntropy(), LentFeatures(IN, OUT)):
            theirs.zero_grad(set_to_none=True)
            loss(hand, DATA.all()).backward()
            theirs.step()
    assert apart(net, hand) < 1e-4
    assert apart(net, small_net(), "body.") > 0.05


def test_gradients_of_both_losses_are_clipped_as_one_step():
    net = small_net()
    loss = JointLoss(CrossEntropy(), LentFeatures(IN, 9 * OUT), "body.", SumGradients())
    fit(net, Local(lr=1.0, steps=1, batch=24, clip=0.01), loss)
    moved = [a - b for a, b in zip(net.parameters(), small_net().parameters(), strict=True)]
    assert sum(float(m.detach().square().sum()) for m in moved) ** 0.5 == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("blend", [SumGradients(), ProjectGradients(), ProjectGradients(together=True)])
def test_no_blend_asks_a_tensor_for_its_number(blend):
    """Tensors on the meta device have none."""
    main, aside = ({"m": torch.zeros(3, device="meta"), "c": torch.zeros(2, device="meta")} for _ in range(2))
    found = blend(main, {"m": aside["m"]})
    assert {name: grad.shape for name, grad in found.items()} == {"m": (3,), "c": (2,)}


def test_a_joint_loss_is_never_taken_for_one():
    with pytest.raises(TypeError, match="a joint loss is two"):
        JointLoss(CrossEntropy(), LentFeatures(IN, OUT), "body.", SumGradients())(small_net(), DATA.all())


# What is lent


def test_features_are_what_enters_and_leaves_the_body_in_training_without_a_trace():
    net, twin = small_net(), small_net().train()
    entering, leaving = body_features(net, DATA.all()["x"])
    assert apart(net, small_net()) == 0
    with torch.no_grad():
        stem = twin.stem(DATA.all()["x"])
        assert torch.equal(entering, stem)
        assert torch.equal(leaving, twin.body(stem))
    assert not entering.requires_grad
    assert net.training


def test_features_do_not_depend_on_dropout():
    spec = make_spec("transformer", input=(5,), classes=7, hidden=8, ffn=8, heads=2, depth=1, dropout=0.5)
    net = small_net(spec)
    ids = torch.arange(10).reshape(2, 5) % 7
    first, second = body_features(net, ids), body_features(net, ids)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(layer.training for layer in net.modules())


def test_a_short_last_batch_is_filled_up_with_other_rows_of_the_client():
    rows = feature_rows(torch.tensor([7, 2]), 10, 6, stream(0, "rows")).tolist()
    assert rows[:2] == [7, 2]
    assert len(set(rows)) == 6
    assert set(rows) <= set(range(10))
    assert feature_rows(torch.tensor([7, 2, 5]), 10, 2, stream(0, "rows")).tolist() == [7, 2]
    few = feature_rows(torch.tensor([1]), 3, 7, stream(0, "rows")).tolist()
    assert few[0] == 1
    assert few[:3] == few[3:6]
    assert set(few) == {0, 1, 2}
    assert len(feature_rows(torch.zeros(0, dtype=torch.long), 3, 2, stream(0, "rows"))) == 2


@pytest.mark.parametrize(
    ("spec", "ends"),
    [
        (make_spec("resnet10", input=(3, 32, 32), classes=10, stem="stride4"), {"in": (64, 8, 8), "out": (512,)}),
        (make_spec("resnet14", input=(1, 28, 28), classes=10, stem="stride4"), {"in": (64, 7, 7), "out": (512,)}),
        (make_spec("preresnet18", input=(3, 8, 8), classes=10, width=4), {"in": (4, 8, 8), "out": (32,)}),
        (make_spec("mlp", input=(5,), classes=2, hidden=3), {"in": (3,), "out": (3,)}),
        (make_spec("lenet", input=(1, 28, 28), classes=10), {"in": (6, 14, 14), "out": (84,)}),
        (make_spec("bert", input=(6,), classes=2, vocab=9, hidden=4, ffn=4), {"in": (6, 4), "out": (6, 4)}),
    ],
    ids=lambda value: getattr(value, "family", ""),
)
def test_the_shapes_at_both_ends_of_the_body_of_any_family_that_is_stem_body_head(spec, ends):
    assert body_shapes(spec, ModelZoo(spec)) == ends


class Three(nn.Module):
    """Stem, body and head by name; `twist` does something between them."""

    def __init__(self, twist):
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3)
        self.twist = twist

    def forward(self, x):
        x = self.body(self.stem(x))
        return self.head(torch.relu(x) if self.twist else x)


def one_layer(classes=3):
    return nn.Sequential(nn.Linear(4, classes))


def test_ones_own_network_has_such_shapes_only_where_nothing_happens_between_its_three_parts():
    register("three-in-a-row", lambda twist=False: Three(twist))
    register("one-layer", one_layer)
    found = [
        body_shapes(spec, ModelZoo(spec))
        for spec in (
            make_spec("three-in-a-row", input=(4,), classes=3),
            make_spec("three-in-a-row", input=(4,), classes=3, twist=True),
            make_spec("one-layer", input=(4,), classes=3),
        )
    ]
    assert found == [{"in": (5,), "out": (6,)}, None, None]


# The bank


def pair(*values):
    return {"in": torch.tensor(values)[:, None], "out": 10 * torch.tensor(values)}


def test_the_bank_keeps_each_clients_newest():
    bank = add_to_bank({}, 0, {"b": pair(1.0, 2.0), "a": pair(3.0)})
    bank = add_to_bank(bank, 4, {"b": pair(5.0)})
    assert list(bank) == ["0 a", "4 b"]
    assert bank["4 b"]["in"].tolist() == [[5]]


def test_with_a_limit_the_bank_keeps_what_came_last_whoever_lent_it():
    bank = add_to_bank({}, 0, {"b": pair(1.0, 2.0), "a": pair(3.0, 4.0)}, 4)
    assert list(bank) == ["0 a", "0 b"]
    bank = add_to_bank(bank, 1, {"b": pair(5.0, 6.0)}, 4)
    assert list(bank) == ["0 b", "1 b"]
    assert add_to_bank(bank, 2, {"c": pair(7.0, 8.0)}, 1) == {}


def test_samples_are_drawn_once_each_and_stay_pairs():
    bank = add_to_bank({}, 0, {"a": pair(1.0, 2.0), "b": pair(3.0)})
    found = draw_from_bank(bank, 2, stream(0, "draw"))
    assert found["in"].shape == (2, 1)
    assert torch.equal(found["out"], 10 * found["in"][:, 0])
    assert sorted(draw_from_bank(bank, 9, stream(0, "draw"))["out"].tolist()) == [10, 20, 30]
    counts = torch.zeros(3)
    for seed in range(600):
        counts[int(draw_from_bank(bank, 1, stream(seed, "draw"))["in"].item()) - 1] += 1
    assert counts.min() > 160  # 200 each, within about three and a half deviations
    assert draw_from_bank({}, 2, stream(0, "draw")) == {}


def test_a_client_may_be_spared_what_it_lent_itself():
    bank = add_to_bank({}, 3, {"a b": pair(1.0, 2.0), "b": pair(3.0)})
    assert draw_from_bank(bank, 9, stream(0, "draw"), without="a b")["in"].tolist() == [[3]]
    assert draw_from_bank({"3 b": bank["3 b"]}, 9, stream(0, "draw"), without="b") == {}
