"""Noise from a secret stream: its distribution, that it never repeats, and how much of the key it depends on."""

import math
import os

import numpy as np
import pytest
import torch

from potluck.core import SecretNoise, normal, stream
from potluck.core.noise import KEY_BYTES, PIECE

MANY = 400_000


def far_from_normal(drawn):
    """The Kolmogorov-Smirnov statistic against the standard normal distribution, times the root of the count."""
    ordered = np.sort(drawn)
    below = torch.special.ndtr(torch.from_numpy(ordered)).numpy()
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return max(np.abs(below - steps[:-1]).max(), np.abs(below - steps[1:]).max()) * math.sqrt(len(ordered))


def test_numbers_are_normal_and_independent():
    """Above 1.95 in one of a thousand samples; the key is fixed, so that it is the same sample every time."""
    drawn = SecretNoise(bytes(range(32))).normal((MANY,)).numpy()
    assert far_from_normal(drawn) < 1.95
    assert far_from_normal(1.01 * drawn) > 1.95
    assert drawn.var() == pytest.approx(1.0, abs=0.01)
    assert (drawn**4).mean() == pytest.approx(3.0, abs=0.1)
    for apart in (1, 2, PIECE, MANY // 2):
        assert np.corrcoef(drawn[apart:], drawn[:-apart])[0, 1] == pytest.approx(0, abs=0.01)
        assert np.corrcoef(drawn[apart:] ** 2, drawn[:-apart] ** 2)[0, 1] == pytest.approx(0, abs=0.01)


def test_no_number_comes_twice_in_one_stream_or_in_two():
    """Two of 800,000 numbers of 53 bits are equal by chance in one of 28,000 samples."""
    one, other = SecretNoise(bytes(32)), SecretNoise(bytes(31) + b"\x01")
    drawn = torch.cat([one.normal((MANY // 2,)), one.normal((MANY // 2,)), other.normal((MANY,))])
    assert len(np.unique(drawn.numpy())) == 2 * MANY


@pytest.mark.parametrize("byte", range(KEY_BYTES))
def test_every_byte_of_the_key_counts(byte):
    """torch's generator forgets all but 32 bits of its seed."""
    low, high = (torch.Generator().manual_seed(5 + far * 2**32) for far in (0, 1))
    assert torch.equal(torch.randn(8, generator=low), torch.randn(8, generator=high))
    key = bytes(byte) + b"\x80" + bytes(KEY_BYTES - 1 - byte)
    assert not torch.equal(SecretNoise(key).normal((8,)), SecretNoise(bytes(KEY_BYTES)).normal((8,)))


def test_a_key_is_new_and_from_the_operating_system(monkeypatch):
    assert len({SecretNoise().key for _ in range(100)}) == 100
    asked = []
    monkeypatch.setattr(os, "urandom", lambda count: asked.append(count) or b"\x07" * count)
    assert SecretNoise().key == b"\x07" * 32
    assert asked == [32]


def test_the_same_key_gives_the_same_numbers_in_the_same_order():
    one, other = SecretNoise(b"k" * 32), SecretNoise(b"k" * 32)
    for shape in ((3, 5), (), (0,), (2 * PIECE + 3,)):
        first = one.normal(shape)
        assert first.shape == shape
        assert first.dtype == torch.float64
        assert torch.equal(first, other.normal(shape))


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ValueError, match="a key of 8 bytes; it must have 32"):
        SecretNoise(bytes(8))


def test_a_simulation_draws_from_torch():
    want = torch.randn((2, 3), generator=stream(1, "x"), dtype=torch.float64)
    assert torch.equal(normal((2, 3), stream(1, "x")), want)
