"""The experiment in which every method meets: nobody is left out, and everyone's tiers suit it."""

from pathlib import Path

import pytest

from potluck.methods import METHODS
from potluck.run import assemble, config, read_experiment

FILE = Path(__file__).parents[2] / "experiments" / "everything.toml"
EVERYTHING = read_experiment(FILE)
WANTED = [{"name": method} if isinstance(method, str) else dict(method) for method in EVERYTHING.compare.methods]


def test_it_names_every_method_once():
    assert sorted(method["name"] for method in WANTED) == sorted(METHODS)
    under = [name for names in EVERYTHING.compare.only.values() for name in names]
    assert sorted(under) == sorted(METHODS)


@pytest.mark.parametrize("variant", EVERYTHING.compare.variants)
def test_methods_of_a_group_go_together_with_its_tiers(variant):
    group = config.apply_changes(EVERYTHING, EVERYTHING.compare.variants[variant], variant)
    for method in WANTED:
        if method["name"] in EVERYTHING.compare.only[variant]:
            zoo = assemble(group.with_method(method)).context.zoo
            assert [tier.name for tier in zoo.tiers] == ["tv", "phone", "flagship"]  # smallest first
            assert zoo.tiers[-1].spec == zoo.full


def test_no_method_is_short_of_anything_it_declares_to_need():
    for method in WANTED:
        facts = config.method(method, EVERYTHING.local).facts
        (variant,) = (name for name, names in EVERYTHING.compare.only.items() if method["name"] in names)
        assert facts.networks in {"one", "any", {"architecture": "any"}.get(variant, variant)}
    assert EVERYTHING.data.public > 0
