"""Shared memory: what one side writes, the other finds."""

import os

import pytest
import torch

from potluck.engines.pool.shared_memory import SharedMemoryBuffer


@pytest.fixture
def sides():
    handle = SharedMemoryBuffer.make()
    one, other = SharedMemoryBuffer(handle), SharedMemoryBuffer(os.dup(handle))
    yield one, other
    one.close()
    other.close()


EVERY = {
    "floats": torch.tensor([[1.5, -2.0], [0.0, float("inf")]]),
    "doubles": torch.tensor([1e-300], dtype=torch.float64),
    "brains": torch.tensor([1.0, 3.0], dtype=torch.bfloat16),
    "counts": torch.tensor(7),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "none": torch.empty(0, 3),
}


@pytest.mark.parametrize("way", ["view", "copy"])
def test_what_is_written_on_one_side_is_found_on_the_other(sides, way):
    one, other = sides
    found = getattr(other, way)(one.write(EVERY))
    assert list(found) == list(EVERY)
    for name, tensor in EVERY.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def test_a_buffer_grows_with_what_is_written_to_it(sides):
    one, other = sides
    for count in (10, 100_000, 20):
        assert torch.equal(other.copy(one.write({"x": torch.arange(count)}))["x"], torch.arange(count))


def test_what_was_copied_stays_when_the_buffer_is_written_anew(sides):
    one, other = sides
    kept = other.copy(one.write({"x": torch.zeros(3)}))
    one.write({"x": torch.ones(3)})
    assert kept["x"].tolist() == [0, 0, 0]


def test_a_change_to_what_is_viewed_is_seen_by_nobody_else(sides):
    one, other = sides
    table = one.write({"x": torch.zeros(3)})
    other.view(table)["x"].fill_(9)
    assert other.view(table)["x"].tolist() == [0, 0, 0]
    assert one.copy(table)["x"].tolist() == [0, 0, 0]


def test_an_empty_message_needs_no_memory(sides):
    one, other = sides
    assert other.view(one.write({})) == other.copy(one.write({})) == {}
