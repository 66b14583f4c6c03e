"""Messages in arrays of bytes: the same format as bytes, read without a second copy."""

import json
import struct

import numpy as np
import pytest
import torch

from potluck.core import Limits, MessageError, Model, Newborn, Spec, Task, pack, pack_array, unpack, unpack_array

VALUE = {
    "task": Task("train", "c1", models={"model": Model(Spec("mlp"), {"w": torch.arange(6.0).view(2, 3)})}),
    "bits": torch.tensor([[True, False, True]]),
    "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "odd": [torch.tensor(7, dtype=torch.int8), torch.tensor([1, 2], dtype=torch.int64)],
    "newborn": Newborn(Spec("cnn")),
    "text": "ö",
}


def equal(found, wanted):
    assert torch.equal(found["task"].models["model"].arrays["w"], wanted["task"].models["model"].arrays["w"])
    for name in ("bits", "half", "none"):
        assert found[name].dtype == wanted[name].dtype
        assert torch.equal(found[name], wanted[name])
    assert [tensor.tolist() for tensor in found["odd"]] == [7, [1, 2]]
    assert isinstance(found["newborn"], Newborn)
    assert found["text"] == "ö"
    return True


@pytest.mark.parametrize("views", [False, True])
def test_an_array_comes_back_as_it_was_packed(views):
    assert equal(unpack_array(pack_array(VALUE), views=views), VALUE)


def test_an_array_is_a_message_that_can_be_read_as_bytes_and_the_other_way_round():
    assert equal(unpack(pack_array(VALUE).tobytes()), VALUE)
    assert equal(unpack_array(np.frombuffer(pack(VALUE), np.uint8)), VALUE)


def test_tensors_are_copies_unless_views_are_asked_for():
    array = pack_array({"w": torch.zeros(16)})
    array.setflags(write=False)
    copy, view = unpack_array(array)["w"], unpack_array(array, views=True)["w"]
    copy.fill_(1.0)
    assert unpack_array(array)["w"].sum() == 0
    assert view.data_ptr() % 64 == array.ctypes.data % 64
    assert array.ctypes.data <= view.data_ptr() < array.ctypes.data + len(array)


def test_a_tensor_that_occurs_twice_is_stored_once_if_asked_for():
    shared = torch.ones(1000)
    array = pack_array([shared, shared], once=True)
    assert len(array) < 5000
    first, second = unpack_array(array, shared=True)
    assert first is second


@pytest.mark.parametrize("cut", [0, 7, 15, 20, 200, -1])
def test_a_message_that_was_cut_short_is_refused(cut):
    with pytest.raises(MessageError):
        unpack_array(pack_array(VALUE)[:cut])


@pytest.mark.parametrize("offsets", [[0, 8], [-4, 8], [0, 10**9], "no", [0.0, 4.0]])
def test_a_tensor_that_lies_outside_is_refused(offsets):
    head = json.dumps({"w": {"$": "tensor", "at": "0"}}).encode()
    table = json.dumps({"0": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
    data = b"".join((b"potluck1", struct.pack("<Q", len(head)), head, struct.pack("<Q", len(table)), table, bytes(4)))
    with pytest.raises(MessageError, match="outside"):
        unpack_array(np.frombuffer(data, np.uint8))


def test_limits_hold_for_arrays_too():
    with pytest.raises(MessageError, match="at most 10 are read"):
        unpack_array(pack_array(VALUE), limits=Limits(bytes=10))
