"""Moss's recipes on images: one task, the same rates in all of them, and every rival of the paper's Table 3."""

from dataclasses import replace
from pathlib import Path

import pytest

from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.run import read_experiment

FOLDER = Path(__file__).parents[2] / "experiments" / "moss"
IMAGE = read_experiment(FOLDER / "image.toml")
PRUNED = read_experiment(FOLDER / "image_pruned.toml")


OTHERS = pytest.mark.parametrize("name", ["image_300", "image_pruned", "ablations", "privacy", "robustness"])


@OTHERS
def test_image_recipes_have_the_rates_the_data_and_the_transfers_of_the_first(name):
    other = read_experiment(FOLDER / f"{name}.toml")
    assert other.local == IMAGE.local
    assert replace(other.data, clients=60) == IMAGE.data
    assert name == "image_pruned" or other.method == IMAGE.method
    assert other.cohort == other.data.clients


@OTHERS
def test_image_recipes_score_models_on_the_common_rows_and_after_local_epochs(name):
    other = read_experiment(FOLDER / f"{name}.toml")
    assert other.score.common
    assert other.score.personal


def test_the_two_recipes_hold_moss_and_the_twelve_rivals_of_table_3():
    named = [method if isinstance(method, str) else method["name"] for method in PRUNED.compare.methods]
    assert sorted(named) == ["fedmask", "fedskel", "fjord", "hermes", "heterofl", "lotteryfl", "tailorfl"]
    named = [method if isinstance(method, str) else method["name"] for method in IMAGE.compare.methods]
    assert sorted(named) == ["dsfl", "fedavg", "feddf", "fedet", "fedgems", "fedmd", "moss"]


def test_pruned_types_have_all_two_fifths_and_a_twentieth_of_the_parameters():
    full = make_spec("resnet18", input=(3, 32, 32), classes=10)
    zoo = ModelZoo(full)
    shares = [
        zoo.cost(tier_spec(full, tier.width, None), 1).parameters / zoo.cost(full, 1).parameters for tier in PRUNED.tier
    ]
    assert shares == pytest.approx([0.05, 0.4, 1.0], rel=0.03)
