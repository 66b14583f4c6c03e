"""Random changes to training images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from potluck.core import Examples, Local, SettingsError, stream
from potluck.data import Data, Federation, from_arrays
from potluck.data.augment import CropFlip, CropFlipCutout
from potluck.data.source import InputScaling
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


STAYS = (4, 4, 0)
"""The numbers of an image that is neither shifted nor mirrored."""


@pytest.mark.parametrize(
    ("centre", "rows", "columns"),
    [((10, 10), (2, 18), (2, 18)), ((0, 0), (0, 8), (0, 8)), ((19, 5), (11, 20), (0, 13)), ((8, 12), (0, 16), (4, 20))],
)
def test_a_square_of_sixteen_clipped_at_the_border_is_zero_after_scaling(
    centre: tuple[int, int], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    scaling = InputScaling((100.3, 50.7), (10.0, 20.0))
    x = torch.randint(101, 255, (1, 2, 20, 20), generator=stream(0, "x")).to(torch.uint8)
    examples = Examples({"x": x}, prepare=scaling, augment=CropFlipCutout((20, 20), scaling.mean))
    found = examples.batch(torch.tensor([0]), torch.tensor([[*STAYS, *centre]]))["x"]
    whole = examples[torch.tensor([0])]["x"]
    assert (whole != 0).all()
    expected = whole.clone()
    expected[..., slice(*rows), slice(*columns)] = 0
    assert torch.equal(found, expected)


def test_the_square_is_cut_after_the_image_was_shifted_and_mirrored_and_each_image_has_its_own() -> None:
    x = torch.randint(1, 255, (2, 1, 20, 20), generator=stream(0, "x")).to(torch.uint8)
    drawn = torch.tensor([[0, 2, 1, 0, 0], [8, 4, 0, 19, 19]])
    moved = CropFlip()({"x": x}, drawn[:, :3])["x"].float()
    found = CropFlipCutout((20, 20), (0.0,))({"x": x}, drawn)["x"]
    moved[0, :, :8, :8] = moved[1, :, 11:, 11:] = 0
    assert torch.equal(found, moved)


def test_centres_of_squares_are_even_over_the_image_and_repeat_with_their_stream() -> None:
    augment = CropFlipCutout((5, 9), (0.0,))
    drawn = augment.draw(20_000, stream(0, "x"))
    assert torch.equal(drawn, augment.draw(20_000, stream(0, "x")))
    for column, faces in ((0, 9), (1, 9), (2, 2), (3, 5), (4, 9)):
        counts = torch.bincount(drawn[:, column], minlength=faces)
        assert len(counts) == faces
        assert (counts / 20_000 - 1 / faces).abs().max() < 0.02


def federation(augment: str, side: int = 24) -> Federation:
    x = np.random.default_rng(0).integers(0, 255, (60, 3, side, side)).astype(np.uint8)
    return Federation(from_arrays(x, np.arange(60) % 2), Data(clients=2, augment=augment), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["crop_flip", "crop_flip_cutout"])
def test_only_what_is_drawn_for_training_is_changed(kind: str) -> None:
    plain, varied = (federation(augment).shard(0) for augment in ("none", kind))
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
    for augment in ("none", "crop_flip", "crop_flip_cutout"):
        net = Seen()
        train: Examples = federation(augment).shard(0).train
        loss = lambda net, batch: torch.nn.functional.cross_entropy(net(batch["x"]), batch["y"])  # noqa: E731
        local, rng = Local(epochs=2, batch=100), stream(0, "fit")
        run_fit(FitJob(net, train, local, 0.1, loss, (), rng, trainable_weights(net)))
        first, second = (torch.stack(sorted(batch, key=lambda image: float(image.sum()))) for batch in net.shown)
        shown.append(torch.equal(first, second))
    assert shown == [True, False, False]


@pytest.mark.parametrize("kind", ["crop_flip", "crop_flip_cutout"])
def test_rows_that_are_no_images_are_refused(kind: str) -> None:
    source = from_arrays(np.zeros((30, 4), np.float32), np.arange(30) % 2)
    with pytest.raises(SettingsError, match=rf"data\.augment = '{kind}' needs images; arrays has rows of \(4,\)"):
        Federation(source, Data(clients=2, augment=kind), 0)  # type: ignore[arg-type]


def test_images_that_a_square_would_cover_whole_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"cuts squares of 16x16 out of images; arrays has 16x16; leave it out"):
        federation("crop_flip_cutout", side=16)
