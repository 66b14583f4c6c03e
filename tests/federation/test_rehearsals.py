"""`potluck rehearse` over gRPC: a process for each node, TLS between them, and the weights of one process."""

import numpy as np
import pytest
from rehearsals import CASES, check_equal, rehearse
from tiny_runs import tiny

from potluck.federation.rehearsal import write_rehearsal


def test_in_a_rehearsal_labels_lean_by_the_tiers_of_the_nodes(tmp_path):
    wanted = tiny(data={"lean": 1.0})
    made = write_rehearsal(wanted, tmp_path / "two", nodes=3)
    assert list(made.tiers.values()) == ["small", "large", "small"]
    first, second, third = (set(np.load(path)["y"].tolist()) for path in made.nodes.values())
    assert first == third == set(range(10)) - second
    assert made.experiment.data.lean == 0  # a node divides its rows no further
    alone = write_rehearsal(wanted, tmp_path / "one", nodes=1)
    assert set(np.load(alone.nodes["node-1"])["y"].tolist()) == set(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("method", CASES)
def test_a_rehearsal_over_grpc_has_the_weights_of_one_process(tmp_path, method):
    check_equal(rehearse(method, tmp_path), tmp_path / "alone")
