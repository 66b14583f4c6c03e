"""Federations that are really disturbed: nodes and servers die, the network goes, disks fill, keys are revoked."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import numpy as np
import pytest
from cryptography import x509
from cryptography.x509 import verification
from federation_life import DEADLINE, Recorder, Sites, kill, make_place, same, serve_here, undisturbed, until
from hostile_nodes import told
from small_nodes import NAMES, Heard, identity, make_nodes, run_in_process, settings
from test_federation_hostile import WITHOUT_ONE, tasks
from tiny_runs import DiesAfter

from potluck.core import QuorumError
from potluck.engines.remote import Answer, InProcess
from potluck.federation import FederationSettings, host, provision
from potluck.federation.authority import issue, public_key
from potluck.federation.provisioning import admit, read_authority, revoke


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    """The place of all federations of this file: the same keys, so the same clients."""
    return make_place(tmp_path_factory.mktemp("life"))


@pytest.fixture
def place(kits, monkeypatch):
    monkeypatch.setenv("POTLUCK_HOLD", str(kits.folder))
    monkeypatch.setattr(sys, "path", [*sys.path, str(kits.folder)])
    kits.clear()
    yield kits
    kits.end()
    shutil.rmtree(kits.folder / "run", ignore_errors=True)


# Nodes in this process: cheap.


class Leaving(InProcess):
    """A node leaves within its task of some rounds, and is back in the next one."""

    def __init__(self, nodes, who, rounds):
        super().__init__(nodes)
        self.who, self.rounds = who, rounds

    def fetch(self, seconds):
        if self._waiting and self._waiting[0][0] == self.who:
            _, number, parts = self._waiting[0]
            asked = told(parts)
            if asked["kind"] == "task" and asked["task"].round in self.rounds:
                self._waiting.popleft()
                return [Answer(self.who, number, fault="left and did not come back within 45 s")]
        return super().fetch(seconds)


def test_a_node_that_leaves_within_a_round_is_absent_and_is_used_in_the_next(tmp_path):
    nodes = make_nodes(tmp_path)
    made = Leaving({identity(name): node.respond for name, node in nodes.items()}, identity("clinic-b"), {1})
    result = run_in_process(settings(rounds=3), nodes, tmp_path / "run", made)
    assert result.rounds == 3
    assert tasks(tmp_path, "clinic-b") == [
        (1, "accepted", ""),
        (2, "absent", "failed: left and did not come back within 45 s"),
        (3, "accepted", ""),
    ]


def test_a_tier_of_which_all_nodes_are_gone_is_warned_of(tmp_path):
    nodes = make_nodes(tmp_path)
    made = Leaving({identity(name): node.respond for name, node in nodes.items()}, identity("clinic-c"), range(1, 9))
    watch = Heard()
    run_in_process(settings(rounds=4), nodes, tmp_path / "run", made, watch)
    assert any(line.startswith("round 4: nothing from tier 'large' for 3 rounds") for line in watch.warnings)


@pytest.mark.parametrize("method", ["heterofl", "scaffold"])
def test_a_server_that_is_killed_goes_on_with_nodes_that_remember_more_than_it_does(tmp_path, method):
    experiment = settings(method, rounds=3, run={"checkpoint_every": 2}, **tiers(method))
    (tmp_path / "whole").mkdir()
    whole = run_in_process(experiment, make_nodes(tmp_path / "whole"), tmp_path / "whole" / "run")
    nodes = make_nodes(tmp_path)
    if (pid := os.fork()) == 0:
        try:
            run_in_process(experiment, nodes, tmp_path / "run", watch=DiesAfter(3))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    found = run_in_process(experiment, make_nodes(tmp_path), tmp_path / "run")
    assert (found.weights_sha256, found.scores) == (whole.weights_sha256, whole.scores)


def tiers(method):
    return {"tier": [{"name": name} for name in ("small", "medium", "large")]} if method == "scaffold" else {}


def test_a_node_that_lost_its_memory_says_so_and_starts_fresh(tmp_path):
    nodes = make_nodes(tmp_path)
    made = InProcess({identity(name): node.respond for name, node in nodes.items()})
    honest = made.nodes[identity("clinic-a")]

    def respond(parts):
        if told(parts)["kind"] == "task" and told(parts)["task"].round == 1:
            for file in nodes["clinic-a"].memory.folder.iterdir():
                file.unlink()
        return honest(parts)

    made.nodes[identity("clinic-a")] = respond
    watch = Heard()
    result = run_in_process(settings("scaffold", rounds=3, **tiers("scaffold")), nodes, tmp_path / "run", made, watch)
    assert result.rounds == 3
    assert any(line.startswith("clinic-a starts without memory: it lost the old one") for line in watch.warnings)
    assert "the memory that the server names is not here: starting without one" in nodes["clinic-a"].watch.said


class Returning(InProcess):
    """A node connects anew right after its answer to a task."""

    def __init__(self, nodes, who):
        super().__init__(nodes)
        self.who, self.times = who, 0.0

    def fetch(self, seconds):
        found = super().fetch(seconds)
        self.times += sum(answer.node == self.who for answer in found)
        return found

    def present(self):
        since = {self.who: min(self.times // 2, 3.0)}
        return {id: replace(one, since=since.get(id, 0.0)) for id, one in super().present().items()}


def test_a_node_that_just_came_back_scores_as_if_it_had_not_left(tmp_path):
    (tmp_path / "whole").mkdir()
    whole = run_in_process(settings(), make_nodes(tmp_path / "whole"), tmp_path / "whole" / "run")
    nodes = make_nodes(tmp_path)
    made = Returning({identity(name): node.respond for name, node in nodes.items()}, identity("clinic-b"))
    found = run_in_process(settings(), nodes, tmp_path / "run", made)
    assert made.present()[identity("clinic-b")].since == 3.0
    assert (found.weights_sha256, found.scores) == (whole.weights_sha256, whole.scores)


def test_without_a_quorum_a_federation_ends_with_5_and_goes_on_when_nodes_are_back(tmp_path):
    nodes = make_nodes(tmp_path)
    waits = {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 0, "grace": 0}
    experiment = settings(rounds=4, nodes=waits, run={"quorum": 2})
    made = InProcess({identity(name): node.respond for name, node in nodes.items()})
    honest = dict(made.nodes)

    class Gone(Heard):
        def round(self, done, scores, totals):
            if done == 2:  # two of three never come back
                del made.nodes[identity("clinic-a")], made.nodes[identity("clinic-b")]

    with pytest.raises(QuorumError, match=r"round 3: 1 of 3 clients answered; run.quorum is 2") as fault:
        run_in_process(experiment, nodes, tmp_path / "run", made, Gone())
    assert fault.value.exit_code == 5
    watch = Heard()
    found = run_in_process(experiment, nodes, tmp_path / "run", InProcess(honest), watch)
    assert found.rounds == 4
    assert "resumed at round 2" in watch.warnings
    assert [outcome for _, outcome, _ in tasks(tmp_path, "clinic-a")][-2:] == ["accepted"] * 2


def test_nodes_that_never_come_back_are_not_asked_for_ever(tmp_path):
    nodes = make_nodes(tmp_path)
    waits = {"shape": [1, 8, 8], "classes": 10, "floor": 5, "patience": 0, "grace": 0}
    made = InProcess({identity(name): node.respond for name, node in nodes.items()})

    class Gone(Heard):
        def round(self, done, scores, totals):
            if done == 1:
                del made.nodes[identity("clinic-a")]

    run_in_process(settings(rounds=6, nodes=waits), nodes, tmp_path / "run", made, Gone())
    assert tasks(tmp_path, "clinic-a") == [
        (1, "accepted", ""),
        *((round, "absent", "failed: it is not there") for round in (2, 3, 4)),
    ]


@contextmanager
def files_of_at_most(size):
    """A disk that is full as soon as a file has so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("full", ["audit log", "memory", "charter"])
