"""The gate: replies that do not fit or are not finite, one by one. What is refused is named, left out and counted."""

import json
import re
import resource
from dataclasses import dataclass, replace

import pytest
import torch
from made_context import FULL, ODDITIES, ZOO, Odd, altered, federation, with_entry
from tiny_runs import events

from potluck.core import Expected, Local, Model, Reply, Task, digest
from potluck.engines import Gate, Usual
from potluck.methods import FedAvg
from potluck.run import experiment, resume, run

LOCAL = Local(lr=0.3, epochs=1, batch=4)
REFUSED = {
    "shape": r"'head.weight' of shape \(3, 4\); its part holds \(3, 3\)",
    "transposed": r"'head.weight' of shape \(3, 2\); its part holds \(3, 3\)",
    "one number": r"'head.weight' of shape \(\); its part holds \(3, 3\)",
    "huge and empty": r"'head.weight' of shape \(0, 1000000000000000\); its part holds \(3, 3\)",
    "float64": "'head.weight' of float64; its part holds float32",
    "half": "'head.weight' of float16; its part holds float32",
    "complex": "'head.weight' of complex64 cannot be sent",
    "text": "'head.weight' is a str, not a tensor",
    "numbers": "'head.weight' is a list, not a tensor",
    "nothing": "'head.weight' is a NoneType, not a tensor",
    "int": "'head.weight' of int64; its part holds float32",
    "bool": "'head.weight' of bool; its part holds float32",
    "missing": "1 names are missing, 0 are too many: head.bias",
    "extra": "0 names are missing, 1 are too many: head.extra",
    "no arrays": "8 names are missing, 0 are too many: body.0.linear.bias, body.0.linear.weight, body.1.linear.bias, …",
    "no model": r"models \['model'\] were not expected or are missing",
    "two models": r"models \['more'\] were not expected or are missing",
    "loose arrays": "0 names are missing, 1 are too many: gift",
    "spec": "model 'model' is a mlp of another shape than was sent",
    "tier": "model 'model' is a mlp of another shape than was sent",
    "nan": "'head.weight' is not finite",
    "inf": "'head.weight' is not finite",
    "-inf": "'head.weight' is not finite",
    "weight 0": r"weight 0 is not in \(0, 1e\+09\]",
    "weight -5": r"weight -5 is not in \(0, 1e\+09\]",
    "weight nan": "weight nan is not a finite number",
    "weight inf": "weight inf is not a finite number",
    "weight 1e18": r"weight 1e\+18 is not in \(0, 1e\+09\]",
    "weight true": "weight True is not a finite number",
    "weight text": "weight '12' is not a finite number",
    "weight none": "weight None is not a finite number",
}


@pytest.fixture(scope="module")
def survivors():
    """The honest clients' aggregate."""
    with federation(Odd(LOCAL)) as made:
        return digest(made.round(made.init(), without=("c1",)).model.arrays)


@pytest.mark.parametrize("engine", ["serial", "wire"])
@pytest.mark.parametrize("odd", REFUSED)
def test_a_bad_reply_is_quarantined_with_a_reason_and_leaves_no_trace(odd, engine, survivors):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with federation(Odd(LOCAL, odd=odd), engine) as made:
        state = made.round(made.init())
        verdict, reason = made.outcomes()["c1"]
    assert verdict == "quarantined"
    assert re.fullmatch(REFUSED[odd], reason)
    assert made.session.accepted == 4
    assert digest(state.model.arrays) == survivors
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def test_every_oddity_is_tried():
    assert set(REFUSED) | {"1e30", "boom", "bye"} == set(ODDITIES)


def test_a_huge_number_passes_unless_a_bound_is_set(survivors):
    with federation(Odd(LOCAL, odd="1e30")) as made:
        state = made.round(made.init())
        assert made.outcomes()["c1"] == ("accepted", "")
        assert all(bool(tensor.isfinite().all()) for tensor in state.model.arrays.values())
    with federation(Odd(LOCAL, odd="1e30"), gate=Gate(bound=100.0)) as made:
        state = made.round(made.init())
        assert made.outcomes()["c1"] == ("quarantined", "a step of length 1e+30; gate.bound is 100")
        assert digest(state.model.arrays) == survivors


# By hand, one reply at a time


def refusal(reply, gate=None, arrays=None):
    """What the gate says to a reply about one tensor [0, 0] of a model, or about loose arrays."""
    model = Model(FULL, {"w": torch.zeros(2)})
    task = Task("train", "c1", models={"model": model}, expects=Expected({"model": model.shapes}, arrays or {}))
    return (gate or Gate()).refusal(task, reply)


