"""Messages over Flower: a SuperLink with TLS and registered keys, and SuperNodes, on loopback."""

from __future__ import annotations

import base64
import http.client
import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower: make flower")

import numpy as np
from flower_house import House, NodeProcess, descendants, free_port, make_key, until

from potluck.engines.remote import flower_objects, flower_transport
from potluck.engines.remote.flower_objects import Program
from potluck.engines.remote.flower_transport import FlowerServer, fingerprint

NAMES = ("a", "b", "c")
TIME = 200.0
REFUSED = pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")
"""httpcore leaves the socket of a refused connection to the garbage collector."""


class Federation:
    """A server, and nodes in processes of their own."""

    def __init__(self, house, patience=30.0):
        self.house, self.nodes, self.number = house, {}, 0
        self.admitted = {}
        self.server = FlowerServer(
            lambda: list(self.admitted.values()), house.cert, house.key, house.ca, patience=patience
        )

    def admit(self, name):
        self.admitted[name] = self.house.publics.get(name) or self.house.node(name)
        return fingerprint(self.admitted[name])

    def start(self, name, mode="echo"):
        self.nodes[name] = NodeProcess(self.house, name, self.server.address, mode)

    def id(self, name):
        return fingerprint(self.house.publics[name])

    def wait_for(self, *names):
        until(lambda: {self.id(name) for name in names} <= self.server.present().keys())

    def post(self, name, *parts, seconds=TIME):
        self.number += 1
        self.server.post(self.id(name), self.number, parts, seconds)
        return self.number

    def answers(self, count, seconds=TIME):
        found = []
        until(lambda: found.extend(self.server.fetch(1.0)) or len(found) >= count, seconds)
        return {answer.number: answer for answer in found}

    def end(self):
        for node in self.nodes.values():
            node.process.terminate()
        for node in self.nodes.values():
            node.end()
        self.server.close()


def trust(house):
    return ssl.create_default_context(cafile=house.ca)


def part(text):
    return np.frombuffer(text.encode(), np.uint8)


def text(found):
    return bytes(found).decode()


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    made = Federation(House(tmp_path_factory.mktemp("three")))
    try:
        for name in NAMES:
            made.admit(name)
        for name in NAMES:
            made.start(name)
        made.wait_for(*NAMES)
        yield made
    finally:
        made.end()


@pytest.fixture
def alone(tmp_path):
    """A federation with one node, of which a test may kill parts."""
    made = Federation(House(tmp_path))
    made.admit("a")
    try:
        yield made
    finally:
        made.end()


def test_each_of_three_nodes_answers_its_own_message(three):
    numbers = {three.post(name, part(f"for {name}"), part("")): name for name in NAMES}
    found = three.answers(3)
    assert {number: [text(one) for one in answer.parts] for number, answer in found.items()} == {
        number: [f"for {name}", "", name] for number, name in numbers.items()
    }
    assert {number: answer.node for number, answer in found.items()} == {
        n: three.id(name) for n, name in numbers.items()
    }


def test_a_node_answers_messages_in_the_order_in_which_they_were_posted(three):
    numbers = [three.post("a", np.zeros(size, np.uint8)) for size in (7001, 7002, 7003)]
    found = three.answers(3)
    assert [found[number].parts[0].size for number in numbers] == [7001, 7002, 7003]
    log = three.nodes["a"].log.read_text()
    assert sorted((7001, 7002, 7003), key=lambda size: log.index(str(size))) == [7001, 7002, 7003]


def test_parts_of_ten_megabytes_come_back_equal(three):
    parts = [np.random.default_rng(seed).integers(0, 256, 10_000_001, dtype=np.uint8) for seed in (1, 2)]
    number = three.post("b", *parts)
    answer = three.answers(1)[number]
    assert [np.array_equal(*pair) for pair in zip(answer.parts[:2], parts, strict=True)] == [True, True]
    assert text(answer.parts[2]) == "b"


