"""Edits of gradients: they treat all tensors of a network at once, because a GPU launches every operation by itself."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.learn import ProximalTerm
from potluck.methods.fedin.features import copy_tensors
from potluck.methods.fedin.gradients import SumGradients
from potluck.methods.scaffold import DriftCorrection


def tensors(count, start=0.0):
    return {f"w{at}": torch.full((2,), start + at) for at in range(count)}


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


EDITS = {
    "FedProx": lambda count: ProximalTerm(tensors(count), 0.5)(tensors(count), tensors(count, 2.0)),
    "SCAFFOLD": lambda count: DriftCorrection(tensors(count))(tensors(count), {}),
    "FedIN": lambda count: SumGradients()(tensors(count), tensors(count // 2)),
    "lent features": lambda count: copy_tensors(tensors(count)),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_takes_as_many_operations_for_forty_tensors_as_for_four(edit):
    counts = []
    for count in (4, 40):
        with Operations() as made:
            edit(count)
        counts.append(sum("foreach" in name or "aten.mul" in name or "aten.add" in name for name in made.names))
    assert counts[0] == counts[1] > 0


def test_edits_give_what_their_papers_say_and_leave_the_gradients_alone():
    grads = {"body.a": torch.tensor([1.0, 2.0]), "head": torch.tensor([4.0])}
    weights, towards = ({name: torch.full_like(grad, value) for name, grad in grads.items()} for value in (5.0, 3.0))
    pulled = ProximalTerm(towards, 0.5)(grads, weights)
    assert [pulled[name].tolist() for name in grads] == [[2.0, 3.0], [5.0]]
    assert DriftCorrection(towards)(grads, weights)["head"].tolist() == [7.0]
    summed = SumGradients(share=0.5, rest=0.25)(grads, {"body.a": torch.tensor([10.0, 20.0])})
    assert [summed[name].tolist() for name in grads] == [[10.5, 21.0], [1.0]]
    assert [grad.tolist() for grad in grads.values()] == [[1.0, 2.0], [4.0]]


def test_copies_have_the_values_and_dtypes_of_their_tensors_and_memory_of_their_own():
    given = {
        "mean": torch.tensor([0.5, -0.0, float("nan")]),
        "count": torch.tensor(7),
        "seen": torch.tensor([True, False]),
        "half": torch.tensor([0.1], dtype=torch.bfloat16),
    }
    copies = copy_tensors(given)
    assert copies.keys() == given.keys()
    for name, tensor in given.items():
        assert copies[name].dtype is tensor.dtype
        assert torch.equal(copies[name].nan_to_num(9), tensor.nan_to_num(9))
        assert copies[name].data_ptr() != tensor.data_ptr()
    assert torch.signbit(copies["mean"][1])