def of(*values, dtype=torch.float32, **more):
    return Reply({"model": Model(FULL, {"w": torch.tensor(values, dtype=dtype)})}, **more)


def test_the_length_of_a_step_is_taken_over_all_numbers_and_compared_with_the_bound():
    assert refusal(of(3.0, 4.0), Gate(bound=5.0)) is None
    assert refusal(of(3.0, 4.0), Gate(bound=4.99)) == "a step of length 5; gate.bound is 4.99"
    assert refusal(of(3.0, 4.0)) is None


def test_lengths_are_computed_in_double_precision():
    """1e30 squared is no float32; the bound is no reason to call it infinite."""
    assert refusal(of(1e30, 0.0), Gate(bound=1e31)) is None
    assert refusal(of(1e38, 1e38)) is None
    assert refusal(of(1e30, 0.0), Gate(bound=1e29)) == "a step of length 1e+30; gate.bound is 1e+29"


def test_very_large_finite_numbers_are_finite_in_every_precision():
    for dtype, largest in ((torch.float64, 1e300), (torch.float16, 6e4), (torch.bfloat16, 3e38)):
        arrays = {"g": ((4,), dtype), "f": ((1,), torch.float32)}
        given = {"g": torch.full((4,), largest, dtype=dtype), "f": torch.ones(1)}
        assert refusal(of(0.0, 0.0, arrays=given), arrays=arrays) is None
        given["g"] = given["g"].clone()
        given["g"][2] = float("nan")
        assert refusal(of(0.0, 0.0, arrays=given), arrays=arrays) == "'g' is not finite"


def test_whole_numbers_truth_values_and_empty_tensors_are_finite():
    given = {"n": torch.arange(2), "b": torch.ones(2) > 0, "e": torch.zeros(0)}
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in given.items()}
    assert refusal(of(0.0, 0.0, arrays=given), arrays=expected) is None


@pytest.mark.parametrize("weight", [1e-300, 0.5, 1, 12, 1e9])
def test_any_positive_weight_up_to_the_heaviest_passes(weight):
    assert refusal(of(0.0, 0.0, weight=weight)) is None


def test_the_heaviest_weight_is_a_setting():
    assert refusal(of(0.0, 0.0, weight=11.0), Gate(heaviest=10.0)) == "weight 11 is not in (0, 10]"


def test_a_client_claims_no_more_samples_than_it_has():
    model = Model(FULL, {"w": torch.zeros(2)})
    task = Task("train", "c1", models={"model": model}, expects=Expected({"model": model.shapes}))

    def judged(weight, gate=None, samples=12):
        return (gate or Gate()).refusal(task, of(0.0, 0.0, weight=weight), lambda: samples)

    assert judged(12.0) is None
    assert judged(12.5) == "weight 12.5 is more than the client's 12 samples"
    assert judged(1e9) == "weight 1e+09 is more than the client's 12 samples"
    assert judged(1e9, Gate(heaviest=1e9)) is None
    assert judged(1.0, samples=0) is None  # the weight of a reply that counts nothing


def test_where_samples_are_not_known_a_weight_is_at_most_100_times_the_median_of_earlier_rounds():
    gate, usual = Gate(), Usual()
    task = Task("train", "c1", expects=Expected())
    assert gate.refusal(task, Reply(weight=1e9), usual=usual) is None
    usual.add({"weight train": [1.0, 2.0, 3.0, 40.0]})
    assert gate.refusal(task, Reply(weight=1e9), usual=usual) is None  # four are too few for a median
    usual.add({"weight train": [5.0]})
    assert gate.refusal(task, Reply(weight=300.0), usual=usual) is None
    assert gate.refusal(task, Reply(weight=301.0), usual=usual) == "weight 301 is not in (0, 300]"
    assert gate.refusal(Task("count", "c1"), Reply(weight=301.0), usual=usual) is None
    assert gate.limits(usual) == {"weight train": 300.0}


