"""A folder of .npy files: the same source as an .npz, of which only the rows asked for are read."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import tiny

from potluck.core import InputError
from potluck.data import Data, Source, load, write_npy_folder
from potluck.data.stored import SAMPLE_ROWS, StoredColumn, sample_rows
from potluck.engines.worker import Worker
from potluck.run import resume, run
from potluck.run.assemble import assemble


def arrays(rows: int = 120, dtype: str = "f4") -> dict[str, np.ndarray]:
    """Images of 1x8x8 in three classes, of ten users with neighbouring rows, and a test set."""
    rng = np.random.default_rng(0)
    x = (rng.random((rows + 30, 1, 8, 8)) * 255).astype(dtype)
    y = rng.integers(0, 3, rows + 30)
    user = np.array([f"person {10 * row // rows}" for row in range(rows)])
    return {"x": x[:rows], "y": y[:rows], "user": user, "x_test": x[rows:], "y_test": y[rows:]}


def both(folder: Path, held: dict[str, np.ndarray], **settings: object) -> tuple[Source, Source]:
    """The same arrays from an .npz and from a folder of shards of 50 rows."""
    np.savez(folder / "data.npz", **held)
    write_npy_folder(folder / "shards", **held, shard_rows=50)
    return (
        load(Data("npz", str(folder / "data.npz"), **settings)),
        load(Data("npy", str(folder / "shards"), **settings)),
    )


def one_file_each(folder: Path, **held: np.ndarray) -> Path:
    folder.mkdir(parents=True)
    for name, values in held.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def refusal(folder: Path, named: str, **settings: object) -> str:
    """The one line with which reading this folder fails; it names the file."""
    with pytest.raises(InputError) as caught:
        load(Data("npy", str(folder), **settings))
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in text
    assert named in text
    return text


@pytest.mark.parametrize("dtype", ["u1", "i4", "f2", "f4", ">f8"])
@pytest.mark.parametrize("scale", ["auto", "standard"])
def test_a_folder_gives_the_bits_of_an_npz_in_any_type(tmp_path: Path, dtype: str, scale: str) -> None:
    whole, parts = both(tmp_path, arrays(dtype=dtype), scale=scale)
    assert parts.train.prepare == whole.train.prepare
    assert (parts.classes, parts.shape) == (whole.classes, whole.shape)
    assert parts.users is not None
    assert whole.users is not None
    assert parts.users.equal(whole.users)
    assert parts.test is not None
    assert whole.test is not None
    mixed = torch.tensor([119, 3, 50, 49, 3, 100, 0])
    for rows in (mixed, mixed[:1], mixed[:0], slice(40, 110), slice(None)):
        for one, other in ((parts.train, whole.train), (parts.train.pick(mixed), whole.train.pick(mixed))):
            rows = torch.arange(3) if isinstance(rows, torch.Tensor) and len(one) < 120 else rows
            assert all(one[rows][name].equal(other[rows][name]) for name in ("x", "y"))
    assert parts.test.all()["x"].equal(whole.test.all()["x"])
    assert parts.train.column("x").dtype == parts.train.columns["x"].dtype == whole.train.columns["x"].dtype
    assert parts.train.columns["x"].shape == whole.train.columns["x"].shape


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_images_are_reshaped_and_resized_as_they_are_read_with_the_same_bits(tmp_path: Path, dtype: str) -> None:
    whole, parts = both(tmp_path, arrays(dtype=dtype), shape=(1, 4, 16), size=(3, 9, 7), scale="standard")
    assert parts.shape == (3, 9, 7)
    assert parts.train.prepare == whole.train.prepare
    rows = torch.tensor([119, 3, 50])
    assert parts.train[rows]["x"].equal(whole.train[rows]["x"])
    assert parts.train.all()["x"].equal(whole.train.all()["x"])


def test_one_file_of_each_column_is_enough_and_classes_have_names(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    folder = one_file_each(tmp_path / "a", x=x, y=np.array([0, 1, 0]), classes=np.array(["no", "yes"]))
    (folder / "notes.txt").write_text("not read")
    source = load(Data("npy", str(folder)))
    assert source.train[torch.tensor([2, 0])]["x"].tolist() == [[4, 5], [0, 1]]
    assert (source.names, source.users, source.test) == (("no", "yes"), None, None)


def test_what_a_client_does_to_its_batch_does_not_reach_the_files(tmp_path: Path) -> None:
    folder = one_file_each(tmp_path / "a", x=np.zeros((3, 2), np.float32), y=np.array([0, 1, 0]))
    source = load(Data("npy", str(folder)))
    source.train[slice(0, 2)]["x"].fill_(7)
    source.train[torch.tensor([0])]["x"].fill_(7)
    assert source.train.all()["x"].tolist() == [[0, 0], [0, 0], [0, 0]]


def test_rows_that_are_not_there_are_an_error_as_with_tensors(tmp_path: Path) -> None:
    folder = one_file_each(tmp_path / "a", x=np.zeros((3, 2), np.float32), y=np.array([0, 1, 0]))
    x = load(Data("npy", str(folder))).train.columns["x"]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            x.index_select(0, torch.tensor([row]))


PARTITIONS = [
    {"partition": "iid"},
    {"partition": "labels", "labels": 2},
    {"partition": "dirichlet", "alpha": 0.5, "scale": "standard"},
    {"partition": "user", "augment": "crop_flip"},
]


@pytest.mark.parametrize("settings", PARTITIONS, ids=lambda settings: settings["partition"])
def test_a_run_on_a_folder_is_the_run_on_an_npz_bit_for_bit(tmp_path: Path, settings: dict[str, object]) -> None:
    held = arrays()
    np.savez(tmp_path / "data.npz", **held)
    write_npy_folder(tmp_path / "shards", **held, shard_rows=32)
    found = []
    for name, path, engine in (("npz", "data.npz", "serial"), ("npy", "shards", "serial"), ("npy", "shards", "pool")):
        data = {"clients": 5, "name": name, "path": str(tmp_path / path), **settings}
        how = {"engine": engine, "workers": 2} if engine == "pool" else {"engine": engine}
        result = run(tiny(rounds=2, data=data, run=how), tmp_path / f"{name} {engine}")
        found.append((result.weights_sha256, result.scores))
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_public_rows_of_another_folder_are_read_without_the_rest(tmp_path: Path) -> None:
    write_npy_folder(tmp_path / "shards", **arrays(), shard_rows=32)
    public = {"name": "npy", "path": str(tmp_path / "shards")}
    setup = assemble(tiny(data={"public": 20, "public_from": public}))
    x = setup.context.datasets.public.columns["x"]
    assert isinstance(x, torch.Tensor)
    assert len(x) == 20


def test_batches_are_moved_and_captured_steps_copy_them(tmp_path: Path) -> None:
    write_npy_folder(tmp_path / "shards", **arrays(), shard_rows=32)
    setup = assemble(tiny(data={"name": "npy", "path": str(tmp_path / "shards")}))
    worker = Worker(setup.context)
    worker.hardware = torch.device("meta")
    moved = worker.move(setup.context.datasets.shard("c0").train)
    assert isinstance(moved.columns["x"], StoredColumn)
    assert moved.columns["x"].index_select(0, torch.tensor([1])).device.type == "meta"
    assert not worker.resident(moved)


def test_the_fingerprint_covers_labels_users_and_a_sample_of_rows(tmp_path: Path) -> None:
    held = arrays()
    changed = {name: values.copy() for name, values in held.items()}
    changed["x"][-1, 0, 0, 0] += 1
    labels = {**held, "y": held["y"][::-1].copy()}
    users = {**held, "user": held["user"][::-1].copy()}
    several = [held, changed, labels, users, {**held, "x_test": held["x"][:30]}]
    found = []
    for number, one in enumerate(several):
        write_npy_folder(tmp_path / str(number), **one)
        found.append(load(Data("npy", str(tmp_path / str(number)))).fingerprint)
    assert len(set(found)) == len(several)
    write_npy_folder(tmp_path / "other shards", **held, shard_rows=7)
    assert load(Data("npy", str(tmp_path / "other shards"))).fingerprint == found[0]


def test_the_sample_is_all_rows_or_evenly_spaced_ones_from_the_first_to_the_last() -> None:
    assert sample_rows(5, 100).tolist() == [0, 1, 2, 3, 4]
    assert sample_rows(1, 100).tolist() == [0]
    many = sample_rows(10**9, 100)
    assert (len(many), many[0], many[-1]) == (SAMPLE_ROWS, 0, 10**9 - 1)
    assert np.diff(many).max() <= 10**9 // (SAMPLE_ROWS - 1) + 1
    # Four rows of 16 MiB make 64 MiB.
    assert sample_rows(7, 16 << 20).tolist() == [0, 2, 4, 6]
    assert sample_rows(7, 1 << 40).tolist() == [0, 6]


def test_a_run_is_resumed_on_the_same_rows_only(tmp_path: Path) -> None:
    held = arrays()
    folder = write_npy_folder(tmp_path / "shards", **held)
    data = {"name": "npy", "path": str(folder)}
    whole = run(tiny(rounds=2, data=data), tmp_path / "whole")
    run(tiny(rounds=1, data=data), tmp_path / "half")
    assert resume(tmp_path / "half", rounds=2).weights_sha256 == whole.weights_sha256
    held["x"][5] = 0
    np.save(folder / "x-00000.npy", held["x"])
    with pytest.raises(InputError, match="is not the data of this run"):
        resume(tmp_path / "half", rounds=3)


def npy_bytes(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=True)
    return file.getvalue()


X = np.zeros((4, 2), np.float32)
Y = np.array([0, 1, 0, 1])


@pytest.mark.parametrize("name", ["x", "y", "user", "x_test", "classes"])
def test_pickles_are_refused_and_never_run(tmp_path: Path, name: str) -> None:
    class Canary:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "canary"),))

    for number, payload in enumerate((pickle.dumps(Canary()), npy_bytes(np.array([Canary()], object)))):
        folder = one_file_each(tmp_path / str(number), x=X, y=Y, x_test=X, y_test=Y)
        (folder / f"{name}.npy").write_bytes(payload)
        assert "refused: pickle" in refusal(folder, f"{name}.npy")
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("columns", "named", "reason"),
    [
        ({"x": X}, "y.npy", "no file y.npy or y-00000.npy"),
        ({"y": Y}, "x.npy", "no file x.npy or x-00000.npy"),
        ({"x": X, "x-00000": X, "y": Y}, "x-00000.npy", "keep one file or the shards"),
        ({"x-00000": X, "x-00002": X, "y": Y}, "x-00001.npy", "no such file, but there is x-00002.npy"),
        ({"x-0": X, "y": Y}, "x-00000.npy", "no such file, but there is x-0.npy"),
        ({"x": X, "y": Y[:3]}, "x holds 4 rows", "y holds 3"),
        ({"x-00000": X, "x-00001": X[:3], "y-00000": Y, "y-00001": Y}, "y-00001.npy", "4 rows, x-00001.npy holds 3"),
        ({"x": X, "y-00000": Y, "y-00001": Y}, "y-00001.npy", "the last of 2 files, and x.npy is the last of 1"),
        ({"x-00000": X, "x-00001": X.astype("f8"), "y": Y}, "x-00001.npy", "x-00000.npy holds float32"),
        ({"x-00000": X, "x-00001": X[:, :1], "y": Y}, "x-00001.npy", r"holds float32 of (1,), x-00000.npy"),
        ({"x": X, "y": Y, "user": np.arange(3)}, "user column", "one value for each of 4 rows"),
        ({"x": X[:, 0], "y": Y}, "x.npy", "has the shape (4,)"),
        ({"x": X[:0], "y": Y}, "x.npy", "holds no rows"),
        ({"x": X[:, :0], "y": Y}, "x.npy", "holds no rows"),
        ({"x": np.float32(3), "y": Y}, "x.npy", "holds no rows"),
        ({"x": np.asfortranarray(np.ones((4, 2))), "y": Y}, "x.npy", "in Fortran order"),
        ({"x": X.astype("c8"), "y": Y}, "x.npy", "holds complex64; give bytes, whole numbers or floats"),
        ({"x": X + np.float32("nan"), "y": Y}, "x.npy", "NaN or infinity, first in row 0"),
        ({"x": X, "y": Y, "x_test": X}, "x_test", "go together"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "x_test", "give both the same type and shape"),
    ],
)  # fmt: skip
def test_a_folder_that_does_not_add_up_is_refused(
    tmp_path: Path, columns: dict[str, np.ndarray], named: str, reason: str
) -> None:
    assert reason in refusal(one_file_each(tmp_path / "a", **columns), named)


def test_a_file_that_is_shorter_or_longer_than_its_header_says_is_refused(tmp_path: Path) -> None:
    whole = npy_bytes(X)
    for number, held in enumerate((whole[:-1], whole + b"\0", whole[:100], b"", b"\x93NUMPY\x01\x00")):
        folder = one_file_each(tmp_path / str(number), y=Y)
        (folder / "x.npy").write_bytes(held)
        assert "save it again" in refusal(folder, "x.npy")


def test_pipes_files_and_settings_of_npz_are_refused(tmp_path: Path) -> None:
    folder = one_file_each(tmp_path / "a", x=X, y=Y)
    assert "is for npz files; leave it out" in refusal(folder, "data.window", window=3)
    assert "cannot take data.shape" in refusal(folder, "x.npy", shape=(3,))
    assert "set data.path to the folder" in refusal(folder / "x.npy", "x.npy")
    os.mkfifo(folder / "user.npy")
    assert "not a plain file" in refusal(folder, "user.npy")


def test_a_bad_row_is_named_when_it_is_read(tmp_path: Path) -> None:
    x = np.zeros((3 * SAMPLE_ROWS, 1), np.float32)
    x[8000] = np.inf
    folder = one_file_each(tmp_path / "a", **{"x-00000": x[:7000], "x-00001": x[7000:]}, y=np.arange(len(x)) % 2)
    train = load(Data("npy", str(folder))).train
    assert len(train[slice(0, 8000)]["x"]) == 8000
    with pytest.raises(InputError, match=r"x-00001\.npy holds NaN or infinity, first in row 1000;"):
        train[torch.tensor([3, 8001, 8000])]
    with pytest.raises(InputError, match=r"x-00001\.npy holds NaN"):
        load(Data("npy", str(folder), scale="standard"))


def test_a_file_that_is_cut_or_removed_in_use_is_one_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    folder = one_file_each(tmp_path / "a", x=X, y=Y)
    train = load(Data("npy", str(folder))).train
    os.truncate(folder / "x.npy", 130)
    with pytest.raises(InputError, match=r"x\.npy: its size changed while it was in use"):
        train[slice(0, 4)]
    (folder / "x.npy").unlink()
    with pytest.raises(InputError, match=r"x\.npy: No such file or directory; it was there before"):
        train[slice(0, 4)]


def test_more_shards_than_a_process_may_open_files(tmp_path: Path) -> None:
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    write_npy_folder(tmp_path / "a", np.arange(400, dtype=np.uint8).reshape(200, 2), np.arange(200) % 2, shard_rows=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        assert load(Data("npy", str(tmp_path / "a"))).train.column("x")[:, 1].tolist()[:3] == [1, 3, 5]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def test_the_writer_takes_pieces_of_any_length_and_fills_shards(tmp_path: Path) -> None:
    def pieces() -> Iterator[tuple[np.ndarray, ...]]:
        for start, end in ((0, 2), (2, 2), (2, 9), (9, 10)):
            yield np.arange(start, end, dtype=np.uint8)[:, None], np.arange(start, end) % 2, np.arange(start, end) // 5

    folder = write_npy_folder(tmp_path / "new" / "a", pieces(), x_test=iter([(X[:, :1].astype("u1"), Y)]), shard_rows=4)
    shards = [np.load(folder / f"x-0000{number}.npy").ravel().tolist() for number in range(3)]
    assert shards == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    source = load(Data("npy", str(folder)))
    assert source.train.column("y").tolist() == [0, 1] * 5
    assert source.users is not None
    assert source.users.tolist() == [0] * 5 + [1] * 5
    assert source.test is not None
    assert len(source.test) == 4
    assert sorted(path.name for path in folder.parent.iterdir()) == ["a"]


def test_the_writer_stores_arrays_of_any_order_row_by_row(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(8, dtype=np.float32).reshape(4, 2))
    folder = write_npy_folder(tmp_path / "a", x, Y)
    assert load(Data("npy", str(folder))).train.column("x").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def broken_pieces() -> Iterator[tuple[np.ndarray, ...]]:
    yield X, Y
    raise OSError("the disk is gone")


def test_the_writer_leaves_nothing_if_it_fails_and_overwrites_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the disk is gone"):
        write_npy_folder(tmp_path / "a", broken_pieces(), shard_rows=1)
    assert list(tmp_path.iterdir()) == []
    write_npy_folder(tmp_path / "a", X, Y)
    with pytest.raises(InputError, match="not an empty folder"):
        write_npy_folder(tmp_path / "a", X + 1, Y)
    assert load(Data("npy", str(tmp_path / "a"))).train.column("x").tolist() == X.tolist()


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        (X, None, "give x and y as arrays"),
        (iter([(X, Y)]), Y, "give x and y as arrays"),
        (iter([]), None, "a piece of x holds nothing"),
        (iter([(X,)]), None, "a piece of x holds x;"),
        (iter([(X, Y), (X, Y, Y)]), None, "a piece of x holds x, y, user"),
        (iter([(X, Y), (X.astype("f8"), Y)]), None, "x holds float64 of (2,) in one piece and float32"),
        (X, Y[:3], "y holds int64 of (3,); give numbers, one for each of 4 rows of x"),
        (X.astype(object), Y, "x holds object"),
        (X[:0], Y[:0], "x holds no rows"),
        (np.where(np.arange(4)[:, None] == 2, np.nan, X), Y, "x holds NaN or infinity, first in row 2"),
    ],
)
def test_the_writer_refuses_what_the_reader_would(tmp_path: Path, x: object, y: object, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        write_npy_folder(tmp_path / "a", x, y, shard_rows=1)
    assert reason in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_set_four_times_the_memory_of_this_machine_is_opened_and_read(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows, folder = 4 * memory // (1 << 20), one_file_each(tmp_path / "a")
    with (folder / "x.npy").open("wb") as file:
        head = {"shape": (rows, 1 << 20), "fortran_order": False, "descr": "|u1"}
        np.lib.format.write_array_header_1_0(file, head)
        file.truncate(file.tell() + rows * (1 << 20))  # a file of holes takes no room on the disk
        file.seek(-1, os.SEEK_END)
        file.write(b"\x07")
    np.save(folder / "y.npy", np.arange(rows) % 2)
    source = load(Data("npy", str(folder)))
    assert len(source.train) == rows
    assert len(source.fingerprint) == 64
    assert source.train[torch.tensor([5, rows - 1])]["x"][:, -1].tolist() == pytest.approx([0, 7 / 255])


MEASURE = """
import json, sys
from pathlib import Path
from tiny_runs import tiny
from potluck.run import run

