"""FedIN's recipes for a GPU: data and averages are those of its authors' later code, in every run."""

import pytest
from recipes import FOLDER, planned

from potluck.run import config

OTHERS = ("laptop", "table6")
"""Recipes for a laptop, and the one that only counts what is sent."""
RECIPES = sorted(path for path in (FOLDER / "fedin").glob("*.toml") if not path.stem.startswith(OTHERS))
pytestmark = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)


def test_non_iid_shards_are_unequal(path):
    for entry in planned(path):
        data = entry.experiment.data
        assert data.partition == "iid" or (data.partition, data.balance) == ("dirichlet", True), entry.label


def test_cifar10_is_cropped_mirrored_and_blanked_and_fashion_mnist_only_resized(path):
    for entry in planned(path):
        data = entry.experiment.data
        wanted = {"cifar10": ((), "crop_flip_cutout"), "idx": ((1, 32, 32), "none")}
        assert (data.size, data.augment) == wanted[data.name], entry.label


def test_every_method_averages_with_equal_weights(path):
    for entry in planned(path):
        found = entry.experiment
        assert config.method(found.method, found.local).weighting == "uniform", entry.label