def test_a_node_with_a_full_disk_says_so_sends_nothing_unlogged_and_works_again_when_there_is_room(
    tmp_path, full, monkeypatch
):
    monkeypatch.setattr(host, "AGAIN", 0.0)
    nodes = make_nodes(tmp_path)
    node = nodes["clinic-a"]
    log, sent, tried = node.audit.path, [], []

    def respond(parts):
        asked = told(parts)
        tight = asked["kind"] == "task" and (asked["task"].verb, asked["task"].round) == ("train", 1)
        if full == "charter":
            tight = asked["kind"] == "charter" and not tried
        if not tight:
            answer = node.respond(parts)
        else:
            tried.append(1)
            most = {"audit log": log.stat().st_size if log.exists() else 0, "memory": 100, "charter": 0}[full]
            if full == "memory":
                most = log.stat().st_size + 2_000 if log.stat().st_size < 4_000 else 4_000
            with files_of_at_most(most):
                answer = node.respond(parts)
        sent.append(hashlib.sha256(b"".join(part.tobytes() for part in answer)).hexdigest())
        return answer

    made = InProcess({identity(name): each.respond for name, each in nodes.items()})
    made.nodes[identity("clinic-a")] = respond
    experiment = settings("scaffold", rounds=4, nodes=WITHOUT_ONE, model={"hidden": 64}, **tiers("scaffold"))
    run_in_process(experiment, nodes, tmp_path / "run", made)
    found = {round: (outcome, reason) for round, outcome, reason in tasks(tmp_path, "clinic-a")}
    said = " ".join(node.watch.said)
    if full == "charter":
        assert "File too large" in said
        assert found[4] == ("accepted", "")
    else:
        reason = {
            "audit log": "it declined: its audit log cannot be written: the disk may be full",
            "memory": "its memory cannot be saved: the disk may be full",
        }[full]
        assert [found[round] for round in (1, 2, 3)] == [
            ("accepted", ""),
            ("absent", f"failed: {reason}"),
            ("accepted", ""),
        ]
        assert said
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    unlogged = [each for each in sent if each not in {line["sha256"] for line in logged}]
    assert len(unlogged) == (full in ("audit log", "charter"))  # only the line that says why there is no answer
    assert all(line["what"] != "result" or line["bytes"] for line in logged)


