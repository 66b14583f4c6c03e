"""Federations over Flower that are really disturbed: nodes, servers and the SuperLink die, and a node sends garbage."""

import os
import random
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower: make flower")

from federation_life import DEADLINE, Sites, kill, make_place, same, serve_here, undisturbed, until
from flower_house import descendants
from hostile_nodes import NONSENSE, OUT, raw, told
from small_nodes import NAMES

from potluck.federation.rehearsal import HOST


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """The place of all federations of this file: the same keys, so the same clients."""
    return make_place(tmp_path_factory.mktemp("life"), transport="flower")


@pytest.fixture
def place(kits, tmp_path, monkeypatch):
    monkeypatch.setenv("POTLUCK_HOLD", str(kits.folder))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(kits.folder)])
    kits.clear()
    yield kits
    kits.end()
    shutil.rmtree(kits.folder / "run", ignore_errors=True)


def flower_of(process, word):
    """The program of Flower that a process of Potluck started, and its folder."""
    (pid,) = until(lambda: descendants(process.pid, word))
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    home = next(each for each in environ if each.startswith(b"FLWR_HOME="))
    return pid, Path(home.decode().partition("=")[2]).parent


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def free(port):
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_nothing_of_flower_outlives_a_killed_server_or_node(place):
    server, node = place.server(place.settings()), place.node("clinic-a")
    until(lambda: "clinic-a is here" in place.said("server"))
    (superlink, ours), (supernode, theirs) = flower_of(server, "superlink"), flower_of(node, "supernode")
    assert ours.is_dir()
    assert theirs.is_dir()
    assert not free(place.port)
    kill(server)
    kill(node)
    until(lambda: not alive(superlink) and not alive(supernode))
    assert free(place.port)
    assert not ours.exists()
    assert not theirs.exists()


@pytest.mark.slow
def test_a_node_killed_within_a_round_does_its_task_once_it_is_back(place):
    told = place.settings(rounds=3)
    wanted = undisturbed(place, told, "whole-node")
    place.hold("clinic-b-2")
    server, nodes = place.server(told), place.nodes()
    place.asked("clinic-b", 2)
    kill(nodes["clinic-b"])
    place.release("clinic-b-2")
    again = place.node("clinic-b")
    assert same(place.result(server), wanted)
    assert again.wait(DEADLINE) == 0
    assert set(place.outcomes(place.id("clinic-b")).values()) == {("accepted", "")}


@pytest.mark.slow
def test_a_server_killed_three_times_ends_with_the_very_weights_of_one_that_was_not(place):
    told = place.settings("scaffold", rounds=6, score={"every": 3})
    wanted = undisturbed(place, told, "whole-server")
    place.nodes()
    dice = random.Random(0)
    for life in range(3):
        place.hold(life + 3)  # no life gets further than this
        place.release(life + 2)
        process, before = place.server(told), place.rounds_done()
        until(lambda before=before: place.rounds_done() > before)
        with pytest.raises(TimeoutError):
            until(lambda process=process: process.poll() is not None, dice.uniform(0.0, 2.0))
        kill(process)
    place.release(5)
    assert same(place.result(place.server(told)), wanted)
    assert {"accepted"} == {outcome for name in NAMES for outcome, _ in place.outcomes(place.id(name)).values()}


@pytest.mark.slow
def test_a_superlink_killed_within_a_round_costs_no_answer(place):
    told = place.settings("scaffold", rounds=3)
    wanted = undisturbed(place, told, "whole-superlink")
    place.hold("2")
    server = place.server(told)
    place.nodes()
    for name in NAMES:
        place.asked(name, 2)
    superlink, _ = flower_of(server, "superlink")
    os.kill(superlink, signal.SIGKILL)
    place.release("2")
    assert same(place.result(server), wanted)
    assert {"accepted"} == {outcome for name in NAMES for outcome, _ in place.outcomes(place.id(name)).values()}
    warned = [event["text"] for event in place.events("warning")]
    assert any("a new run begins" in line for line in warned)


@pytest.mark.slow
def test_garbage_from_an_admitted_node_is_refused_by_name_and_the_others_go_on(place):
    noise = {0: raw(b"garbage"), 1: (), 2: raw(b"")}
    reasons = ["not a potluck message", "a message without parts", "not a potluck message"]

    def lie(parts, honest):
        asked = told(parts)
        return noise[asked["task"].round] if asked["kind"] == "task" and asked["task"].verb == "train" else honest

    with Sites(place, hostile={"clinic-c": lie}) as sites:
        result = serve_here(place, place.settings(rounds=3, gate={"strikes": 0}, score={"every": 3}))
        until(lambda: len(sites.ended) == 3)
    assert result.rounds == 3
    assert list(place.outcomes(place.id("clinic-c")).values()) == [(OUT, NONSENSE + reason) for reason in reasons]
    for name in ("clinic-a", "clinic-b"):
        assert set(place.outcomes(place.id(name)).values()) == {("accepted", "")}
    assert set(sites.ended.values()) == {"done"}
