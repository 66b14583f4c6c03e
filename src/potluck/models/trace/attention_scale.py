"""The scale of attention's scores, taken out of a comparison of two networks whose heads differ in width.

A network divides the scores by the root of a head's width. That is another number in a narrow network, and rightly so.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FIXED_SCALE = 0.5

SCALING = {"mul", "div", "true_divide", "multiply", "divide", "mul_", "div_"}
PRODUCTS = {"matmul", "bmm", "einsum"}
MASKING = {"add", "add_", "sub", "masked_fill", "masked_fill_", "where", "float", "to", "type_as", "clamp"}
"""What happens to scores between their product and the softmax."""
MOVING = {"__get__", "transpose", "permute", "view", "reshape", "contiguous", "unsqueeze", "flatten", "movedim"}


class FixedScale(TorchFunctionMode):
    """Inside this context, attention multiplies the product of query and key by a fixed number and by no other.

    This holds for PyTorch's function, and for products of activations by hand whose softmax is taken: for each there is
    a twin without the numbers by which the network multiplied it, and the softmax is that of the twin. All other
    operations compute with the network's own numbers, so that a count over units is still noticed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._unscaled: dict[int, Tensor] = {}
        """By id, activations without the numbers that multiplied them."""
        self._scores: dict[int, Tensor] = {}
        """By id, products of two activations with the fixed scale."""
        self._alive: list[Any] = []
        """As long as a tensor lives, no other has its id."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), str(getattr(func, "__name__", ""))
        if func is nn.functional.scaled_dot_product_attention:
            kwargs["scale"] = FIXED_SCALE
        elif name == "softmax":
            args = self._swap(args, self._scores)
            kwargs = {key: self._scores.get(id(value), value) for key, value in kwargs.items()}
        first = args[0] if args and isinstance(args[0], Tensor) else None
        twin = {kind: table.get(id(first)) for kind, table in (("q", self._unscaled), ("s", self._scores))}
        before = first.clone() if name in ("mul_", "div_") and first is not None else first
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        if name in PRODUCTS and self._are_activations(args):
            self._keep(self._scores, result, func(*self._swap(args, self._unscaled), **kwargs) * FIXED_SCALE)
        elif name in SCALING and first is not None and _is_number(args[1] if len(args) > 1 else None):
            self._keep(self._unscaled, result, before if twin["q"] is None else twin["q"])
            if twin["s"] is not None:
                self._keep(self._scores, result, twin["s"])
        elif name in MOVING and twin["q"] is not None and result.numel() == twin["q"].numel():
            self._keep(self._unscaled, result, func(twin["q"], *args[1:], **kwargs))
        elif name in MASKING and any(id(each) in self._scores for each in args):
            out_of_place = getattr(Tensor, name.rstrip("_"), func) if name.endswith("_") else func
            self._keep(self._scores, result, out_of_place(*self._swap(args, self._scores), **kwargs))
        return result

    def _keep(self, table: dict[int, Tensor], tensor: Tensor, twin: Tensor | None) -> None:
        if twin is not None:
            table[id(tensor)] = twin
            self._alive.append(tensor)

    def _swap(self, args: Any, table: dict[int, Tensor]) -> tuple[Any, ...]:
        return tuple(table.get(id(each), each) for each in args)

    def _are_activations(self, args: Any) -> bool:
        tensors = [each for each in args if isinstance(each, Tensor)]
        return len(tensors) == 2 and all(each.dim() > 2 and not isinstance(each, nn.Parameter) for each in tensors)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not isinstance(value, nn.Parameter)
    return isinstance(value, int | float)
