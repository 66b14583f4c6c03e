"""The server's conversation with nodes: greeting, agreement, the roster, offers of smaller tiers."""

import pytest
import torch
from small_nodes import settings

from potluck.core import Limits
from potluck.engines.remote import InProcess, Presence, Remote, Terms
from potluck.engines.remote.messages import pack_plain, read_head
from potluck.federation.charter import versions
from potluck.federation.host import Host
from potluck.federation.roster import Member
from potluck.federation.server import prepare


class Comings(InProcess):
    """Nodes in this process that can leave and come back; those in `mute` are there but give no answer."""

    def __init__(self):
        super().__init__({})
        self.since, self.mute, self.heard = {}, set(), []

    def come(self, id, respond):
        self.nodes[id] = respond
        self.since[id] = self.since.get(id, 0.0) + 1

    def present(self):
        return {id: Presence(id, self.since[id]) for id in self.nodes}

    def fetch(self, seconds):
        if self._waiting and self._waiting[0][0] in self.mute:
            node, number, _ = self._waiting.popleft()
            from potluck.engines.remote import Answer

            return [Answer(node, number, fault="no answer within 60 s")]
        if self._waiting:
            self.heard.append((self._waiting[0][0], read_head(self._waiting[0][2], Limits())))
        return super().fetch(seconds)


class NoEngine:
    def run(self, envelopes):
        raise AssertionError("the server has no tasks here")

    def close(self):
        pass


class Clock:
    """A clock that goes on by a second at each look."""

    now = 0.0

    def __call__(self):
        self.now += 1.0
        return self.now


@pytest.fixture
def made(tmp_path):
    federation = prepare(settings(nodes={"misses": 3, "patience": 5, "wait_for": 1}), "test")
    transport = Comings()
    remote = Remote(transport, NoEngine(), Terms(federation.charter.hash), tmp_path)
    expected = {"a": "clinic-a", "b": "clinic-b"}
    host = Host(
        remote, federation.charter, federation.roster, federation.setup.experiment.nodes, lambda: expected,
        clock=Clock(),
    )  # fmt: skip
    return host, transport


def agreeing(host, tier="large", samples=60, **odd):
    """A node that agrees to everything."""
    state = {"tier": tier}

    def respond(parts):
        told = read_head(parts, Limits())
        if told["kind"] == "tier":
            state["tier"] = told["tier"]
        facts = {"charter": host.charter.hash, "tier": state["tier"], "samples": samples, "versions": versions()}
        return pack_plain("agreed", **facts | odd)

    return respond


def states(host):
    return {node.name: (node.state, node.reason) for node in host.states()}


def test_a_node_that_agrees_is_part_of_the_next_round(made):
    host, transport = made
    transport.come("a", agreeing(host))
    host.gather(0, 1)
    assert host.roster.members["a"] == Member("a", "clinic-a", "large", 60)
    assert states(host) == {"clinic-a": ("here", ""), "clinic-b": ("away", "")}


def test_a_node_that_comes_mid_run_joins_in_the_next_round_and_the_operator_hears_of_it(made):
    host, transport = made
    transport.come("a", agreeing(host))
    host.gather(0, 1)
    transport.come("b", agreeing(host, "small"))
    host.remote.look(0)  # within round 1
    assert list(host.roster.members) == ["a"]
    host.gather(1, 1)
    assert host.roster.members["b"].joined == 1
    assert "clinic-b joins in round 2, in tier 'small'" in host.notes


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"charter": "another"}, "another charter"),
        ({"tier": "huge"}, "a tier that there is not"),
        ({"tier": ["large"]}, "a tier that there is not"),
        ({"tier": torch.zeros(3)}, "a tier that there is not"),
        ({"samples": 0}, "it says that it has 0 samples"),
        ({"samples": 10**9}, "it says that it has 1000000000 samples"),
        ({"samples": True}, "it says that it has True samples"),
        ({"samples": torch.ones(2)}, "samples"),
        ({"charter": torch.ones(2)}, "another charter"),
        ({"kind": "declined", "reason": "a label 12"}, "a label 12"),
        ({"kind": "declined", "reason": torch.ones(2)}, "it gave no reason"),
        ({"kind": "noise"}, "it gave no reason"),
    ],
)
def test_an_odd_answer_to_the_charter_is_a_decline_with_its_reason(made, odd, reason):
    host, transport = made
    answer = {"kind": "agreed", "charter": host.charter.hash, "tier": "large", "samples": 60} | odd
    transport.come("a", lambda parts: pack_plain(**answer))
    host.remote.look(0)
    host.remote.look(0)
    state, said = states(host)["clinic-a"]
    assert state == "declined"
    assert reason in said
    assert host.there() == frozenset()
    assert any("clinic-a does not take part" in note for note in host.notes)


