"""Depth of a user's own module: the first blocks of a list that it holds."""

from __future__ import annotations

from typing import Any

from torch import nn

from potluck.core import Depth, SettingsError, suggestion
from potluck.models import options as checks


def check_blocks(family: str, net: nn.Module, path: Any, depth: Depth) -> Depth:
    """The depth, from 1 to the number of blocks at this path; None if the network has no list of blocks."""
    if path is None:
        if depth is not None:
            raise SettingsError(
                f"{family} has one depth: leave depth = {depth!r} out, or name the list of its blocks, such as "
                'blocks = "encoder.layer" under [model].'
            )
        return None
    count = len(_block_list(family, net, path))
    return count if depth is None else checks.check_integer(f"{family}: depth", depth, 1, count)


def _block_list(family: str, net: nn.Module, path: Any) -> nn.ModuleList | nn.Sequential:
    found = dict(net.named_modules()).get(path) if isinstance(path, str) and path else None
    if not isinstance(found, nn.ModuleList | nn.Sequential) or not len(found):
        lists = [name for name, each in net.named_modules() if isinstance(each, nn.ModuleList | nn.Sequential) and name]
        hint = suggestion(path, lists) if lists else " It holds none."
        raise SettingsError(f"{family}: blocks = {path!r} is no nn.ModuleList or nn.Sequential of the network.{hint}")
    return found


def shallow_module(net: nn.Module, path: Any, depth: Depth) -> nn.Module:
    """Keep the first blocks of the list at this path, in place; their names stay."""
    if path is not None and isinstance(depth, int):
        parent, _, name = str(path).rpartition(".")
        blocks = net.get_submodule(str(path))
        assert isinstance(blocks, nn.ModuleList | nn.Sequential)
        setattr(net.get_submodule(parent), name, blocks[:depth])
    return net
