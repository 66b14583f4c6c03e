"""Files that are not what they should be: one line, exit code 3, and nothing run, unpacked or allocated."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from potluck.core import InputError
from potluck.data import Data, from_arrays, load


class Canary:
    """Makes a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, (str(self.path),))


def refusal(name: str, path: Path) -> str:
    """The one line with which reading this fails."""
    with pytest.raises(InputError) as caught:
        load(Data(name, str(path)))
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in text
    assert path.name in text
    return text


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    return file.getvalue()


def header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": dtype})
    return file.getvalue()


def write_zip(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, body in members.items():
            file.writestr(f"{name}.npy", body)


def write_idx(folder: Path, images: bytes, labels: bytes | None = None) -> None:
    (folder / "train-images-idx3-ubyte").write_bytes(images)
    (folder / "train-labels-idx1-ubyte").write_bytes(labels or idx((2,), bytes(2)))


def idx(dims: tuple[int, ...], values: bytes) -> bytes:
    return bytes((0, 0, 8, len(dims))) + struct.pack(f">{len(dims)}I", *dims) + values


def write_cifar(folder: Path) -> None:
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(bytes(3073 * 2))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".bin", ".pt"])
def test_a_pickle_in_disguise_is_refused_and_never_run(tmp_path: Path, protocol: int, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(pickle.dumps(Canary(tmp_path / "canary"), protocol))
    assert "refused: pickle" in refusal("npz", path)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("where", ["x", "y", "user"])
def test_an_object_array_in_an_npz_is_refused_and_never_run(tmp_path: Path, where: str) -> None:
    path = tmp_path / "data.npz"
    arrays: dict[str, object] = {"x": np.zeros((2, 2)), "y": np.zeros(2, int), "user": np.zeros(2, int)}
    arrays[where] = np.array([Canary(tmp_path / "canary")] * 2, dtype=object)
    np.savez(path, **arrays)
    assert "refused: pickle" in refusal("npz", path)
    assert not (tmp_path / "canary").exists()


def test_a_pickle_as_a_member_of_an_npz_or_in_a_torch_file_is_refused(tmp_path: Path) -> None:
    payload = pickle.dumps(Canary(tmp_path / "canary"))
    write_zip(tmp_path / "data.npz", x=payload, y=npy(np.zeros(2, int)))
    assert "refused: pickle" in refusal("npz", tmp_path / "data.npz")
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as file:
        file.writestr("model/data.pkl", payload)
    assert "refused: pickle" in refusal("npz", tmp_path / "model.pt")
    assert not (tmp_path / "canary").exists()


def test_a_pickle_among_cifar_or_idx_files_is_refused(tmp_path: Path) -> None:
    payload = pickle.dumps(Canary(tmp_path / "canary"))
    write_cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(payload)
    with pytest.raises(InputError, match=r"data_batch_3\.bin: refused: pickle"):
        load(Data("cifar10", str(tmp_path)))
    write_idx(tmp_path, payload)
    with pytest.raises(InputError, match="refused: pickle"):
        load(Data("idx", str(tmp_path)))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(payload, mtime=0))
    with pytest.raises(InputError, match=r"ubyte\.gz: refused: pickle"):
        load(Data("idx", str(tmp_path)))
    assert not (tmp_path / "canary").exists()


