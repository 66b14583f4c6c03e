"""Which tensors of a user's network have one row for each class: known by what a row changes, not by its shape."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from potluck.models.trace.traced_module import TracedModule


def class_rows(traced: TracedModule, classes: int, tokens: bool) -> tuple[str, ...]:
    """The tensors whose first row belongs to the first class, and so on.

    A row of the classifier changes the score of its own class alone. In a language model, a row of the token embedding
    changes nothing where its token is not in the input.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in traced.net.named_parameters()}
    uncut = [name for name, axes in traced.axes.items() if name in shapes and (not axes or axes[0] is None)]
    found = [name for name in uncut if shapes[name][:1] == (classes,)]
    if classes == 1:  # every row is the only one; a head can be known by its name alone
        return tuple(name for name in found if name.startswith("head."))
    inputs = [_other_input(traced.example[0], classes), *traced.example[1:]]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return tuple(name for name in found if _is_class_row(traced.net, name, inputs, classes, tokens))


def _other_input(example: Tensor, classes: int) -> Tensor:
    """An input without the first token; an image stays as it is."""
    return example if example.is_floating_point() else torch.ones_like(example).clamp(max=classes - 1)


def _is_class_row(net: nn.Module, name: str, inputs: list[Tensor], classes: int, tokens: bool) -> bool:
    changed = copy.deepcopy(net).eval()
    before = changed(*inputs)
    changed.get_parameter(name)[0] += 1.0
    difference = (changed(*inputs) - before).abs()
    axis = next(axis for axis in range(difference.dim() - 1, 0, -1) if difference.shape[axis] == classes)
    by_class = difference.movedim(axis, 0).flatten(1).amax(1)
    if by_class[0] > 0:
        return bool((by_class[1:] == 0).all())
    return tokens and difference.dim() > 2 and bool((by_class == 0).all())
