"""The message format: what goes in comes out, and bytes that lie are refused before they cost anything."""

import contextlib
import json
import math
import os
import pickle
import resource
import struct
import time
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.core import (
    STORED,
    Cost,
    Expected,
    FrozenDict,
    Limits,
    MessageError,
    Model,
    Newborn,
    Reply,
    Spec,
    Task,
    detach_all,
    join_tensors,
    pack,
    split_tensors,
    unpack,
)
from potluck.core.message import MAGIC

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
SPEC = Spec("mlp", (1, 2), {"hidden": 3}, {"classes": 2, "input": [1, 8, 8], "norm": "none", "scaler": 1.0})


def task():
    return Task(
        "train",
        "c3",
        "second",
        7,
        models={"model": Model(SPEC, {"w": torch.tensor([[1.5, -0.0]])}), "born": Newborn(SPEC)},
        arrays={"mask": torch.tensor([True, False, True])},
        config={"lr": 0.1, "names": ["a", "b"], "deep": {"none": None, "yes": True}},
        memory=4,
    )


def reply():
    cost = Cost(10, 20, 30, 40, 0.5)
    model = Model(SPEC, {"w": torch.ones(2)})
    return Reply({"model": model}, {"g": torch.zeros(3)}, 2.5, {"loss": 0.25}, Task("train", "c3"), cost)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def message(head, body):
    """A message of our layout around any head and any safetensors header."""
    text = json.dumps(head).encode()
    inner = json.dumps(body).encode()
    return MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<Q", len(inner)) + inner


# What goes in comes out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (9,), (2, 3), (2, 1, 8, 5)])
def test_a_tensor_of_any_kind_and_shape_survives(dtype, shape):
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50).abs().to(dtype)
    assert same_bits(unpack(pack(tensor)), tensor)


@pytest.mark.parametrize("dtype", FLOATS)
def test_odd_floats_keep_their_bits(dtype):
    tensor = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-7], dtype=dtype)
    assert same_bits(unpack(pack(tensor)), tensor)


@pytest.mark.parametrize("count", range(18))
def test_truth_values_travel_eight_to_a_byte(count):
    tensor = torch.tensor([number % 3 == 0 for number in range(count)], dtype=torch.bool)
    data = pack(tensor)
    assert same_bits(unpack(data), tensor)
    (length,) = struct.unpack("<Q", data[8:16])
    (inner,) = struct.unpack("<Q", data[16 + length : 24 + length])
    assert len(data) - 24 - length - inner == (count + 7) // 8


def test_the_first_truth_value_is_the_highest_bit():
    assert pack(torch.tensor([True, False, False, True, False, False, True, False])).endswith(bytes([0b10010010]))


def test_views_that_are_not_contiguous_survive():
    base = torch.arange(24.0).reshape(4, 6)
    views = {"turned": base.t(), "strided": base[::2, 1::2], "spread": torch.ones(1).expand(5), "flags": (base > 9).t()}
    back = unpack(pack(views))
    assert all(torch.equal(back[name], view) for name, view in views.items())


def test_tensors_that_share_storage_come_back_apart():
    base = torch.arange(4.0)
    back = unpack(pack({"a": base, "b": base, "half": base[:2]}))
    back["a"].zero_()
    assert back["b"].tolist() == [0, 1, 2, 3]
    assert back["half"].tolist() == [0, 1]


def test_a_tensor_that_is_being_trained_is_sent_as_numbers():
    back = unpack(pack(torch.nn.Parameter(torch.ones(2))))
    assert type(back) is torch.Tensor
    assert not back.requires_grad


def test_a_task_survives():
    sent, back = task(), unpack(pack(task()))
    assert type(back) is Task
    assert back.address == sent.address == (7, "train", "c3", "second")
    assert back.memory == 4
    assert back.config == {"lr": 0.1, "names": ["a", "b"], "deep": {"none": None, "yes": True}}
    assert back.models["model"].spec == SPEC
    assert hash(back.models["model"].spec) == hash(SPEC)
    assert type(back.models["born"]) is Newborn
    assert back.models["born"].spec == SPEC
    assert same_bits(back.models["model"].arrays["w"], torch.tensor([[1.5, -0.0]]))
    assert same_bits(back.arrays["mask"], torch.tensor([True, False, True]))


