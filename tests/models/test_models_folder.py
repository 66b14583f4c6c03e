"""Models in folders: what was saved comes back, and nothing else is let in."""

import json
import pickle

import pytest
import torch

from potluck.core import InputError, Model, Newborn, digest, stream
from potluck.models import ModelZoo, load, make_spec, save

SPEC = make_spec("cnn", input=(1, 8, 8), classes=10, norm="running", width=4)


@pytest.fixture
def model():
    return ModelZoo(SPEC).fresh(SPEC, stream(0))


@pytest.fixture
def folder(model, tmp_path):
    place = tmp_path / "a model" / "größe"
    save(place, model)
    return place


class Canary:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_saved_network_comes_back_ready_to_evaluate(folder, model):
    net = load(folder)
    assert not net.training
    assert digest(net.state_dict()) == digest(model.arrays)
    assert net(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    assert sorted(each.name for each in folder.iterdir()) == ["model.json", "model.safetensors"]


def test_a_network_of_tokens_comes_back(tmp_path):
    spec = make_spec("bert", hidden=8, heads=2, ffn=6, vocab=12, input=(5,), classes=3)
    model = ModelZoo(spec).fresh(spec, stream(0))
    save(tmp_path, model)
    net = load(tmp_path)
    assert digest(net.state_dict()) == digest(model.arrays)
    assert net(torch.ones(2, 5, dtype=torch.long)).shape == (2, 3)


def test_tensors_that_are_views_of_each_other_are_saved(tmp_path, model):
    weights = torch.arange(2 * 36.0).view(2, 4, 3, 3)
    arrays = {**model.arrays, "stem.conv.weight": weights[0].unsqueeze(1), "stem.norm.weight": weights[0, :, 0, 0]}
    save(tmp_path, Model(SPEC, arrays))
    assert load(tmp_path).stem.norm.weight.tolist() == [0, 9, 18, 27]


def test_saving_again_replaces_the_model(folder):
    other = ModelZoo(SPEC).fresh(SPEC, stream(1))
    save(folder, other)
    assert digest(load(folder).state_dict()) == digest(other.arrays)


def test_a_model_without_arrays_cannot_be_saved(tmp_path):
    with pytest.raises(ValueError, match="without arrays"):
        save(tmp_path, Newborn(SPEC))


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "weights"])
def test_a_pickle_is_refused_and_never_opened(folder, tmp_path, name):
    canary = tmp_path / "canary"
    (folder / name).write_bytes(pickle.dumps(Canary(canary)))
    with pytest.raises(InputError, match="refused: pickle"):
        load(folder if name == "model.safetensors" else folder / name)
    assert not canary.exists()


def test_a_pickle_in_place_of_the_numbers_is_named(folder):
    (folder / "model.safetensors").rename(folder / "model.pt")
    with pytest.raises(InputError, match=r"holds no model.safetensors. model.pt refused: pickle"):
        load(folder)


def test_a_torch_archive_under_the_right_name_is_refused(folder):
    (folder / "model.safetensors").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InputError, match="refused: pickle"):
        load(folder)


def test_a_folder_that_is_not_there_and_a_file_in_its_place_are_named(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match=r"notes.txt is a file; name the folder"):
        load(tmp_path / "notes.txt")


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_truncated_numbers_are_refused(folder, cut):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match="not a safetensors file"):
        load(folder)


def test_altered_numbers_are_refused(folder):
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="does not match the checksum"):
        load(folder)


def damage(head, **changes):
    return {**head, "spec": {**head["spec"], **changes}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head: [], "not a model of format 1"),
        (lambda head: {**head, "format": 2}, "not a model of format 1"),
        (lambda head: {**head, "spec": None}, "do not describe a network"),
        (lambda head: damage(head, family="cnnn"), "no model family 'cnnn'"),
        (lambda head: damage(head, family=["cnn"]), "do not describe a network"),
        (lambda head: damage(head, depth=2), "no axis group 'block2'"),
        (lambda head: damage(head, depth=4), "lack 'body.3.conv.weight'"),
        (lambda head: damage(head, depth=10**9), "depth = 1000000000 must"),
        (lambda head: damage(head, sizes={"stem": 10**15}), "size of 'stem' = 1000000000000000 must"),
        (lambda head: damage(head, sizes={"stem": 10**6}), r"'stem.conv.weight' has the shape"),
        (lambda head: damage(head, sizes=["stem"]), "do not describe a network"),
    ],
)
def test_a_head_that_does_not_fit_the_numbers_is_refused_before_anything_is_allocated(folder, change, says):
    path = folder / "model.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(InputError, match=says) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_head_that_is_not_json_is_refused(folder):
    (folder / "model.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="is not JSON"):
        load(folder)
