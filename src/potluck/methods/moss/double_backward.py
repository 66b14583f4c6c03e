"""Layers that are cheap to differentiate twice: grouped convolutions and batch norms in training.

Torch's own second derivatives of a convolution in groups take a convolution for every group, thousands in a network of
depthwise ones, and those of a batch norm some seventy operations. Here both are a few. Values and derivatives are the
same, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
"""Torch's functions, and over how many dimensions of space they go."""


class DoubleBackward(TorchFunctionMode):
    """While this lasts, layers that it knows are made so."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if func in CONVOLUTIONS and not named:
            found = _convolved(CONVOLUTIONS[func], *args)
        elif func is functional.batch_norm:
            found = _normed(*args, **named)
        else:
            found = None
        return func(*args, **named) if found is None else found


def _convolved(
    space: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """None: this one is better left to torch."""
    if groups == 1 or isinstance(padding, str) or x.dim() != space + 2:
        return None
    stride, padding, dilation = ([one] * space if isinstance(one, int) else one for one in (stride, padding, dilation))
    made: Tensor = _Convolved.apply(x, weight, (stride, padding, dilation, False, [0] * space, groups))  # type: ignore[no-untyped-call]
    return made if bias is None else made + bias.view(-1, *[1] * space)


class _Convolved(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return torch.ops.aten.convolution(x, weight, None, *how)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_ConvolvedBack.apply(*ctx.saved_tensors, *grads, ctx.how), None  # type: ignore[no-untyped-call]


class _ConvolvedBack(Function):
    """The gradients of a convolution, by x and weight: each is linear in one of them and in what comes back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor, how: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight, grad)
        ctx.how = how
        return _back(grad, x, weight, how)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (x, weight, grad), how, (by_x, by_weight) = ctx.saved_tensors, ctx.how, cotangents
        convolution = torch.ops.aten.convolution
        by_grad = convolution(by_x, weight, None, *how) + convolution(x, by_weight, None, *how)
        return _back(grad, x, by_weight, how)[0], _back(grad, by_x, weight, how)[1], by_grad, None


def _back(grad: Tensor, x: Tensor, weight: Tensor, how: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    found = torch.ops.aten.convolution_backward(grad, x, weight, None, *how, [True, True, False])
    return found[0], found[1]


def _normed(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """None: this one is better left to torch."""
    if not training or weight is None or bias is None or x.dtype != weight.dtype or x.dim() < 2:
        return None
    made: Tensor = _Normed.apply(x, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return made


class _Normed(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        made, own, scale = torch.ops.aten.native_batch_norm(x, weight, bias, mean, variance, True, momentum, eps)
        ctx.save_for_backward(x, weight, own, scale)
        ctx.eps = eps
        return made  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_NormedBack.apply(*ctx.saved_tensors, *grads, ctx.eps), None, None, None, None  # type: ignore[no-untyped-call]


class _NormedBack(Function):
    """The gradients of a batch norm, by x, weight and bias.

    With n = (x - mean) * scale, a gradient g and means m over a channel, they are weight * scale * (g - m(g) -
    n m(g n)), the sum of g n and the sum of g. Going back, their product with cotangents is differentiated: n depends
    on x as the norm itself does, and scale by -scale ** 2 * n over the number of values.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, own: Tensor, scale: Tensor, grad: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        by_x, by_weight, by_bias = _norm_back(grad, x, weight, own, scale, eps)
        ctx.save_for_backward(x, weight, own, scale, grad, by_weight, by_bias)
        ctx.eps = eps
        return by_x, by_weight, by_bias

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight, own, scale, grad, grad_n, grad_sum = ctx.saved_tensors
        by_x, by_weight, by_bias = cotangents
        over, wide = [dim for dim in range(x.dim()) if dim != 1], [1, -1, *[1] * (x.dim() - 2)]
        count = x.numel() // x.shape[1]
        n = (x - own.view(wide)) * scale.view(wide)
        rising, by_n, by_sum = _norm_back(by_x, x, weight, own, scale, ctx.eps)
        bracket = (by_x * grad).sum(over) - (by_sum * grad_sum + by_n * grad_n) / count
        gain = weight * scale / count
        by_grad = rising + n * by_weight.view(wide) + by_bias.view(wide)
        pull = by_x * (-gain * grad_n).view(wide) + grad * (by_weight - gain * by_n).view(wide)
        through_n = _norm_back(pull, x, torch.ones_like(weight), own, scale, ctx.eps)[0]
        through_scale = n * (-gain * scale * bracket).view(wide)
        return through_n + through_scale, scale * bracket, None, None, by_grad, None


def _norm_back(
    grad: Tensor, x: Tensor, weight: Tensor, own: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    found = torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, None, None, own, scale, True, eps, [True, True, True]
    )
    return found[0], found[1], found[2]
