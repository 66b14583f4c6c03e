"""The roster: who is in a cohort, who is away, and what a checkpoint keeps of it."""

from potluck.core import Tier
from potluck.federation.roster import Member, Roster
from potluck.models import make_spec

SPEC = make_spec("mlp", input=(4,), classes=3, hidden=3, depth=2)
TIERS = (Tier("small", spec=SPEC), Tier("large", spec=SPEC))


def roster(*names, seed=0, misses=3):
    made = Roster(seed, misses)
    made.tiers = TIERS
    for name in names:
        made.add(Member(name, f"clinic {name}", "small", 10))
    return made


def ids(clients):
    return [client.id for client in clients]


def test_a_cohort_is_a_function_of_seed_round_and_roster_and_not_of_the_order_of_joining():
    names = [f"n{number}" for number in range(10)]
    forward, backward = roster(*names), roster(*reversed(names))
    cohorts = [ids(forward.cohort(round, 4)) for round in range(20)]
    assert cohorts == [ids(backward.cohort(round, 4)) for round in range(20)]
    assert cohorts != [ids(roster(*names, seed=1).cohort(round, 4)) for round in range(20)]
    assert len({tuple(cohort) for cohort in cohorts}) > 5
    assert all(len(set(cohort)) == 4 and cohort == sorted(cohort) for cohort in cohorts)


def test_a_cohort_larger_than_the_roster_is_everyone():
    assert ids(roster("b", "a").cohort(0, 9)) == ["a", "b"]


def test_a_node_that_misses_as_many_rounds_as_allowed_is_not_asked_any_more():
    made = roster("a", "b", misses=2)
    made.end(0, {"a": True, "b": False})
    assert ids(made.cohort(1, 9)) == ["a", "b"]
    made.end(1, {"a": True, "b": False})
    assert ids(made.cohort(2, 9)) == ["a"]
    assert (made.clients, made.present) == (2, 1)


def test_an_answer_makes_missed_rounds_forgotten():
    made = roster("a", misses=2)
    for came in (False, True, False):
        made.end(0, {"a": came})
    assert made.members["a"].missed == 1
    assert made.members["a"].active


def test_the_event_of_a_round_says_who_was_there_who_was_asked_and_what_was_sent():
    made = roster("a", "b")
    made.there = lambda: frozenset({"a"})
    made.traffic = lambda: {"a": [700, 30]}
    (event,) = made.end(4, {"a": True})
    rows = {row["client"]: row for row in event["nodes"]}
    assert event["round"] == 5
    assert (rows["a"]["there"], rows["a"]["asked"], rows["a"]["answered"]) == (True, True, True)
    assert (rows["a"]["bytes_down"], rows["a"]["bytes_up"]) == (700, 30)
    assert (rows["b"]["there"], rows["b"]["asked"], rows["b"]["answered"]) == (False, False, False)
    assert rows["b"]["name"] == "clinic b"


def test_only_nodes_that_are_connected_score_models_and_at_most_so_many():
    made = roster("a", "b", "c")
    made.there = lambda: frozenset({"a", "c"})
    assert ids(made.scored(9, 0)) == ["a", "c"]
    assert len(made.scored(1, 0)) == 1


def test_a_checkpoint_keeps_the_roster_and_members_of_tiers_that_are_gone_are_left_out():
    made = roster("a", "b")
    made.end(0, {"a": False})
    made.add(Member("odd", "odd", "tablet", 5))
    back = roster()
    back.restore(made.state())
    assert back.members == {name: made.members[name] for name in ("a", "b")}
    assert back.members["a"].missed == 1
    assert [ids(back.cohort(round, 1)) for round in range(9)] == [ids(roster("a", "b").cohort(r, 1)) for r in range(9)]


def test_samples_and_names_of_strangers_are_none():
    made = roster("a")
    assert (made.samples("a"), made.samples("x" * 32)) == (10, 0)
    assert (made.name("a"), made.name("0123456789")) == ("clinic a", "01234567")


def mixed(draw, small=8, large=2, **more):
    made = Roster(5, 3, draw, **more)
    made.tiers = TIERS
    for number in range(small + large):
        made.add(Member(f"n{number}", "", "small" if number < small else "large", 10))
    return made


def test_a_cohort_by_tier_has_the_same_share_of_each_tier():
    made = mixed("by_tier")
    for round in range(10):
        tiers = [client.tier.name for client in made.cohort(round, 5)]
        assert sorted(tiers) == ["large"] + ["small"] * 4
    assert made.odds(5) == {"small": (4, 0.5), "large": (1, 0.5)}


def test_a_cohort_by_coins_varies_in_size():
    sizes = [len(mixed("poisson").cohort(round, 5)) for round in range(100)]
    assert len(set(sizes)) > 3
    assert 4 < sum(sizes) / 100 < 6


def test_the_odds_are_of_the_nodes_that_are_active():
    made = mixed("uniform")
    for _ in range(3):
        made.end(0, {"n0": False, "n9": False})
    assert made.odds(4) == {"small": (3.5, 0.5), "large": (0.5, 0.5)}


def test_a_secret_draw_does_not_follow_from_the_seed_and_a_checkpoint_keeps_it():
    made, other = mixed("uniform", secret=True), mixed("uniform", secret=True)
    cohorts = [[ids(one.cohort(round, 4)) for round in range(20)] for one in (made, other, mixed("uniform"))]
    assert len({str(found) for found in cohorts}) == 3
    other.restore(made.state())
    assert [ids(other.cohort(round, 4)) for round in range(20)] == cohorts[0]
    assert other.members == made.members
