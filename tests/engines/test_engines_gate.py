"""The gate: replies that do not fit or are not finite, one by one. What is refused is named, left out and counted."""

import json
import re
import resource

import pytest
import torch
from made_context import FULL, ODDITIES, ZOO, Odd, altered, federation, with_entry

from potluck.core import Expected, Local, Model, Reply, Task, digest
from potluck.engines import Gate
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


def test_refusals_reach_the_ledger_and_blacklisting_survives_a_resume(tmp_path):
    settings = experiment(
        {
            "rounds": 3,
            "cohort": 4,
            "data": {"clients": 4},
            "model": {"name": "mlp", "hidden": 4, "depth": 1},
            "local": {"epochs": 1},
            "score": {"every": 100, "clients": 0},
            "run": {"engine": "serial"},
        }
    )
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
