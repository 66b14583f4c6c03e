"""The zoo: its full network and its tiers."""

import pytest
from model_specs import DIGITS, SPECS

from potluck.core import SettingsError, Spec, Tier
from potluck.models import ModelZoo, make_spec, tier_spec


def test_tiers_are_sorted_by_parameters_and_ties_keep_their_order():
    full = make_spec("mlp", **DIGITS)
    widths = {"b": 1.0, "a": 0.5, "c": 1.0, "d": 0.25}
    zoo = ModelZoo(full, [Tier(name, spec=tier_spec(full, width)) for name, width in widths.items()])
    assert [tier.name for tier in zoo.tiers] == ["d", "a", "b", "c"]


def test_a_tier_of_another_family_is_welcome_and_an_unknown_one_is_not():
    full = make_spec("resnet10", **DIGITS)
    zoo = ModelZoo(full, (Tier("large", spec=full), Tier("small", spec=make_spec("lenet", **DIGITS))))
    assert [tier.name for tier in zoo.tiers] == ["small", "large"]
    with pytest.raises(SettingsError, match="no model family 'none'"):
        ModelZoo(full, (Tier("unset"),))


def test_a_zoo_does_not_change():
    zoo = ModelZoo(Spec("mlp", options=DIGITS))
    assert zoo.full == SPECS["mlp"]
    with pytest.raises(AttributeError):
        zoo.full = SPECS["cnn"]
    with pytest.raises(TypeError):
        zoo.shapes(zoo.full)["stem"] = ()