def test_an_idx_header_that_claims_terabytes_is_refused_before_memory_rises(tmp_path: Path) -> None:
    huge = idx((1_000_000, 1000, 1000), bytes(16))
    write_idx(tmp_path, huge)
    tracemalloc.start()
    with pytest.raises(InputError, match="names 1,000,000,000,016 bytes in its header and holds 32"):
        load(Data("idx", str(tmp_path)))
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(huge, mtime=0))
    with pytest.raises(InputError, match="claims 1,000,000,000,016 bytes"):
        load(Data("idx", str(tmp_path)))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_a_gigabyte_from_a_megabyte_is_refused_before_memory_rises(tmp_path: Path) -> None:
    # The compressed body is made up of repeated zeros; only its header must be consistent.
    zeros = 128 << 20
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(idx((zeros, 1, 1), b""))
        for _ in range(zeros >> 20):
            file.write(bytes(1 << 20))
    with (
        zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w") as member,
    ):
        member.write(header((zeros // 4, 1)))
        for _ in range(zeros >> 20):
            member.write(bytes(1 << 20))
    tracemalloc.start()
    assert "decompression bomb" in refusal("npz", tmp_path / "data.npz")
    with pytest.raises(InputError, match="decompression bomb"):
        load(Data("idx", str(tmp_path)))
    assert tracemalloc.get_traced_memory()[1] < 5e6
    tracemalloc.stop()


def test_an_npz_header_must_agree_with_what_follows_it(tmp_path: Path) -> None:
    for claim, held in (((10**12, 4), 16), ((2, 2), 12), ((2, 2), 20), ((-1, -4), 16)):
        write_zip(tmp_path / "data.npz", x=header(claim) + bytes(held), y=npy(np.zeros(2, int)))
        assert "save it again" in refusal("npz", tmp_path / "data.npz")


def test_a_zip_of_a_million_entries_is_refused_by_the_size_of_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as file:
        for number in range(15_000):
            file.writestr(f"an entry with quite a long name, number {number}", b"")
    assert "its directory takes more than" in refusal("npz", path)


@pytest.mark.parametrize("name", ["cifar10", "idx", "npz"])
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz", ".zip", ".dat"])
def test_archives_are_not_unpacked(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"set{suffix}"
    path.write_bytes(bytes(257) + b"ustar" + bytes(250))
    assert "unpack it and set data.path to the folder" in refusal(name, path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_with_only_the_archive_says_so(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"")
    assert "it holds the archive cifar-10-binary.tar.gz: unpack it first" in refusal("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "idx", "npz"])
def test_a_missing_path_is_named_and_so_is_one_left_out(tmp_path: Path, name: str) -> None:
    assert "no such file or folder" in refusal(name, tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"set data\.path"):
        load(Data(name))


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    assert "neither a folder nor a plain file" in refusal("npz", tmp_path / "pipe.npz")


@pytest.mark.parametrize("name", ["cifar10", "idx"])
def test_a_file_where_a_folder_belongs_and_the_other_way_round(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "a file; set data.path to the folder" in refusal(name, tmp_path / "file")
    assert "a folder; set data.path to the npz file" in refusal("npz", tmp_path)


def test_a_cifar_file_of_the_wrong_length_or_label_is_named(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    broken = tmp_path / "data_batch_2.bin"
    for body, line in (
        (bytes(3073 * 2 - 1), r"data_batch_2\.bin: 6,145 bytes are not"),
        (b"", r"data_batch_2\.bin: 0 bytes are not"),
        (bytes(3073), r"data_batch_2\.bin: holds 1 images where data_batch_1\.bin holds 2"),
        (b"\x0a" + bytes(3073 * 2 - 1), r"data_batch_2\.bin: label 10 is out of range"),
    ):
        broken.write_bytes(body)
        with pytest.raises(InputError, match=line):
            load(Data("cifar10", str(tmp_path)))
    broken.unlink()
    with pytest.raises(InputError, match=r"no file data_batch_2\.bin"):
        load(Data("cifar10", str(tmp_path)))


@pytest.mark.parametrize(
    ("images", "line"),
    [
        (idx((2, 2, 2), bytes(7)), "names 24 bytes in its header and holds 23"),
        (idx((2, 2, 2), bytes(9)), "names 24 bytes in its header and holds 25"),
        (idx((2,), bytes(2)), "not an IDX file of bytes in 3 dimensions: starts with 00 00 08 01"),
        (b"\x00\x00\x0d\x03" + bytes(12), "not an IDX file"),
        (b"", "not an IDX file"),
        (idx((3, 2, 2), bytes(12)), "x holds 3 rows, y holds 2"),
        (idx((0, 2, 2), b""), "x holds no rows"),
    ],
)
def test_a_broken_idx_file_is_named(tmp_path: Path, images: bytes, line: str) -> None:
    write_idx(tmp_path, images)
    with pytest.raises(InputError, match=line):
        load(Data("idx", str(tmp_path)))


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(idx((2, 2, 2), bytes(8)), mtime=0)[:-9],
        gzip.compress(idx((2, 2, 2), bytes(7)), mtime=0),
        gzip.compress(idx((2, 2, 2), bytes(9)), mtime=0),
        gzip.compress(idx((2, 2, 2), bytes(8)), mtime=0)[:-5] + b"\x00" * 5,
        b"not gzip at all",
        b"",
    ],
)
def test_a_broken_gzip_file_is_named(tmp_path: Path, body: bytes) -> None:
    write_idx(tmp_path, b"")
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(body)
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz: "):
        load(Data("idx", str(tmp_path)))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"x": np.array([[0.0, np.nan], [0, 0]])}, "x holds NaN or infinity, first in row 0"),
        ({"x": np.array([[0.0, 0], [0, np.inf]])}, "x holds NaN or infinity, first in row 1"),
        ({"x": np.array([[0.0, 0], [0, 1e300]])}, "x holds NaN or infinity, first in row 1"),
        ({"x": np.zeros((3, 2))}, "x holds 3 rows, y holds 2"),
        ({"x": np.zeros(2)}, "one row per sample"),
        ({"x": np.zeros((0, 2))}, "x holds no rows"),
        ({"x": np.array([["a"], ["b"]])}, "give bytes, whole numbers or floats"),
        ({"x": np.zeros((2, 2), complex)}, "x holds complex128"),
        ({"y": np.array([0, -1])}, "label -1 is out of range"),
        ({"y": np.array([0, 2**40])}, "label 1099511627776 is out of range"),
        ({"y": np.array([0, 2**63], np.uint64)}, "label 9223372036854775808 is out of range"),
        ({"y": np.array(["a", None], object)}, "y lacks values"),
        ({"y": np.array([{}, []], object)}, "y holds Python objects"),
        ({"y": np.array(["a", "b"]), "names": ("b", "c")}, "y: 'a' is none of the classes b, c"),
        ({"x": np.zeros((2, 8, 8, 3))}, "like pictures with their channels last"),
        ({"y": np.array([0, 2]), "names": ("a", "b")}, "label 2 is out of range; there are 2 class names"),
        ({"user": np.zeros(3)}, "give one value for each of 2 rows"),
        ({"x_test": np.zeros((2, 2))}, "x_test and y_test go together"),
        ({"x_test": np.zeros((1, 3)), "y_test": [0]}, r"x_test holds float32 of \(3,\)"),
        ({"x_test": np.zeros((1, 2)), "y_test": [0, 1]}, "x_test holds 1 rows, y_test holds 2"),
        ({"x": [[1, 2], [3]]}, "x is not an array"),
    ],
)
def test_arrays_that_cannot_be_learned_from_are_refused(change: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        from_arrays(**{"x": np.zeros((2, 2)), "y": np.array([0, 1]), **change})  # type: ignore[arg-type]


def test_an_npz_without_x_or_with_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, y=np.zeros(2))
    assert "no array named x" in refusal("npz", path)
    np.savez(path, x=np.zeros((2, 6)), y=[0, 1])
    with pytest.raises(InputError, match=r"samples of shape \(6,\) cannot take data\.shape = \[1, 7\]"):
        load(Data("npz", str(path), shape=(1, 7)))


def damaged(body: bytes, rng: random.Random) -> bytes:
    """A body with some bytes changed, cut out or put in."""
    out = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out))
        kind = rng.randrange(3)
        if kind == 0:
            out[at] = rng.randrange(256)
        elif kind == 1:
            del out[at : at + rng.randint(1, 40)]
        else:
            out[at:at] = rng.randbytes(rng.randint(1, 40))
        out = out or bytearray(b"x")
    return bytes(out)


def build_npz(folder: Path) -> tuple[Path, Callable[[], object]]:
    path = folder / "data.npz"
    np.savez_compressed(path, x=np.arange(8.0).reshape(4, 2), y=[0, 1, 0, 1], user=["a", "b", "a", "b"])
    return path, lambda: load(Data("npz", str(path)))


def build_idx(folder: Path) -> tuple[Path, Callable[[], object]]:
    write_idx(folder, b"")
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx((2, 2, 2), bytes(8))))
    return path, lambda: load(Data("idx", str(folder)))


@pytest.mark.parametrize("build", [build_npz, build_idx])
def test_a_file_damaged_at_random_is_read_or_refused_in_one_line(
    tmp_path: Path, build: Callable[[Path], tuple[Path, Callable[[], object]]]
) -> None:
    path, read = build(tmp_path)
    whole, rng, lines = path.read_bytes(), random.Random(1), []
    for _ in range(400):
        path.write_bytes(damaged(whole, rng))
        try:
            read()
        except InputError as error:
            lines.append(str(error))
    assert len(lines) > 100
    assert not any("\n" in line for line in lines)
