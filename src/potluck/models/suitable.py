"""The door for a user's module: what cannot be traced at all is turned away here, with the reason."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from potluck.core import SettingsError
from potluck.models.options import hint

WHOLE_KINDS = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Bilinear, nn.EmbeddingBag)
"""Layers of torch whose units are not traced."""


def refuse(net: nn.Module) -> None:
    """Turn away what no tracing could cover."""
    _refuse_shared(net)
    for path, module in net.named_modules():
        where = f"layer '{path}' ({type(module).__name__})" if path else type(module).__name__
        if isinstance(module, WHOLE_KINDS):
            raise SettingsError(f"{where} cannot be traced: its units are not channels of one layer. Declare a family.")
        if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1:
            raise SettingsError(
                f"{where} normalises over {list(module.normalized_shape)}; only one dimension can be cut."
            )
        if (
            isinstance(module, _ConvNd)
            and module.groups == module.out_channels != module.in_channels > 1 < module.groups
        ):
            raise SettingsError(f"{where} has groups of several inputs and one output, which cannot be cut.")
        _refuse_hidden_tensors(where, module)


def _refuse_shared(net: nn.Module) -> None:
    names: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        if names.setdefault(id(parameter), name) != name:
            raise SettingsError(
                f"'{names[id(parameter)]}' and '{name}' are one parameter under two names, which would be averaged "
                "apart. Call one layer twice instead."
            )


def _refuse_hidden_tensors(where: str, module: nn.Module) -> None:
    """Tensors outside the state dict would be lost on the way to a device."""
    hidden = [name for name in module._non_persistent_buffers_set if module._buffers.get(name) is not None]
    if hidden:
        raise SettingsError(f"{where} has the buffer '{hidden[0]}' with persistent=False. Make it persistent.")
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            raise SettingsError(
                f"{where} keeps the tensor '{name}' as an attribute. Use register_buffer('{name}', ...)."
            )


def run(net: nn.Module, example: tuple[Tensor, ...]) -> object:
    """What the network makes of the example, in evaluation."""
    try:
        with torch.no_grad():
            return copy.deepcopy(net).eval()(*example)
    except Exception as fault:  # a user's code may raise anything
        raise SettingsError(f"{type(net).__name__} cannot run on the example: {brief(fault)}") from fault


def brief(fault: BaseException) -> str:
    """An error in one line."""
    return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]


def refuse_unknown_groups(given: Iterable[str], known: Mapping[str, int]) -> None:
    for group in given:
        if group not in known:
            raise SettingsError(f"the traced module has no axis group '{group}'.{hint(group, known)}")
