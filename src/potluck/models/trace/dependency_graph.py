"""The dependency graph of ``torch-pruning``, with its wrong guesses corrected. Only this file imports that package.

The package reads the graph from autograd: layers, and the splits, concatenations and flattenings between them. It
treats every other operation as element-wise. So all that is read from it is checked by numbers (``equivalence.py``).
"""

from __future__ import annotations

import importlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core import SettingsError

MISSING = "tracing a module needs torch-pruning: pip install 'potluck[trace]'"


class InputMarker(nn.Module):
    """Marks an input of the network in the graph, so that channels which are tied to it can be found."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class MarkedNetwork(nn.Module):
    """A network with its inputs and outputs marked in the graph: channels tied to either are never pruned."""

    def __init__(self, net: nn.Module, example: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.net = net
        self.inputs = nn.ModuleList(InputMarker() for _ in example)

    def forward(self, *example: Tensor) -> list[Tensor]:
        marked = [
            marker(tensor.detach().clone().requires_grad_()) if tensor.is_floating_point() else tensor
            for marker, tensor in zip(self.inputs, example, strict=True)
        ]
        return [tensor * 1 for tensor in output_tensors(self.net(*marked)) if tensor.requires_grad]


def output_tensors(value: Any) -> list[Tensor]:
    """Every floating-point tensor in what a network returns."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    parts: Iterable[Any] = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    return [tensor for part in parts for tensor in output_tensors(part)]


def dependency_graph(marked: MarkedNetwork, example: tuple[Tensor, ...]) -> Any:
    """The ``DependencyGraph`` of a network, with the pieces of its splits corrected."""
    try:
        tp = importlib.import_module("torch_pruning")
    except ImportError:
        raise SettingsError(MISSING) from None
    channels = {
        id(marker): tensor.shape[1]
        for marker, tensor in zip(marked.inputs, example, strict=True)
        if tensor.dim() in (2, 4, 5)
    }

    class InputPruner(tp.ops.DummyPruner):  # type: ignore[misc, name-defined]
        """Tells the graph the number of input channels; it cannot know which dimension that is in a batch of text."""

        def get_out_channels(self, layer: nn.Module) -> int | None:
            return channels.get(id(layer))

        get_in_channels = get_out_channels

    graph = tp.DependencyGraph()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            graph.build_dependency(
                marked,
                example,
                forward_fn=lambda model, inputs: model(*inputs),
                customized_pruners={InputMarker: InputPruner()},
                verbose=False,
            )
            _correct_splits(graph)
        except Exception as fault:  # the package guesses, and fails in many ways
            raise SettingsError(f"torch-pruning cannot follow {type(marked.net).__name__}: {fault}") from fault
    return graph


def _correct_splits(graph: Any) -> None:
    """Give the graph the true pieces of each split: it guesses their sizes, and orders them as it met them."""
    tp = importlib.import_module("torch_pruning")
    nodes = list(graph.module2node.values())
    splits = [node for node in nodes if node.type == tp.ops.OPTYPE.SPLIT]
    if not splits:
        return
    for node in splits:
        starts = _piece_starts(node.grad_fn)
        node.module.split_sizes = [starts[piece + 1] - starts[piece] for piece in _pieces(node)]
    for node in nodes:
        if node.type == tp.ops.OPTYPE.CONCAT:
            node.module.concat_sizes = None
        for dep in node.dependencies:
            dep.index_mapping = [None, None]
    tp.dependency.index_mapping.update_index_mapping(graph)
    for node in splits:
        _map_split(node, tp.dependency.index_mapping._SplitIndexMapping)


def _map_split(node: Any, mapping: Any) -> None:
    starts, back = _piece_starts(node.grad_fn), defaultdict(list)
    for reader in set(node.outputs):
        back[reader] = [dep for dep in reader.dependencies[: len(reader.inputs)] if dep.target is node]
    for piece, dep in zip(_pieces(node), node.dependencies[len(node.inputs) :], strict=True):
        if dep.index_mapping[0] is not None:
            dep.index_mapping[0] = mapping(starts[piece : piece + 2])
            other = back[dep.target].pop(0)
            # If the reader is a concatenation, the way back passes through it first.
            other.index_mapping = [other.index_mapping[1], mapping(starts[piece : piece + 2], reverse=True)]


def _pieces(node: Any) -> list[int]:
    """The piece of a split that each of its readers takes."""
    taken = {
        reader: [piece for function, piece in reader.grad_fn.next_functions if function == node.grad_fn]
        for reader in node.outputs
    }
    return [taken[reader].pop(0) if taken[reader] else 0 for reader in node.outputs]


def _piece_starts(function: Any) -> list[int]:
    """Where each piece of a split begins, and the end of the last."""
    dim = function._saved_dim
    length = function._saved_self_sym_sizes[dim if dim < 1 << 63 else dim - (1 << 64)]  # autograd stores -1 unsigned
    if hasattr(function, "_saved_split_size"):
        return [*range(0, length, function._saved_split_size), length]
    starts = [0]
    for size in function._saved_split_sizes:
        starts.append(starts[-1] + size)
    return starts


def connected_entries(dep: Any, entries: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs of an entry at this end of a connection and the same entry's index at the other end."""
    hybrid = importlib.import_module("torch_pruning._helpers")._HybridIndex
    pairs = [hybrid(idx=entry, root_idx=entry) for entry in entries]
    for mapping in dep.index_mapping:
        if mapping is not None:
            pairs = mapping(pairs)
    for pair in pairs:
        if pair.root_idx is None:
            raise SettingsError("the network repeats channels (expand), which cannot be traced.")
        yield pair.root_idx, pair.idx


def is_output(node: Any) -> bool:
    """Whether a node of the graph is an output of the network."""
    return bool(node.type == importlib.import_module("torch_pruning").ops.OPTYPE.OUTPUT)
