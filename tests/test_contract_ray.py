"""Every method on a Ray cluster of two workers: the same weights, scores and ledger as on one machine."""

import pytest
import ray_token  # noqa: F401
from test_contract import CASES

from potluck.engines.cluster import disconnect
from potluck.run.contract import Trial, ray_gives_the_same_bits

pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.xdist_group("ray")


def marks(case):
    """Moss's variants take long."""
    return [pytest.mark.slow] if case.name == "moss" and case.own else []


@pytest.fixture(scope="module", autouse=True)
def _one_cluster():
    yield
    disconnect()


@pytest.fixture(scope="module")
def two_raylets():
    """The address of a cluster of two nodes, each with one core, on this machine's loopback."""
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    disconnect()
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    ray_constants.ENABLE_RAY_CLUSTER = before
    yield cluster.address
    disconnect()
    cluster.shutdown()


@pytest.mark.parametrize("case", [pytest.param(case, id=str(case), marks=marks(case)) for case in CASES])
def test_every_method_gives_the_same_bits_on_ray(case, tmp_path):
    ray_gives_the_same_bits(Trial(case, tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_method_gives_the_same_bits_on_two_raylets(case, tmp_path, two_raylets):
    ray_gives_the_same_bits(Trial(case, tmp_path), two_raylets)
