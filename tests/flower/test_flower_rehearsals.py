"""`potluck rehearse --transport flower`: the weights of the same federation in one process."""

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make flower")

from rehearsals import check_equal, rehearse


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heterofl", "scaffold"])
def test_a_rehearsal_over_flower_has_the_weights_of_one_process(tmp_path, method):
    check_equal(rehearse(method, tmp_path, "--transport", "flower"), tmp_path / "alone")
