"""`potluck rehearse` over gRPC: a process for each node, TLS between them, and the weights of one process."""

import pytest
from rehearsals import CASES, check_equal, rehearse


@pytest.mark.slow
@pytest.mark.parametrize("method", CASES)
def test_a_rehearsal_over_grpc_has_the_weights_of_one_process(tmp_path, method):
    check_equal(rehearse(method, tmp_path), tmp_path / "alone")