# Nodes in threads of this process, over gRPC with their kits.


def records(data):
    """The kinds of the TLS records in these bytes: a byte that says what it is, the version, the length. The last one
    may have been cut off."""
    found = []
    while len(data) >= 5:
        found.append((data[0], bytes(data[1:3])))
        data = data[5 + int.from_bytes(data[3:5], "big") :]
    return found


def test_all_bytes_of_a_federation_on_the_wire_are_tls_and_none_of_its_plaintext_shows(place):
    told = place.settings(rounds=2)
    with Recorder(place.port) as wire, Sites(place, f"127.0.0.1:{wire.port}") as sites:
        found = serve_here(place, told)
        until(lambda: len(sites.ended) == 3)
        logs = {name: node.audit.path.read_text() for name, node in sites.nodes.items()}
    assert found.rounds == 2
    streams = [bytes(data) for pair in wire.kept for data in pair if data]
    assert sum(map(len, streams)) > sum(
        json.loads(line)["bytes"] for text in logs.values() for line in text.splitlines()
    )
    for data in streams:
        kinds = records(data)
        assert {version for _, version in kinds} <= {b"\x03\x01", b"\x03\x03"}
        assert {kind for kind, _ in kinds} <= {20, 21, 22, 23}  # cipher change, alert, handshake, data
        assert kinds[0][0] == 22
    rows = np.load(place.folder / "part-0.npz")["x"]
    state = place.folder / "run" / "checkpoints"
    plain = [b"potluck1", b'"kind"', b'"charter"', b"safetensors", b"data_offsets", b"clinic-a", b"HeldHeteroFL"]
    plain += [rows[3].tobytes()[100:132], max(state.glob("*.ckpt")).read_bytes()[-64:]]
    for secret in plain:
        assert not any(secret in data for data in streams), secret


