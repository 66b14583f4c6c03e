"""The transport over gRPC: what arrives, who is refused, and what becomes of messages when something dies."""

import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from grpc_life import (
    DEADLINE,
    HOST,
    SOON,
    Cable,
    Caller,
    Site,
    answers,
    echoed,
    ended,
    process,
    refused,
    serving,
    text,
    there,
    until,
    words,
)
from pki import identity
from tiny_runs import tiny

from potluck.core import ResourceError
from potluck.engines.remote import frames
from potluck.engines.remote.grpc_library import check_pems, grpc
from potluck.engines.remote.grpc_node import Inbox, Patience
from potluck.engines.remote.grpc_transport import GrpcLimits
from potluck.run import run

FRAME, LARGE = frames.FRAME, frames.IN_MEMORY + 3


def numbers(size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


# What arrives.


@pytest.mark.parametrize("sizes", [(), (0,), (1, 0, 5), (FRAME,), (FRAME + 1, 3), (7, LARGE, 0, 2 * FRAME)])
def test_parts_of_any_size_come_back_as_they_were_and_read_only(tmp_path, sizes):
    parts = [numbers(size, seed) for seed, size in enumerate(sizes)]
    with serving(tmp_path) as server, Site(tmp_path, server.port) as site:
        there(server, site)
        server.post(site.id, 4, parts, DEADLINE)
        (answer,) = answers(server)
    assert (answer.node, answer.number, answer.fault) == (site.id, 4, "")
    assert [part.tolist() for part in answer.parts] == [part.tolist() for part in parts]
    assert not any(part.flags.writeable for part in answer.parts if part.nbytes)
    assert list(tmp_path.iterdir()) == []


def test_a_pool_works_in_a_process_that_serves_nodes(tmp_path):
    with serving(tmp_path) as server, Site(tmp_path, server.port):
        until(server.present)
        found = run(tiny(rounds=1, run={"engine": "pool", "workers": 2}), tmp_path / "run")
    assert found.rounds == 1


def test_sixty_megabytes_there_and_back_need_no_memory_for_the_whole(tmp_path):
    numbers(60_000_000).tofile(tmp_path / "sent")
    sent = np.memmap(tmp_path / "sent", np.uint8, "r")
    with serving(tmp_path) as server, process(tmp_path, server.port) as child:
        until(server.present)
        server.post(identity("a").id, 0, text("warm up"), DEADLINE)
        answers(server)
        before, most = [anonymous("self"), anonymous(child.pid)], [0, 0]
        server.post(identity("a").id, 1, [sent], DEADLINE)
        found = []

        def answered():
            most[:] = map(max, most, (anonymous("self"), anonymous(child.pid)))
            found.extend(server.fetch(0.0))
            return found

        until(answered)
        assert np.array_equal(found[0].parts[0], sent)
    assert [after - start < 50_000_000 for after, start in zip(most, before, strict=True)] == [True, True]


def anonymous(pid):
    """Bytes of memory that a process holds outside of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s*(\d+) kB", status)[1])


def test_every_node_gets_its_own_messages_in_their_order(tmp_path):
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path))
        sites = [stack.enter_context(Site(tmp_path, server.port, name)) for name in "ab"]
        there(server, *sites)
        for number in range(10):
            server.post(sites[number % 2].id, number, text(str(number)), DEADLINE)
        got = {answer.number: (answer.node, words(answer)) for answer in answers(server, 10)}
        asked = [[part.tobytes().decode() for (part,) in site.asked] for site in sites]
    assert got == {number: (sites[number % 2].id, [str(number)]) for number in range(10)}
    assert asked == [["0", "2", "4", "6", "8"], ["1", "3", "5", "7", "9"]]


def test_who_is_there_is_known_by_the_key_and_forgotten_when_it_leaves(tmp_path):
    with serving(tmp_path) as server:
        assert server.present() == {}
        with Site(tmp_path, server.port) as site:
            there(server, site)
            (presence,) = server.present().values()
            assert (presence.node, presence.address.split(":")[0]) == (identity("a").id, HOST)
        until(lambda: not server.present())


def test_a_node_that_was_never_there_gets_no_messages(tmp_path):
    with serving(tmp_path) as server:
        server.post("f" * 32, 0, text("x"), DEADLINE)
        assert [answer.fault for answer in answers(server)] == ["is not there"]


def test_a_message_above_a_nodes_limit_is_refused_and_the_node_goes_on(tmp_path):
    with serving(tmp_path) as server, Site(tmp_path, server.port, most=10) as site:
        there(server, site)
        server.post(site.id, 0, [numbers(11)], DEADLINE)
        (answer,) = answers(server)
        assert answer.fault == "could not take it: a message above 10 bytes, which is this node's limit"
        assert echoed(server, site, 1, "ten bytes!")


def test_a_node_without_room_says_so_and_goes_on(tmp_path):
    with serving(tmp_path) as server, Site(tmp_path / "gone", server.port) as site:
        there(server, site)
        server.post(site.id, 0, [numbers(LARGE)], DEADLINE)
        (answer,) = answers(server)
        assert answer.fault == "could not take it: the node cannot store it: No such file or directory"
        assert echoed(server, site, 1, "small")


def test_a_server_without_room_notes_it_and_takes_the_answer_once_there_is_room(tmp_path):
    spool = tmp_path / "spool"
    with serving(spool) as server, Site(tmp_path, server.port) as site:
        there(server, site)
        server.post(site.id, 0, [numbers(LARGE)], DEADLINE)
        until(lambda: server.notes)
        assert "cannot store it: No such file or directory" in server.notes[0]
        spool.mkdir()
        (answer,) = answers(server)
        assert np.array_equal(answer.parts[0], numbers(LARGE))


# Who leaves, and who comes back.


def test_a_node_that_is_killed_gets_a_fault_after_the_grace(tmp_path):
    with serving(tmp_path, grace=0.2) as server, process(tmp_path, server.port, mode="hang") as child:
        until(server.present)
        server.post(identity("a").id, 0, text("x"), DEADLINE)
        until((tmp_path / "asked").exists)
        child.kill()
        assert [answer.fault for answer in answers(server)] == ["left and did not come back within 0.2 s"]
        assert server.present() == {}


def test_a_node_that_is_killed_and_started_again_within_the_grace_answers(tmp_path):
    with serving(tmp_path) as server:
        node = identity("a").id
        with process(tmp_path, server.port, mode="hang"):
            until(server.present)
            server.post(node, 0, text("hello"), DEADLINE)
            until((tmp_path / "asked").exists)
        with process(tmp_path, server.port, counter=2):
            assert [words(answer) for answer in answers(server)] == [["hello"]]
        assert server.notes == []


def test_a_break_of_the_network_neither_repeats_the_work_nor_loses_the_answer(tmp_path):
    go = threading.Event()

    def respond(parts):
        go.wait(DEADLINE)
        return parts

    with serving(tmp_path) as server, Cable(server.port) as cable, Site(tmp_path, cable.port, respond=respond) as site:
        there(server, site)
        for number in range(2):
            server.post(site.id, number, text(f"{number}"), DEADLINE)
        until(lambda: site.asked)
        cable.cut()
        until(lambda: site.heard("lost"))
        until(lambda: not server.present())
        go.set()
        server.post(site.id, 2, text("2"), DEADLINE)
        cable.mend()
        assert [words(answer) for answer in answers(server, 3)] == [["0"], ["1"], ["2"]]
        assert len(site.asked) == 3
        assert server.notes == []


def test_an_answer_that_was_cut_off_on_its_way_is_sent_again(tmp_path):
    with serving(tmp_path) as server, Cable(server.port) as cable:
        cut = []

        def respond(parts):
            cut.append(cable.cut())
            return parts

        with Site(tmp_path, cable.port, respond=respond) as site:
            there(server, site)
            server.post(site.id, 0, [numbers(LARGE)], DEADLINE)
            until(lambda: cut)
            until(lambda: site.heard("cannot reach"))
            cable.mend()
            (answer,) = answers(server)
            assert np.array_equal(answer.parts[0], numbers(LARGE))
            assert len(site.asked) == 1


def test_a_node_finds_a_server_that_was_started_again_and_forgets_what_the_old_one_asked(tmp_path):
    go = threading.Event()

    def respond(parts):
        go.wait(DEADLINE)
        return parts

    with ExitStack() as stack:
        with serving(tmp_path) as server:
            site = stack.enter_context(Site(tmp_path, server.port, respond=respond))
            there(server, site)
            for number in range(2):
                server.post(site.id, number, text("old"), DEADLINE)
            until(lambda: site.asked)
        until(lambda: site.heard("lost"))
        with serving(tmp_path, port=server.port) as again:
            there(again, site)
            go.set()
            assert echoed(again, site, 0, "new")
            assert len(site.asked) == 2
            assert again.notes == []
        assert site.heard("was restarted")


def test_a_node_waits_for_a_server_that_is_not_there_yet(tmp_path):
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    with Site(tmp_path, port) as site:
        until(lambda: site.heard(f"cannot reach or trust {HOST}:{port}"))
        with serving(tmp_path, port=port) as server:
            assert there(server, site) is None
            assert echoed(server, site, 0, "x")


# Who is refused.


def test_an_unregistered_key_is_refused_with_one_note(tmp_path):
    stranger = identity("stranger").id
    with serving(tmp_path, lambda node: "not admitted" if node == stranger else "") as server:
        for counter in range(3):
            with Site(tmp_path, server.port, "stranger", counter=counter) as site:
                assert ended(site) == f"{HOST}:{server.port} refuses this node: not admitted"
        assert server.notes == [f"node {stranger} was refused: not admitted"]
        server.post(stranger, 0, text("secret"), DEADLINE)
        assert [answer.fault for answer in answers(server)] == ["is not there"]


def test_a_key_that_is_revoked_while_it_is_connected_is_out_and_noted(tmp_path):
    revoked, go = set(), threading.Event()

    def respond(parts):
        go.wait(DEADLINE)
        return parts

    with serving(tmp_path, lambda node: "revoked" if node in revoked else "") as server:
        with Site(tmp_path, server.port, respond=respond) as site, Site(tmp_path, server.port, "b") as other:
            there(server, site, other)
            server.post(site.id, 0, text("x"), DEADLINE)
            until(lambda: site.asked)
            revoked.add(site.id)
            server.post(site.id, 1, text("a model"), DEADLINE)
            assert [answer.fault for answer in answers(server, 2)] == ["revoked", "revoked"]
            go.set()
            assert ended(site) == f"{HOST}:{server.port} refuses this node: revoked"
            assert len(site.asked) == 1
            until(lambda: list(server.present()) == [other.id])
            assert echoed(server, other, 2, "y")
        assert server.notes == [f"node {site.id} was refused: revoked"]


def test_a_revoked_node_that_gets_no_message_is_out_with_the_next_sign_of_life(tmp_path):
    revoked = set()
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, lambda node: "revoked" if node in revoked else ""))
        site = stack.enter_context(Site(tmp_path, server.port))
        there(server, site)
        revoked.add(site.id)
        until(lambda: not server.present())
        assert "revoked" in ended(site)


def test_a_message_to_a_node_that_was_revoked_while_it_is_away_waits_for_nothing(tmp_path):
    revoked = set()
    with serving(tmp_path, lambda node: "revoked" if node in revoked else "") as server:
        with Caller(server.port) as caller:
            caller.enter()
        until(lambda: not server.present())
        revoked.add(caller.id)
        server.post(caller.id, 0, text("x"), 10 * DEADLINE)
        assert [answer.fault for answer in answers(server)] == ["revoked"]


def test_a_list_of_nodes_that_cannot_be_read_admits_nobody(tmp_path):
    def unreadable(node):
        raise OSError("no such list")

    with serving(tmp_path, unreadable) as server, Site(tmp_path, server.port) as site:
        assert "who is admitted cannot be read: no such list" in ended(site)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"expired": True}, "cannot trust this node: its certificate expired on"),
        ({"by": "other"}, "cannot trust this node: its certificate is not from the authority of this federation"),
    ],
)
def test_certificates_that_expired_or_are_from_another_authority_are_refused(tmp_path, node, reason):
    with serving(tmp_path) as server:
        with Site(tmp_path, server.port, who=identity("late", **node), ca=identity("a").ca) as site:
            assert reason in ended(site)
        assert server.present() == {}


def test_a_node_does_not_trust_a_server_of_another_authority_or_another_name(tmp_path):
    with serving(tmp_path) as server, Site(tmp_path, server.port, who=identity("a", by="other")) as site:
        until(lambda: site.lines)
        assert server.present() == {}
    reason = "its certificate is not from the authority of this federation; trying again"
    assert site.lines[0] == f"cannot reach or trust {HOST}:{server.port}: {reason}"
    with serving(tmp_path, name="elsewhere", host="127.0.0.2") as server, Site(tmp_path, server.port) as site:
        until(lambda: site.lines)
        assert server.present() == {}
    reason = "its certificate is for another host name; trying again"
    assert site.lines[0] == f"cannot reach or trust {HOST}:{server.port}: {reason}"


def test_plaintext_and_callers_without_a_certificate_are_refused(tmp_path):
    with serving(tmp_path) as server:
        keys = grpc.ssl_channel_credentials(identity("a").ca)
        channels = (grpc.insecure_channel(f"{HOST}:{server.port}"), grpc.secure_channel(f"{HOST}:{server.port}", keys))
        for channel in channels:
            with channel:
                call = channel.stream_stream("/potluck.Federation/Fetch")(iter([b"i{}"]))
                assert refused(call)[0] == "UNAVAILABLE"
        with Site(tmp_path, server.port) as site:
            there(server, site)
            assert echoed(server, site, 0, "x")


# One key, one process.


def test_a_key_in_two_places_is_refused_at_the_second_and_noted_once(tmp_path):
    with serving(tmp_path) as server, Site(tmp_path, server.port, instance="first") as site:
        there(server, site)
        with Site(tmp_path, server.port, instance="second", counter=9) as clone:
            assert "refuses this node: its key is in use at another place" in ended(clone)
        assert echoed(server, site, 0, "x")
        assert server.notes == [f"the key of {site.id} is in use at another place; that one was refused"]


def test_a_restarted_node_takes_over_at_once_and_a_copy_of_its_folder_is_refused(tmp_path):
    with (
        serving(tmp_path) as server,
        Caller(server.port) as old,
        Caller(server.port) as new,
        Caller(server.port) as copy,
    ):
        first = old.enter(counter=3)
        new.life = "second"
        second = new.enter(counter=4)
        assert refused(first) == ("ABORTED", "another connection of this node took its place")
        assert server.notes == []
        copy.life = "third"
        with pytest.raises(grpc.RpcError, match="in use at another place"):
            copy.enter(counter=4)
        with pytest.raises(grpc.RpcError, match="in use at another place"):
            old.enter(counter=3)
        assert len(server.notes) == 1
        assert not second.done()


def test_a_copy_is_refused_while_the_first_is_away_too(tmp_path):
    with serving(tmp_path) as server:
        with Caller(server.port) as first:
            first.enter(counter=3)
        until(lambda: not server.present())
        with Caller(server.port) as copy:
            copy.life = "another"
            with pytest.raises(grpc.RpcError, match="in use at another place"):
                copy.enter(counter=3)
        assert len(server.notes) == 1


def test_a_folder_that_was_set_back_is_let_in_once_the_first_is_given_up(tmp_path):
    with serving(tmp_path, grace=0.05) as server:
        with Caller(server.port) as first:
            first.enter(counter=3)
        until(lambda: not server.present())
        with Caller(server.port) as back:
            back.life = "another"

            def entered():
                try:
                    return back.enter(counter=2)
                except grpc.RpcError:  # its first connection may still come back
                    return None

            call = until(entered)
            assert list(server.present()) == [back.id]
            assert not call.done()


def test_the_same_process_may_connect_again_before_its_old_connection_is_known_to_be_dead(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as first, Caller(server.port) as again:
        call = first.enter()
        again.enter()
        assert refused(call)[0] == "ABORTED"
        assert list(server.present()) == [first.id]
        assert server.notes == []


def test_after_a_break_a_node_gets_what_it_does_not_hold_yet(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as caller:
        call = caller.enter()
        for number in range(3):
            server.post(caller.id, number, [], DEADLINE)
        assert [frames.read_head(next(call), frames.MESSAGE)["number"] for _ in range(3)] == [0, 1, 2]
        again = caller.enter(held=[0, 2])
        server.post(caller.id, 3, [], DEADLINE)
        assert [frames.read_head(next(again), frames.MESSAGE)["number"] for _ in range(2)] == [1, 3]
        caller.session = "of another server"
        last = caller.enter(held=[0, 2])
        assert [frames.read_head(next(last), frames.MESSAGE)["number"] for _ in range(4)] == [0, 1, 2, 3]


def test_a_node_that_came_back_in_time_is_not_given_up_later(tmp_path):
    with serving(tmp_path, grace=0.3) as server, Caller(server.port, "b") as other:
        with Caller(server.port) as caller:
            caller.enter()
        until(lambda: not server.present())
        with Caller(server.port) as caller:
            caller.enter()
            server.post(caller.id, 0, [], DEADLINE)
            other.enter().cancel()
            until(lambda: other.id not in server.present())
            server.post(other.id, 1, [], DEADLINE)
            (answer,) = answers(server)
            assert (answer.number, answer.fault) == (1, "left and did not come back within 0.3 s")
            assert caller.post(caller.head(0)) == ""
            assert [(answer.number, answer.fault) for answer in answers(server)] == [(0, "")]


def test_answers_of_another_process_than_the_one_that_is_connected_are_refused(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as caller, Caller(server.port) as thief:
        call = caller.enter()
        server.post(caller.id, 7, text("x"), DEADLINE)
        assert frames.read_head(next(call), frames.MESSAGE)["number"] == 7
        thief.life, thief.session = "another", caller.session
        with pytest.raises(grpc.RpcError, match="in use at another place"):
            thief.post(thief.head(7))
        assert caller.post(caller.head(7)) == ""
        assert [answer.fault for answer in answers(server)] == [""]


# Answers that nobody wants.


def test_an_answer_after_its_time_is_dropped_with_a_note(tmp_path):
    with serving(tmp_path) as server:

        def respond(parts):
            until(lambda: late)
            return parts

        late = []
        with Site(tmp_path, server.port, respond=respond) as site:
            there(server, site)
            server.post(site.id, 0, text("slow"), 0.1)
            faults = [answer.fault for answer in answers(server)]
            late.append(True)
            until(lambda: server.notes)
            assert faults == ["no answer within 0.1 s"]
            assert server.notes == [f"an answer of node {site.id} to message 0 was dropped: it came too late"]
            assert echoed(server, site, 2, "in time")


def test_a_node_is_told_which_messages_are_void_so_that_it_does_not_begin_them(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as caller:
        call = caller.enter()
        server.post(caller.id, 5, [], 0.1)
        assert frames.read_head(next(call), frames.MESSAGE)["number"] == 5
        assert frames.read_head(next(call), frames.VOID)["number"] == 5
        assert [answer.fault for answer in answers(server)] == ["no answer within 0.1 s"]


def test_a_message_that_is_void_before_it_is_whole_is_forgotten(tmp_path):
    inbox = Inbox(tmp_path, 100)
    assert inbox.add(frames.pack_head(frames.MESSAGE, {"number": 5, "sizes": [3]}), "s") is None
    inbox.drop(5)
    assert inbox.add(frames.DATA + b"abc", "s") is None
    job = inbox.add(frames.pack_head(frames.MESSAGE, {"number": 6, "sizes": []}), "s")
    assert (job.session, job.number, job.fault) == ("s", 6, "")


def test_replays_and_answers_that_were_not_asked_for_are_refused_and_noted(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as caller, Site(tmp_path, server.port, "b") as site:
        caller.enter()
        there(server, site)
        for number in (1, 2):
            server.post(caller.id, number, text("x"), DEADLINE)
        assert echoed(server, site, 3, "for another")
        part = frames.DATA + b"first"
        assert caller.post(caller.head(1, [5]), part) == ""
        assert caller.post(caller.head(1, [5]), part) == ""
        for _ in range(5):
            assert caller.post(caller.head(1, [5]), frames.DATA + b"again") == "it came before"
        assert caller.post(caller.head(3, [5]), part) == "it was not asked for"
        assert caller.post(caller.head(99, [5]), part) == "it was not asked for"
        assert caller.post(caller.head(2, [5], session="old"), part) == "it is for a server that ended"
        (answer,) = answers(server)
        assert (answer.number, words(answer)) == (1, ["first"])
        assert server.fetch(0.0) == []
        dropped = f"an answer of node {caller.id} to message"
        assert server.notes == [
            f"{dropped} 1 was dropped: it came before",
            f"{dropped} 3 was dropped: it was not asked for",
            f"{dropped} 99 was dropped: it was not asked for",
            f"{dropped} 2 was dropped: it is for a server that ended",
        ]


def test_an_answer_to_an_open_message_of_another_node_is_refused(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as caller, Caller(server.port, "b") as other:
        caller.enter()
        other.enter()
        server.post(other.id, 5, text("x"), DEADLINE)
        assert caller.post(caller.head(5, [1]), frames.DATA + b"y") == "it was not asked for"
        assert other.post(other.head(5, [1]), frames.DATA + b"z") == ""
        (answer,) = answers(server)
        assert (answer.node, words(answer)) == (other.id, ["z"])


def test_an_answer_that_ends_too_early_may_be_sent_again(tmp_path):
    with serving(tmp_path) as server, Caller(server.port) as caller:
        caller.enter()
        server.post(caller.id, 0, text("x"), DEADLINE)
        for sent in ([], [caller.head(0, [5])]):
            with pytest.raises(grpc.RpcError, match="it was cut off"):
                caller.post(*sent)
        assert caller.post(caller.head(0, [5]), frames.DATA + b"whole") == ""
        assert [words(answer) for answer in answers(server)] == [["whole"]]
        assert server.notes == []


# What costs too much.


def test_an_answer_above_the_limit_is_cut_off_before_its_bytes(tmp_path):
    sent = []

    def endless(caller):
        yield caller.head(0, [10**15])
        while True:
            sent.append(1)
            yield frames.DATA + bytes(FRAME)

    with serving(tmp_path, limits=GrpcLimits(message=1000)) as server, Caller(server.port) as caller:
        caller.enter()
        server.post(caller.id, 0, text("x"), DEADLINE)
        assert caller.post(*[caller.head(0, [600, 401])]) == "an answer of 1001 bytes; at most 1000 are taken"
        assert [answer.fault for answer in answers(server)] == ["an answer of 1001 bytes; at most 1000 are taken"]
        server.post(caller.id, 0, text("x"), DEADLINE)
        call = caller.channel.stream_unary("/potluck.Federation/Post")(endless(caller))
        assert b"at most 1000" in call
        assert len(sent) < 100


@pytest.mark.parametrize(
    "sent",
    [
        [frames.DATA + b"too long"],
        [frames.DATA + b"sh"],
        [frames.DATA],
        [frames.HELLO + b"{}"],
        [b""],
    ],
)
def test_a_broken_answer_is_a_fault_of_its_node_and_the_run_goes_on(tmp_path, sent):
    with serving(tmp_path) as server, Caller(server.port) as caller:
        caller.enter()
        server.post(caller.id, 0, text("x"), DEADLINE)
        assert "its answer is broken" in caller.post(caller.head(0, [5]), *sent)
        (answer,) = answers(server)
        assert "its answer is broken" in answer.fault
        assert list(answer.parts) == []
        assert len(server.notes) == 1
        server.post(caller.id, 1, text("x"), DEADLINE)
        assert caller.post(caller.head(1)) == ""


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00\xff",
        frames.HELLO + b"[]",
        frames.HELLO + b"[" * 60_000,
        frames.HELLO + b'{"instance": 1}',
        frames.MESSAGE + b'{"number": -1, "sizes": []}',
        frames.MESSAGE + b'{"number": 1, "sizes": [true]}',
        frames.MESSAGE + b'{"number": 1' + b"0" * 30_000 + b"}",
        bytes(frames.FRAME),
    ],
)
def test_frames_that_are_no_message_are_refused_and_noted(tmp_path, frame):
    with serving(tmp_path) as server, Caller(server.port) as caller, Site(tmp_path, server.port, "b") as site:
        there(server, site)
        assert refused(caller.fetch(frame))[0] == "INVALID_ARGUMENT"
        with pytest.raises(grpc.RpcError) as fault:
            caller.post(frame)
        assert fault.value.code().name == "INVALID_ARGUMENT"
        assert echoed(server, site, 0, "x")
        odd = [note for note in server.notes if not note.startswith(f"a call of node {caller.id} was dropped: a head")]
        assert odd == []
        assert server.notes


def test_a_call_that_makes_no_progress_is_dropped_and_noted(tmp_path):
    over = threading.Event()

    def trickle(caller):
        yield caller.head(0, [FRAME + 1])
        yield frames.DATA + bytes(FRAME)
        over.wait(DEADLINE)

    with serving(tmp_path, limits=GrpcLimits(progress=0.2)) as server, Caller(server.port) as caller:
        caller.enter()
        server.post(caller.id, 0, text("x"), DEADLINE)
        with pytest.raises(grpc.RpcError, match=r"no progress within 0\.2 s"):
            caller.channel.stream_unary("/potluck.Federation/Post")(trickle(caller))
        over.set()
        assert server.notes == [f"a call of node {caller.id} was dropped: no progress within 0.2 s"]
        assert caller.post(caller.head(0)) == ""
        assert [answer.fault for answer in answers(server)] == [""]


def test_a_node_that_does_not_read_what_it_is_sent_is_dropped(tmp_path):
    with serving(tmp_path, grace=0.1, limits=GrpcLimits(progress=0.2)) as server, Caller(server.port) as caller:
        call = caller.enter()
        server.post(caller.id, 0, [numbers(64 * FRAME)], DEADLINE)
        assert [answer.fault for answer in answers(server)] == ["left and did not come back within 0.1 s"]
        assert server.notes == [f"a call of node {caller.id} was dropped: no progress within 0.2 s"]
        call.cancel()


def test_a_node_that_calls_too_often_is_refused_but_answers_to_messages_do_not_count(tmp_path):
    with serving(tmp_path, limits=GrpcLimits(calls=2.0)) as server:
        with Site(tmp_path, server.port, "b") as site:
            there(server, site)
            for number in range(20):
                assert echoed(server, site, number, "x")
            assert server.notes == []
        with Caller(server.port) as caller:
            codes = {refused(caller.fetch(b""))[0] for _ in range(40)}
            assert codes == {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
            assert f"node {caller.id} calls more than 2 times a second" in server.notes


def test_a_full_server_says_so_and_takes_a_node_when_there_is_room(tmp_path):
    with serving(tmp_path, limits=GrpcLimits(nodes=1)) as server, ExitStack() as stack:
        with Site(tmp_path, server.port) as first:
            there(server, first)
            second = stack.enter_context(Site(tmp_path, server.port, "b"))
            until(lambda: second.heard("the server is full: 1 nodes"))
        there(server, second)


def test_five_hundred_connections_at_once_do_not_hinder_a_node(tmp_path):
    limits = GrpcLimits(connections=400, handshake=2.0)
    with serving(tmp_path, limits=limits) as server, Site(tmp_path, server.port) as site, ExitStack() as stack:
        there(server, site)
        raw = [stack.enter_context(idle_with_certificate(tmp_path, server.port)) for _ in range(20)]
        raw += [stack.enter_context(socket.create_connection((HOST, server.port))) for _ in range(480)]
        for end in raw[20::10]:
            end.sendall(b"GET / HTTP/1.1\r\n\r\n" if end.fileno() % 2 else b"\x16\x03\x01")
        assert echoed(server, site, 0, "still here")
        until(lambda: all(closed(end) for end in raw))
        assert echoed(server, site, 1, "and now")
        with Site(tmp_path, server.port, "b") as other:
            there(server, other)
            assert not other.heard("cannot reach")


def test_a_connection_without_a_call_is_closed(tmp_path):
    states = []
    with serving(tmp_path, limits=GrpcLimits(handshake=0.3)) as server, Caller(server.port) as caller:
        caller.channel.subscribe(states.append)
        assert refused(caller.fetch(b""))[0] == "INVALID_ARGUMENT"
        until(lambda: grpc.ChannelConnectivity.READY in states)
        until(lambda: states[-1] is grpc.ChannelConnectivity.IDLE)


def idle_with_certificate(folder, port):
    """A connection of somebody who has a certificate, but never calls."""
    who, file = identity("a"), folder / "a.pem"
    file.write_bytes(who.cert + who.key)
    context = ssl.create_default_context(cadata=who.ca.decode())
    context.load_cert_chain(file)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection((HOST, port)), server_hostname=HOST)


def closed(end):
    """Whether the other side has closed a connection."""
    end.setblocking(False)
    try:
        while end.recv(1 << 12):
            pass
    except (BlockingIOError, ssl.SSLWantReadError):
        return False
    except OSError:
        return True
    return True


# The rest.


def test_nothing_secret_is_in_notes_or_lines(tmp_path):
    who, other = identity("a"), identity("b").id
    with ExitStack() as stack:
        server = stack.enter_context(serving(tmp_path, lambda node: "revoked" if node == other else ""))
        site = stack.enter_context(Site(tmp_path, server.port, instance="hidden-instance"))
        caller = stack.enter_context(Caller(server.port))
        there(server, site)
        with pytest.raises(grpc.RpcError):
            caller.enter("hidden-other", 5)
        with Site(tmp_path, server.port, "b", instance="hidden-third") as out:
            ended(out)
        assert refused(caller.fetch(b"hidden-bytes"))[0] == "INVALID_ARGUMENT"
        said = "\n".join([*server.notes, *site.lines, *out.lines, str(out.fault)])
    assert len(server.notes) == 3
    assert "hidden" not in said
    assert caller.life not in said
    assert not any(line.decode() in said for line in who.key.splitlines() if len(line) > 10)


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with serving(tmp_path) as server, pytest.raises(ResourceError, match=f"cannot listen on {HOST}:{server.port}"):
        serving(tmp_path, port=server.port).__enter__()


@pytest.mark.parametrize(
    ("cert", "key", "reason"),
    [
        (b"nonsense", identity("a").key, "the certificate, or that of the authority, is not a PEM file"),
        (identity("a").cert, b"nonsense", "the key is not a PEM file"),
        (identity("a").cert, identity("b").key, "the key does not belong to the certificate"),
    ],
)
def test_certificates_and_keys_that_cannot_be_used_are_one_line(cert, key, reason):
    with pytest.raises(ResourceError, match=reason):
        check_pems(identity("a").ca, cert, key)


def test_without_the_library_there_is_one_line_that_names_the_extra():
    code = "import sys; sys.modules['grpc'] = None\nimport potluck.engines.remote.grpc_node"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    last = out.stderr.strip().splitlines()[-1]
    assert last.endswith("needs packages that are not installed: pip install 'potluck[deploy]'")
    assert "ResourceError" in last


@pytest.mark.parametrize("busy", [False, True])
def test_an_interrupt_ends_a_node_at_once_whether_it_works_or_waits(tmp_path, busy):
    with serving(tmp_path) as server, process(tmp_path, server.port, mode="hang") as child:
        until(server.present)
        if busy:
            server.post(identity("a").id, 0, text("x"), DEADLINE)
            until((tmp_path / "asked").exists)
        child.send_signal(signal.SIGINT)
        assert child.wait(DEADLINE) == 130
        until(lambda: not server.present())


def test_a_node_ends_when_it_is_told_to_also_while_nobody_is_there(tmp_path):
    with Site(tmp_path, 1, patience=Patience(first=60.0)) as site:
        until(lambda: site.heard("cannot reach"))
    assert not site.thread.is_alive()
    assert site.fault is None
    assert SOON.first < Patience().first
