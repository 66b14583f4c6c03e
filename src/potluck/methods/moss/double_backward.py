"""Grouped convolutions and batch norms whose second derivatives are cheap.

PyTorch's second derivative of a grouped convolution runs one convolution for each group: thousands in a network with
depthwise convolutions. That of a batch norm takes about seventy operations. The versions here take a few. Values and
derivatives are the same up to rounding.
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
"""PyTorch's functions, and their number of spatial dimensions."""


class DoubleBackward(TorchFunctionMode):
    """While this lasts, grouped convolutions and batch norms use the versions of this file where they can."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if func in CONVOLUTIONS and not named:
            output = _grouped_convolution(CONVOLUTIONS[func], *args)
        elif func is functional.batch_norm:
            output = _batch_norm(*args, **named)
        else:
            output = None
        return func(*args, **named) if output is None else output


def _grouped_convolution(
    space: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """None where PyTorch's own version is the better one."""
    if groups == 1 or isinstance(padding, str) or x.dim() != space + 2:
        return None
    stride, padding, dilation = ([one] * space if isinstance(one, int) else one for one in (stride, padding, dilation))
    options = (stride, padding, dilation, False, [0] * space, groups)
    output: Tensor = _GroupedConvolution.apply(x, weight, options)  # type: ignore[no-untyped-call]
    return output if bias is None else output + bias.view(-1, *[1] * space)


class _GroupedConvolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, options: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options = options
        return torch.ops.aten.convolution(x, weight, None, *options)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_GroupedConvolutionBackward.apply(*ctx.saved_tensors, *grads, ctx.options), None  # type: ignore[no-untyped-call]


class _GroupedConvolutionBackward(Function):
    """The gradients with respect to x and weight: each is linear in the other one and in the output's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight, grad)
        ctx.options = options
        return _convolution_backward(grad, x, weight, options)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        (x, weight, grad), options, (to_x, to_weight) = ctx.saved_tensors, ctx.options, cotangents
        convolution = torch.ops.aten.convolution
        grad_grad = convolution(to_x, weight, None, *options) + convolution(x, to_weight, None, *options)
        grad_x = _convolution_backward(grad, x, to_weight, options)[0]
        return grad_x, _convolution_backward(grad, to_x, weight, options)[1], grad_grad, None


def _convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    """The gradients with respect to x and weight."""
    grads = torch.ops.aten.convolution_backward(grad, x, weight, None, *options, [True, True, False])
    return grads[0], grads[1]


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """None where PyTorch's own version is the better one."""
    if not training or weight is None or bias is None or x.dtype != weight.dtype or x.dim() < 2:
        return None
    output: Tensor = _BatchNorm.apply(x, weight, bias, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return output


class _BatchNorm(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> Tensor:
        output, mean, scale = torch.ops.aten.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.eps = eps
        return output  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *_BatchNormBackward.apply(*ctx.saved_tensors, *grads, ctx.eps), None, None, None, None  # type: ignore[no-untyped-call]


class _BatchNormBackward(Function):
    """The gradients of a batch norm with respect to x, weight and bias.

    Let n = (x - mean) * scale, where scale = 1 / sqrt(variance + eps). Let g be the output's gradient and m() the mean
    over a channel. The gradients are weight * scale * (g - m(g) - n m(g n)), the sum of g n, and the sum of g. The
    backward pass differentiates their product with the cotangents. The derivative of n by x is that of the batch norm
    itself; the derivative of scale by x is -scale ** 2 * n / (values in a channel).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, grad: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        grad_x, grad_weight, grad_bias = _batch_norm_backward(grad, x, weight, mean, scale, eps)
        ctx.save_for_backward(x, weight, mean, scale, grad, grad_weight, grad_bias)
        ctx.eps = eps
        return grad_x, grad_weight, grad_bias

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        x, weight, mean, scale, grad, grad_weight, grad_bias = ctx.saved_tensors
        to_x, to_weight, to_bias = cotangents
        axes, channelwise = [dim for dim in range(x.dim()) if dim != 1], [1, -1, *[1] * (x.dim() - 2)]
        count = x.numel() // x.shape[1]
        n = (x - mean.view(channelwise)) * scale.view(channelwise)
        to_x_back, to_x_n, to_x_sum = _batch_norm_backward(to_x, x, weight, mean, scale, ctx.eps)
        product = (to_x * grad).sum(axes) - (to_x_sum * grad_bias + to_x_n * grad_weight) / count
        gain = weight * scale / count
        grad_grad = to_x_back + n * to_weight.view(channelwise) + to_bias.view(channelwise)
        grad_n = to_x * (-gain * grad_weight).view(channelwise) + grad * (to_weight - gain * to_x_n).view(channelwise)
        through_n = _batch_norm_backward(grad_n, x, torch.ones_like(weight), mean, scale, ctx.eps)[0]
        through_scale = n * (-gain * scale * product).view(channelwise)
        return through_n + through_scale, scale * product, None, None, grad_grad, None


def _batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients with respect to x, weight and bias."""
    grads = torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, scale, True, eps, [True, True, True]
    )
    return grads[0], grads[1], grads[2]
