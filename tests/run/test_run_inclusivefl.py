"""InclusiveFL's recipes for a GPU: what each run of their comparisons has of the paper's and the released code's."""

import pytest
from recipes import FOLDER, planned

from potluck.models import make_spec, tier_spec, widths_by_group

ON_GLUE = ["glue", "cola", "stsb", "roberta", "mixes", "drop", "borrow"]


def experiments(name):
    return [entry.experiment for entry in planned(FOLDER / "inclusivefl" / f"{name}.toml")]


@pytest.mark.parametrize("name", ON_GLUE)
def test_runs_on_glue_have_dropout_all_rows_and_the_best_round_by_the_test_set(name):
    for found in experiments(name):
        assert found.model["dropout"] == 0.1
        assert found.data.samples is None
        assert found.data.validation == 0
        assert found.score.best == "test"


@pytest.mark.parametrize("name", ON_GLUE)
def test_runs_on_glue_have_a_server_rate_for_each_tier(name):
    for found in experiments(name):
        assert {tier.name: tier.server_lr for tier in found.tier} == {"weak": 2e-4, "medium": 5e-5, "strong": 5e-5}


def test_a_tier_is_dropped_with_its_clients():
    absent = {found.variant: [tier.name for tier in found.tier if tier.absent] for found in experiments("drop")}
    assert absent == {
        "all tiers": [],
        "without weak": ["weak"],
        "without medium": ["medium"],
        "without strong": ["strong"],
    }


def test_momentum_is_borrowed_in_five_amounts_without_shared_layers_and_with_them():
    methods = [found.method for found in experiments("borrow")]
    for shared in (False, True):
        rows = [method for method in methods if method.get("share_layers", True) is shared]
        assert [method["borrow"] for method in rows] == [0.0, 0.2, 0.5, 0.8, 1.0]


@pytest.mark.parametrize(
    ("name", "encoder", "units"),
    [("roberta", "roberta-base", [456, 624, 768])]
    + [(name, "minilm-l6", [276, 336, 384]) for name in ("glue", "cola", "stsb", "mixes")],
)
def test_heterofl_has_all_layers_and_fewer_units_in_smaller_tiers(name, encoder, units):
    full = make_spec(encoder, input=(128,), classes=2)
    runs = [found for found in experiments(name) if found.method["name"] == "heterofl"]
    assert runs
    for found in runs:
        specs = [tier_spec(full, tier.width and widths_by_group(full, tier.width), tier.depth) for tier in found.tier]
        assert [spec.depth for spec in specs] == [full.depth] * 3
        assert [spec.sizes["stream"] for spec in specs] == units
        assert [spec.sizes["pooled"] for spec in specs] == units


def test_hospitals_have_fedadam_under_every_method_that_averages():
    rules = [found.method["server"]["name"] for found in experiments("hospitals") if found.method["name"] != "local"]
    assert rules == ["adam"] * 10
