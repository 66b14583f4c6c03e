"""The Gaussian mechanism: numbers that can be checked by hand, and the spread of many draws."""

import math

import pytest
import torch

from potluck.core import Model, Newborn, Reply, Task, stream
from potluck.learn import CLIP, WITHIN, GaussianMechanism, ServerClip
from potluck.models import ModelZoo, make_spec

SPEC = make_spec("mlp", input=(2,), classes=2, hidden=2, depth=1, norm="running")
ZOO = ModelZoo(SPEC)
RNG = stream(0, "nothing")


def zeros(**values):
    """A network of zeros but for these tensors, by the end of their name."""
    arrays = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in ZOO.shapes(SPEC).items()}
    for end, value in values.items():
        (name,) = [name for name in arrays if name.endswith(end.replace("__", "."))]
        arrays[name] = torch.tensor(value, dtype=arrays[name].dtype)
    return Model(SPEC, arrays)


def protected(mechanism, sent, came, rng=RNG, **more):
    task = Task("train", "c0", models={"model": sent})
    return mechanism(task, Reply({"model": came}, **more), ZOO, rng)


@pytest.mark.parametrize("clip", [1.0, 4.9])
def test_an_update_longer_than_the_clip_is_scaled_down_to_it(clip):
    found = GaussianMechanism(clip, 0.0).clip_and_blur(torch.tensor([3.0, 4.0, 0.0]).double(), RNG)
    assert found.tolist() == pytest.approx([0.6 * clip, 0.8 * clip, 0])


def test_a_short_update_stays_as_it_is():
    found = GaussianMechanism(6.0, 0.0).clip_and_blur(torch.tensor([3.0, 4.0, 0.0]).double(), RNG)
    assert found.tolist() == [3.0, 4.0, 0.0]


def test_the_length_is_that_of_all_trained_tensors_together():
    came = zeros(head__bias=[3.0, 0.0], stem__linear__weight=[[0.0, 4.0], [0.0, 0.0]])
    arrays = protected(GaussianMechanism(1.0, 0.0), zeros(), came).models["model"].arrays
    assert arrays["head.bias"].tolist() == pytest.approx([0.6, 0.0])
    assert arrays["stem.linear.weight"].tolist() == [[0.0, pytest.approx(0.8)], [0.0, 0.0]]


def test_an_update_is_what_is_new_less_what_was_sent():
    sent, came = zeros(head__bias=[10.0, 10.0]), zeros(head__bias=[13.0, 14.0])
    arrays = protected(GaussianMechanism(1.0, 0.0), sent, came).models["model"].arrays
    assert arrays["head.bias"].tolist() == pytest.approx([10.6, 10.8])


def test_noise_has_the_variance_that_was_asked_for_and_no_mean():
    drawn = GaussianMechanism(2.0, 1.5).clip_and_blur(torch.zeros(200_000, dtype=torch.float64), stream(1, "draws"))
    assert float(drawn.mean()) == pytest.approx(0.0, abs=4 * 3.0 / math.sqrt(200_000))
    assert float(drawn.var()) == pytest.approx(9.0, rel=0.02)


def test_every_trained_number_gets_noise_of_its_own_and_buffers_go_back_as_they_were_sent():
    came = zeros(stem__norm__running_mean=[5.0, 5.0], stem__norm__num_batches_tracked=7)
    arrays = (
        protected(GaussianMechanism(1.0, 1.0), zeros(stem__norm__running_mean=[2.0, 2.0]), came).models["model"].arrays
    )
    moved = torch.cat([arrays[name].flatten() for name in arrays if name not in ZOO.buffers(SPEC)])
    assert len(set(moved.tolist())) == len(moved)
    assert moved.dtype == torch.float32
    assert arrays["stem.norm.running_mean"].tolist() == [2.0, 2.0]
    assert all(not arrays[name].any() for name in ZOO.buffers(SPEC) - {"stem.norm.running_mean"})


