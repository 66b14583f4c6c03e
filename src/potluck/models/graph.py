"""The dependency graph of ``torch-pruning``, with what it guesses wrong put right. Nothing else imports that package.

The graph is read from autograd: layers, and between them splits, concatenations and flattenings. What it does not know
it takes for element-wise, so whatever is read here has to be checked by numbers (``silence.py``).
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


class Entry(nn.Module):
    """Marks where the input enters, so that what is tied to it can be seen."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


class Probe(nn.Module):
    """A network between two marks: what reaches the first or the last is never cut."""

    def __init__(self, net: nn.Module, example: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.net = net
        self.entries = nn.ModuleList(Entry() for _ in example)

    def forward(self, *example: Tensor) -> list[Tensor]:
        marked = [
            entry(tensor.detach().clone().requires_grad_()) if tensor.is_floating_point() else tensor
            for entry, tensor in zip(self.entries, example, strict=True)
        ]
        return [tensor * 1 for tensor in outputs(self.net(*marked)) if tensor.requires_grad]


def outputs(value: Any) -> list[Tensor]:
    """Every tensor of real numbers in what a network returns."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    parts: Iterable[Any] = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    )
    return [tensor for part in parts for tensor in outputs(part)]


def dependencies(probe: Probe, example: tuple[Tensor, ...]) -> Any:
    try:
        tp = importlib.import_module("torch_pruning")
    except ImportError:
        raise SettingsError(MISSING) from None
    channels = {
        id(entry): tensor.shape[1]
        for entry, tensor in zip(probe.entries, example, strict=True)
        if tensor.dim() in (2, 4, 5)
    }

    class EntryPruner(tp.ops.DummyPruner):  # type: ignore[misc, name-defined]
        """Tells the graph how many channels come in; in a batch of sequences it cannot know which dimension that is."""

        def get_out_channels(self, layer: nn.Module) -> int | None:
            return channels.get(id(layer))

        get_in_channels = get_out_channels

    graph = tp.DependencyGraph()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            graph.build_dependency(
                probe,
                example,
                forward_fn=lambda model, inputs: model(*inputs),
                customized_pruners={Entry: EntryPruner()},
                verbose=False,
            )
            _straighten(graph)
        except Exception as fault:  # the graph is built of guesses, and fails in many ways
            raise SettingsError(f"torch-pruning cannot follow {type(probe.net).__name__}: {fault}") from fault
    return graph


def _straighten(graph: Any) -> None:
    """Tell the graph the pieces of each split; it guesses their sizes, and takes them in the order it met them."""
    tp = importlib.import_module("torch_pruning")
    nodes = list(graph.module2node.values())
    splits = [node for node in nodes if node.type == tp.ops.OPTYPE.SPLIT]
    if not splits:
        return
    for node in splits:
        starts = _starts(node.grad_fn)
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
    starts, back = _starts(node.grad_fn), defaultdict(list)
    for reader in set(node.outputs):
        back[reader] = [dep for dep in reader.dependencies[: len(reader.inputs)] if dep.target is node]
    for piece, dep in zip(_pieces(node), node.dependencies[len(node.inputs) :], strict=True):
        if dep.index_mapping[0] is not None:
            dep.index_mapping[0] = mapping(starts[piece : piece + 2])
            other = back[dep.target].pop(0)
            # The way back leads through a concatenation first, where the reader is one.
            other.index_mapping = [other.index_mapping[1], mapping(starts[piece : piece + 2], reverse=True)]


def _pieces(node: Any) -> list[int]:
    """Which piece of a split each of its readers takes."""
    taken = {
        reader: [piece for function, piece in reader.grad_fn.next_functions if function == node.grad_fn]
        for reader in node.outputs
    }
    return [taken[reader].pop(0) if taken[reader] else 0 for reader in node.outputs]


def _starts(function: Any) -> list[int]:
    """Where the pieces of a split begin, and the end."""
    dim = function._saved_dim
    length = function._saved_self_sym_sizes[dim if dim < 1 << 63 else dim - (1 << 64)]  # -1 is told without its sign
    if hasattr(function, "_saved_split_size"):
        return [*range(0, length, function._saved_split_size), length]
    starts = [0]
    for size in function._saved_split_sizes:
        starts.append(starts[-1] + size)
    return starts


def mapped(dep: Any, entries: list[int]) -> Iterator[tuple[int, int]]:
    """Pairs: an entry at this end of a connection, the entry that it is at the other."""
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
    """Whether a node of the graph is what the network returns."""
    return bool(node.type == importlib.import_module("torch_pruning").ops.OPTYPE.OUTPUT)
