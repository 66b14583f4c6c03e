"""Plain values, specs, examples and the sizes of messages."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from potluck.core import (
    NOTHING,
    Examples,
    FrozenDict,
    Model,
    Newborn,
    Reply,
    Spec,
    Task,
    digest,
    freeze,
    payload,
    size,
    to_plain,
)


def test_frozen_dicts_with_the_same_content_are_equal_and_hash_alike_in_any_order():
    a, b = FrozenDict({"b": 2, "a": [1, {"c": 3}]}), FrozenDict({"a": [1, {"c": 3}], "b": 2})
    assert a == b
    assert hash(a) == hash(b)
    assert {a: "found"}[b] == "found"
    assert list(a) == ["a", "b"]


def test_a_frozen_dict_equals_the_dict_it_was_made_of_and_no_other():
    assert FrozenDict(x=1) == {"x": 1}
    assert FrozenDict(x=1) != {"x": 2}
    assert FrozenDict(x=1) != FrozenDict(x=1, y=2)
    assert FrozenDict() != []


def test_a_frozen_dict_cannot_be_changed_and_does_not_follow_its_source():
    source = {"a": 1}
    frozen = FrozenDict(source)
    source["a"] = 2
    assert frozen["a"] == 1
    with pytest.raises(TypeError):
        frozen["a"] = 3


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(plain)
def test_frozen_values_hash_and_become_plain_again_as_json_reads_them_back(value):
    hash(freeze(value))
    assert to_plain(freeze(value)) == value
    assert json.loads(json.dumps(to_plain(freeze(value)))) == value


def spec(**changes):
    return Spec(
        **{"family": "mlp", "depth": [1, 2], "sizes": {"b": 2, "a": 1}, "options": {"input": [1, 8]}, **changes}
    )


def test_specs_are_equal_whatever_they_were_written_with():
    written = Spec("mlp", (1, 2), {"a": 1, "b": 2}, {"input": (1, 8)})
    assert spec() == written
    assert hash(spec()) == hash(written)
    assert spec().key == written.key


@pytest.mark.parametrize(
    "changes", [{"family": "cnn"}, {"depth": 1}, {"depth": None}, {"sizes": {"a": 1}}, {"options": {"input": [8, 1]}}]
)
def test_specs_that_differ_anywhere_are_not_equal_and_have_another_key(changes):
    assert spec(**changes) != spec()
    assert spec(**changes).key != spec().key


def test_a_spec_survives_json_and_keeps_its_key():
    back = Spec.of(json.loads(json.dumps(spec().plain())))
    assert back == spec()
    assert hash(back) == hash(spec())
    assert back.key == spec().key


def test_a_specs_key_is_the_same_on_every_machine():
    assert Spec("mlp", 2, {"hidden0": 8}, {"classes": 10}).key == "d3a25df3ec5b"


def test_digest_tells_bits_names_shapes_and_dtypes_apart():
    base = digest({"a": torch.tensor([0.0, 1.0])})
    assert digest({"a": torch.tensor([0.0, 1.0])}) == base
    others = [
        {"a": torch.tensor([-0.0, 1.0])},
        {"b": torch.tensor([0.0, 1.0])},
        {"a": torch.tensor([[0.0, 1.0]])},
        {"a": torch.tensor([0.0, 1.0]).view(torch.int32)},
        {},
    ]
    assert len({base, *map(digest, others)}) == 6


def test_digest_does_not_depend_on_the_order_of_names_or_on_strides():
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    assert digest({"a": a, "b": b}) == digest({"b": b, "a": a.t().contiguous().t()})


def test_size_counts_bytes_and_truth_values_as_bits():
    sizes = {"f": torch.zeros(3), "h": torch.zeros(3, dtype=torch.bfloat16), "b": torch.zeros(9, dtype=torch.bool)}
    assert size(sizes) == 12 + 6 + 2
    assert size({}) == 0


def test_payload_counts_tensors_of_models_and_arrays_and_nothing_else():
    model = Model(Spec("a"), {"w": torch.zeros(10)})
    sent = Task(
        "train", "c1", models={"m": model, "born": Newborn(Spec("a"))}, arrays={"x": torch.zeros(2)}, config={"a": 1}
    )
    assert payload(sent) == 48
    assert payload(Reply({"m": model}, metrics={"loss": 1.0})) == 40


# Examples


def made():
    return Examples({"x": torch.arange(10.0).reshape(5, 2), "y": torch.arange(5)})


def test_examples_are_counted_and_gathered_by_row():
    assert len(made()) == 5
    batch = made()[torch.tensor([3, 0])]
    assert batch["x"].tolist() == [[6, 7], [0, 1]]
    assert batch["y"].tolist() == [3, 0]
    assert made()[slice(1, 3)]["y"].tolist() == [1, 2]
    assert made().all()["y"].tolist() == [0, 1, 2, 3, 4]


def test_picking_twice_picks_among_the_picked():
    twice = made().pick(torch.tensor([4, 2, 0])).pick(torch.tensor([2, 0]))
    assert len(twice) == 2
    assert twice.column("y").tolist() == [0, 4]
    assert twice[slice(0, 1)]["y"].tolist() == [0]
    assert twice.all()["x"].tolist() == [[0, 1], [8, 9]]


def test_picking_copies_no_columns():
    base = made()
    picked = base.pick(torch.tensor([1, 2]))
    assert all(picked.columns[name] is base.columns[name] for name in base.columns)


def test_batches_are_prepared_and_columns_are_as_stored():
    halved = Examples({"x": torch.tensor([2, 4])}, prepare=lambda batch: {"x": batch["x"] / 2})
    assert halved.all()["x"].tolist() == [1, 2]
    assert halved.pick(torch.tensor([1])).all()["x"].tolist() == [2]
    assert halved.column("x").tolist() == [2, 4]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="differ in length"):
        Examples({"x": torch.zeros(2), "y": torch.zeros(3)})


def test_nothing_has_no_rows():
    assert len(NOTHING) == 0
    assert len(NOTHING.all()["y"]) == 0
    assert len(Examples({})) == 0
