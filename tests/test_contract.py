"""The contract: every method through every promise.

A method is covered as soon as `potluck.methods.METHODS` lists it. What it is follows from its `facts`, how to try
it from its `contract`.
"""

from functools import cache

import pytest

from potluck.core import ContractSettings
from potluck.methods import METHODS
from potluck.run.contract import PROMISES, MethodCase, Trial, read_ledger

VARIANTS = [
    ("fedavg", {"share": "layerwise"}),
    ("fedavg", {"share": "per_arch"}),
    ("fedavg", {"weighting": "uniform"}),
    ("fedavg", {"mean": {"name": "median"}, "share": "layerwise"}),
    ("heterofl", {"mean": {"name": "krum"}}),
    ("fedprox", {"share": "layerwise"}),
    ("fedadam", {"share": "layerwise"}),
    ("fedadam", {"share": "per_arch"}),
    ("exclusivefl", {"sampling": "eligible"}),
    ("fedin", {"share": "per_arch", "combine": "project", "fifo": 40}),
    ("fedin", {"combine": "steps", "exclude_self": True}),
    ("inclusivefl", {"profile": "code"}),
    ("inclusivefl", {"source": "pre", "share_layers": False}),
    ("inclusivefl", {"private": "head"}),
    ("scaffold", {"share": "layerwise", "variate": "start"}),
    ("scaffold", {"share": "per_arch", "variate": "mean"}),
    ("fednova", {"share": "layerwise", "mu": 0.1}),
    ("moon", {"share": "layerwise"}),
    ("lotteryfl", {"weighting": "samples", "label_mask": True}),
    ("hermes", {"threshold": 0.0, "prune": 0.5}),
    ("tailorfl", {"tuning": 1, "swap": 0.5}),
    ("fedskel", {"period": 2, "label_mask": True}),
    ("fedmd", {"rows": 12}),
    ("feddf", {"share": "whole", "on": "noise"}),
    ("dsfl", {"aggregate": "sa", "rows": 12}),
    ("fedgems", {"rows": 12, "exclude": True}),
    ("fedgems", {"select": False}),
    ("fedet", {"weighting": "uniform"}),
    ("moss", {"prom": False, "fidelity": "flat"}),
    ("moss", {"proxy_sync": False, "meta_persist": False, "fidelity": "equal"}),
]
CASES = [*(MethodCase(kind) for kind in METHODS.values()), *(MethodCase(METHODS[name], own) for name, own in VARIANTS)]


def grouped(case):
    """All promises of one case in one process, where they share their runs; Moss's variants take long."""
    slow = [pytest.mark.slow] if case.name == "moss" and case.own else []
    return pytest.param(case, id=str(case), marks=[pytest.mark.xdist_group(str(case)), *slow])


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    """A case's runs, each made once."""

    @cache
    def made(case):
        return Trial(case, tmp_path_factory.mktemp("contract"))

    return made


@pytest.mark.parametrize("case", [grouped(case) for case in CASES])
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_every_method_keeps_every_promise(case, promise, trial):
    promise(trial(case))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_how_it_becomes_fedavg_or_why_it_does_not(name):
    contract = vars(METHODS[name]).get("contract")
    assert isinstance(contract, ContractSettings), "declare `contract = ContractSettings(...)` in the class itself"
    assert (contract.as_fedavg is None) == bool(contract.why_not)


def test_methods_meet_the_same_clients(trial):
    """Paired comparisons are valid: for a given seed and round, sampling does not depend on the method."""

    def met(name):
        result = trial(next(case for case in CASES if str(case) == name)).run()
        return [(line["round"], line["client"]) for line in read_ledger(result) if line["event"] == "task"]

    assert met("fedavg") == met("fedprox") == met("fedadam") == met("allsmall") == met("local")
    assert set(met("exclusivefl")) < set(met("fedavg"))
