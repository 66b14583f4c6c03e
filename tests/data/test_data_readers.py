"""Readers on tiny files whose every byte is known."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import real

from potluck.core import InputError, SettingsError
from potluck.data import Data, InputScaling, from_arrays, load, sources


def idx(dims: tuple[int, ...], values: bytes) -> bytes:
    return bytes((0, 0, 8, len(dims))) + struct.pack(f">{len(dims)}I", *dims) + values


def write_idx(folder: Path, side: str, zipped: bool) -> None:
    images, labels = idx((2, 2, 3), bytes(range(12))), idx((2,), bytes((1, 0)))
    for name, body in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        if zipped:
            (folder / f"{side}-{name}.gz").write_bytes(gzip.compress(body))
        else:
            (folder / f"{side}-{name}").write_bytes(body)


def write_cifar(folder: Path, per_file: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        record = bytes((number,)) + b"\x0a" * 1024 + b"\x14" * 1024 + b"\x1e" * 1024
        (folder / f"{name}.bin").write_bytes(record * per_file)


def test_digits_are_1797_images_of_one_channel_between_0_and_1() -> None:
    source = load(Data())
    x = source.train.all()["x"]
    assert (x.shape, x.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert (source.classes, source.shape, source.test, source.users) == (10, (1, 8, 8), None, None)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx_images_gain_a_channel_and_become_floats_from_0_to_1(tmp_path: Path, zipped: bool) -> None:
    write_idx(tmp_path, "train", zipped)
    write_idx(tmp_path, "t10k", not zipped)
    source = load(Data("idx", str(tmp_path)))
    assert source.train.columns["x"].dtype == torch.uint8
    assert source.train.columns["x"].tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 10, 11]]]]
    batch = source.train[torch.tensor([1])]
    assert torch.equal(batch["x"], torch.tensor([[[[6, 7, 8], [9, 10, 11]]]]) / 255)
    assert batch["y"].tolist() == [0]
    assert source.test is not None
    assert source.test.column("y").tolist() == [1, 0]
    assert (source.classes, source.shape) == (2, (1, 2, 3))


def test_idx_images_of_28x28_can_be_read_at_32x32(tmp_path: Path) -> None:
    image = bytes(8 * column for _ in range(28) for column in range(28))
    for side in ("train", "t10k"):
        (tmp_path / f"{side}-images-idx3-ubyte").write_bytes(idx((2, 28, 28), image * 2))
        (tmp_path / f"{side}-labels-idx1-ubyte").write_bytes(idx((2,), bytes((1, 0))))
    source = load(Data("idx", str(tmp_path), size=(1, 32, 32)))
    assert source.test is not None
    # Column c is taken at (c + 1/2) * 28 / 32 - 1/2, where the image holds 8 times that: 7c - 1/2, to an even number.
    expected = [0, *(round(7 * column - 0.5) for column in range(1, 31)), 216]
    for examples in (source.train, source.test):
        assert examples.columns["x"].tolist() == [[[expected] * 32]] * 2


@pytest.mark.parametrize("inside", [False, True])
def test_cifar_is_found_in_the_folder_or_in_its_parent_and_stays_bytes(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar(folder)
    source = load(Data("cifar10", str(folder if inside else tmp_path)))
    assert source.train.columns["x"].shape == (10, 3, 32, 32)
    assert source.train.columns["x"].dtype == torch.uint8
    assert source.train.column("y").tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert source.test is not None
    assert source.test.column("y").tolist() == [5, 5]
    assert (source.classes, len(source.names)) == (10, 10)
    pixel = source.train[torch.tensor([3])]["x"][0, :, 31, 0]
    by_hand = [(10 / 255 - 0.4914) / 0.2470, (20 / 255 - 0.4822) / 0.2435, (30 / 255 - 0.4465) / 0.2616]
    assert pixel.tolist() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("column", ["user", "subject", "speaker"])
def test_an_npz_brings_its_users_under_any_of_three_names(tmp_path: Path, column: str) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.float16([[1, 2], [3, 4], [5, 6]]), y=np.uint8([0, 1, 0]), **{column: np.array(["b", "a", "b"])})
    source = load(Data("npz", str(path)))
    assert source.users is not None
    assert source.users.tolist() == [1, 0, 1]
    assert source.train.all()["x"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert source.train.all()["x"].dtype == torch.float32


def test_an_npz_brings_class_names_a_test_set_and_any_shape_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    x = np.asfortranarray(np.arange(12, dtype=">f8").reshape(2, 6))
    np.savez_compressed(path, x=x, y=[0, 1], x_test=x[:1], y_test=[2], classes=["one", "two", "three"], other=[7])
    source = load(Data("npz", str(path), shape=(1, 2, 3)))
    assert source.train.all()["x"].tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[6, 7, 8], [9, 10, 11]]]]
    assert (source.classes, source.names, source.shape) == (3, ("one", "two", "three"), (1, 2, 3))
    assert source.test is not None
    assert source.test.all()["y"].tolist() == [2]


def test_standard_scale_gives_each_channel_mean_0_and_deviation_1() -> None:
    x = np.array([[[1.0, 3.0], [5.0, 5.0]], [[5.0, 7.0], [5.0, 5.0]]])
    source = from_arrays(x, [0, 1], scale="standard")
    # Channel 0 holds 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5. Channel 1 is constant.
    assert source.train.prepare == InputScaling((4.0, 5.0), (5**0.5, 1.0))
    assert source.train.all()["x"][0, 0].tolist() == pytest.approx([-3 / 5**0.5, -1 / 5**0.5])
    assert source.train.all()["x"][:, 1].tolist() == [[0, 0], [0, 0]]


def test_bytes_can_be_standardised_too() -> None:
    x = np.array([[0, 10], [20, 10]], np.uint8)
    assert from_arrays(x, [0, 1], scale="standard").train.all()["x"].tolist() == [[-1, 0], [1, 0]]


def test_whole_numbers_stay_whole_as_tokens_do_and_float_labels_are_regressed_on() -> None:
    source = from_arrays(np.array([[5, 6], [7, 8]]), [0.5, 1.5])
    assert source.train.all()["x"].dtype == torch.int64
    assert source.train.all()["y"].tolist() == [0.5, 1.5]
    assert source.classes == 0


def test_rows_with_many_labels_may_leave_some_out() -> None:
    assert from_arrays(np.zeros((2, 3), np.int64), [[0, 4, -100], [1, 1, 1]]).classes == 5


def test_arrays_are_shared_not_copied_where_their_type_allows() -> None:
    x = np.zeros((4, 2), np.float32)
    assert from_arrays(x, [0, 1, 0, 1]).train.columns["x"].data_ptr() == x.ctypes.data


def test_a_read_only_array_is_copied_without_complaint() -> None:
    x = np.zeros((2, 2), np.float32)
    x.flags.writeable = False
    assert len(from_arrays(x, [0, 1]).train) == 2


def test_every_source_has_a_line_about_it_and_a_misspelt_one_is_guessed() -> None:
    known = {"digits", "cifar10", "cifar100", "idx", "npy", "npz", "sentences", "tags", "text"}
    assert set(sources()) == known | {"huggingface", "pictures", "table"}
    with pytest.raises(SettingsError, match=r"data\.name = 'cifar' is not known\. Did you mean 'cifar10'\?"):
        load(Data("cifar"))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clients", 0), ("labels", 0), ("samples", 0), ("alpha", 0.0), ("alpha", float("nan")), ("test", 1.0),
        ("test", -0.1), ("validation", 1.5), ("public", -1), ("client_test", -1), ("client_validation", -1),
        ("shape", (0,)),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(setting: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"data\.{setting} = "):
        Data(**{setting: value})


def test_test_and_validation_may_not_take_everything() -> None:
    with pytest.raises(ValueError, match="leave nothing to train on"):
        Data(test=0.5, validation=0.5)


def test_cifar_100_is_read_with_its_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name, fine in (("train.bin", (7, 3, 98)), ("test.bin", (4,))):
        (folder / name).write_bytes(b"".join(bytes((19, label)) + bytes([label]) * 3072 for label in fine))
    source = load(Data("cifar100", str(tmp_path)))
    assert source.test is not None
    assert source.train.column("y").tolist() == [7, 3, 98]
    assert source.test.column("y").tolist() == [4]
    assert (source.classes, source.shape) == (100, (3, 32, 32))
    assert source.train.column("x")[1].unique().tolist() == [3]
    (folder / "train.bin").write_bytes(bytes((0, 100)) + bytes(3072))
    with pytest.raises(InputError, match=r"label 100 is out of range; CIFAR-100 has labels 0 to 99"):
        load(Data("cifar100", str(folder)))


def test_real_cifar_has_6000_images_of_each_class() -> None:
    source = load(Data("cifar10", str(real("cifar-10-batches-bin"))))
    assert source.test is not None
    assert torch.bincount(source.train.column("y")).tolist() == [5000] * 10
    assert torch.bincount(source.test.column("y")).tolist() == [1000] * 10
    x = source.train[torch.arange(2000)]["x"]
    assert float(x.mean().abs()) < 0.1
    assert float(x.std()) == pytest.approx(1.0, abs=0.1)