def test_a_model_for_many_nodes_is_sent_to_the_superlink_once(three, monkeypatch):
    sent, model = [], np.random.default_rng(3).integers(0, 256, 6_000_000, dtype=np.uint8)
    client = three.server._run.client
    monkeypatch.setattr(client, "PushObject", lambda asked, push=client.PushObject: sent.append(asked) or push(asked))
    supernodes = [pid for name in NAMES for pid in descendants(three.nodes[name].process.pid, "supernode")]
    for pid in supernodes:  # so that none fetches the model before it was sent to all
        os.kill(pid, signal.SIGSTOP)
    try:
        numbers = [three.post(name, model) for name in NAMES]
        until(lambda: all(post.activated for post in three.server._posts.values()))
    finally:
        for pid in supernodes:
            os.kill(pid, signal.SIGCONT)
    found = three.answers(3)
    assert all(np.array_equal(found[number].parts[0], model) for number in numbers)
    assert sum(len(asked.object_content) > 700_000 for asked in sent) == 2  # of 5.2 MB, and the rest


def test_presence_says_since_when_and_from_where(three):
    for node in three.server.present().values():
        assert node.address == "127.0.0.1"
        assert node.since > 1_700_000_000


def test_a_message_for_a_node_that_never_came_has_a_fault_at_once(three):
    three.house.node("stranger")
    number = three.post("stranger", part("x"))
    assert three.answers(1)[number].fault == "the node is not there"


def test_a_key_that_is_not_registered_is_refused(three):
    three.house.node("unknown")
    three.start("unknown")
    until(lambda: any(f"refused: node {three.id('unknown')}" in note for note in three.server.notes))
    assert three.id("unknown") not in three.server.present()
    until(lambda: three.nodes["unknown"].said("is started again: the server refuses this node's key"))
    three.nodes["unknown"].end()


def test_the_port_of_nodes_has_the_paths_of_the_fleet_alone(three):
    import httpx

    for path in ("control/register-node", "control/start-run", "runtime/acquire-task", "fleet/register-node"):
        head = {"content-type": "application/protobuf"}
        answer = httpx.post(f"https://{three.server.address}/v1/{path}", headers=head, verify=trust(three.house))
        assert answer.status_code == 404, path
    until(lambda: any("/v1/control/start-run (404)" in note for note in three.server.notes))


def test_a_request_that_is_too_long_is_refused_before_it_is_read(three):
    key = base64.b64encode(three.house.publics["a"]).decode()
    connection = http.client.HTTPSConnection(three.server.address, timeout=60, context=trust(three.house))
    connection.putrequest("POST", "/v1/fleet/push-object")
    for name, value in {"flwr-public-key": key, "content-length": str(1 << 40)}.items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_plain_text_and_another_authority_are_refused(three, tmp_path):
    import httpx

    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{three.server.address}/")
    other = House(tmp_path)
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://{three.server.address}/", verify=trust(other))


def test_a_node_whose_clock_is_three_minutes_ahead_can_connect(three, tmp_path):
    three.admit("early")
    settings = {
        "server": three.server.address, "ca": str(three.house.ca), "key": str(three.house.folder / "early.key"),
        "uds": str(tmp_path / "s"), "heartbeat": 10, "wrong": 180.0,
    }  # fmt: skip
    until(lambda: three.id("early") in three.server._registered)
    program = Program("supernode", settings, tmp_path)
    try:
        three.wait_for("early")
    finally:
        program.end()


def test_an_answer_that_is_larger_than_the_limit_is_a_fault(three, monkeypatch):
    monkeypatch.setattr(three.server, "_most", 1000)
    number = three.post("c", np.zeros(2000, np.uint8))
    assert three.answers(1)[number].fault == "the answer was lost: a message that is too large"


def test_an_address_in_use_is_an_error_of_one_line(three):
    from potluck.core import ResourceError

    house = three.house
    with pytest.raises(ResourceError, match=f"cannot listen at {three.server.address}"):
        FlowerServer(list, house.cert, house.key, house.ca, three.server.address)


@REFUSED
def test_a_node_that_is_revoked_is_shut_out_and_its_message_has_a_fault(alone):
    alone.start("a", "hang")
    alone.wait_for("a")
    number = alone.post("a", part("x"))
    until(lambda: alone.nodes["a"].said("asked"))
    key = alone.admitted.pop("a")
    assert alone.answers(1)[number].fault == "the node left and did not come back"
    assert not alone.server.present()
    until(lambda: any(f"refused: node {alone.id('a')}" in note for note in alone.server.notes))
    alone.admitted["a"] = key
    alone.wait_for("a")