def test_a_reply_survives_with_its_task_and_cost():
    back = unpack(pack(reply()))
    assert type(back) is Reply
    assert (back.weight, back.metrics) == (2.5, {"loss": 0.25})
    assert back.cost == Cost(10, 20, 30, 40, 0.5)
    assert back.task.address == (0, "train", "c3", "")
    assert back.models["model"].arrays["w"].tolist() == [1, 1]
    assert back.arrays["g"].tolist() == [0, 0, 0]


TRIPS = {
    "bytes": lambda value: unpack(pack(value)),
    "parts": lambda value: join_tensors(*split_tensors(value)),
    "in place": detach_all,
}
"""Ways that a value goes: over the wire, to a worker through shared memory, into a client's memory."""


@pytest.mark.parametrize("trip", TRIPS)
def test_a_newborn_comes_back_as_a_newborn_and_a_model_as_a_model(trip):
    """A model whose tensors are none is still no newborn: the device must not initialise it."""
    sent = {"born": Newborn(SPEC), "empty": Model(SPEC, {}), "full": Model(SPEC, {"w": torch.ones(2)})}
    back = TRIPS[trip]({"deep": [sent]})["deep"][0]
    assert {name: type(model) for name, model in back.items()} == {"born": Newborn, "empty": Model, "full": Model}
    assert all(model.spec == SPEC for model in back.values())
    assert [len(model.arrays) for model in back.values()] == [0, 0, 1]
    assert back["full"].arrays["w"].tolist() == [1, 1]


@pytest.mark.parametrize("trip", TRIPS)
def test_what_a_task_expects_stays_on_the_server(trip):
    """It is for the gate alone, and a client need not know it: no byte of it is sent, and none comes back."""
    expected = Expected({"expected model": {"expected tensor": ((2, 3), torch.float32)}}, {})
    sent = Task("train", "c1", expects=expected)
    assert TRIPS[trip](sent).expects == Expected()
    assert TRIPS[trip](Reply(task=sent)).task.expects == Expected()
    assert pack(sent) == pack(Task("train", "c1"))
    assert b"expect" not in pack({"task": sent, "reply": Reply(task=sent)})


@pytest.mark.parametrize("value", [SPEC, Spec("none"), Spec("a", 3), Cost(), Cost(1, 2, 3, 4, 5.5)])
def test_specs_and_costs_survive(value):
    back = unpack(pack(value))
    assert type(back) is type(value)
    assert back == value


@pytest.mark.parametrize(
    "value",
    [None, True, False, 0, -3, 2**80, 0.1, -0.0, "", "naïve ☃", [], [1, [2, [None]]], {}, {"": {"a": []}}],
)
def test_plain_values_survive_as_they_were(value):
    back = unpack(pack(value))
    assert back == value
    assert type(back) is type(value)


def test_tuples_come_back_as_lists_and_frozen_dicts_as_dicts():
    assert unpack(pack({"t": (1, 2), "b": FrozenDict(x=1)})) == {"t": [1, 2], "b": {"x": 1}}


@pytest.mark.parametrize("name", ["tensor", "map", "task", "model", "", None, 3])
def test_a_mapping_with_the_key_dollar_is_a_mapping(name):
    value = {"$": name, "items": {"$": "spec", "at": "0"}, "deep": [{"$": {"$": 1}}]}
    assert unpack(pack(value)) == value


numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
keys = st.text(max_size=4) | st.sampled_from(["$", "at", "items"])
values = st.recursive(numbers, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4))


@given(values)
@settings(deadline=None)
def test_any_nesting_of_plain_values_survives(value):
    assert unpack(pack(value)) == value


# What cannot go in


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_tensors_do_not_pack(dtype):
    with pytest.raises(TypeError, match="complex"):
        pack({"w": torch.zeros(2, dtype=dtype)})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", lambda: 0, torch.float32, {"deep": [object()]}])
