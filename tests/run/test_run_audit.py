"""The audit of epsilon: its bound by hand, and a small federation that it catches without noise."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def audit():
    name = "audit_benchmark"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "audit.py")
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    del sys.modules[name]


def test_if_all_guesses_are_right_the_bound_is_the_epsilon_at_which_that_happens_once_in_twenty(audit):
    found = audit.lower_bound(100, 100, 100, 0.0)
    assert (1 + math.exp(-found)) ** -100 == pytest.approx(0.05)


def test_guesses_as_good_as_coins_bound_nothing(audit):
    assert audit.lower_bound(1000, 500, 250, 1e-5) == 0.0
    assert audit.lower_bound(1000, 500, 0, 1e-5) == 0.0


def test_a_larger_delta_explains_more_and_more_right_guesses_need_more_epsilon(audit):
    bounds = [audit.lower_bound(1000, 500, right, 1e-5) for right in (300, 400, 450, 500)]
    assert bounds == sorted(bounds)
    assert audit.lower_bound(1000, 500, 400, 1e-4) < audit.lower_bound(1000, 500, 400, 0.0)
    assert audit.likelihood(1000, 500, 400, 1.0, 0.0) < audit.likelihood(1000, 500, 400, 2.0, 0.0)


def test_an_audit_that_could_not_convict_is_refused_and_more_guesses_can(audit, monkeypatch, capsys):
    """500 guesses that are all right mean 5.1, so nothing could be said of an epsilon of 8."""
    assert audit.largest_bound(1000, 0.5) == pytest.approx(5.09, abs=0.01)
    assert audit.largest_bound(16_000, 1.0) > 8.0
    assert (audit.guesses_of(1000, 0.5), audit.guesses_of(1001, 1.0), audit.guesses_of(60, 0.5)) == (500, 1000, 30)
    monkeypatch.setattr(sys, "argv", ["audit.py", "--epsilon", "8"])
    with pytest.raises(SystemExit):
        audit.main()
    assert "no result could be above --epsilon 8: give more --canaries" in capsys.readouterr().err


@pytest.mark.slow
def test_the_bound_lies_below_the_stated_epsilon_and_above_it_if_the_server_forgets_its_noise(audit, tmp_path):
    honest = audit.audit(1.0, 60, 12, 0, False, tmp_path / "honest")
    broken = audit.audit(1.0, 60, 12, 0, True, tmp_path / "broken")
    assert honest[0] == broken[0] == pytest.approx(1.0, rel=2e-3)
    assert honest[3] < honest[0] < broken[3]
