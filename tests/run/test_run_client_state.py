"""What clients remember between checkpoints: as if it had been packed and unpacked, without the bytes."""

import pytest
import torch

from potluck.core import Model, Spec, detach_all, pack, unpack
from potluck.run.client_state import LEAST, ClientStateCache

SIZE = LEAST + 400
"""Of a memory of a hundred floats."""


def memory(value, **more):
    return {"model": torch.full((100,), float(value)), **more}


def held(found):
    return found if found is None else (found[0], float(found[1]["model"][0]))


class Disk:
    """Memories at rest, and who was read."""

    def __init__(self):
        self.files, self.reads = {}, []

    def read(self, client):
        self.reads.append(client)
        return self.files.get(client)

    def save(self, recall, version):
        new = recall.pack_unsaved()
        self.files |= {client: (version, data) for client, data in new.items()}
        recall.mark_saved(version)
        return sorted(new)


@pytest.fixture
def disk():
    return Disk()


def test_a_settled_value_is_what_comes_back_from_bytes_with_the_tensors_themselves():
    mask, weights = torch.tensor([True, False]), torch.ones(2, 2).t()
    value = {"a": (1, [2.5, None]), "mask": mask, "$": "x", "model": Model(Spec("cnn", {"w": (1, 2)}), {"w": weights})}
    found, back = detach_all(value), unpack(pack(value))
    assert found["a"] == back["a"] == [1, [2.5, None]]
    assert found.keys() == back.keys()
    assert found["model"].spec == back["model"].spec
    assert found["mask"].data_ptr() == mask.data_ptr()
    assert found["model"].arrays["w"].data_ptr() == weights.data_ptr()
    assert torch.equal(found["mask"], back["mask"])


@pytest.mark.parametrize("value", [{"x": object()}, {1: 2}, {"x": torch.zeros(1, dtype=torch.complex64)}])
def test_what_cannot_be_packed_cannot_be_settled(value):
    with pytest.raises(TypeError):
        detach_all(value)


def test_the_newest_memory_is_found_and_a_stranger_has_none(disk):
    recall = ClientStateCache(disk.read)
    recall.put({"a": memory(1), "b": memory(2)})
    recall.put({"a": memory(3)})
    assert (held(recall.get("a", 2)), held(recall.get("b", 2)), recall.get("c", 2)) == ((2, 3.0), (2, 2.0), None)
    assert disk.reads == ["c"]


def test_what_is_handed_out_may_be_altered(disk):
    recall = ClientStateCache(disk.read)
    recall.put({"a": memory(1, notes={"seen": 1})})
    _, first = recall.get("a", 1)
    first["model"].zero_()
    first["notes"]["seen"] = 9
    _, again = recall.get("a", 1)
    assert float(again["model"][0]) == 1.0
    assert again["notes"] == {"seen": 1}


def test_only_what_is_new_is_saved_and_then_has_the_version_of_the_save(disk):
    recall = ClientStateCache(disk.read)
    recall.put({"b": memory(1), "a": memory(2)})
    assert disk.save(recall, 5) == ["a", "b"]
    recall.put({"b": memory(3)})
    assert held(recall.get("a", 7)) == (5, 2.0)
    assert held(recall.get("b", 7)) == (7, 3.0)
    assert disk.save(recall, 8) == ["b"]
    assert disk.save(recall, 9) == []
    assert disk.reads == []


def test_without_room_new_memories_wait_packed_and_saved_ones_are_read_again(disk):
    recall = ClientStateCache(disk.read, room=2 * SIZE)
    recall.put({name: memory(at) for at, name in enumerate("abc")})
    assert list(recall._packed) == ["a"]
    assert held(recall.get("a", 1)) == (1, 0.0)
    assert disk.save(recall, 1) == ["a", "b", "c"]
    assert (held(recall.get("a", 3)), held(recall.get("c", 3))) == ((1, 0.0), (1, 2.0))
    assert disk.reads == ["a"]
    assert held(recall.get("b", 3)) == (1, 1.0)
    assert disk.reads == ["a", "b"]
    assert recall._size == 2 * SIZE
    assert recall._versions.keys() == recall._live.keys()


def test_a_memory_that_waits_packed_gives_way_to_a_newer_one(disk):
    recall = ClientStateCache(disk.read, room=SIZE)
    recall.put({"a": memory(1), "b": memory(2)})
    recall.put({"a": memory(3)})
    assert held(recall.get("a", 2)) == (2, 3.0)
    assert {name: float(unpack(data)["model"][0]) for name, data in recall.pack_unsaved().items()} == {
        "a": 3.0,
        "b": 2.0,
    }


def test_what_was_asked_for_last_stays(disk):
    recall = ClientStateCache(disk.read, room=2 * SIZE)
    recall.put({"a": memory(1), "b": memory(2)})
    recall.get("a", 1)
    recall.put({"c": memory(3)})
    assert list(recall._packed) == ["b"]


def test_a_memory_is_the_same_before_and_after_it_was_on_disk(disk):
    """A tuple is a list at once, not only in a run that was resumed; and what no file can hold is refused at once."""
    recall = ClientStateCache(disk.read)
    recall.put({"a": memory(1, places=(1, 2))})
    assert recall.get("a", 1)[1]["places"] == unpack(recall.pack_unsaved()["a"])["places"] == [1, 2]
    with pytest.raises(TypeError):
        recall.put({"b": {"thing": object()}})
