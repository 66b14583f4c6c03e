import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.core import Axis, BufferLayout, FlatArrays
from potluck.parts import BLOCK, WHOLE, Mask, OverlapMean, Part, Place, part

ROWS, COLUMNS = Axis("rows", 2), Axis("columns", 2)


def whole(values):
    return {"w": torch.tensor(values, dtype=torch.float32)}


def corner():
    return part({"w": (ROWS, COLUMNS)}, lambda axis: [0])


def test_p1_overlapping_entries_are_averaged_and_the_rest_is_its_only_owner():
    mean = OverlapMean(whole([[10, 20], [30, 40]]))
    mean.add(whole([[1, 2], [3, 4]]), WHOLE)
    mean.add(whole([[7]]), corner())
    assert mean.value()["w"].tolist() == [[4, 2], [3, 4]]


def test_p2_entries_that_nobody_trained_keep_their_value():
    mean = OverlapMean(whole([[10, 20], [30, 40]]))
    mean.add(whole([[7]]), corner())
    assert mean.value()["w"].tolist() == [[7, 20], [30, 40]]
    assert mean.covered("w").tolist() == [[True, False], [False, False]]
    assert mean.coverage() == 0.25


def test_fa1_samples_weigh_the_mean():
    mean = OverlapMean(whole([0, 0]))
    mean.add(whole([1, 2]), WHOLE, 10)
    mean.add(whole([4, 8]), WHOLE, 30)
    assert mean.value()["w"].tolist() == [3.25, 6.5]


def test_fa2_equal_weights_give_the_plain_mean():
    mean = OverlapMean(whole([0, 0]))
    mean.add(whole([1, 2]), WHOLE)
    mean.add(whole([4, 8]), WHOLE)
    assert mean.value()["w"].tolist() == [2.5, 5]


def test_fa3_a_tensor_of_one_owner_takes_that_owners_value():
    mean = OverlapMean({"a": torch.zeros(1), "b": torch.zeros(1)})
    mean.add({"a": torch.tensor([2.0]), "b": torch.tensor([8.0])}, WHOLE, 10)
    mean.add({"a": torch.tensor([6.0])}, WHOLE, 30)
    assert mean.value()["a"].item() == 5
    assert mean.value()["b"].item() == 8


def test_lm2_rows_of_classes_a_client_lacks_do_not_count():
    head = {"w": (None, Axis("hidden", 2))}
    mean = OverlapMean(whole([[9, 9], [9, 9], [9, 9]]))
    mean.add(whole([[1, 2], [3, 4], [5, 6]]), WHOLE, {"w": torch.tensor([[1.0], [0.0], [1.0]])})
    mean.add(whole([[11], [12], [13]]), part(head, lambda axis: [0]), {"w": torch.tensor([[1.0], [0.0], [0.0]])})
    assert mean.value()["w"].tolist() == [[6, 2], [9, 9], [5, 6]]


def test_fd1_random_units_go_back_where_they_came_from():
    axes = {"w": (Axis("units", 4),)}
    mean = OverlapMean(whole([9, 9, 9, 9]))
    mean.add(whole([5, 6]), part(axes, lambda axis: [2, 0]))
    mean.add(whole([8, 1]), part(axes, lambda axis: [0, 3]))
    assert mean.value()["w"].tolist() == [7, 9, 5, 1]


def test_rx2_rolling_windows_of_two_sizes_meet():
    axes = {"w": (Axis("units", 5),)}
    mean = OverlapMean(whole([10] * 5))
    mean.add(whole([1, 2, 3, 4]), part(axes, lambda axis: [3, 4, 0, 1]))
    mean.add(whole([5, 6, 7]), part(axes, lambda axis: [3, 4, 0]))
    assert mean.value()["w"].tolist() == [5, 4, 10, 3, 4]


def test_rx3_windows_on_two_axes():
    axes = {"w": (Axis("out", 2), Axis("in", 3))}
    mean = OverlapMean(whole([[0, 0, 0], [0, 0, 0]]))
    mean.add(whole([[7, 8]]), part(axes, lambda axis: {"out": [1], "in": [1, 2]}[axis.group]))
    assert mean.value()["w"].tolist() == [[0, 0, 0], [0, 7, 8]]


