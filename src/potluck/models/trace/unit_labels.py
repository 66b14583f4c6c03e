"""Tracing of networks with attention: every entry of every activation is labelled with its unit.

The network runs once on an example. Beside each tensor there is an array of the same shape that says which unit each of
its entries belongs to. Operations that only move entries (view, split, concatenation) move the labels alike. Where
entries meet, in a sum or a matrix product, their units are joined. What meets an operation that is not known here stays
uncut. Attention joins units by heads: heads stay or go whole, or all heads keep the same units.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.core import Dimensions
from potluck.models.trace.channel_groups import (
    LayerSide,
    UnionFind,
    UnitLabels,
    axes_of_labels,
    join_convolution_groups,
)
from potluck.models.trace.dependency_graph import output_tensors
from potluck.models.trace.pruning import HeadCut, LayerAxes, channel_counts, tensor_sides

CutHeads: TypeAlias = Literal["width", "whole"]

FIXED = 0
"""The unit of all entries that are never cut: inputs, outputs, and what the tracer does not understand."""
NONE = -1
"""The label of an entry that belongs to no unit, such as a constant."""

MOVING = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "expand", "slice", "select",
    "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "clone", "alias", "detach", "_to_copy", "index",
    "index_select", "gather", "flip", "roll", "cat", "stack", "repeat", "lift_fresh", "narrow", "tril", "triu",
    "constant_pad_nd",
}  # fmt: skip
"""Operations whose results are entries of their inputs."""
REDUCING = {"mean", "sum", "amax", "amin", "max", "min", "_softmax", "_log_softmax", "_safe_softmax", "var_mean"}
"""Operations along dimensions, which may hold positions but no units."""
POOLING = {"_adaptive_avg_pool2d", "avg_pool2d", "max_pool2d_with_indices", "upsample_nearest2d", "upsample_bilinear2d"}
BATCH_NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm"}


@dataclass
class Weight:
    """The labels of a matrix or a kernel: of the units that come out and of those that go in."""

    out: Tensor
    inn: Tensor

    def move(self, function: Callable[[Tensor], Any]) -> Any:
        outs, inns = function(self.out), function(self.inn)
        if isinstance(outs, Tensor):
            return Weight(outs, inns)
        return [Weight(out, inn) for out, inn in zip(outs, inns, strict=True)]


def has_attention(net: nn.Module, example: tuple[Tensor, ...]) -> bool:
    """Whether the network attends: by one of PyTorch's functions, or by matrix products around a softmax."""
    if any(isinstance(module, nn.MultiheadAttention) for module in net.modules()):
        return True
    seen: set[str] = set()

    class Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(_name(func))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Names():  # type: ignore[no-untyped-call]
        copy.deepcopy(net).eval()(*example)
    by_hand = bool(seen & {"bmm", "baddbmm"}) and bool(seen & {"_softmax", "_safe_softmax"})
    return by_hand or any("scaled_dot_product" in name for name in seen)


def attention_axes(
    net: nn.Module, example: tuple[Tensor, ...], cut_heads: CutHeads
) -> tuple[dict[str, Dimensions], dict[str, LayerAxes], dict[str, HeadCut]]:
    """The axes of each tensor of the state dict, those of each layer, and the heads of each module that attends."""
    tracer = UnitTracer(copy.deepcopy(net).eval(), cut_heads)
    tracer.run(example)
    labels, number = tracer.read_labels()
    axes, layers, groups = axes_of_labels(net, labels, tracer.free_dims)
    heads = {
        path: HeadCut(cut_heads, each.heads, each.width, *(_group(groups, number(unit)) for unit in each.units))
        for path, each in tracer.heads.items()
    }
    return axes, layers, heads


@dataclass(frozen=True)
class _Heads:
    heads: int
    width: int
    units: tuple[int, int]
    """A unit of query and key, and one of value."""


class UnitTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Labels the entries of all tensors while the network runs."""

    def __init__(self, net: nn.Module, cut_heads: CutHeads) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.net, self.whole = net, cut_heads == "whole"
        self.units = UnionFind()
        self.count = 1
        self.labels: dict[int, Tensor | Weight] = {}
        self.alive: list[Tensor] = []
        """Every tensor that has labels: as long as it lives, no other has its id."""
        self.running: list[str] = []
        self.heads: dict[str, _Heads] = {}
        self.mixed: list[tuple[int, list[int]]] = []
        """Units that an operation mixed, and the label of its result: if that is used, they are fixed."""
        self.used: set[int] = set()
        self.sides: dict[LayerSide, list[int]] = {}
        self.free: dict[str, Tensor] = {}
        self.free_dims: dict[str, int] = {}
        self._label_parameters()

    def new(self, count: int) -> list[int]:
        self.count += count
        return list(range(self.count - count, self.count))

    def _label_parameters(self) -> None:
        owned: set[int] = set()
        for path, layer in self.net.named_modules():
            if (lengths := channel_counts(layer)) is None:
                continue
            outs = self.new(lengths[1])
            inns = self.new(lengths[0]) if _has_inputs(layer) else outs
            self.sides[path, "in"], self.sides[path, "out"] = inns, outs
            if isinstance(layer, _ConvNd) and layer.groups > 1:
                join_convolution_groups(self.units, layer, list(inns), list(outs))
            sides = {"in": torch.tensor(inns), "out": torch.tensor(outs)}
            for name, dims in tensor_sides(layer).items():
                tensor = getattr(layer, name, None)
                if isinstance(tensor, Tensor):
                    owned.add(id(tensor))
                    self.put(tensor, _parameter_labels(tensor, dims, sides))
        for name, parameter in self.net.named_parameters():
            if id(parameter) not in owned:
                self.free[name] = torch.tensor(self.new(parameter.numel())).view(parameter.shape)
                self.put(parameter, self.free[name])

    def put(self, tensor: Tensor, labels: Tensor | Weight) -> None:
        self.labels[id(tensor)] = labels
        self.alive.append(tensor)

    def get(self, tensor: Any) -> Tensor | Weight | None:
        return self.labels.get(id(tensor)) if isinstance(tensor, Tensor) else None

    def plain(self, tensor: Tensor) -> Tensor:
        """The labels of a tensor as one array; entries without a unit have none."""
        found = self.get(tensor)
        if isinstance(found, Weight):
            self.fix(found.out, found.inn)
            return torch.full(tensor.shape, FIXED)
        return torch.full(tensor.shape, NONE) if found is None else found

    def roots(self, labels: Tensor) -> Tensor:
        values, places = labels.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        found = [value if value < 0 else int(str(self.units.root(value))) for value in values.tolist()]
        return torch.tensor(found, dtype=torch.long)[places].view(labels.shape)

    def fix(self, *labels: Tensor) -> None:
        for each in labels:
            for label in _units(each):
                self.join(label, FIXED)

    def join(self, one: int, other: int) -> None:
        self.used |= {one, other}
        # FIXED stays the root of its set.
        if self.units.root(one) == self.units.root(FIXED):
            one, other = other, one
        self.units.join(one, other)

    def join_all(self, one: Tensor, other: Tensor) -> None:
        """Join entry by entry; an entry without a unit is left alone."""
        both = (one >= 0) & (other >= 0) & (one != other)
        for pair in _units((one * self.count + other)[both]):
            self.join(*divmod(pair, self.count))

    def mix(self, *labels: Tensor) -> int:
        """The label of what an operation makes of several units: none if there are none."""
        found = sorted({label for each in labels for label in _units(each)})
        if not found:
            return NONE
        result = self.new(1)[0]
        self.mixed.append((result, found))
        return result

    def run(self, example: tuple[Tensor, ...]) -> None:
        for tensor in example:
            if tensor.is_floating_point():
                self.put(tensor, torch.full(tensor.shape, FIXED))
        with torch.no_grad(), _running(self.net, self.running), without_fast_path(), self:
            output = self.net(*example)
        for tensor in output_tensors(output):
            self.fix(self.plain(tensor))
        self._fix_mixed()
        self.free_dims = self._find_free_dims()

    def _fix_mixed(self) -> None:
        """Fix the units that went into a mixture which was used, and the units of layers that were not."""
        for path in {path for path, _ in self.sides}:
            own = {*self.sides[path, "out"], *self.sides[path, "in"]}
            if not self.used & own:
                for unit in own:
                    self.units.join(unit, FIXED)
        for result, found in reversed(self.mixed):
            if result in self.used:
                for label in (result, *found):
                    self.join(label, FIXED)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [each for each in _flat([args, kwargs]) if isinstance(each, Tensor)]
        if any(self.get(tensor) is not None for tensor in tensors):
            self._follow(func, _name(func), args, kwargs, tensors, result)
        return result

    def _follow(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor], result: Any) -> None:
        if name in MOVING:
            self._move(func, name, args, kwargs, tensors, result)
        elif name == "copy":
            self.put(result, self.plain(args[1]).expand(result.shape).clone())
        elif "scaled_dot_product" in name:
            self.put(result[0], self._attend(*(self.plain(each) for each in args[:3])))
        elif name in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = args[-2:]
            if len(args) == 3:
                self.put(result, self._multiply(left, right))
                self.join_all(self.plain(args[0]), self.plain(result))
            else:
                self.put(result, self._multiply(left, right))
        elif name in ("convolution", "_convolution"):
            self.put(result, self._convolve(args[0], args[1], result.shape))
        elif name == "embedding":
            self.put(result, self.plain(args[0])[args[1]])
        elif name == "native_layer_norm" and len(args[1]) == 1:
            self.put(result[0], self._pointwise([args[0], *(each for each in args[2:4] if each is not None)]))
        elif name == "native_group_norm" or name in BATCH_NORMS:
            out = result[0] if isinstance(result, tuple | list) else result
            owned = [each for each in args[1:5] if isinstance(each, Tensor)]
            self.put(out, self._channelwise(args[0], owned))
        elif name in REDUCING:
            self._reduce(name, args, kwargs, result)
        elif name in POOLING:
            out = result[0] if isinstance(result, tuple) else result
            self.put(out, self._constant(self.plain(args[0]), (-2, -1)).expand(out.shape).clone())
        elif torch.Tag.pointwise in func.tags:
            if result.is_floating_point():
                self.put(
                    result, self._pointwise([each for each in tensors if each.dim() or self.get(each) is not None])
                )
        else:
            label = self.mix(*(self._any(tensor) for tensor in tensors))
            for each in _flat(result):
                if isinstance(each, Tensor) and each.is_floating_point():
                    self.put(each, torch.full(each.shape, label))

    def _any(self, tensor: Tensor) -> Tensor:
        found = self.get(tensor)
        if isinstance(found, Weight):
            return torch.cat([found.out.flatten(), found.inn.flatten()])
        return torch.tensor([NONE]) if found is None else found

    def _move(self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor], result: Any) -> None:
        if name in ("view", "_unsafe_view", "_reshape_alias"):  # the labels may lie otherwise in memory
            func, args, kwargs = torch.reshape, args[:2], {}
        first = self.get(tensors[0])
        if isinstance(first, Weight):
            moved = first.move(lambda labels: func(labels, *args[1:], **_without_dtype(kwargs)))
        else:

            def swap(value: Any) -> Any:
                if isinstance(value, Tensor) and (value.is_floating_point() or self.get(value) is not None):
                    # Constants beside units have a size of their own, which does not follow them.
                    constant = name in ("cat", "stack") and self.get(value) is None
                    return torch.full(value.shape, FIXED) if constant else self.plain(value)
                if isinstance(value, list | tuple):
                    return type(value)(swap(each) for each in value)
                return value

            given = [swap(each) for each in args]
            if name == "constant_pad_nd":
                given = [*given[:2], NONE]
            moved = func(*given, **_without_dtype(kwargs))
        results, labels = ([result], [moved]) if isinstance(result, Tensor) else (result, moved)
        for tensor, each in zip(results, labels, strict=True):
            if tensor.is_floating_point():
                self.put(tensor, each)

    def _pointwise(self, tensors: Sequence[Tensor]) -> Tensor | Weight:
        if len(tensors) == 1 and isinstance(found := self.get(tensors[0]), Weight):
            return found
        result = self.plain(tensors[0])
        for tensor in tensors[1:]:
            other = self.plain(tensor)
            self.join_all(result, other)
            result = torch.where(result < 0, other, result)
        return result

    def _channelwise(self, x: Tensor, owned: Sequence[Tensor]) -> Tensor:
        labels = self.plain(x)
        for tensor in owned:
            self.join_all(labels, self.plain(tensor).view(-1, *[1] * (labels.dim() - 2)))
        return labels

    def _reduce(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        out = result[0] if isinstance(result, tuple) else result
        labels = self.plain(args[0])
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        dims = (
            tuple(range(labels.dim()))
            if dims is None or dims == []
            else tuple(dims)
            if isinstance(dims, list)
            else (dims,)
        )
        kept = self._constant(labels, dims)
        self.put(out, kept.expand(out.shape).clone() if kept.dim() == out.dim() else kept.reshape(out.shape))

    def _constant(self, labels: Tensor, dims: tuple[int, ...]) -> Tensor:
        """The labels, one along these dimensions; where there are several units, a mixture of them."""
        roots = self.roots(labels)
        low, high = roots.amin(dims, keepdim=True), roots.amax(dims, keepdim=True)
        if bool((low == high).all()):
            return low
        return torch.full(low.shape, self.mix(roots))

    def _multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """The labels of a matrix product: of activations and a weight, or of two activations."""
        weight = self.get(right)
        if isinstance(weight, Weight) and bool((weight.inn == weight.inn[:, :1]).all()):
            self._contract(self.plain(left).flatten(0, -2).T, weight.inn[:, 0])
            return weight.out[:1].expand(left.shape[0], -1).clone()
        one, other = self.plain(left), self.plain(right)
        if left.dim() == 2:
            return self._multiply_activations(one[None], other[None])[0]
        return self._multiply_activations(one, other)

    def _contract(self, entries: Tensor, inputs: Tensor) -> None:
        """Join the entries [input, any] of an activation with the inputs of a layer."""
        self.join_all(entries, inputs[:, None])
        self.used |= set(inputs.tolist())

    def _multiply_activations(self, left: Tensor, right: Tensor) -> Tensor:
        """[slice, row, inner] times [slice, inner, column]: query and key, or weights of attention and values."""
        one, other = self.roots(left), self.roots(right)
        rows, columns = one[..., :1].expand_as(one), other[:, :1].expand_as(other)
        shape = (left.shape[0], left.shape[1], right.shape[2])
        if bool((other == columns).all()) and bool((one == one[:, :1, :1]).all()):
            self._note_values(one, other)
            return other[:, :1].expand(shape).clone()
        if bool((one == rows).all()) and bool((other < 0).all()):
            return one[..., :1].expand(shape).clone()
        if bool((one == one[:, :1]).all()) and bool((other == other[..., :1]).all()):
            return self._scores(one[:, 0], other[..., 0])[:, None, None].expand(shape).clone()
        return torch.full(shape, self.mix(one, other))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The labels of scaled dot-product attention over [..., head, position, unit]."""
        flat = [self._constant(each, (-2,)).flatten(0, -3)[:, 0] for each in (query, key, value)]
        scores = self._scores(flat[0], flat[1])
        self._note_values(scores[:, None, None], flat[2][:, None])
        length = query.shape[-2]
        return flat[2].view(*value.shape[:-2], 1, -1).expand(*value.shape[:-2], length, -1).clone()

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Join the units [slice, unit] of query and key; the label of each slice's scores."""
        self.join_all(query, key)
        heads = len({tuple(row) for row in query.tolist()})
        if self.whole:
            self.join_all(query, query[:, :1])
        else:
            self.join_all(query, query[:1])
        if self.running:
            self.heads[self.running[-1]] = _Heads(heads, query.shape[-1], (int(query[0, 0]), NONE))
        return query[:, 0] if self.whole else torch.full((len(query),), NONE)

    def _note_values(self, scores: Tensor, values: Tensor) -> None:
        """Join the units of the values [slice, any, unit] by heads, with their scores."""
        first = values[:, 0]
        found = self.heads.get(self.running[-1]) if self.running else None
        if found is None:
            return
        if self.whole:
            self.join_all(first, first[:, :1])
            self.join_all(first, scores[:, 0, :1])
        else:
            self.join_all(first, first[:1])
        self.heads[self.running[-1]] = _Heads(found.heads, found.width, (found.units[0], int(first[0, 0])))

    def _convolve(self, x: Tensor, kernel: Tensor, shape: torch.Size) -> Tensor:
        weight = self.get(kernel)
        if not isinstance(weight, Weight):
            return torch.full(shape, self.mix(self.plain(x), self._any(kernel)))
        path = next(
            path for (path, side), ids in self.sides.items() if side == "out" and ids[0] == int(weight.out.min())
        )
        inputs = torch.tensor(self.sides[path, "in"])
        self._contract(self.plain(x).transpose(0, 1).flatten(1), inputs)
        outs = torch.tensor(self.sides[path, "out"])
        return outs.view(1, -1, *[1] * (len(shape) - 2)).expand(shape).clone()

    def read_labels(self) -> tuple[UnitLabels, Callable[[int], int | None]]:
        """The units of each side of each layer, and of each free parameter; and the number of a label's unit."""
        numbers: dict[int, int] = {}
        made = {self.units.root(unit) for (_, side), ids in self.sides.items() if side == "out" for unit in ids}
        made |= {self.units.root(unit) for ids in self.free.values() for unit in ids.flatten().tolist()}
        fixed = self.units.root(FIXED)

        def number(label: int) -> int | None:
            root = self.units.root(label)
            if label < 0 or root == fixed or root not in made:
                return None
            return numbers.setdefault(int(str(root)), len(numbers))

        labels: UnitLabels = {side: [number(unit) for unit in ids] for side, ids in self.sides.items()}
        for name, ids in self.free.items():
            along = ids.movedim(self.free_dims[name], 0) if ids.dim() else ids[None]
            labels[name, "out"] = [number(unit) for unit in along.reshape(len(along), -1)[:, 0].tolist()]
        return labels, number

    def _find_free_dims(self) -> dict[str, int]:
        """The dimension of each free parameter along which its units lie; one with units along several stays uncut."""
        found: dict[str, int] = {}
        for name, ids in self.free.items():
            roots = self.roots(ids)
            along = [dim for dim in range(roots.dim()) if not bool((roots == roots.narrow(dim, 0, 1)).all())]
            if len(along) > 1:
                for unit in ids.flatten().tolist():
                    self.join(unit, FIXED)
            found[name] = along[0] if len(along) == 1 else 0
        return found