@pytest.mark.slow
def test_a_key_that_is_revoked_within_a_run_is_out_at_once_and_the_run_goes_on(place):
    told = place.settings(rounds=3)
    watch = Heard()
    place.hold("2")
    with Sites(place) as sites:
        revoking = threading.Thread(target=revoke_when_asked, args=(place,))
        revoking.start()
        found = serve_here(place, told, watch=watch)
        revoking.join()
        until(lambda: len(sites.ended) == 3)
    try:
        assert found.rounds == 3
        assert sites.ended["clinic-b"].endswith("refuses this node: revoked")
        assert [sites.ended[name] for name in ("clinic-a", "clinic-c")] == ["done", "done"]
        outcomes = place.outcomes(place.id("clinic-b"))
        assert outcomes[2] == ("absent", "failed: revoked")
        assert outcomes[3][0] == "absent"
        assert any(line == f"node {place.id('clinic-b')} was refused: revoked" for line in watch.warnings)
    finally:
        admit("clinic-b", place.folder / "kits" / "server")


def revoke_when_asked(place):
    """Revokes a key while its node trains, and lets all nodes go on once the server has noticed."""
    try:
        place.asked("", 2)
        revoke("clinic-b", place.folder / "kits" / "server")
        until(lambda: place.states()["clinic-b"] == "away", 60)
    finally:
        place.release("2")


@pytest.mark.parametrize("minutes", [-3, 3])
def test_certificates_are_valid_on_a_clock_three_minutes_off(kits, minutes):
    """Checked by the library for certificates; TLS itself asks the machine's clock, which a test must not change."""
    then = datetime.now(UTC) + timedelta(minutes=minutes)
    own = kits.folder / "kits"
    authority = x509.load_pem_x509_certificate((own / "server" / "ca.pem").read_bytes())
    for name in ("server", *NAMES):
        certificate = x509.load_pem_x509_certificate((own / name / "cert.pem").read_bytes())
        certificate.verify_directly_issued_by(authority)
        assert certificate.not_valid_before_utc < then - timedelta(hours=23)
        assert then < certificate.not_valid_after_utc
    checks = verification.PolicyBuilder().store(verification.Store([authority])).time(then)
    server = x509.load_pem_x509_certificate((own / "server" / "cert.pem").read_bytes())
    checks.build_server_verifier(x509.IPAddress(ip_address("127.0.0.1"))).verify(server, [])


def test_nodes_whose_clock_is_three_minutes_off_take_part(place, monkeypatch):
    """The clock that Python reads; in threads it is the server's, too, so the times of both are off by the same."""
    true = time.time
    monkeypatch.setattr(
        time, "time", lambda: true() + (180 if threading.current_thread().name != "potluck-grpc" else 0)
    )
    with Sites(place) as sites:
        found = serve_here(place, place.settings(rounds=1))
        until(lambda: len(sites.ended) == 3)
    assert found.rounds == 1
    assert set(sites.ended.values()) == {"done"}


# Nodes and servers in processes.


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heterofl", "scaffold", "fedrolex"])
def test_a_server_killed_ten_times_ends_with_the_very_weights_of_one_that_was_not(place, method):
    told = place.settings(method, rounds=14, score={"every": 3})
    wanted = undisturbed(place, told, f"whole-{method}")
    place.nodes()
    dice = random.Random(method)
    for life in range(10):
        place.hold(life + 3)  # no life gets further than this
        place.release(life + 2)
        process, before = place.server(told), place.rounds_done()
        wait = dice.uniform(0.0, 0.5)
        if dice.random() < 0.7:  # within the next round, or between rounds
            until(lambda before=before: place.rounds_done() > before)
        else:
            wait *= 16  # also while it starts, and while nodes come back
        with pytest.raises(TimeoutError):
            until(lambda process=process: process.poll() is not None, wait)
        kill(process)
    place.release(12)
    assert same(place.result(place.server(told)), wanted)
    assert {"accepted"} == {outcome for name in NAMES for outcome, _ in place.outcomes(place.id(name)).values()}