def test_lo1_masked_entries_average_over_those_who_kept_them():
    mean = OverlapMean(whole([9, 9, 9, 9]))
    mean.add(whole([2, 4, 0, 0]), Mask({"w": torch.tensor([1, 1, 0, 0]).bool()}))
    mean.add(whole([6, 0, 8, 0]), Mask({"w": torch.tensor([1, 0, 1, 0]).bool()}))
    assert mean.value()["w"].tolist() == [4, 4, 8, 9]


def test_whole_numbers_take_the_maximum_and_keep_their_type():
    mean = OverlapMean({"seen": torch.tensor(3), "w": torch.zeros(1)})
    mean.add({"seen": torch.tensor(7), "w": torch.ones(1)}, WHOLE, 0.5)
    mean.add({"seen": torch.tensor(5), "w": torch.ones(1)}, WHOLE, 0.5)
    assert mean.value()["seen"].item() == 7
    assert mean.value()["seen"].dtype is torch.int64


def test_a_weight_of_zero_neither_counts_nor_divides():
    mean = OverlapMean(whole([1, 2]))
    mean.add(whole([5, 5]), WHOLE, 0.0)
    assert mean.value()["w"].tolist() == [1, 2]


def test_a_part_may_keep_a_tensor_under_another_name():
    mean = OverlapMean({"tall": torch.tensor([1.0, 2.0])})
    mean.add({"w": torch.tensor([3.0, 4.0])}, Part({"w": Place("tall")}))
    assert mean.value()["tall"].tolist() == [3, 4]


def test_equal_models_average_to_the_same_bits_whatever_the_weights():
    start = {"w": torch.randn(1000) * 10.0 ** torch.randint(-20, 20, (1000,)), "zero": torch.tensor([-0.0, 0.0])}
    mean = OverlapMean(start)
    for k in range(37):
        mean.add(start, WHOLE, 0.1 + k / 7)
    for name, tensor in mean.value().items():
        assert torch.equal(tensor.view(torch.int32), start[name].view(torch.int32))


def test_sums_run_in_blocks_by_task_position():
    values = [torch.rand(50) * 10.0 ** (k % 7) for k in range(40)]
    mean = OverlapMean({"w": torch.zeros(50, dtype=torch.float64)})
    total, weight = torch.zeros(50, dtype=torch.float64), 0.0
    for start in range(0, 40, BLOCK):
        block, sub = torch.zeros(50, dtype=torch.float64), 0.0
        for k in range(start, min(start + BLOCK, 40)):
            mean.add({"w": values[k].double()}, WHOLE, 1 / (k + 3))
            block.add_(values[k].double(), alpha=1 / (k + 3))
            sub += 1 / (k + 3)
        total += block
        weight += sub
    assert torch.equal(mean.value()["w"], total / weight)