def _group(groups: Mapping[int, str], unit: int | None) -> str:
    return "" if unit is None else groups.get(unit, "")


def _units(labels: Tensor) -> list[int]:
    """The labels in an array, each once, without those of no unit."""
    found: list[int] = labels.unique().tolist()  # type: ignore[no-untyped-call]
    return [label for label in found if label >= 0]


def _has_inputs(layer: nn.Module) -> bool:
    """Whether a layer's inputs are other units than its outputs."""
    return any(side is not None and side[0] == "in" for dims in tensor_sides(layer).values() for side in dims) or (
        isinstance(layer, _ConvNd)
    )


def _parameter_labels(
    tensor: Tensor, dims: Sequence[tuple[str, int] | None], sides: Mapping[str, Tensor]
) -> Tensor | Weight:
    """The labels of each entry of a layer's tensor."""
    found = {}
    for dim, each in enumerate(dims):
        if each is not None:
            side, length = each
            found[side] = sides[side][:length].view(-1, *[1] * (tensor.dim() - dim - 1)).expand(tensor.shape)
    if len(tensor.shape) > 1 and len(dims) > 1 and None not in dims:
        return Weight(found["out"], found["in"])
    if isinstance(dims[0], tuple) and len(tensor.shape) > 2:  # a depthwise kernel
        return Weight(found.get("out", found.get("in", tensor)), found.get("out", found.get("in", tensor)))
    return next(iter(found.values()))


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__).rstrip("_") if hasattr(func, "overloadpacket") else str(func)


def _without_dtype(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("dtype", "layout", "device", "pin_memory")}


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


@contextmanager
def _running(net: nn.Module, running: list[str]) -> Iterator[None]:
    """Inside this context, `running` holds the paths of the modules whose forward has begun and not ended."""
    hooks = []

    def leave(*_: Any) -> None:
        running.pop()

    def enter(path: str, *_: Any) -> None:
        running.append(path)

    for path, module in net.named_modules():
        if channel_counts(module) is None or isinstance(module, nn.MultiheadAttention):
            hooks.append(module.register_forward_pre_hook(partial(enter, path)))
            hooks.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Inside this context, attention is computed by ordinary operations in evaluation too."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