def test_objects_do_not_pack(value):
    with pytest.raises(TypeError, match="cannot cross the wire"):
        pack(value)


def test_an_array_of_objects_does_not_pack():
    import numpy as np

    with pytest.raises(TypeError, match="ndarray cannot cross the wire"):
        pack(np.array([object()], dtype=object))


def test_a_mapping_with_numbers_for_keys_does_not_pack():
    with pytest.raises(TypeError, match="text keys"):
        pack({1: 2})


# Bytes that lie


SMALL = pack(Task("train", "c1", models={"m": Model(Spec("a"), {"w": torch.ones(2)})}, arrays={"b": torch.ones(9) > 0}))


@pytest.mark.parametrize("value", [None, {"a": 1}, SMALL, pack(reply())])
def test_a_message_cut_off_at_any_byte_is_refused(value):
    whole = value if isinstance(value, bytes) else pack(value)
    for length in range(len(whole)):
        with pytest.raises(MessageError):
            unpack(whole[:length])
    assert unpack(whole) is None or unpack(whole)


def test_a_message_with_bytes_left_over_is_refused():
    for more in (b"\0", b"potluck1", SMALL):
        with pytest.raises(MessageError):
            unpack(SMALL + more)


def test_any_single_flipped_bit_is_refused_or_harmless():
    """Every bit of a small message: a refusal or some value, never another exception."""
    for place in range(len(SMALL) * 8):
        data = bytearray(SMALL)
        data[place // 8] ^= 1 << place % 8
        try:
            unpack(bytes(data))
        except MessageError:
            continue


def test_a_flipped_bit_among_the_numbers_changes_nothing_but_a_number():
    for place in range((len(SMALL) - 10) * 8, len(SMALL) * 8):
        data = bytearray(SMALL)
        data[place // 8] ^= 1 << place % 8
        back = unpack(bytes(data))
        assert type(back) is Task
        assert back.models["m"].arrays["w"].shape == (2,)
        assert back.arrays["b"].shape == (9,)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_many_damaged_bytes_are_refused_or_harmless(draw):
    data = bytearray(SMALL)
    for _ in range(draw.draw(st.integers(1, 8))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        unpack(bytes(data))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_noise_is_refused(noise):
    with pytest.raises(MessageError):
        unpack(noise)
    with pytest.raises(MessageError):
        unpack(MAGIC + noise)


json_values = st.recursive(
    st.none() | st.integers() | st.floats() | st.sampled_from(["tensor", "model", "spec", "task", "0", "bits", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["$", "at", "bits", "items", "spec", "arrays", "family", "depth", "sizes", "verb", "to"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
@settings(deadline=None, max_examples=300)
def test_heads_that_make_no_sense_are_refused_or_harmless(head):
    data = message(head, {"0": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}) + b"ab"
    with contextlib.suppress(MessageError):
        unpack(data)


@pytest.mark.parametrize("length", [1, 5, 2**31, 2**63, 2**64 - 1])
def test_a_head_that_lies_about_its_length_is_refused(length):
    data = bytearray(pack({"a": 1}))
    data[8:16] = struct.pack("<Q", length)
    with pytest.raises(MessageError, match=f"the head claims {length} bytes" if length > len(data) else "damaged"):
        unpack(bytes(data))


@pytest.mark.parametrize(
    "shape",
    [[2**40], [-1], [-1, -16], [2**32, 2**32], [10**30], [float("inf")], [16.5, "x"], "ab", None, 3, [[16]], []],
)
def test_bits_that_lie_about_their_shape_are_refused(shape):
    head = {"$": "tensor", "at": "0", "bits": shape}
    with pytest.raises(MessageError):
        unpack(message(head, {"0": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}) + b"ab")


def test_heads_nested_too_deep_are_refused():
    for text in (b"[" * 200_000, b'{"a":' * 200_000, b"[" * 50_000 + b"]" * 50_000):
        with pytest.raises(MessageError):
            unpack(MAGIC + struct.pack("<Q", len(text)) + text + b"\x02" + b"\0" * 7 + b"{}")


def test_a_message_above_the_limit_is_refused_unread():
    data = pack(torch.zeros(100))
    with pytest.raises(MessageError, match="at most 50 are read"):
        unpack(data, Limits(bytes=50))
    assert unpack(data, Limits(bytes=len(data))).numel() == 100


def test_too_many_names_are_refused():
    assert len(unpack(pack([torch.zeros(1)] * 3), Limits(names=3))) == 3
    with pytest.raises(MessageError, match="4 names"):
        unpack(pack([torch.zeros(1)] * 4), Limits(names=3))


LARGE = json.dumps({"dtype": "U8", "shape": [10**6], "data_offsets": [0, 10**6]})


def row(number):
    return b'"%d":{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}' % (number, number, number + 1)


def raw(head, table, body=b""):
    """A message of these bytes."""
    return b"".join((MAGIC, struct.pack("<Q", len(head)), head, struct.pack("<Q", len(table)), table, body))


ATTACKS = {
    "one tensor of 1 MB named 20 thousand times": lambda: raw(
        b"[" + b",".join([b'{"$":"tensor","at":"0"}'] * 20_000) + b"]", b'{"0":' + LARGE.encode() + b"}", bytes(10**6)
    ),
    "bits of one tensor named 20 thousand times": lambda: raw(
        b"[" + b",".join([b'{"$":"tensor","at":"0","bits":[8000000]}'] * 20_000) + b"]",
        b'{"0":' + LARGE.encode() + b"}",
        bytes(10**6),
    ),
    "empty lists": lambda: raw(b"[" + b"[]," * 700_000 + b"[]]", b"{}"),
    "empty mappings": lambda: raw(b"[" + b"{}," * 700_000 + b"{}]", b"{}"),
    "numbers": lambda: raw(b"[" + b"1," * 2_000_000 + b"1]", b"{}"),
    "many names": lambda: raw(b"null", b"{" + b",".join(map(row, range(200_000))) + b"}", bytes(200_000)),
    "a million names": lambda: raw(b"null", b"{" + row(0) * 10**6 + b"}", bytes(10**6)),
    "names without rows": lambda: raw(b"null", b"{" + b",".join(b'"%d":0' % n for n in range(700_000)) + b"}"),
    "a table of lists": lambda: raw(b"null", b'{"0":' + b"[" * 10**6),
    "brackets": lambda: raw(b"[" * 10**6, b"{}"),
    "a number of a million digits": lambda: raw(b"1" * 10**6, b"{}"),
    "a text of 20 MB": lambda: raw(b'"' + b"x" * (20 << 20) + b'"', b"{}"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_small_message_is_refused_before_it_takes_much_memory_or_time(attack):
    data = ATTACKS[attack]()
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(MessageError):
        unpack(data)
    spent = time.process_time() - started
    tracemalloc.start()
    with pytest.raises(MessageError):
        unpack(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert spent < 1
    assert peak < 32 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_every_tensor_is_named_once():
    table = {"0": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}
    once, twice = {"a": {"$": "tensor", "at": "0"}}, {name: {"$": "tensor", "at": "0"} for name in "ab"}
    assert unpack(message(once, table) + b"ab")["a"].tolist() == [97, 98]
    with pytest.raises(MessageError, match="tensor '0' is missing, or named twice"):
        unpack(message(twice, table) + b"ab")
    with pytest.raises(MessageError, match="1 tensors that its head does not name"):
        unpack(message({}, table) + b"ab")


def test_a_name_that_occurs_twice_in_a_head_or_in_the_table_is_refused():
    row = json.dumps({"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}).encode()
    for head, table in (
        (b'{"a":{"$":"tensor","at":"0"},"a":1}', b'{"0":' + row + b"}"),
        (b'{"$":"tensor","at":"0"}', b'{"0":' + row + b',"0":' + row + b"}"),
    ):
        with pytest.raises(MessageError, match="a name occurs twice"):
            unpack(raw(head, table, b"ab"))


def test_a_value_is_as_deep_as_the_limit_and_no_deeper():
    deep = [[[]]]
    assert unpack(pack(deep), Limits(depth=2)) == deep
    with pytest.raises(MessageError, match="nested more than 1 deep"):
        unpack(pack(deep), Limits(depth=1))


def test_values_in_the_head_are_counted_before_they_are_read():
    assert unpack(pack([1, 2, 3]), Limits(nodes=4)) == [1, 2, 3]
    with pytest.raises(MessageError, match="a head of 5 values; at most 4 are read"):
        unpack(pack([1, 2, 3, 4]), Limits(nodes=4))
    with pytest.raises(MessageError, match="a head of 7 bytes; at most 6 are read"):
        unpack(pack([1, 2, 3]), Limits(head=6))


def test_a_checkpoint_may_count_a_million_clients():
    counts = {f"c{n}": n for n in range(300_000)}
    data = pack(counts)
    assert unpack(data, STORED) == counts
    with pytest.raises(MessageError, match="a head of 300001 values"):
        unpack(data)


@pytest.mark.parametrize(
    "shape",
    [[0, 2**63], [2**63, 0], [0, 2**64], [0, 2**40, 2**40], [0, -1], [-1, 0], [1] * 65 + [0], [0, 1.0], [True, 0], 0],
)
def test_shapes_that_no_tensor_has_raise_the_promised_error(shape):
    table = {"0": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    with pytest.raises(MessageError):
        unpack(message({"$": "tensor", "at": "0"}, table))
    bits = {"0": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    with pytest.raises(MessageError):
        unpack(message({"$": "tensor", "at": "0", "bits": shape}, bits))


@pytest.mark.parametrize("shape", [[0, 10**15], [2**62, 0], [], [1] * 64])
def test_empty_tensors_of_large_shapes_are_read(shape):
    count = 4 * math.prod(shape)
    table = {"0": {"dtype": "F32", "shape": shape, "data_offsets": [0, count]}}
    assert list(unpack(message({"$": "tensor", "at": "0"}, table) + bytes(count)).shape) == shape


@pytest.mark.parametrize("dtype", ["C64", "F8_E4M3", "U64", "BOOL", "x", None, [1], 3])
def test_tensors_of_other_types_are_not_read(dtype):
    with pytest.raises(MessageError):
        unpack(message({"$": "tensor", "at": "0"}, {"0": {"dtype": dtype, "shape": [0], "data_offsets": [0, 0]}}))


@pytest.mark.parametrize(
    "body",
    [
        {"0": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}},
        {"0": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 0]}},
        {"0": {"dtype": "U8", "shape": [2**63], "data_offsets": [0, 2**63]}},
        {"0": {"dtype": "F64", "shape": [2**32, 2**32], "data_offsets": [0, 0]}},
    ],
)
def test_a_few_bytes_that_claim_terabytes_are_refused_without_asking_for_memory(body):
    data = message({"$": "tensor", "at": "0"}, body).ljust(144, b"\0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    with pytest.raises(MessageError):
        unpack(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_an_inner_header_that_claims_terabytes_is_refused():
    text = b'{"$":"tensor","at":"0"}'
    with pytest.raises(MessageError):
        unpack(MAGIC + struct.pack("<Q", len(text)) + text + struct.pack("<Q", 2**42) + b"{}")


class Canary:
    """What it leaves behind if anybody unpickles it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("wrap", ["bare", "after the magic", "as head", "as body"])
def test_a_pickle_is_refused_and_never_carried_out(tmp_path, wrap):
    canary = tmp_path / "canary"
    loaded = pickle.dumps(Canary(canary))
    length = struct.pack("<Q", len(loaded))
    data = {
        "bare": loaded,
        "after the magic": MAGIC + loaded,
        "as head": MAGIC + length + loaded + b"\x02" + b"\0" * 7 + b"{}",
        "as body": MAGIC + struct.pack("<Q", 4) + b"null" + loaded,
    }[wrap]
    with pytest.raises(MessageError):
        unpack(data)
    assert not canary.exists()
    pickle.loads(loaded)
    assert canary.exists()  # the canary does sing