def test_an_update_that_is_not_finite_counts_as_none():
    came = zeros(head__bias=[math.nan, 1.0])
    found, still = (protected(GaussianMechanism(1.0, 1.0), zeros(), model, stream(2, "x")) for model in (came, zeros()))
    same = zip(found.models["model"].arrays.values(), still.models["model"].arrays.values(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_what_was_trained_is_not_touched_where_it_lies():
    came = zeros(head__bias=[3.0, 4.0])
    protected(GaussianMechanism(1.0, 1.0), zeros(), came)
    assert came.arrays["head.bias"].tolist() == [3.0, 4.0]


def test_plain_values_that_tell_of_the_data_stay_behind():
    reply = protected(
        GaussianMechanism(1.0, 0.0), zeros(), zeros(), metrics={"loss": 0.5, "steps": 3, "labels": [1]}, weight=7.0
    )
    assert (reply.metrics, reply.weight) == ({"steps": 3}, 7.0)


def test_a_reply_without_a_model_is_let_through():
    assert GaussianMechanism(1.0, 1.0)(Task("merge", "c0"), Reply(metrics={"loss": 1.0}), ZOO, RNG).metrics == {}


def test_arrays_beside_models_and_models_from_nowhere_are_refused():
    with pytest.raises(PermissionError, match="'scores' is not part of one"):
        protected(GaussianMechanism(1.0, 1.0), zeros(), zeros(), arrays={"scores": torch.ones(2)})
    with pytest.raises(PermissionError, match="none was sent"):
        protected(GaussianMechanism(1.0, 1.0), Newborn(SPEC), zeros())
    short = Model(SPEC, {"head.bias": torch.zeros(3)})
    with pytest.raises(PermissionError, match="not sent in this shape"):
        protected(GaussianMechanism(1.0, 1.0), zeros(), short)


def summed(mechanism, sent, came, clip=1.0, **more):
    task = Task("train", "c0", models={"model": sent}, config={CLIP: clip})
    return mechanism(task, Reply({"model": came}, **more), ZOO, RNG)


def test_for_a_private_sum_an_update_is_only_clipped_and_by_the_clip_of_its_task():
    came = zeros(head__bias=[3.0, 0.0], stem__linear__weight=[[0.0, 4.0], [0.0, 0.0]])
    arrays = summed(ServerClip(9.0, 7.0), zeros(), came, 2.5).models["model"].arrays
    assert arrays["head.bias"].tolist() == pytest.approx([1.5, 0.0])
    assert arrays["stem.linear.weight"].tolist() == [[0.0, pytest.approx(2.0)], [0.0, 0.0]]
    short = summed(ServerClip(9.0, 7.0), zeros(), came, 6.0).models["model"].arrays
    assert short["head.bias"].tolist() == [3.0, 0.0]


def test_for_a_private_sum_no_count_and_no_plain_value_leaves():
    told = {"loss": 0.5, "steps": 3, "labels": [1]}
    reply = summed(ServerClip(1.0, 1.0), zeros(), zeros(), metrics=told, weight=7.0)
    assert (reply.metrics, reply.weight) == ({}, 1.0)


def test_under_an_adaptive_clip_a_reply_says_only_whether_it_was_within():
    longer, shorter = zeros(head__bias=[3.0, 4.0]), zeros(head__bias=[0.3, 0.4])
    mechanism = ServerClip(1.0, 1.0, adaptive=True)
    found = [
        summed(mechanism, zeros(), came, 1.0).metrics for came in (longer, shorter, zeros(head__bias=[math.nan, 0]))
    ]
    assert found == [{WITHIN: 0}, {WITHIN: 1}, {WITHIN: 0}]


@pytest.mark.parametrize("odd", [math.nan, math.inf, 1e30])
def test_for_a_private_sum_an_update_that_is_not_finite_counts_as_none(odd):
    came = zeros(head__bias=[odd, 1.0])
    arrays = summed(ServerClip(1.0, 1.0), zeros(), came).models["model"].arrays
    assert all(torch.isfinite(tensor).all() for tensor in arrays.values())
    assert float(arrays["head.bias"].double().norm()) <= 1.0
    assert bool(arrays["head.bias"].any()) == (odd == 1e30)


@pytest.mark.parametrize("clip", [1e-6, 1e-3, 0.1])
def test_rounding_never_makes_a_clipped_update_longer_than_its_clip(clip):
    """Weights of 100 round a short step to a coarse grid; one that does not fit is sent as none."""
    for seed in range(20):
        drawn = torch.randn(2, 2, generator=stream(seed, "step"))
        sent = zeros(head__bias=[100.0, -77.0], stem__linear__weight=[[100.0, 3.0], [-50.0, 0.1]])
        weight = sent.arrays["stem.linear.weight"] + drawn
        came = zeros(head__bias=[101.0, -77.0], stem__linear__weight=weight.tolist())
        arrays = summed(ServerClip(1.0, 1.0), sent, came, clip).models["model"].arrays
        steps = [arrays[name].double() - sent.arrays[name].double() for name in arrays if name not in ZOO.buffers(SPEC)]
        assert float(torch.cat([step.flatten() for step in steps]).norm()) <= clip


def test_a_model_that_is_not_for_a_sum_does_not_leave():
    with pytest.raises(PermissionError, match="lets only updates leave a device that are summed; 'model' is not"):
        protected(ServerClip(1.0, 1.0), zeros(), zeros())
    with pytest.raises(PermissionError, match="'rows' is not"):
        summed(ServerClip(1.0, 1.0), zeros(), zeros(), arrays={"rows": torch.ones(1)})
    assert ServerClip(1.0, 1.0)(Task("merge", "c0"), Reply(metrics={"loss": 1.0}), ZOO, RNG).metrics == {}
