"""Random changes to training images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from potluck.core import Examples, Local, SettingsError, stream
from potluck.data import Data, Federation, from_arrays
from potluck.data.augment import CropFlip
from potluck.learn import FitJob, run_fit, trainable_weights

IMAGE = torch.arange(1, 10, dtype=torch.uint8).reshape(1, 1, 3, 3)


def changed(down: int, right: int, mirrored: int) -> list[list[int]]:
    found: list[list[int]] = CropFlip(pad=1)({"x": IMAGE}, torch.tensor([[down, right, mirrored]]))["x"][0, 0].tolist()
    return found


def test_an_image_is_moved_over_a_black_border_and_mirrored_after_that() -> None:
    assert changed(1, 1, 0) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert changed(1, 1, 1) == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert changed(0, 1, 0) == [[0, 0, 0], [1, 2, 3], [4, 5, 6]]
    assert changed(1, 2, 0) == [[2, 3, 0], [5, 6, 0], [8, 9, 0]]
    assert changed(1, 2, 1) == [[0, 3, 2], [0, 6, 5], [0, 9, 8]]


def test_dice_are_even_and_repeat_with_their_stream() -> None:
    drawn = CropFlip().draw(20_000, stream(0, "x"))
    assert torch.equal(drawn, CropFlip().draw(20_000, stream(0, "x")))
    for column, faces in ((0, 9), (1, 9), (2, 2)):
        counts = torch.bincount(drawn[:, column], minlength=faces)
        assert len(counts) == faces
        assert (counts / 20_000 - 1 / faces).abs().max() < 0.02


def federation(augment: str) -> Federation:
    x = np.random.default_rng(0).integers(0, 255, (60, 3, 8, 8)).astype(np.uint8)
    return Federation(from_arrays(x, np.arange(60) % 2), Data(clients=2, augment=augment), 0)  # type: ignore[arg-type]


def test_only_what_is_drawn_for_training_is_changed() -> None:
    plain, varied = (federation(augment).shard(0) for augment in ("none", "crop_flip"))
    rows = torch.arange(4)
    assert torch.equal(plain.train[rows]["x"], varied.train[rows]["x"])
    assert varied.validation.augment is None
    assert varied.test.augment is None
    augment = varied.train.augment
    assert augment is not None
    other = varied.train.batch(rows, augment.draw(4, stream(0, "dice")))
    assert other["x"].dtype == torch.float32
    assert not torch.equal(other["x"], plain.train[rows]["x"])


class Seen(torch.nn.Module):
    """Remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.shown: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shown.append(x)
        return x.flatten(1)[:, :2] * self.weight


def test_an_image_looks_different_every_time_it_is_learned_from() -> None:
    shown = []
    for augment in ("none", "crop_flip"):
        net = Seen()
        train: Examples = federation(augment).shard(0).train
        loss = lambda net, batch: torch.nn.functional.cross_entropy(net(batch["x"]), batch["y"])  # noqa: E731
        local, rng = Local(epochs=2, batch=100), stream(0, "fit")
        run_fit(FitJob(net, train, local, 0.1, loss, (), rng, trainable_weights(net)))
        first, second = (torch.stack(sorted(batch, key=lambda image: float(image.sum()))) for batch in net.shown)
        shown.append(torch.equal(first, second))
    assert shown == [True, False]


def test_rows_that_are_no_images_are_refused() -> None:
    source = from_arrays(np.zeros((30, 4), np.float32), np.arange(30) % 2)
    with pytest.raises(SettingsError, match=r"data\.augment = 'crop_flip' needs images; arrays has rows of \(4,\)"):
        Federation(source, Data(clients=2, augment="crop_flip"), 0)
