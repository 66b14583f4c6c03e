"""Data sets that are sent as messages."""

import numpy as np
import pytest
import torch

from potluck.core import Examples, SettingsError
from potluck.data import Data, from_arrays, load, pack_sources, unpack_sources, write_npy_folder
from potluck.data.source import Source
from potluck.data.tokenizer import TrimPadding


def test_a_source_arrives_with_the_same_fingerprint_and_the_same_batches():
    rng = np.random.default_rng(0)
    sent = from_arrays(
        rng.integers(0, 255, (9, 3, 4, 4)).astype(np.uint8),
        np.arange(9) % 3,
        ["a", "b", "c"] * 3,
        rng.integers(0, 255, (3, 3, 4, 4)).astype(np.uint8),
        np.arange(3),
        names=("x", "y", "z"),
        scale="standard",
    )
    found, public = unpack_sources(pack_sources(sent, None))
    assert public is None
    assert found.fingerprint == sent.fingerprint
    assert (found.name, found.shape, found.names, found.classes) == (sent.name, sent.shape, sent.names, 3)
    assert torch.equal(found.train.all()["x"], sent.train.all()["x"])
    assert torch.equal(found.users, sent.users)


def test_the_built_in_digits_arrive_too():
    sent = load(Data())
    (found,) = unpack_sources(pack_sources(sent))
    assert found.fingerprint == sent.fingerprint


def test_padding_is_trimmed_at_the_other_end():
    rows = Examples({"x": torch.tensor([[1, 2, 0, 0]]), "y": torch.tensor([1])}, prepare=TrimPadding(0))
    (found,) = unpack_sources(pack_sources(Source("text", rows, None, 2, (4,), tokens=3)))
    assert found.train.all()["x"].tolist() == rows.all()["x"].tolist() == [[1, 2]]


def test_data_that_stays_in_its_files_is_not_sent(tmp_path):
    write_npy_folder(tmp_path / "set", np.zeros((8, 2), np.float32), np.arange(8) % 2)
    source = load(Data(name="npy", path=str(tmp_path / "set")))
    with pytest.raises(SettingsError, match=r"set data\.path to a folder that all machines see"):
        pack_sources(source)


def test_inputs_that_are_prepared_in_an_unknown_way_are_refused():
    rows = Examples({"x": torch.zeros(2, 2), "y": torch.tensor([0, 1])}, prepare=lambda batch: batch)
    with pytest.raises(SettingsError, match="which cannot be sent"):
        pack_sources(Source("odd", rows, None, 2, (2,)))
