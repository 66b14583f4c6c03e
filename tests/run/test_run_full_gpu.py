"""A GPU without room: one line that says what to do, instead of CUDA's own paragraph."""

import pytest
import torch

from potluck.cli.main import _print_error
from potluck.core import gpu_advice
from potluck.run.result import reason_of

ADVICE = (
    "the GPU has no room left. Start fewer runs at once (--jobs), train fewer clients side by side "
    "(--set run.streams=4), or use smaller batches."
)
FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 139.80 GiB"),
    RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com"),
    RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
]


@pytest.mark.parametrize("fault", FULL)
def test_a_full_gpu_is_told_in_one_line(fault, capsys):
    assert reason_of(fault) == ADVICE.rstrip(".")
    assert _print_error(fault) == 6
    assert capsys.readouterr().err == f"potluck: {ADVICE}\n"


def test_other_errors_of_a_gpu_keep_their_text(capsys):
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert gpu_advice(fault) == ""
    assert reason_of(fault) == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert _print_error(fault) == 1