def test_bytes_that_are_no_message_are_a_decline(made):
    import numpy as np

    host, transport = made
    transport.come("a", lambda parts: (np.arange(40, dtype=np.uint8),))
    host.remote.look(0)
    assert states(host)["clinic-a"][0] == "declined"


def test_other_versions_are_told_once_by_name(made):
    host, transport = made
    respond = agreeing(host, versions=versions() | {"torch": "1.13.0"})
    for _ in range(2):
        transport.come("a", respond)
        host.remote.look(0)
    told = [note for note in host.notes if "clinic-a has" in note]
    assert told == [f"clinic-a has torch 1.13.0, the server {versions()['torch']}: the last bits of results may differ"]


def test_a_node_that_connects_again_is_asked_again_and_an_answer_of_before_counts_no_more(made):
    host, transport = made
    transport.come("a", agreeing(host))
    host.attend()
    transport.come("a", agreeing(host))
    host.attend()
    charters = len(transport._waiting)
    host.remote.look(0)  # the answer to the first charter, from the connection before
    assert (charters, host.there()) == (2, frozenset())
    host.remote.look(0)
    assert host.there() == {"a"}
    assert not transport._waiting


def test_a_node_that_gives_no_answer_to_the_charter_is_asked_again_in_a_while(made):
    host, transport = made
    transport.come("a", agreeing(host))
    transport.mute.add("a")
    host.remote.look(0)
    transport.mute.clear()
    host.remote.look(0)
    host.remote.look(0)
    assert host.there() == frozenset()  # one that never answers is not asked at every look
    host.clock.now += 10
    host.remote.look(0)
    host.remote.look(0)
    assert host.there() == {"a"}


def test_a_node_that_is_away_for_too_long_is_asked_again_when_it_is_back(made):
    host, transport = made
    for id in ("a", "b"):
        transport.come(id, agreeing(host))
    host.gather(0, 1)
    host.gather(0, 2)
    del transport.nodes["b"]
    for round in range(3):
        host.roster.end(round, {"a": True, "b": False})
    assert [client.id for client in host.roster.everyone(3)] == ["a"]
    host.gather(3, 1)
    assert not host.roster.members["b"].active
    transport.come("b", agreeing(host))
    host.remote.look(0)
    host.gather(4, 1)
    assert host.roster.members["b"] == Member("b", "clinic-b", "large", 60)


def slow_rounds(host, transport, rounds):
    """Rounds in which a is there, and gives no answer to its task."""
    for round in range(rounds):
        host.gather(round, 1)
        host.remote.silent.add("a")
        host.roster.end(round, {"a": False})


def offers(transport):
    return [told["tier"] for _, told in transport.heard if told["kind"] == "tier"]


def test_a_node_that_is_there_but_too_slow_is_offered_the_next_smaller_tier_and_has_its_rounds_anew(made):
    host, transport = made
    transport.come("a", agreeing(host))
    slow_rounds(host, transport, 2)
    assert offers(transport) == []
    host.gather(2, 1)
    host.gather(2, 1)
    assert offers(transport) == ["medium"]
    assert (host.roster.members["a"].tier, host.roster.members["a"].missed) == ("medium", 0)
    assert "clinic-a is in tier 'medium' from round 3 on" in host.notes