@pytest.mark.slow
def test_a_node_killed_within_a_round_is_done_without_or_does_its_task_once_it_is_back(place):
    told = place.settings(rounds=4)
    wanted = undisturbed(place, told, "whole-killed")
    server, nodes = place.server(told), place.nodes()
    place.hold("clinic-b-2")
    place.asked("clinic-b", 2)
    kill(nodes["clinic-b"])
    place.release("clinic-b-2")
    again = place.node("clinic-b")  # within the grace: it does the task
    assert same(place.result(server), wanted)
    assert again.wait(DEADLINE) == 0

    place.clear()
    shutil.rmtree(place.folder / "run")
    told = place.settings(rounds=4, nodes={"grace": 1})
    place.hold("clinic-b-2")
    place.hold("3")
    server, nodes = place.server(told), place.nodes()
    place.asked("clinic-b", 2)
    kill(nodes["clinic-b"])
    place.asked("clinic-a", 3)  # the round went on without it
    again = place.node("clinic-b")
    until(lambda: place.said("server").count("clinic-b is here") == 2)
    place.release("3")
    place.result(server)
    found = place.outcomes(place.id("clinic-b"))
    assert found[2] == ("absent", "failed: left and did not come back within 1 s")
    assert found[3] == ("absent", "failed: is not there")
    assert found[4] == ("accepted", "")
    assert "clinic-b is away" in place.said("server")


@pytest.mark.slow
def test_keys_that_are_not_welcome_end_join_with_one_line_and_the_server_notes_them(place):
    told = place.settings(rounds=2)
    kits = place.folder / "kits"
    place.hold("1")
    server, nodes = place.server(told), place.nodes()
    for name in NAMES:
        place.asked(name, 1)
    try:
        shutil.copytree(kits / "clinic-a", kits / "clone", ignore=shutil.ignore_patterns("state"))
        now = datetime.now(UTC)
        authority = read_authority(kits / "authority")
        shutil.copytree(kits / "clinic-c", kits / "expired", ignore=shutil.ignore_patterns("state"))
        public = public_key((kits / "expired" / "key.pem").read_bytes())
        old = issue(authority, public, "clinic-c", "node", 1, now - timedelta(days=3))
        (kits / "expired" / "cert.pem").write_bytes(old)
        provision(FederationSettings("life", f"127.0.0.1:{place.port}", (*NAMES, "stranger")), kits)
        listed = json.loads((kits / "server" / "nodes.json").read_text())
        listed["nodes"] = [node for node in listed["nodes"] if node["name"] != "stranger"]
        (kits / "server" / "nodes.json").write_text(json.dumps(listed))
        data = place.folder / "part-0.npz"
        found = {
            name: place.start(name, "join", "--kit", kits / name, "--data", data, "--yes")
            for name in ("clone", "expired", "stranger")
        }
        codes = {name: process.wait(DEADLINE) for name, process in found.items()}
        assert codes == {"clone": 6, "stranger": 6, "expired": 3}  # an expired kit is an input file that is of no use
        lasts = {name: place.said(name).strip().splitlines()[-1] for name in found}
        assert "its key is in use at another place. Each place needs a kit of its own." in lasts["clone"]
        assert "refuses this node: not admitted" in lasts["stranger"]
        assert "expired" in lasts["expired"]
        assert all(line.startswith("potluck: ") for line in lasts.values())
        revoke("clinic-b", kits / "server")
        until(lambda: place.states()["clinic-b"] == "away")
        place.release("1")
        assert nodes["clinic-b"].wait(DEADLINE) == 6
        place.result(server)
    finally:
        admit("clinic-b", kits / "server")
        for name in ("clone", "expired", "stranger"):
            shutil.rmtree(kits / name, ignore_errors=True)
    assert place.said("clinic-b").strip().splitlines()[-1].endswith("refuses this node: revoked")
    warned = " ".join(event["text"] for event in place.events("warning"))
    assert "is in use at another place; that one was refused" in warned
    assert "was refused: not admitted" in warned
    assert "was refused: revoked" in warned