def test_a_position_left_out_leaves_the_blocks_of_the_others_alone():
    values = {k: torch.rand(20, dtype=torch.float64) for k in range(40) if k not in (3, 16, 31)}
    one = OverlapMean({"w": torch.zeros(20, dtype=torch.float64)})
    for k, value in values.items():
        one.add({"w": value}, WHOLE, 1 / 3, position=k)
    blocks = [OverlapMean({"w": torch.zeros(20, dtype=torch.float64)}) for _ in range(3)]
    for k, value in values.items():
        blocks[k // BLOCK].add({"w": value}, WHOLE, 1 / 3)
    for block in blocks:
        block.value()
    sums = blocks[0].sums
    sums.merge(blocks[1].sums)
    sums.merge(blocks[2].sums)
    assert torch.equal(one.value()["w"], sums.totals["w"] / sums.weights["w"])


@given(st.data())
def test_cut_and_put_back_is_the_identity_for_any_units(data):
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    picked = {
        "rows": data.draw(st.lists(st.integers(0, rows - 1), min_size=1, unique=True)),
        "columns": data.draw(st.lists(st.integers(0, columns - 1), min_size=1, unique=True)),
    }
    outer, inner = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    axes = {"w": (Axis("rows", rows, outer=outer), Axis("columns", columns, inner=inner), None)}
    start = {"w": torch.randn(rows * outer, columns * inner, 2)}
    held = part(axes, lambda axis: picked[axis.group])
    small = held.take(start)
    assert small["w"].shape == (len(picked["rows"]) * outer, len(picked["columns"]) * inner, 2)
    mean = OverlapMean(start)
    mean.add({"w": small["w"] + 1}, held, 0.3)
    moved = mean.value()["w"] - start["w"]
    assert int(((moved - 1).abs() < 1e-5).sum()) == small["w"].numel()
    assert int((moved == 0).sum()) == start["w"].numel() - small["w"].numel()


@given(st.permutations(list(range(6))))
def test_the_order_of_contributions_changes_nothing_beyond_rounding(order):
    values = [torch.tensor([float(k), k * k]) for k in range(6)]
    mean = OverlapMean({"w": torch.zeros(2)})
    for k in order:
        mean.add({"w": values[k]}, WHOLE, 1 + k / 3)
    expected = sum((1 + k / 3) * values[k] for k in range(6)) / sum(1 + k / 3 for k in range(6))
    assert torch.allclose(mean.value()["w"], expected, atol=1e-6)


def in_buffer(tensors):
    """The same tensors in one buffer, with a gap after each."""
    entries, end = [], 0
    for name, tensor in tensors.items():
        entries.append((name, end, tuple(tensor.shape)))
        end += tensor.numel() + 3
    layout, buffer = BufferLayout(tuple(entries)), torch.zeros(end)
    for name, view in layout.cut(buffer).items():
        view.copy_(tensors[name])
    return FlatArrays(buffer, layout)


def test_buffers_give_the_same_mean_as_their_tensors_also_under_other_names():
    """Two networks in one whole, of which the second has other names there; forty contributions in three blocks."""
    small = Part({"a": Place("a of small"), "b": Place("b of small")})
    start = {name: torch.randn(2, 5) for name in ("a", "b", "a of small", "b of small", "untouched")}
    means = [OverlapMean(start) for _ in range(2)]
    for k in range(40):
        sent = {name: torch.randn(2, 5) for name in ("a", "b")}
        held = small if k % 3 else WHOLE
        means[0].add(sent, held, 1 / (k + 3))
        means[1].add(sent if k == 20 else in_buffer(sent), held, 1 / (k + 3))
    one, other = (mean.value() for mean in means)
    assert all(torch.equal(one[name], other[name]) for name in start)
    assert not torch.equal(other["a"], other["a of small"])
    assert other["untouched"] is start["untouched"]


def test_a_buffer_whose_tensors_have_several_weights_is_divided_tensor_by_tensor():
    mean = OverlapMean({"a": torch.zeros(1), "b": torch.zeros(1)})
    mean.add(in_buffer({"a": torch.tensor([2.0]), "b": torch.tensor([3.0])}), WHOLE, 1.0)
    mean.add({"b": torch.tensor([9.0])}, WHOLE, 2.0)
    assert [mean.value()[name].item() for name in ("a", "b")] == [2, 7]


def test_buffers_are_added_in_a_few_operations_also_under_other_names():
    """In two blocks: the number of operations does not grow with the tensors, but for views of them."""
    names = [f"w{n}" for n in range(40)]
    mean = OverlapMean({f"{name} of small": torch.zeros(3) for name in names})
    held = Part({name: Place(f"{name} of small") for name in names})
    sent = in_buffer({name: torch.ones(3) for name in names})
    with Operations() as done:
        for position in range(BLOCK + 1):
            mean.add(sent, held, 2.0, position)
        mean.value()
    assert len(done.seen) - done.seen.count("aten.as_strided.default") < 5 * BLOCK


@pytest.mark.parametrize("rows", [20, 40], ids=["two dimensions cut", "one dimension cut"])
def test_sums_of_index_lists_have_the_bits_of_entries_added_one_by_one(rows):
    """Two clients with fractional weights and units at random, in tensors of three dimensions and of one."""
    axes = {"w": (Axis("rows", 40), Axis("columns", 30), None), "b": (Axis("columns", 30),)}
    start = {"w": torch.randn(40, 30, 2), "b": torch.randn(30)}
    mean = OverlapMean(start)
    totals = {name: torch.full_like(tensor, -0.0, dtype=torch.float64) for name, tensor in start.items()}
    weights = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in start.items()}
    for weight in (0.3, 0.7):
        picked = {"rows": torch.randperm(40)[:rows].sort().values, "columns": torch.randperm(30)[:20]}
        held = part(axes, lambda axis, picked=picked: picked[axis.group])
        sent = {name: tensor + 0.1 for name, tensor in held.take(start).items()}
        mean.add(sent, held, weight)
        entries = {"w": (picked["rows"].view(-1, 1), picked["columns"]), "b": (picked["columns"],)}
        for name, tensor in sent.items():
            assert any(isinstance(index, torch.Tensor) for index in held.place(name).dims)
            totals[name][entries[name]] += tensor.double() * weight
            weights[name][entries[name]] += weight
    for name in start:
        assert torch.equal(mean.block.totals[name], totals[name])
        assert torch.equal(mean.block.weights[name].expand_as(weights[name]), weights[name])