def test_a_slow_node_of_the_smallest_tier_is_left_alone_until_it_comes_back(made):
    host, transport = made
    transport.come("a", agreeing(host, "small"))
    transport.come("b", agreeing(host))
    host.gather(0, 1)
    host.gather(0, 2)
    slow_rounds(host, transport, 3)
    host.gather(3, 1)
    assert offers(transport) == []
    assert [client.id for client in host.roster.everyone(3)] == ["b"]


def test_if_nobody_else_is_there_slow_nodes_are_asked_again(made):
    host, transport = made
    transport.come("a", agreeing(host, "small"))
    slow_rounds(host, transport, 3)
    assert not host.roster.members["a"].active
    host.gather(3, 1)
    assert host.roster.members["a"].active


def test_a_node_that_fails_but_answers_is_offered_nothing(made):
    host, transport = made
    transport.come("a", agreeing(host))
    for round in range(3):
        host.gather(round, 1)
        host.roster.end(round, {"a": False})
    host.remote.look(0)
    assert offers(transport) == []


def test_with_one_allowed_miss_only_a_node_that_missed_is_offered_a_smaller_tier(made):
    host, transport = made
    host.settings = settings(nodes={"misses": 1, "patience": 5, "wait_for": 1}).nodes
    transport.come("a", agreeing(host))
    for _ in range(3):
        host.gather(0, 1)
    assert offers(transport) == []


def test_a_node_that_only_looked_at_the_charter_has_not_declined(made):
    host, transport = made
    transport.come("a", lambda parts: pack_plain("looked"))
    host.remote.look(0)
    assert (host.states()[0].state, host.notes) == ("asked", [])
    transport.come("a", agreeing(host))
    host.remote.look(0)
    assert host.states()[0].state == "here"


def test_a_run_that_goes_on_waits_for_no_node_that_was_revoked_or_declines(made):
    host, transport = made
    host.settings = settings(nodes={"patience": 1000, "wait_for": 1}).nodes
    for id in ("a", "b", "revoked"):
        host.roster.add(Member(id, id, "large", 60))
    transport.come("a", agreeing(host))
    transport.come("b", lambda parts: pack_plain("declined", reason="no"))
    host.gather(1, 1)
    assert host.clock.now < 100
    assert host.there() == {"a"}


def test_a_run_that_goes_on_waits_for_the_nodes_of_its_roster_as_long_as_patience_says(made):
    host, transport = made
    for id in ("a", "b"):
        host.roster.add(Member(id, f"clinic-{id}", "large", 60, missed=0))
    host.roster.add(Member("c", "clinic-c", "large", 60, missed=3, active=False))
    seen = []
    host.tell = lambda nodes, waiting: seen.append(waiting)
    transport.come("a", agreeing(host))
    host.gather(5, 1)
    assert "the nodes to come back" in seen
    assert host.clock.now < 30  # seconds of this clock: patience is 5
    assert host.there() == {"a"}
    assert [client.id for client in host.roster.everyone(5)] == ["a", "b"]


def test_a_new_federation_waits_for_as_many_nodes_as_the_settings_say(made):
    host, transport = made
    host.settings = settings(nodes={"wait_for": 2, "patience": 5}).nodes
    transport.come("a", agreeing(host))

    def tell(nodes, waiting):
        if host.clock.now > 50 and "b" not in transport.nodes:
            transport.come("b", agreeing(host))

    host.tell = tell
    original = transport.fetch

    def fetch(seconds):
        tell(None, None)
        return original(seconds)

    transport.fetch = fetch
    host.gather(0, 1)
    assert host.there() == {"a", "b"}
    assert host.clock.now > 50
