"""Runs with [secure]: the same on every engine, after a kill too; nothing unmasked leaves a client."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from secure_rounds import METHODS, made, secure_round
from tiny_runs import Listener, killed_after, tiny

from potluck.core import QuorumError, SettingsError
from potluck.engines import Serial
from potluck.report import read_record, secure_summary
from potluck.run import resume, run
from potluck.secure.protocol import most_neighbours, neighbours
from potluck.secure.server import SecureSum
from potluck.secure.settings import AGREE, OPEN

WIDTHS = [{"name": name, "width": width} for name, width in (("small", 0.25), ("medium", 0.5), ("large", 1.0))]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def secure(**changes):
    told = {
        "cohort": 9,
        "data": {"name": "digits", "clients": 9},
        "tier": WIDTHS,
        "method": {"name": "heterofl", "label_mask": False},
        "secure": {"enabled": True},
    }
    return tiny(**{**told, **changes})


def ledger(folder):
    return [json.loads(line) for line in Path(folder, "ledger.jsonl").read_text().splitlines()]


def of_method(name, **changes):
    """A run with a method of which single rounds are tested; some clients are lost in each of its rounds."""
    told = METHODS[name]
    made = {
        "data": {"name": "digits", "clients": 9, "public": told.get("public", 0)},
        "model": {"name": "mlp", "hidden": 8, "depth": 3},
        "fleet": {"dropout": 0.2},
    }
    return secure(**made, tier=told["tier"], method=told["method"], **changes)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "heterofl")) for name in METHODS]
)
def test_every_engine_gives_the_same_bits_and_so_does_a_run_that_was_killed(name):
    want = run(of_method(name), "serial").weights_sha256
    for engine in ("wire", "pool"):
        assert run(of_method(name, run={"engine": engine, "workers": 2}), engine).weights_sha256 == want
    killed_after(1, of_method(name), "killed")
    assert resume("killed").weights_sha256 == want
    opened = [line["opened"] for line in ledger("serial") if line["event"] == "secure"]
    assert all(opened[:1])


def test_clients_that_drop_out_are_lost_in_any_phase_and_a_run_repeats():
    lossy = secure(fleet={"dropout": 0.3})
    want = run(lossy, "one").weights_sha256
    assert run(lossy, "two").weights_sha256 == want
    gone = {line["verb"] for line in ledger("one") if line["event"] == "task" and line["outcome"] == "absent"}
    assert gone >= {"secure keys", "train"}


def test_the_ledger_says_how_much_was_opened_and_counts_the_protocols_bytes():
    masked = run(secure(rounds=1), "run")
    plain = run(secure(rounds=1, secure={"enabled": False}), "plain")
    (told,) = (line for line in ledger("run") if line["event"] == "secure")
    assert (told["asked"], told["uploaded"], told["planned"], told["opened"]) == (9, 9, 3, 3)
    assert told["entries"] == told["opened_entries"]
    assert secure_summary(read_record(Path("run"))) == (
        "the server saw sums of at least 3 clients, and no single update; 100% of all entries were opened"
    )
    assert not secure_summary(read_record(Path("plain")))
    assert masked.totals["bytes_up"] > plain.totals["bytes_up"]
    assert masked.totals["bytes_down"] > plain.totals["bytes_down"]


class Recorded(Serial):
    """Keeps all results that come from clients."""

    def __init__(self, context):
        super().__init__(context)
        self.results = []

    def run(self, envelopes):
        for result in super().run(envelopes):
            self.results.append(result)
            yield result


@pytest.mark.parametrize("name", [name for name in METHODS if name != "moss"])
def test_nothing_unmasked_leaves_a_client(name):
    setup = made(name)
    engine = Recorded(setup.context)
    secure_round(setup, engine=engine)
    assert engine.results
    for result in engine.results:
        assert not result.reply.models
        told = {"keys", "shares", "commitments", "masked", "told", "agreed", "opened", "signature"}
        assert set(result.reply.arrays) <= told
        assert set(result.reply.metrics) <= {"proof", "steps"}
        assert result.reply.weight == 1.0
        assert not any(tensor.is_floating_point() for tensor in result.reply.arrays.values())
        assert "secure" not in result.task.config


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ({"name": "hermes"}, "each client's data decide which entries it uploads"),
        ({"name": "lotteryfl"}, "each client's data decide which entries it uploads"),
        ({"name": "fedmask"}, "each client's data decide which entries it uploads"),
        ({"name": "tailorfl"}, "each client's data decide which entries it uploads"),
        ({"name": "feddf"}, "needs every single upload"),
        ({"name": "fedavg", "mean": {"name": "median"}}, "needs every single upload"),
        ({"name": "heterofl", "label_mask": True}, "Set method.label_mask = false"),
        ({"name": "fedavg", "label_mask": True}, "Set method.label_mask = false"),
        ({"name": "feddropout", "label_mask": False}, "Set method.shared_per_round = true"),
        ({"name": "scaffold"}, "also upload 'stem.linear.weight'. Use a method whose clients upload models alone"),
        ({"name": "fednova"}, "FedNova weighs clients by more than samples, and needs the weight of each"),
        (
            {"name": "heterofl", "label_mask": False, "weighting": "width"},
            'HeteroFL gives every tensor its own. Set method.weighting = "un',
        ),
        (
            {"name": "fedrolex", "label_mask": False, "weighting": "width"},
            'FedRolex gives every tensor its own. Set method.weighting = "un',
        ),
    ],
)
def test_methods_for_which_sums_are_not_enough_are_refused_by_name(method, why):
    with pytest.raises(SettingsError, match=why) as told:
        run(secure(method=method, data={"name": "digits", "clients": 9, "public": 30}), "run")
    assert "[secure]" in str(told.value)
    assert "\n" not in str(told.value)
    assert not Path("run").exists()


def test_only_statistics_of_batch_norm_are_blamed_on_the_norm():
    with pytest.raises(SettingsError, match=r'norm\..* one by one. Set norm = "group" in .model., or method.bn_eval'):
        run(secure(model={"norm": "static"}), "run")
    with pytest.raises(SettingsError) as told:
        run(secure(method={"name": "scaffold"}), "run")
    assert "norm" not in str(told.value)
    assert "bn_eval" not in str(told.value)


def test_a_tier_whose_own_entries_will_hardly_ever_open_is_warned_of_before_round_0():
    rare = [WIDTHS[0] | {"share": 4}, WIDTHS[2] | {"share": 1}]
    watch = Listener()
    run(secure(tier=rare, data={"name": "digits", "clients": 5}, cohort=5, rounds=2), "run", watch=watch)
    (warning,) = [text for text in watch.warnings if "[secure]" in text]
    assert "what only 'large' holds" in warning
    assert "in 0 of the first 2 rounds" in warning
    assert 'fleet.draw = "by_tier"' in warning
    told = [line for line in ledger("run") if line["event"] == "secure"]
    assert [line["opened"] for line in told] == [1, 1]
    for line in told:
        (closed,) = line["closed"]
        assert closed["entries"] == line["entries"] - line["opened_entries"]
        assert (closed["tiers"], closed["holders"], closed["uploaded"]) == (["large"], 1, 0)
    manifest = json.loads(Path("run", "manifest.json").read_text())
    assert manifest["secure"]["closed"] == {"large": 2}
    assert secure_summary(read_record(Path("run"))).endswith("; fewer clients held the rest, which kept its value")


def test_a_threshold_of_holders_above_what_neighbours_allow_is_refused():
    many = {"cohort": 40, "data": {"clients": 40}}
    with pytest.raises(SettingsError, match=r"min_holders = 36: .* with 32 others, .* set it to 33 or less"):
        run(secure(secure={"enabled": True, "min_holders": 36}, **many), "run")
    run(secure(secure={"enabled": True, "min_holders": 33}, tier=[{"name": "all"}], rounds=1, **many), "run")
    (told,) = (line for line in ledger("run") if line["event"] == "secure")
    assert told["opened"] == 1
    for holders in (3, 32, 33, 40, 200):
        near = neighbours(1, [f"c{number}" for number in range(holders)], "session")
        assert max(map(len, near.values())) == most_neighbours(holders)


def test_a_threshold_of_holders_above_the_cohort_is_refused():
    with pytest.raises(SettingsError, match=r"secure.min_holders = 10 is above cohort = 9"):
        run(secure(secure={"enabled": True, "min_holders": 10}), "run")


def test_a_sum_of_fewer_clients_than_the_quorum_is_not_opened():
    """The attempt would not count, and the next one asks for the same training: two sums would show who was missing."""
    setup = made("fedavg", 9)
    for quorum, opened in ((7, 7), (8, 0)):
        _, session = secure_round(setup, lost={"c0": 2, "c1": 2}, quorum=quorum)
        verbs = {entry.task.verb for entry in session.entries}
        assert len(session.opened) == opened
        assert (OPEN in verbs, AGREE in verbs) == (opened > 0, opened > 0)
        assert session.secure[0]["short"] is (opened == 0)


def test_a_run_tells_its_sums_how_many_must_upload(monkeypatch):
    lossy = secure(fleet={"dropout": 0.5}, run={"quorum": 9, "retries": 0}, rounds=1)
    seen = []
    monkeypatch.setattr("potluck.engines.secure_fold._told", lambda *told: seen.append(told) or {})
    with pytest.raises(QuorumError, match=r"run\.quorum is 9"):
        run(lossy, "run")
    ((total, decoded),) = seen
    assert len(total.uploads) > 2
    assert total.agreed == {}
    assert decoded == {}


def test_sums_out_of_range_and_clients_at_fault_are_one_warning_each_in_the_ledger(monkeypatch):
    """Here the block of three holders is said to be out of range, and one client to be at fault."""
    opened = SecureSum.open

    def open_with_fault(total):
        total.faulty["c1"] = "its share is wrong"
        return opened(total)

    monkeypatch.setattr(SecureSum, "_odd", lambda total, found, count: "the norm is 9" if count == 3 else "")
    monkeypatch.setattr(SecureSum, "open", open_with_fault)
    run(secure(rounds=1), "run")
    (told,) = (line for line in ledger("run") if line["event"] == "secure")
    assert (told["opened"], told["refused"], told["why"]) == (2, 1, "the norm is 9")
    assert [each["tiers"] for each in told["closed"]] == [["large"]]
    assert {line["text"] for line in ledger("run") if line["event"] == "warning"} >= {
        "round 1: in a secure sum, client c1 is at fault: its share is wrong",
        "round 1: 1 blocks of a secure sum keep their value: the norm is 9",
    }
