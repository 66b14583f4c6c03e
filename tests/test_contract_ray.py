"""Every method on a Ray cluster of two workers: the same weights, scores and ledger as on one machine."""

import pytest
from test_contract import CASES

from potluck.engines.cluster import disconnect
from potluck.run.contract import Trial, ray_gives_the_same_bits

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module", autouse=True)
def _one_cluster():
    yield
    disconnect()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=[pytest.mark.slow] if case.name == "moss" and case.own else [])
        for case in CASES
    ],
)
def test_every_method_gives_the_same_bits_on_ray(case, tmp_path):
    ray_gives_the_same_bits(Trial(case, tmp_path))