def test_a_bound_by_itself_is_5_times_the_median_step_of_the_same_network():
    gate, usual = Gate(bound="auto"), Usual()
    model = Model(FULL, {"w": torch.zeros(2)})
    task = Task("train", "c1", models={"model": model}, expects=Expected({"model": model.shapes}))
    kind = f"step train model {FULL.key}"
    assert gate.measures(task, of(3.0, 4.0, weight=2.0)) == {"weight train": 2.0, kind: 5.0}
    usual.add({kind: [1.0, 1.0, 2.0, 8.0, 9.0]})
    assert gate.refusal(task, of(6.0, 8.0), usual=usual) is None
    assert gate.refusal(task, of(6.0, 8.1), usual=usual) == "a step of length 10.08; usual are up to 10"
    other = Model(ZOO.tiers[0].spec, {"w": torch.zeros(2)})
    small = Task("train", "c1", models={"model": other}, expects=Expected({"model": other.shapes}))
    far = Reply({"model": Model(other.spec, {"w": torch.tensor([1e6, 0.0])})})
    assert gate.refusal(small, far, usual=usual) is None


def test_steps_of_no_length_set_no_bound():
    usual = Usual()
    usual.add({"step": [0.0] * 9})
    assert usual.limit("step", 5.0) is None


def test_what_is_usual_follows_the_newest_values_and_not_the_order_of_clients():
    one, other = Usual(), Usual()
    one.add({"a": [3.0, 1.0, 2.0]})
    other.add({"a": [2.0, 3.0, 1.0]})
    assert one == other
    one.add({"a": [7.0] * 200})
    assert one.limit("a", 2.0) == 14.0
    assert len(one.values["a"]) == 200


@pytest.mark.parametrize("kind", ["model", "arrays"])
def test_a_negative_running_variance_is_refused(kind):
    def said(*values):
        arrays = {"norm.running_var": torch.tensor(values), "norm.running_mean": torch.tensor([-1.0])}
        shapes = {"norm.running_var": ((len(values),), torch.float32), "norm.running_mean": ((1,), torch.float32)}
        if kind == "arrays":
            return Gate().refusal(Task("count", "c1", expects=Expected(arrays=shapes)), Reply(arrays=arrays))
        task = Task("train", "c1", models={}, expects=Expected({"model": shapes}))
        return Gate().refusal(task, Reply({"model": Model(FULL, arrays)}))

    assert said(0.0, -0.0, 1.0) is None
    assert said(1.0, -1e-30) == "'norm.running_var' has a negative variance"


@pytest.mark.parametrize("thing", ["text", 3, None, [0.0, 0.0]])
def test_things_that_are_no_tensors_or_models_are_named(thing):
    assert refusal(Reply({"model": Model(FULL, {"w": thing})})) == f"'w' is a {type(thing).__name__}, not a tensor"
    assert refusal(Reply({"model": thing})) == f"model 'model' is a {type(thing).__name__}"


# Strikes


def test_a_client_refused_three_times_is_not_asked_again(survivors):
    with federation(Odd(LOCAL, odd="nan")) as made:
        state = made.init()
        seen = []
        for index in range(5):
            state = made.round(state, index)
            seen.append(made.outcomes()["c1"])
        down = {entry.task.to: entry.cost.bytes_down for entry in made.session.entries}
    assert seen == [("quarantined", "'head.weight' is not finite")] * 3 + [("absent", "blacklisted")] * 2
    assert down["c1"] == 0 < down["c0"]


def test_with_no_strikes_a_client_is_asked_for_ever():
    with federation(Odd(LOCAL, odd="nan"), gate=Gate(strikes=0)) as made:
        for index in range(5):
            made.round(made.init(), index)
            assert made.outcomes()["c1"][0] == "quarantined"


def test_failures_are_no_strikes():
    with federation(Odd(LOCAL, odd="boom")) as made:
        for index in range(5):
            made.round(made.init(), index)
            assert made.outcomes()["c1"] == ("absent", "failed: ValueError: boom")


def four_clients(**changes):
    """Settings of a small federation of four clients, all in every round."""
    plain = {
        "rounds": 5,
        "cohort": 4,
        "data": {"clients": 4},
        "model": {"name": "mlp", "hidden": 4, "depth": 1},
        "local": {"epochs": 1},
        "score": {"every": 100, "clients": 0},
        "run": {"engine": "serial"},
    }
    return experiment({**plain, **changes})


