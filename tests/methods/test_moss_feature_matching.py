"""Moss: pairs of taps, Loc and Deg, and the loss of features, by hand-computed numbers."""

from dataclasses import replace

import pytest
import torch

from potluck.core import stream
from potluck.methods.moss.feature_matching import FeatureMatching, resize
from potluck.methods.moss.taps import Tap

ONE = FeatureMatching((Tap("t", 2, 1, 1),), (Tap("s", 2, 1, 1),))
"""A pair of taps of two channels each."""
EYE = {"0.weight": torch.eye(2), "0.bias": torch.zeros(2)}
"""A transform that changes nothing."""
TEACHER, STUDENT = torch.tensor([1.0, 3.0]).reshape(1, 2, 1, 1), torch.tensor([2.0, 1.0]).reshape(1, 2, 1, 1)


def constant_meta(loc, deg):
    """Meta-networks with these outputs for every input; `deg` before its softmax."""
    return {
        "loc.0.weight": torch.zeros(1, 1, 2), "loc.0.bias": torch.tensor([[loc]]),
        "deg.0.weight": torch.zeros(1, 2, 2), "deg.0.bias": torch.tensor([deg]).log(),
    }  # fmt: skip


def distance(meta):
    return ONE.loss(meta, EYE, ONE.targets([TEACHER]), [STUDENT]).item()


def test_ms2_the_loss_of_a_pair():
    assert distance(constant_meta(1.0, [0.25, 0.75])) == pytest.approx(3.25)
    assert distance(constant_meta(0.5, [0.25, 0.75])) == pytest.approx(1.625)
    assert distance(constant_meta(1.0, [0.5, 0.5])) == pytest.approx(2.5)


def test_ms2_in_new_meta_networks_all_channels_count_alike():
    meta, _ = ONE.initial(stream(0))
    assert meta["loc.0.bias"].tolist() == [[1.0]]
    assert distance({**meta, "loc.0.weight": torch.zeros(1, 1, 2)}) == pytest.approx(2.5)


def test_ms3_the_teachers_map_is_resized():
    assert resize(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 1, 1).item() == 2.5


def test_ms5_deg_sums_to_one_and_loc_lies_between_0_and_6():
    matching = FeatureMatching((Tap("a", 3, 2, 2), Tap("b", 5, 1, 1)), (Tap("c", 4, 2, 2),))
    meta, _ = matching.initial(stream(1))
    wild = {name: 20 * torch.randn(tensor.shape, generator=stream(2, name)) for name, tensor in meta.items()}
    pooled = [torch.randn(50, 3), torch.randn(50, 5)]
    locs = matching.loc(wild, pooled)
    assert locs.shape == (50, 2, 1)
    assert (locs.min(), locs.max()) == (0.0, 6.0)
    assert torch.allclose(matching.deg(wild, 1, pooled[1]).sum(2), torch.ones(50, 1))
    assert torch.allclose(replace(matching, loc_softmax=True).loc(wild, pooled).sum((1, 2)), torch.ones(50))


def test_the_size_of_a_matching_from_resnet18_to_lenet():
    """Loc 513, Deg 262,656 and r 8,704 numbers for the pair of the last taps; here for two of LeNet's."""
    teacher = tuple(Tap(f"{c}", c, 4, 4) for c in (64, 128, 256, 512))
    meta, transforms = FeatureMatching(teacher, (Tap("a", 6, 14, 14), Tap("b", 16, 5, 5))).initial(stream(0))
    assert sum(meta[f"loc.3.{key}"].numel() for key in ("weight", "bias")) == 2 * 513
    assert sum(meta[f"deg.3.{key}"].numel() for key in ("weight", "bias")) == 2 * 262_656
    assert transforms["1.weight"][-512:].numel() + transforms["1.bias"][-512:].numel() == 8_704


def test_least_squares_transforms_are_fitted_over_all_batches():
    """The teacher's channels are 2a + 1 and a - b of the student's, so that is what is found."""
    maps = torch.randn(8, 2, 3, 3, generator=stream(0))
    teacher = torch.stack([2 * maps[:, 0] + 1, maps[:, 0] - maps[:, 1]], 1)
    matching = FeatureMatching((Tap("t", 2, 3, 3),), (Tap("s", 2, 3, 3),))
    halves = [(matching.targets([teacher[at]]), [maps[at]]) for at in (slice(0, 4), slice(4, 8))]
    found = matching.least_squares_transforms(halves)
    assert torch.allclose(found["0.weight"], torch.tensor([[2.0, 0.0], [1.0, -1.0]]), atol=0.01)
    assert torch.allclose(found["0.bias"], torch.tensor([1.0, 0.0]), atol=0.01)


def test_without_meta_networks_pairs_are_of_the_same_depth_and_all_count_alike():
    four, two = (tuple(Tap(f"{at}", 2, 1, 1) for at in range(count)) for count in (4, 2))
    down, up = FeatureMatching(four, two, use_meta=False), FeatureMatching(two, four, use_meta=False)
    assert [down.partners(n) for n in range(2)] == [[1], [3]]
    assert [up.partners(n) for n in range(4)] == [[0], [0], [1], [1]]
    assert down.initial(stream(0))[0] == {}
    assert down.loc({}, [torch.ones(1, 2)] * 4)[0].tolist() == [[0, 0], [1, 0], [0, 0], [0, 1]]
    alike = replace(ONE, use_meta=False)
    assert alike.loss({}, EYE, alike.targets([TEACHER]), [STUDENT]).item() == 2.5


def test_two_layers_start_like_one_where_it_counts():
    meta, _ = replace(ONE, meta_layers=2).initial(stream(0))
    assert {name for name in meta if "hidden" in name} == {
        f"{net}.0.hidden.{key}" for net in ("loc", "deg") for key in ("weight", "bias")
    }
    assert ONE.deg(meta, 0, torch.randn(3, 2)).unique().tolist() == [0.5]
