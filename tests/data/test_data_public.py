"""Inputs made alike, recordings cut up, and public rows of another data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from real_data import real

from potluck.core import InputError, SettingsError
from potluck.data import Data, Federation, from_arrays, load, load_public
from potluck.data.settings import PublicData


def saved(path: Path, **arrays: Any) -> str:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})
    return str(path)


def test_a_side_that_shrinks_is_averaged_and_bytes_stay_bytes() -> None:
    x = np.zeros((2, 1, 1, 16), np.uint8)
    x[0, ..., 4] = 160  # a single bright pixel, far from the middle of either half
    source = from_arrays(x, [0, 1], size=(1, 1, 2))
    column = source.train.columns["x"]
    assert (column.dtype, source.shape) == (torch.uint8, (1, 1, 2))
    left, right = column[0].flatten().tolist()
    assert 160 // 8 <= left <= 160 // 4
    assert right < left
    assert column[1].flatten().tolist() == [0, 0]


def test_a_constant_image_stays_constant_at_any_size() -> None:
    source = from_arrays(np.full((2, 5, 7), 3.5, np.float32), [0, 1], size=(1, 32, 16))
    assert source.train.columns["x"].shape == (2, 1, 32, 16)
    assert source.train.columns["x"].unique().tolist() == [3.5]


def test_channels_are_repeated_as_a_whole() -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3)
    found = from_arrays(np.repeat(x, 2, 0), [0, 1], size=(4, 1, 3)).train.columns["x"][0, :, 0]
    assert found.tolist() == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("x", "size", "said"),
    [
        (np.zeros((2, 4), np.float32), (1, 2, 2), r"x holds float32 of \(4,\); data.size is for images"),
        (np.zeros((2, 4, 4), np.int64), (1, 2, 2), r"x holds int64 of \(4, 4\); data.size is for images"),
        (np.zeros((2, 3, 4, 4), np.uint8), (4, 4, 4), r"x has 3 channels, which cannot become"),
        (np.zeros((2, 3, 4, 4), np.uint8), (1, 4, 4), r"x has 3 channels, which cannot become"),
    ],
)
def test_what_cannot_take_a_size_is_refused(x: np.ndarray, size: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_arrays(x, [0, 1], size=size)


def test_a_test_set_gets_the_size_too_and_the_scale_is_that_of_the_result(tmp_path: Path) -> None:
    x = np.arange(32, dtype=np.float32).reshape(2, 4, 4)
    path = saved(tmp_path / "a.npz", x=x, y=[0, 1], x_test=x[:1], y_test=[0])
    source = load(Data("npz", path, size=(1, 2, 2), scale="standard"))
    assert source.test is not None
    assert source.test.columns["x"].shape == (1, 1, 2, 2)
    batch = source.train.all()["x"]
    assert float(batch.mean()) == pytest.approx(0, abs=1e-6)
    assert float(batch.std(correction=0)) == pytest.approx(1)


def test_users_have_the_names_that_their_places_point_to(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "a.npz", x=np.zeros((5, 1)), y=[0, 1, 0, 1, 0], speaker=[2, 0, 1, 2, 0], speakers=["", "b", "a"]
    )
    source = load(Data("npz", path))
    assert source.users is not None
    assert source.users.tolist() == [0, -1, 1, 0, -1]


@pytest.mark.parametrize("column", [[0, 3], [-1, 0], [0.0, 1.0]])
def test_places_that_point_to_no_name_are_refused(tmp_path: Path, column: list[float]) -> None:
    path = saved(tmp_path / "a.npz", x=np.zeros((2, 1)), y=[0, 1], subject=column, subjects=["a", "b", "c"])
    with pytest.raises(InputError, match="subject must hold indices into subjects, whole numbers from 0 to 2"):
        load(Data("npz", path))


def recordings(folder: Path, **changes: Any) -> str:
    """Three recordings of 5, 1 and 4 samples of two channels: sample i holds i and 10 i."""
    x = np.arange(10)[:, None] * np.array([1.0, 10.0])
    columns = {"x": x, "off": [0, 5, 6, 10], "y": [1, 0, 0], "subject": [7, 8, 9], **changes}
    return saved(folder / "recordings.npz", **columns)


def test_recordings_are_cut_into_windows_with_their_label_and_user(tmp_path: Path) -> None:
    source = load(Data("npz", recordings(tmp_path), window=2))
    assert source.shape == (2, 2)
    found = source.train.all()
    assert found["x"][:, 0].tolist() == [[0, 1], [2, 3], [6, 7], [8, 9]]
    assert found["x"][:, 1].tolist() == [[0, 10], [20, 30], [60, 70], [80, 90]]
    assert found["y"].tolist() == [1, 1, 0, 0]
    assert source.users is not None
    assert source.users.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("changes", "window", "said"),
    [
        ({}, 0, "recordings of different lengths .* set data.window to a length"),
        ({}, 6, "data.window = 6, but the longest recording has 5"),
        ({"off": [0, 5, 6, 11]}, 2, "off must rise from 0 to the 10 samples of x"),
        ({"off": [0, 6, 5, 10]}, 2, "off must rise from 0 to the 10 samples of x"),
        ({"off": [0.0, 5.0, 6.0, 10.0]}, 2, "off must rise from 0 to the 10 samples of x"),
        ({"x": np.zeros((10, 2, 2))}, 2, r"x has the shape \(10, 2, 2\)"),
        ({"y": [1, 0]}, 2, r"a column of shape \(2,\); give one value for each of 3"),
        ({"subject": [1, 2]}, 2, r"a column of shape \(2,\); give one value for each of 3"),
    ],
)
def test_recordings_that_cannot_be_cut_are_refused(
    tmp_path: Path, changes: dict[str, Any], window: int, said: str
) -> None:
    with pytest.raises((InputError, SettingsError), match=said):
        load(Data("npz", recordings(tmp_path, **changes), window=window))


def test_a_window_needs_recordings(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=np.zeros((2, 4)), y=[0, 1])
    with pytest.raises(InputError, match=r"data\.window = 2, but no 'off' says where recordings begin"):
        load(Data("npz", path, window=2))


def other(folder: Path, **settings: Any) -> PublicData:
    """Thirty rows of three classes, each of bytes 100 and more, in a file."""
    x = np.arange(100, 130, dtype=np.uint8)[:, None, None].repeat(2, 1).repeat(2, 2)
    return PublicData("npz", saved(folder / "other.npz", x=x, y=np.arange(30) % 3), **settings)


def ours(rows: int = 40) -> Any:
    return from_arrays(np.arange(rows * 12, dtype=np.float32).reshape(rows, 3, 2, 2), np.arange(rows) % 2)


def test_public_rows_of_another_set_have_its_scale_its_mix_and_no_labels(tmp_path: Path) -> None:
    data = Data(clients=2, public=6, public_from=other(tmp_path, size=(3, 2, 2)))
    federation = Federation(ours(), data, 0, load_public(data))
    assert set(federation.public.columns) == {"x"}
    x = federation.public.all()["x"]
    assert x.shape == (6, 3, 2, 2)
    numbers = (x[:, 0, 0, 0] * 255).round().int()
    assert torch.equal(x, (numbers / 255).view(6, 1, 1, 1).expand(6, 3, 2, 2))
    assert sorted(((numbers - 100) % 3).tolist()) == [0, 0, 1, 1, 2, 2]
    assert len(set(numbers.tolist())) == 6


def test_public_rows_of_another_set_may_have_a_skewed_mix_of_its_classes(tmp_path: Path) -> None:
    """With an alpha near 0: all ten rows of one class, and two of another."""
    data = Data(
        clients=2, public=12, alpha=1e-4, public_partition="dirichlet", public_from=other(tmp_path, size=(3, 2, 2))
    )
    x = Federation(ours(), data, 0, load_public(data)).public.all()["x"]
    numbers = (x[:, 0, 0, 0] * 255).round().int()
    assert sorted(torch.bincount((numbers - 100) % 3, minlength=3).tolist()) == [0, 2, 10]


def test_clients_hold_the_same_rows_whatever_the_public_rows_are(tmp_path: Path) -> None:
    data = Data(clients=2, public=6, public_from=other(tmp_path, size=(3, 2, 2)))
    far, near = Federation(ours(), data, 0, load_public(data)), Federation(ours(), Data(clients=2, public=6), 0)
    for client in range(2):
        assert torch.equal(far.shard(client).train.all()["x"], near.shard(client).train.all()["x"])
    assert torch.equal(far.test.all()["x"], near.test.all()["x"])


def test_no_other_set_is_read_where_none_is_named() -> None:
    assert load_public(Data()) is None


def test_public_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for settings, public, said in (
        ({}, 6, r"data\.public_from has rows of \(2, 2\), arrays has \(3, 2, 2\); set data\.public_from\.shape or"),
        ({"size": (3, 2, 2)}, 31, r"data\.public = 31, but data\.public_from has 30 rows; lower it"),
    ):
        data = Data(clients=2, public=public, public_from=other(tmp_path, **settings))
        with pytest.raises(SettingsError, match=said):
            Federation(ours(60), data, 0, load_public(data))
    words = from_arrays(np.zeros((40, 3, 2, 2), np.int64), np.arange(40) % 2)
    data = Data(clients=2, public=6, public_from=other(tmp_path, size=(3, 2, 2)))
    with pytest.raises(SettingsError, match=r"data\.public_from needs rows of numbers"):
        Federation(words, data, 0, load_public(data))


def test_a_fault_of_the_other_file_says_whose_it_is(tmp_path: Path) -> None:
    where = str(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"data\.public_from: .*none\.npz: no such file"):
        load_public(Data(public=1, public_from=PublicData("npz", where)))
    with pytest.raises(SettingsError, match=r"data\.public_from: data\.name = 'npzz' is not known"):
        load_public(Data(public=1, public_from=PublicData("npzz")))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Data(public_from=PublicData("digits")), "data.public = 0 takes no rows from data.public_from"),
        (lambda: Data(size=(3, 32)), r"data.size = \[3, 32\] must hold channels, height and width"),
        (lambda: Data(size=(3, 0, 32)), r"data.size = \[3, 0, 32\] must hold whole numbers above 0"),
        (lambda: Data(size=(3, 32, 1025)), r"data.size = \[3, 32, 1025\] must hold no number above 1024"),
        (lambda: Data(window=-1), "data.window = -1 is below 0"),
        (lambda: Data(clients=3, groups=4), "data.groups = 4 is above data.clients = 3"),
        (lambda: PublicData(size=(1,)), r"data.public_from.size = \[1\] must hold channels"),
        (lambda: PublicData(shape=(-1,)), r"data.public_from.shape = \[-1\] must hold whole numbers above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_spoken_digits_fit_speech_commands_and_wrists_fit_phones() -> None:
    spoken = load(Data("npz", str(real("fsdd.npz")), size=(1, 32, 32), scale="standard"))
    assert (len(spoken.train), spoken.shape, spoken.classes) == (3000, (1, 32, 32), 10)
    wrists = Data("npz", str(real("hmp.npz")), window=128, shape=(3, 8, 16), size=(9, 8, 16), scale="standard")
    moved = load(wrists)
    assert (moved.shape, moved.classes) == ((9, 8, 16), 14)
    assert 2_500 < len(moved.train) < 446_529 // 128