def test_refusals_reach_the_ledger_and_blacklisting_survives_a_resume(tmp_path):
    settings = four_clients(rounds=3)
    method = Odd(Local(lr=0.1, epochs=1), odd="nan")
    run(settings, tmp_path / "a", method=method)
    resume(tmp_path / "a", rounds=5, method=method)
    lines = [json.loads(line) for line in (tmp_path / "a" / "ledger.jsonl").read_text().splitlines()]
    mine = [(line["round"], line["outcome"], line["reason"]) for line in lines if line.get("client") == "c1"]
    assert mine == [
        (1, "quarantined", "'head.weight' is not finite"),
        (2, "quarantined", "'head.weight' is not finite"),
        (3, "quarantined", "'head.weight' is not finite"),
        (4, "absent", "blacklisted"),
        (5, "absent", "blacklisted"),
    ]
    assert sum(line.get("outcome") == "accepted" for line in lines) == 15


def test_oddities_do_what_they_say():
    reply = Reply({"model": ZOO.fresh(FULL, torch.Generator().manual_seed(0))})
    assert with_entry(7.0)(reply).models["model"].arrays["head.weight"][2, 2] == 7
    assert altered(head__bias=lambda t: t + 1)(reply).models["model"].arrays["head.bias"].shape == (3,)


# One client that wants the whole model


@dataclass(frozen=True)
class Greedy(FedAvg):
    """FedAvg in which client c1 claims a billion samples, or takes a step a thousand times as long, from round 3 on."""

    how: str = "claims"

    def report(self, task, device, fit):
        reply = super().report(task, device, fit)
        if task.to != "c1" or task.round < 3:
            return reply
        if self.how == "claims":
            return replace(reply, weight=1e9)
        sent, model = task.models["model"], reply.models["model"]
        far = {name: old + 1000 * (model.arrays[name] - old) for name, old in sent.arrays.items()}
        return replace(reply, models={"model": Model(model.spec, far)})


def outcomes(folder, client="c1"):
    return [(e["round"], e["outcome"], e["reason"]) for e in events(folder, "task") if e["client"] == client]


def test_a_client_that_claims_a_billion_samples_does_not_own_the_model(tmp_path):
    """By default the claim is refused, and nothing else changes: the others' rounds are as if it were absent."""
    method = Greedy(Local(lr=0.1, epochs=1))
    run(four_clients(), tmp_path / "a", method=method)
    refused = [reason for _, outcome, reason in outcomes(tmp_path / "a") if outcome == "quarantined"]
    assert len(refused) == 2
    assert re.fullmatch(r"weight 1e\+09 is more than the client's \d+ samples", refused[0])
    run(four_clients(gate={"heaviest": 1e9}), tmp_path / "b", method=method)
    assert {outcome for _, outcome, _ in outcomes(tmp_path / "b")} == {"accepted"}


def test_a_bound_by_itself_refuses_a_long_step_and_is_in_the_journal_and_survives_a_resume(tmp_path):
    method, settings = Greedy(Local(lr=0.1, epochs=1), how="steps"), four_clients(gate={"bound": "auto"})
    whole = run(settings, tmp_path / "a", method=method)
    told = outcomes(tmp_path / "a")
    assert [outcome for _, outcome, _ in told] == ["accepted"] * 3 + ["quarantined"] * 2
    assert re.fullmatch(r"a step of length \S+; usual are up to \S+", told[-1][2])
    limits = {e["round"]: e["limits"] for e in events(tmp_path / "a", "gate")}
    assert sorted(limits) == [3, 4, 5]  # after two rounds of four clients there are enough
    assert all(next(iter(limit)).startswith("step train model ") for limit in limits.values())
    run(four_clients(rounds=3, gate={"bound": "auto"}), tmp_path / "b", method=method)
    again = resume(tmp_path / "b", rounds=5, method=method)
    assert again.weights_sha256 == whole.weights_sha256
    assert outcomes(tmp_path / "b") == told
    assert {e["round"]: e["limits"] for e in events(tmp_path / "b", "gate")} == limits
    off = run(four_clients(), tmp_path / "c", method=method)
    assert off.weights_sha256 != whole.weights_sha256
    assert {outcome for _, outcome, _ in outcomes(tmp_path / "c")} == {"accepted"}
    assert events(tmp_path / "c", "gate") == []


@pytest.mark.parametrize("engine", ["wire", "pool"])
def test_a_bound_by_itself_is_the_same_on_every_engine(tmp_path, engine):
    method = Greedy(Local(lr=0.1, epochs=1), how="steps")
    ours, theirs = (
        run(four_clients(gate={"bound": "auto"}, run={"engine": name, "workers": 2}), tmp_path / name, method=method)
        for name in ("serial", engine)
    )
    assert ours.weights_sha256 == theirs.weights_sha256
    assert outcomes(tmp_path / "serial") == outcomes(tmp_path / engine)