@pytest.mark.slow
@pytest.mark.parametrize("how", ["set back", "lost"])
def test_a_node_that_comes_back_with_an_old_folder_or_none_says_so_and_the_run_goes_on(place, how):
    told = place.settings("scaffold", rounds=6, nodes={"grace": 1})
    state = place.folder / "kits" / "clinic-b" / "state"
    place.hold("2")
    server, nodes = place.server(told), place.nodes()
    place.asked("clinic-b", 2)
    shutil.copytree(state, place.folder / "old-state", dirs_exist_ok=True)
    place.hold("4")
    place.release("2")
    place.asked("clinic-b", 4)
    kill(nodes["clinic-b"])
    until(lambda: "clinic-b is away" in place.said("server"))
    shutil.rmtree(state)
    if how == "set back":
        shutil.copytree(place.folder / "old-state", state)
    shutil.rmtree(place.folder / "old-state")
    place.hold("5")
    place.release("4")
    place.asked("clinic-a", 5)
    again = place.node("clinic-b")
    until(lambda: place.said("server").count("clinic-b is here") == 2)
    place.release("5")
    place.result(server)
    assert again.wait(DEADLINE) == 0
    assert "clinic-b: the memory that the server names is not here: starting without one" in place.said("clinic-b")
    warned = [event["text"] for event in place.events("warning")]
    assert any(line.startswith("clinic-b starts without memory: it lost the old one, was set back") for line in warned)
    outcomes = [outcome for outcome, _ in place.outcomes(place.id("clinic-b")).values()]
    assert outcomes == ["accepted", "accepted", "accepted", "absent", "absent", "accepted"]
    assert not (place.folder / "old-state").exists()


def namespaces_work():
    made = subprocess.run(["ip", "netns", "add", "potluck-try"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "potluck-try"], capture_output=True, check=False)
    return made.returncode == 0


@contextmanager
def cable(server, nodes):
    """Two network namespaces and a cable between them; yields a function that pulls it out or puts it in."""

    def ip(*words, check=True):
        subprocess.run(["ip", *words], check=check, capture_output=True)

    ends = ((server, "pk-server", "10.213.7.1/24"), (nodes, "pk-nodes", "10.213.7.2/24"))
    try:
        for name, _, _ in ends:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "pk-server", "netns", server, "type", "veth", "peer", "name", "pk-nodes", "netns", nodes)
        for name, end, address in ends:
            ip("-n", name, "address", "add", address, "dev", end)
            ip("-n", name, "link", "set", end, "up")
        yield lambda state: ip("-n", server, "link", "set", "pk-server", state)
    finally:
        for name, _, _ in ends:
            ip("netns", "del", name, check=False)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip")
def test_a_network_that_is_gone_for_30_s_is_survived(tmp_path, monkeypatch):
    if not namespaces_work():
        pytest.skip("network namespaces cannot be made here")
    place = make_place(tmp_path / "life", "10.213.7.1")
    monkeypatch.setenv("POTLUCK_HOLD", str(place.folder))
    monkeypatch.setattr(sys, "path", [*sys.path, str(place.folder)])
    server_space, node_space = f"pk-s-{os.getpid()}", f"pk-n-{os.getpid()}"
    far = {"wrap": ("ip", "netns", "exec", node_space)}
    near = {"wrap": ("ip", "netns", "exec", server_space)}
    try:
        with cable(server_space, node_space) as pull:
            for grace in (DEADLINE, 2):
                told = place.settings(rounds=4, nodes={"grace": grace}, run={"retries": 1})
                wanted = undisturbed(place, told, f"whole-{grace}")
                place.hold("2")
                server = place.server(told, f"run-{grace}", **near)
                place.nodes(**far)
                place.asked("clinic-a", 2)
                pull("down")
                place.release("2")  # they answer into the void
                time.sleep(30)  # the outage
                pull("up")
                result = place.result(server)
                found = {name: place.outcomes(place.id(name), f"run-{grace}") for name in NAMES}
                assert result["rounds"] == 4
                if grace == DEADLINE:
                    assert same(result, wanted)
                    assert {outcome for each in found.values() for outcome, _ in each.values()} == {"accepted"}
                else:
                    assert "round 2: 0 of 3 clients answered; run.quorum is 1 (try 1 of 2)" in place.said("server")
                    assert any(each[2] == ("accepted", "") for each in found.values())
                assert all("trying again" in place.said(name) for name in NAMES)
                place.clear()
    finally:
        place.end()