def test_index_lists_of_any_length_are_added_in_a_few_operations():
    """Units at random in both dimensions of a matrix, and in two vectors that share a list with it."""
    axes = {"w": (Axis("rows", 400), Axis("columns", 300)), "b": (Axis("rows", 400),), "c": (Axis("rows", 400),)}
    start = {name: torch.zeros(*(axis.size for axis in dims)) for name, dims in axes.items()}
    held = part(axes, lambda axis: torch.randperm(axis.size)[:100])
    sent, mean = held.take(start), OverlapMean(start)
    mean.add(sent, held)
    with Operations() as done:
        mean.add(sent, held)
    assert len(done.seen) - done.seen.count("aten.view.default") <= 16


def test_index_lists_are_let_go_after_their_contribution():
    """A thousand clients' lists must not pile up in the mean."""
    axes, start = {"w": (Axis("rows", 40), None)}, {"w": torch.zeros(40, 2)}
    mean, lists = OverlapMean(start), []
    for _ in range(3):
        held = part(axes, lambda axis: torch.randperm(40)[:20])
        lists.append(weakref.ref(held.place("w").dims[0]))
        mean.add(held.take(start), held)
        del held
    assert [index() is None for index in lists] == [True, True, False]


class Operations(TorchDispatchMode):
    """Notes the operations that torch runs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.seen.append(str(operation))
        return operation(*args, **(kwargs or {}))


def test_weights_have_the_length_of_a_dimension_only_once_it_is_cut():
    """An embedding of five tokens, of which a client has half of the units; then a client that has two tokens."""
    axes = {"w": (Axis("token", 5), Axis("unit", 4))}
    half = part(axes, lambda axis: range({"token": 5, "unit": 2}[axis.group]))
    two = part(axes, lambda axis: range({"token": 2, "unit": 4}[axis.group]))
    mean = OverlapMean({"w": torch.zeros(5, 4)})
    mean.add({"w": torch.full((5, 2), 1.0)}, half)
    assert mean.block.weights["w"].shape == (1, 4)
    mean.add({"w": torch.full((2, 4), 3.0)}, two, 3.0)
    assert mean.block.weights["w"].shape == (5, 4)
    assert mean.coverage() == (5 * 2 + 2 * 4 - 2 * 2) / 20
    assert mean.value()["w"].tolist() == [[2.5, 2.5, 3.0, 3.0]] * 2 + [[1.0, 1.0, 0.0, 0.0]] * 3


@pytest.mark.parametrize("units", [[0, 1], [3, 0, 1]], ids=["prefix", "window that wraps"])
def test_heads_are_put_back_where_they_came_from(units):
    axes = {"w": (Axis("stream", 3), Axis("head", 4, outer=12))}
    held = part(axes, lambda axis: units if axis.group == "head" else range(2))
    old, more = torch.randn(3, 48), torch.randn(2, 12 * len(units))
    columns = [4 * head + unit for head in range(12) for unit in units]
    mean = OverlapMean({"w": old})
    mean.add({"w": more}, held, 0.3)
    mean.add({"w": more}, held, 0.3)
    expected = old.clone()
    expected[:2, columns] = more
    torch.testing.assert_close(mean.value()["w"], expected)
    assert mean.coverage() == 2 * len(columns) / (3 * 48)
