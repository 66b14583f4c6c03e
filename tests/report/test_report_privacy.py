"""What a report says of privacy: the guarantee in words, and the curves of epsilon."""

from dataclasses import replace
from pathlib import Path

import pytest

from potluck.report import privacy_guarantee
from potluck.report.privacy import privacy_note, privacy_section
from potluck.report.read import make_record

SERVER = {
    "where": "server", "mechanism": "gaussian", "clip": 0.5, "noise": 2.0, "delta": 1e-5, "releases": 3,
    "neighbours": "add-or-remove", "draw": "poisson", "rate": 0.1, "epsilon": 1.25,
}  # fmt: skip


def record(privacy, epsilons=(), scores=()):
    events = [{"event": "privacy", "round": round, "epsilon": spent} for round, spent in epsilons]
    lines = [{"round": round, "metric": "accuracy", "global": {"test": {"accuracy": found}}} for round, found in scores]
    return make_record(Path("run"), {"privacy": privacy}, "", lambda: events, lines)


def test_the_guarantee_of_sums_says_against_what_and_at_which_rate():
    assert privacy_guarantee(record(SERVER)) == (
        "ε = 1.25 for a client that is there or not in 3 released sums, at δ = 1e-05; sums of updates clipped to 0.5, "
        "with noise of 2 times that, each client drawn with a probability of 0.1 at most"
    )
    tiers = {**SERVER, "rates": {"few": 0.1, "many": 0.025, "odd": "x"}}
    assert privacy_guarantee(record(tiers)).endswith("with a probability of 0.1 at most (few: 0.1, many: 0.025)")
    tree = {**SERVER, "mechanism": "tree", "neighbours": "zero-out"}
    assert "a client whose updates are left out" in privacy_guarantee(record(tree))
    assert "times that on every node of a tree over rounds" in privacy_guarantee(record(tree))
    planned = {key: SERVER[key] for key in ("where", "mechanism", "clip", "noise", "delta")}
    assert privacy_guarantee(record(planned)) == "sums of updates clipped to 0.5, with noise of 2 times that; δ = 1e-05"


def test_who_is_trusted_is_said_beside_it():
    assert "the server itself is trusted to add the noise" in privacy_note(record(SERVER))
    local = {"clip": 1.0, "noise": 2.0, "delta": 1e-5, "epsilon_each": 1.0, "epsilon": 2.0, "uploads": 3}
    assert "Local differential privacy, simulated" in privacy_note(record(local))


def test_epsilon_is_drawn_over_rounds_and_the_score_over_epsilon():
    page = privacy_section(record(SERVER, [(1, 0.5), (2, 1.0), (3, 1.25)], [(0, 0.1), (1, 0.4), (3, 0.8)]))
    assert page.count("<svg") == 2
    assert "Epsilon over rounds" in page
    assert "Accuracy over epsilon" in page
    alone = privacy_section(record(SERVER, [(1, 0.5)], [(1, 0.4)]))
    assert alone.count("<svg") == 1


def test_a_run_without_noise_has_no_such_section():
    assert privacy_section(record(None)) is None
    assert privacy_note(record(None)) is None


@pytest.mark.parametrize("odd", [None, "1", float("nan"), float("inf"), -1.0, 1e300, {"a": 1}])
def test_broken_values_leave_gaps(odd):
    found = record(SERVER, [(1, 0.5), (2, odd)], [(1, 0.4)])
    assert found.epsilons == ((1, 0.5),)
    assert privacy_section(found)
    assert privacy_section(record({**SERVER, "clip": odd, "neighbours": "<b>"}, [(1, 0.5)])) is not None
    assert "<b>" not in (privacy_note(record({**SERVER, "neighbours": "<b>"})) or "")


def test_the_last_line_of_a_round_that_was_done_again_counts():
    assert record(SERVER, [(1, 0.5), (2, 0.6), (2, 0.7)]).epsilons == ((1, 0.5), (2, 0.7))
    assert replace(record(SERVER), epsilons=()).epsilons == ()


def test_noise_that_clients_add_together_is_said_to_hold_against_the_server():
    found = {"where": "clients", "neighbours": "replace-one", "clip": 0.5, "noise": 8.0, "delta": 1e-5}
    found |= {"epsilon_each": 1.0, "epsilon": 2.0, "uploads": 3}
    assert privacy_guarantee(record(found)) == (
        "ε = 2 for all that a client uploaded (3 times at most), 1 for each upload, against a client with any other "
        "data, at δ = 1e-05; updates clipped to 0.5; every opened sum has noise of at least 8 times that"
    )
    assert "also against the server" in privacy_note(record(found))
    assert "trusted" not in privacy_note(record(found))
