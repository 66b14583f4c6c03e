import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.core import Axis
from potluck.parts import WHOLE, Mask, part

WEIGHT = {"w": torch.arange(24.0).reshape(6, 4)}


def test_a_prefix_is_one_block_and_copies_nothing():
    held = part({"w": (Axis("a", 6), Axis("b", 4))}, lambda axis: range(axis.size // 2))
    small = held.take(WEIGHT)["w"]
    assert small.tolist() == [[0, 1], [4, 5], [8, 9]]
    assert small.data_ptr() == WEIGHT["w"].data_ptr()


def test_a_window_that_wraps_keeps_its_order():
    held = part({"w": (Axis("a", 6), None)}, lambda axis: [4, 5, 0])
    assert held.take(WEIGHT)["w"][:, 0].tolist() == [16, 20, 0]
    assert held.place("w").dims == ((slice(4, 6), slice(0, 1)), None)


def test_heads_are_cut_each_for_itself():
    """Two heads of four units, half of each."""
    held = part({"q": (Axis("head", 4, outer=2),)}, lambda axis: [0, 1])
    assert held.take({"q": torch.arange(8)})["q"].tolist() == [0, 1, 4, 5]


@pytest.mark.parametrize("units", [[0, 1], [2, 3, 0]], ids=["prefix", "window that wraps"])
def test_twelve_heads_are_cut_by_slices_of_a_view_and_give_what_an_index_list_gives(units):
    """With one slice for each head there would be too many blocks, and index lists take several operations."""
    axes = {"q": (Axis("head", 4, outer=12), Axis("stream", 6)), "o": (Axis("stream", 6), Axis("head", 4, outer=12))}
    held = part(axes, lambda axis: units if axis.group == "head" else range(5))
    rows = torch.tensor([4 * head + unit for head in range(12) for unit in units])
    whole = {"q": torch.randn(48, 6), "o": torch.randn(6, 48)}
    assert held.places["q"].copies == (12, 1)
    assert held.places["o"].copies == (1, 12)
    assert len(list(held.places["q"].unfolded.blocks((12, len(units), 5)))) == len(held.places["q"].dims[0]) // 12
    small = held.take(whole)
    assert small["q"].equal(whole["q"][rows, :5])
    assert small["o"].equal(whole["o"][:5, rows])


@pytest.mark.parametrize(
    ("units", "copies"),
    [
        ([0, 1, 3, 4], (2,)),
        ([0, 2, 4], (3,)),
        ([1, 0, 4, 3], (2,)),  # two runs in each copy, in this order
        ([0, 2, 5], ()),
        ([0, 3, 4], ()),
        ([2, 3, 5, 0], ()),  # a run that lies in two copies
    ],
)
def test_equal_copies_are_noticed_and_others_are_not(units, copies):
    held = part({"w": (Axis("a", 6),)}, lambda axis: units)
    assert held.places["w"].copies == copies
    assert held.take({"w": torch.arange(6)})["w"].tolist() == units


def test_two_groups_of_unequal_size_are_no_copies():
    held = part({"w": ((Axis("a", 2), Axis("b", 3)),)}, lambda axis: [0])
    assert held.places["w"].copies == ()
    assert held.take({"w": torch.arange(5)})["w"].tolist() == [0, 2]


def test_a_flattened_map_keeps_all_entries_of_a_channel():
    held = part({"w": (Axis("channel", 3, inner=2),)}, lambda axis: [2, 0])
    assert held.take({"w": torch.arange(6)})["w"].tolist() == [4, 5, 0, 1]


def test_a_dimension_made_of_two_groups_is_cut_segment_by_segment():
    held = part({"w": ((Axis("a", 2), Axis("b", 3)),)}, lambda axis: {"a": [1], "b": [0, 2]}[axis.group])
    assert held.take({"w": torch.arange(5)})["w"].tolist() == [1, 2, 4]


def test_a_group_is_asked_for_its_units_once():
    asked = []
    axis = Axis("a", 3)
    part({"v": (axis,), "w": (axis, axis)}, lambda axis: asked.append(axis.group) or [0])
    assert asked == ["a"]


def test_only_the_named_tensors_are_held():
    held = part({"v": (None,), "w": (None,)}, lambda axis: [], names=["v"])
    assert list(held.take({"v": torch.ones(1), "w": torch.ones(1)})) == ["v"]


@pytest.mark.parametrize(("units", "fault"), [([0, 0], "chosen twice"), ([3], "units 0 to 2"), ([-1], "units 0 to 2")])
def test_units_that_do_not_exist_are_refused(units, fault):
    with pytest.raises(ValueError, match=fault):
        part({"w": (Axis("a", 3),)}, lambda axis: units)


def test_the_whole_is_itself_and_a_mask_silences():
    assert WHOLE.take(WEIGHT) is WEIGHT
    masked = Mask({"w": WEIGHT["w"] > 20}).take(WEIGHT)["w"]
    assert masked.sum().item() == 21 + 22 + 23


def test_index_lists_are_brought_to_the_tensors_once_and_shared():
    axis = Axis("units", 100)
    found = part({"in": (axis, None), "out": (None, axis)}, lambda axis: [unit * unit for unit in range(10)])
    assert found.on(torch.device("cpu")) is found
    moved = found.on(torch.device("meta"))
    lists = [moved.places["in"].dims[0], moved.places["out"].dims[1]]
    assert lists[0] is lists[1]
    assert lists[0].device.type == "meta"
    assert (moved.units, moved.entire) == (found.units, found.entire)


def test_all_index_lists_of_a_part_are_copied_to_a_gpu_at_once():
    axes = {f"w{n}": (Axis(f"units {n}", 100), Axis(f"units {n + 1}", 100)) for n in range(5)}
    found = part(axes, lambda axis: [unit * unit for unit in range(10)])
    with Copies() as copies:
        moved = found.on(torch.device("meta"))
    assert copies.count == 1
    assert [index.tolist() for index in found.places["w3"].dims] == [[unit * unit for unit in range(10)]] * 2
    assert all(len(index) == 10 for place in moved.places.values() for index in place.dims)
    assert moved.places["w3"].dims[1] is moved.places["w4"].dims[0]


class Copies(TorchDispatchMode):
    """Counts the copies to other hardware."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += str(operation) == "aten._to_copy.default"
        return operation(*args, **(kwargs or {}))
