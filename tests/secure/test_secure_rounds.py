"""A round of secure sums equals the plain round, whoever is lost and whenever."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from secure_rounds import METHODS, largest_difference, made, plain_round, secure_round

from potluck.secure.settings import PHASES


def lost_in_phases(draw, clients):
    """At most 30 % of those who are left are lost in each phase."""
    left, lost = list(clients), {}
    for phase in range(PHASES):
        count = draw(st.integers(0, int(0.3 * len(left))))
        gone = draw(st.permutations(left))[:count]
        lost |= dict.fromkeys(gone, phase)
        left = [client for client in left if client not in gone]
    return lost


@pytest.mark.parametrize("name", METHODS)
def test_a_secure_round_equals_the_plain_one(name):
    setup = made(name)
    after, session = secure_round(setup)
    assert session.opened == {f"c{number}" for number in range(9)}
    assert largest_difference(after, plain_round(setup, session.opened)) <= session.rounding


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_clients_that_are_lost_in_any_phase_change_nothing_but_their_own_share(name, data):
    setup = SETUPS.setdefault(name, made(name, 12))
    lost = lost_in_phases(data.draw, [f"c{number}" for number in range(12)])
    after, session = secure_round(setup, 1, lost)
    there = [sum(lost.get(f"c{number}", PHASES) > phase for number in range(12)) for phase in range(PHASES)]
    uploaded = {f"c{number}" for number in range(12)} - {client for client, phase in lost.items() if phase < 3}
    if there[-1] < setup.experiment.secure.shares_needed(there[0]):  # after 30 % in each of five phases: 24 % are left
        uploaded = set()
    assert session.opened <= uploaded
    assert largest_difference(after, plain_round(setup, uploaded, 1)) <= session.rounding


def test_a_round_in_which_the_clip_binds_equals_the_plain_one_with_the_same_clip():
    setup = made("heterofl", clip=0.05)
    after, session = secure_round(setup)
    assert session.opened == {f"c{number}" for number in range(9)}
    assert largest_difference(after, plain_round(setup, session.opened, clip=0.05)) <= session.rounding
    assert largest_difference(after, plain_round(setup, session.opened)) > 100 * session.rounding


def test_a_tier_is_opened_although_most_of_its_own_clients_are_lost_after_their_uploads():
    setup = made("inclusivefl", 12)  # c4 to c7 have a network that nobody else holds
    lost = {"c4": 1, "c10": 1, "c11": 1, "c6": 3, "c7": 3}
    after, session = secure_round(setup, 1, lost)
    assert {"c5", "c6", "c7"} <= session.opened
    uploaded = {f"c{number}" for number in range(12)} - {"c4", "c10", "c11"}
    assert largest_difference(after, plain_round(setup, uploaded, 1)) <= session.rounding


SETUPS = {}