@REFUSED
def test_a_superlink_that_is_killed_during_a_task_gets_the_answer_that_the_node_made_meanwhile(alone):
    alone.start("a", "hang")
    alone.wait_for("a")
    number = alone.post("a", np.zeros(4343, np.uint8))
    until(lambda: alone.nodes["a"].said("4343"))
    os.kill(alone.server._program.process.pid, signal.SIGKILL)
    until(lambda: any("a new run begins" in note for note in alone.server.notes))
    alone.wait_for("a")
    (alone.house.folder / "go").touch()
    answer = alone.answers(1)[number]
    assert not answer.fault
    assert answer.parts[0].size == 4343
    assert alone.nodes["a"].log.read_text().count("4343") == 1


def test_an_answer_that_does_not_come_in_time_is_a_fault_and_is_dropped_with_a_note_when_it_comes(alone):
    alone.start("a", "hang")
    alone.wait_for("a")
    number = alone.post("a", part("x"), seconds=2)
    assert alone.answers(1)[number].fault == "no answer within 2 s"
    until(lambda: alone.nodes["a"].said("asked"))
    (alone.house.folder / "go").touch()
    note = f"node {alone.id('a')}: the answer to message {number} came too late"
    until(lambda: note in alone.server.notes)
    assert alone.server.fetch(0) == []


def test_a_supernode_that_is_killed_is_started_again_and_the_message_is_answered_once(alone):
    alone.start("a")
    alone.wait_for("a")
    (supernode,) = descendants(alone.nodes["a"].process.pid, "supernode")
    os.kill(supernode, signal.SIGKILL)
    number = alone.post("a", np.zeros(4242, np.uint8))
    answer = alone.answers(1)[number]
    assert not answer.fault
    assert alone.nodes["a"].log.read_text().count("4242") == 1


def test_a_node_that_is_killed_is_a_fault_and_is_used_again_when_it_comes_back(alone, monkeypatch):
    monkeypatch.setattr(alone.server, "_patience", 3.0)
    alone.start("a", "hang")
    alone.wait_for("a")
    number = alone.post("a", part("x"))
    until(lambda: alone.nodes["a"].said("asked"))
    alone.nodes["a"].kill()
    assert alone.answers(1)[number].fault == "the node left and did not come back"
    alone.start("a")
    alone.wait_for("a")
    number = alone.post("a", part("again"))
    assert text(alone.answers(1)[number].parts[0]) == "again"


def test_a_second_node_with_the_same_key_is_refused_while_the_first_is_there(three):
    since = three.server.present()[three.id("a")].since
    clone = NodeProcess(three.house, "a", three.server.address)
    refused = f"refused: node {three.id('a')} from 127.0.0.1, /v1/fleet/activate-node"
    try:
        until(lambda: any(refused in note for note in three.server.notes))
        assert three.server.present()[three.id("a")].since == since
    finally:
        clone.end()


def test_nodes_that_wait_for_the_server_are_not_refused_when_it_starts(tmp_path):
    house = House(tmp_path)
    keys = [house.node(name) for name in NAMES]
    address = f"127.0.0.1:{free_port()}"
    nodes = [NodeProcess(house, name, address) for name in NAMES]
    until(lambda: all(descendants(node.process.pid, "supernode") for node in nodes))
    server = FlowerServer(lambda: keys, house.cert, house.key, house.ca, address)
    try:
        until(lambda: len(server.present()) == 3)
        assert server.notes == []
        assert not any(node.said("is started again") for node in nodes)
    finally:
        for node in nodes:
            node.end()
        server.close()


def test_the_programs_of_flower_end_with_the_process_that_started_them(tmp_path):
    house = House(tmp_path)
    script = (
        "import sys, time; from pathlib import Path; from potluck.engines.remote.flower_transport import FlowerServer;"
        f"s = FlowerServer(lambda: [], *map(Path, {[str(house.cert), str(house.key), str(house.ca)]!r}));"
        "print(s._program.process.pid, s._folder, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as server:
        pid, _ = server.stdout.readline().split()
        server.kill()
    until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_text())


def test_a_node_id_is_the_fingerprint_of_its_key(tmp_path):
    import hashlib

    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key, pem = make_key(tmp_path / "key")
    der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert fingerprint(pem) == hashlib.sha256(der).hexdigest()[:32]


def test_telemetry_and_update_checks_are_off():
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert flower_transport.MISSING == flower_objects.MISSING
