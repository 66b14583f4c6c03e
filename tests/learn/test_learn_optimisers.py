"""Optimisers: fused steps and plain ones, fresh and started afresh."""

import pytest
import torch

from potluck.core import Local, stream
from potluck.learn.optimisers import make_fused_optimiser, make_optimiser

LOCALS = {
    "sgd": Local(lr=0.1),
    "momentum": Local(lr=0.1, momentum=0.9, weight_decay=0.05),
    "adam": Local(lr=0.01, optimiser="adam", weight_decay=0.05),
}


def fused(local, lr):
    return make_fused_optimiser(local, lr, torch.device("cpu"))


def some(seed):
    return [torch.randn(shape, generator=stream(seed, "tensors")) for shape in ((3, 4), (5,), (2, 3, 2, 2))]


def walked(step, steps=5, transposed=False):
    weights = some(0)
    for number in range(steps):
        grads = some(number + 1)
        if transposed:
            grads = [grad.mT.contiguous().mT if grad.dim() > 1 else grad for grad in grads]
        step(weights, grads)
    return weights


def close(one, other):
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(one, other, strict=True))


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", LOCALS)
def test_a_fused_step_is_the_plain_one(name):
    local = LOCALS[name]
    assert close(walked(fused(local, local.lr)), walked(make_optimiser(local, local.lr)))


@pytest.mark.parametrize("name", LOCALS)
def test_a_fused_step_goes_by_index_not_by_memory(name):
    local = LOCALS[name]
    assert equal(walked(fused(local, local.lr), transposed=True), walked(fused(local, local.lr)))


@pytest.mark.parametrize("make", [fused, make_optimiser], ids=["fused", "plain"])
@pytest.mark.parametrize("name", LOCALS)
def test_an_optimiser_that_starts_afresh_is_a_fresh_one(name, make):
    local = LOCALS[name]
    used = make(local, 0.5)
    walked(used)
    used.reset(0.02)
    assert equal(walked(used), walked(make(local, 0.02)))


def test_one_step_of_sgd_by_hand():
    weights = [torch.tensor([1.0, 2.0])]
    fused(Local(lr=0.5), 0.5)(weights, [torch.tensor([2.0, -2.0])])
    assert weights[0].tolist() == [0.0, 3.0]
