"""The commands of a federation: server, join, rehearse, check, status, stop, and their mistakes in one line."""

import json
import os
import pty
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from cli_life import until

from potluck.cli import federation_display
from potluck.core import SettingsError, Task
from potluck.ledger import process_in

COMMANDS = ("server", "join", "rehearse", "check", "status", "stop")
EXPERIMENT = """\
name = "clinics"
rounds = 2
[data]
name = "npz"
[model]
name = "mlp"
hidden = 8
depth = 2
[[tier]]
name = "small"
width = 0.5
[[tier]]
name = "large"
[method]
name = "heterofl"
[local]
epochs = 1
batch = 16
[nodes]
shape = [1, 4, 4]
classes = 3
floor = 1
patience = 30
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def kits(place, potluck):
    """Kits of two clinics, their data, and settings."""
    (place / "exp.toml").write_text(EXPERIMENT)
    server = f"127.0.0.1:{free_port()}"
    (place / "federation.toml").write_text(f'name = "two"\nserver = "{server}"\nsites = ["clinic-a", "clinic-b"]\n')
    assert potluck("provision", "federation.toml", "--to", "kits")[0] == 0
    for number, name in enumerate(("clinic-a", "clinic-b")):
        rng = np.random.default_rng(number)
        np.savez(place / f"{name}.npz", x=rng.random((40, 1, 4, 4), np.float32), y=np.arange(40) % 3)
    return place / "kits"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(command, potluck):
    code, out, err = potluck(command, "--help")
    assert (code, err) == (0, "")
    assert f"Example: potluck {command} " in out


def test_explain_says_what_leaves_a_node_and_needs_neither_kit_nor_data(potluck):
    code, out, err = potluck("join", "--kit", "nowhere", "--explain")
    assert (code, err) == (0, "")
    for words in ("weights", "number of training rows", "Your rows, labels and files never leave", "audit.jsonl"):
        assert words in out
    assert all(line.startswith("- ") for line in out.splitlines())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("nodes.shape=[]", "[nodes] needs shape"),
        ("nodes.classes=1", "nodes.classes = 1 must be at least 2"),
        ("nodes.wait_for=-1", "nodes.wait_for = -1 is below 0"),
        ("nodes.misses=0", "nodes.misses = 0 is below 1"),
        ("nodes.patience=-3", "nodes.patience = -3 must be from 0"),
        ("nodes.updates=4-bit", "nodes.updates"),
        ("nodes.labels=word", "nodes.labels"),
        ("nodes.deadlines={tiny=3}", "nodes.deadlines names 'tiny'; the tiers are large, small"),
        ("nodes.deadlines={small=0}", "nodes.deadlines has 0 for 'small'"),
        ("nodes.shpae=[3]", "'shpae'"),
        ("nodes.test=gone.npz", "nodes.test = 'gone.npz': no such file"),
        ("method.name=moss", ""),
        ("fleet.dropout=0.5", "[fleet] simulates who is there"),
        ("score.common=true", "score.common = true needs test rows"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line_before_anything_listens(kits, fail, monkeypatch, change, fault):
    monkeypatch.setattr("potluck.engines.remote.grpc_transport.GrpcServer", None)  # would be called to listen
    code, line = fail("server", "exp.toml", "--kit", "kits/server", "--set", change)
    assert code == (3 if "no such file" in fault else 2)
    assert fault in line
    assert not os.path.exists("runs")


def test_a_port_in_use_is_told_with_code_6(kits, potluck):
    address = next(line for line in (kits / "server" / "kit.toml").read_text().splitlines() if "address" in line)
    port = int(address.rpartition(":")[2].strip('"'))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        code, _, err = potluck("server", "exp.toml", "--kit", "kits/server")
    assert code == 6
    assert f"127.0.0.1:{port}" in err.splitlines()[-1]
    assert not os.path.exists("runs")


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (("join", "--kit", "kits/clinic-a"), 2, "--data is missing"),
        (("join", "--kit", "kits/clinic-a", "--data", "a.npz", "--tier", "a", "--budget", "seconds=3"), 2, "give one"),
        (("join", "--kit", "kits/clinic-a", "--data", "a.npz", "--budget", "time=3"), 2, "neither memory nor seconds"),
        (("join", "--kit", "kits/server", "--data", "a.npz"), None, "server"),
        (("join", "--kit", "nowhere", "--data", "a.npz"), None, "nowhere"),
        (("server", "exp.toml", "--kit", "kits/clinic-a"), None, "clinic-a"),
        (("server", "gone.toml", "--kit", "kits/server"), None, "gone.toml"),
        (("status", "nowhere"), 3, "nowhere is not a run folder"),
        (("stop", "kits"), 3, "kits is not a run folder"),
        (("check", "exp.toml", "--kit", "kits/clinic-a"), 2, "--data is missing"),
        (("rehearse", "exp.toml", "--nodes", "0"), 2, "--nodes"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_line(kits, fail, arguments, code, fault):
    found, line = fail(*arguments)
    assert found == code or (code is None and found in (2, 3, 4, 6))
    assert fault in line


def test_status_and_stop_refuse_a_run_that_has_no_nodes_and_end_nothing(fail, hold, release):
    process = hold("after 2", "run", "tiny.toml", "--out", "plain")
    for command in ("status", "stop"):
        code, line = fail(command, "plain")
        assert (code, "a run without nodes" in line) == (3, True)
    assert process.poll() is None
    release()


def answered(keys):
    """What the question says if these keys are typed at a terminal."""
    ours, theirs = pty.openpty()
    os.write(ours, keys)
    before, sys.stdin = sys.stdin, os.fdopen(theirs, "r")
    try:
        return federation_display.consent(False)(charter(), "small")
    finally:
        sys.stdin.close()
        sys.stdin = before
        os.close(ours)


def charter():
    from potluck.federation.server import prepare
    from potluck.run import config
    from potluck.run.toml import parse

    return prepare(config.experiment(parse(EXPERIMENT.encode(), "exp.toml")[0]), "two").charter


@pytest.mark.parametrize(
    ("keys", "yes"), [(b"y\n", True), (b"YES\n", True), (b"n\n", False), (b"\n", False), (b"\x04", False)]
)
def test_the_question_at_a_terminal_takes_only_a_clear_yes(keys, yes, capsys):
    assert answered(keys) is yes
    said = capsys.readouterr().err
    assert "Federation 'two' asks this node to take part" in said
    assert "method HeteroFL, 2 rounds, in tier 'small'" in said
    assert "No noise is added" in said


def test_without_a_terminal_nobody_is_asked_and_the_remedy_is_named(monkeypatch):
    with open(os.devnull) as nobody, monkeypatch.context() as changed:
        changed.setattr(sys, "stdin", nobody)
        with pytest.raises(SettingsError, match="nobody is here to ask whether to take part; give --yes"):
            federation_display.consent(False)(charter(), "small")
    assert federation_display.consent(True)(charter(), "small")


def test_a_node_shows_what_it_does(capsys):
    from potluck.core import Cost, Reply
    from potluck.engines import TaskResult
    from potluck.federation.measure import Measured

    lines = federation_display.NodeLines("clinic-a")
    lines.measured({"small": Measured(0.0015, 3_000_000, 10), "large": Measured(0.1, 2 * 10**9, 10)}, "small")
    task = Task("train", "id", round=2)
    lines.begins(task)
    lines.ends(task, TaskResult(task, Reply(cost=Cost(seconds=1.25))), 2048)
    lines.ends(Task("score", "id", round=3), TaskResult(task, fault="no rows"), 10)
    lines.say("odd \x1b[31m text")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "clinic-a: tier 'small': 1.5 ms a step, 0.0 s a round, 3 MB  (taken)"
    assert said[2] == "clinic-a: round 3: train begins"
    assert said[3].startswith("clinic-a: round 3: train, 1.2 s, sent 2")
    assert said[4] == "clinic-a: after round 3: score, failed: no rows"
    assert "\x1b" not in said[5]


def test_the_server_tells_who_comes_who_goes_and_whom_it_waits_for():
    from potluck.federation.host import NodeState

    said = []
    shown = federation_display.WithNodes(SimpleNamespace(warn=said.append, round=None))
    away = NodeState("a", "clinic-a", "", 0, "away")
    shown.nodes([away], "nodes to join")
    shown.nodes([away], "nodes to join")
    shown.nodes([NodeState("a", "clinic-a", "", 0, "asked", "", "10.0.0.1")], "nodes to join")
    shown.nodes([NodeState("a", "clinic-a", "small", 60, "here")], "")
    shown.nodes([NodeState("a", "clinic-a", "small", 60, "declined", "a label 9")], "")
    assert said == [
        "waiting for nodes to join: 0 of 1 here; not clinic-a",
        "clinic-a connected from 10.0.0.1",
        "clinic-a is here: tier 'small', 60 samples",
        "clinic-a declined: a label 9",
    ]


def test_list_engines_names_remote_with_a_hint_and_run_does_not_take_it(potluck):
    from potluck.cli.app import EngineName

    code, out, _ = potluck("list", "engines", "--format", "json")
    rows = {row["name"]: row["about"] for row in json.loads(out)}
    assert code == 0
    assert "potluck server" in rows["remote"]
    assert {name.value for name in EngineName} == {*rows, "auto"} - {"remote"}
    code, _, err = potluck("run", "tiny.toml", "--engine", "remote")
    assert code == 2
    assert "remote" in err


@pytest.mark.slow
def test_check_compares_both_sides_over_grpc(kits, start, potluck, place):
    checked = start("check", "exp.toml", "--kit", "kits/server", "--seconds", "120", "--format", "json")
    found = {}

    def look():
        site = ("check", "exp.toml", "--kit", "kits/clinic-a", "--data", "clinic-a.npz", "--seconds", "60")
        done = subprocess.run(
            [sys.executable, "-m", "potluck", *site, "--format", "json"], capture_output=True, text=True, check=False
        )
        found["site"] = done

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    rows = {row["what"]: row["verdict"] for row in json.loads(found["site"].stdout)}
    assert found["site"].returncode == 0, found["site"].stderr
    assert set(rows.values()) == {"the same"}
    assert "settings" in rows
    np.savez(place / "odd.npz", x=np.zeros((9, 1, 5, 5), np.float32), y=np.arange(9) % 3)
    joined = start("join", "--kit", "kits/clinic-a", "--data", "clinic-a.npz", "--yes")
    odd = start("join", "--kit", "kits/clinic-b", "--data", "odd.npz", "--yes")
    out, err = checked.communicate(timeout=120)
    verdicts = {row["node"]: (row["verdict"], row["reason"]) for row in json.loads(out)}
    assert verdicts["clinic-a"] == ("agrees", "")
    assert verdicts["clinic-b"] == ("declines", "its data: inputs of 1x5x5; the charter says 1x4x4.")
    assert checked.returncode == 2
    assert err.splitlines()[-1].startswith("potluck: 1 of 2 checks failed: clinic-b: its data")
    _, said = odd.communicate(timeout=60)
    assert odd.returncode == 2
    assert said.splitlines()[-1] == "potluck: odd.npz: inputs of 1x5x5; the charter says 1x4x4."
    assert joined.poll() is None


@pytest.mark.slow
def test_a_federation_over_grpc_is_shown_stopped_and_gone_on_with_and_a_node_exports(kits, start, potluck, place):
    server = ("server", "exp.toml", "--kit", "kits/server", "--out", "fed", "--set", "rounds=300")
    first = start(*server)
    nodes = [
        start("join", "--kit", f"kits/{name}", "--data", f"{name}.npz", "--tier", tier, "--yes")
        for name, tier in (("clinic-a", "small"), ("clinic-b", "large"))
    ]
    until(lambda: process_in(place / "fed") is not None and _rounds(place) > 1)
    code, out, _ = potluck("status", "fed", "--format", "json")
    told = json.loads(out)
    assert (code, told["status"]) == (0, "running")
    assert {row["name"]: row["tier"] for row in told["nodes"]} == {"clinic-a": "small", "clinic-b": "large"}
    code, out, _ = potluck("stop", "fed")
    assert (code, "stopped and saved" in out) == (0, True)
    assert first.wait(timeout=60) == 130
    assert "potluck server" in first.communicate()[1]
    done = _rounds(place)
    again = start(*server[:-1], f"rounds={done + 1}")
    assert again.wait(timeout=120) == 0
    for node in nodes:
        node.wait(timeout=60)
    code, out, err = potluck("export", "kits/clinic-a", "--to", "own")
    assert code == 0, err
    assert (place / "own" / "model.safetensors").exists()


def _rounds(place):
    try:
        lines = (place / "fed" / "ledger.jsonl").read_text().splitlines()
    except OSError:
        return 0
    return sum('"event":"round"' in line.replace(" ", "") for line in lines)