def used():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    read = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"]
    return [int(status[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon", "RssFile")] + [int(read) / 2**20]

name, path, folder = sys.argv[1:]
run(tiny(rounds=1), Path(folder) / f"{name} warm-up")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = used()
data = {"name": name, "path": path, "clients": 200, "partition": "user", "test": 0.0, "validation": 0.0}
result = run(tiny(rounds=3, data=data), Path(folder) / name)
print(json.dumps([result.weights_sha256, *(now - then for now, then in zip(used(), before))]))
"""


@pytest.mark.slow
def test_a_run_on_300_megabytes_takes_a_fifth_of_them_as_memory_and_reads_a_fifth(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (100_000, 3, 32, 32), np.uint8)
    y, user, test = (
        np.arange(100_000) % 10,
        np.arange(100_000) // 500,
        {"x_test": x[:200], "y_test": np.arange(200) % 10},
    )
    write_npy_folder(tmp_path / "folder", x, y, user, **test, shard_rows=30_000)
    np.savez(tmp_path / "whole.npz", x=x, y=y, user=user, **test)
    del x
    found = {}
    for name, path in (("npy", "folder"), ("npz", "whole.npz")):
        told = subprocess.run(
            [sys.executable, "-c", MEASURE, name, str(tmp_path / path), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found[name] = json.loads(told.stdout.splitlines()[-1])
    (sha, *megabytes), (other, peak, *_) = found["npy"], found["npz"]
    assert sha == other
    assert max(megabytes) < 60, f"peak, anonymous, mapped and read MB: {megabytes}"
    assert peak > 290  # what is measured is there to be seen
