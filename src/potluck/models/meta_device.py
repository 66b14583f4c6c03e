"""What is known of a network without its numbers: shapes, axes, blocks and cost, read on PyTorch's meta device.

Every spec that comes here must be complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from potluck.core import Dimensions, PassCount, Spec, Work, count_pass
from potluck.models.families import FAMILIES
from potluck.models.projection import add_projection, classifier_path, projected_axes, without_projection

Shape: TypeAlias = "tuple[tuple[int, ...], torch.dtype]"


def probe(spec: Spec, batch: int) -> tuple[nn.Module, Tensor]:
    """The network and a batch of inputs on the meta device: a forward pass gives shapes, and computes nothing.

    A network that needs numbers is on the CPU, with random ones, always the same.
    """
    shape: Any = spec.options["input"]
    tokens = FAMILIES[spec.family].tokens
    if needs_numbers(spec):
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(0)
            x = torch.zeros(batch, *shape, dtype=torch.long) if tokens else torch.randn(batch, *shape)
            return add_projection(FAMILIES[spec.family].net(without_projection(spec)), spec), x
    dtype = torch.long if tokens else torch.float
    return meta_net(spec), torch.zeros(batch, *shape, dtype=dtype, device="meta")


def needs_numbers(spec: Spec) -> bool:
    """Whether the network cannot run on the meta device."""
    return FAMILIES[spec.family].needs_numbers(without_projection(spec))


def meta_net(spec: Spec) -> nn.Module:
    """The network on the meta device, with its projection if it has one."""
    return add_projection(FAMILIES[spec.family].meta_net(without_projection(spec)), spec)


@lru_cache(maxsize=1024)
def classifier(spec: Spec) -> str:
    """The last linear layer of the head; empty if there is none."""
    bare = without_projection(spec)
    return classifier_path(FAMILIES[bare.family].meta_net(bare), int(str(bare.options["classes"])))


@lru_cache(maxsize=1024)
def shapes(spec: Spec) -> Mapping[str, Shape]:
    """Shape and dtype of each tensor of the state dict."""
    tensors = meta_net(spec).state_dict()
    return MappingProxyType({name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()})


@lru_cache(maxsize=1024)
def axes(spec: Spec) -> Mapping[str, Dimensions]:
    """What each dimension of each tensor of the state dict counts."""
    family, bare = FAMILIES[spec.family], without_projection(spec)
    found = family.axes(bare, family.meta_net(bare))
    return MappingProxyType(found if bare is spec else projected_axes(found, classifier(spec)))


@lru_cache(maxsize=1024)
def buffers(spec: Spec) -> frozenset[str]:
    """Names of the state dict that are not trained."""
    return frozenset(shapes(spec)) - {name for name, _ in meta_net(spec).named_parameters()}


@lru_cache(maxsize=1024)
def class_rows(spec: Spec) -> tuple[str, ...]:
    """The tensors with one row for each class (or token)."""
    return FAMILIES[spec.family].class_rows(without_projection(spec))


@lru_cache(maxsize=1024)
def block_indices(spec: Spec) -> Mapping[str, int | None]:
    """The body block of each tensor, counted in forward order; None in stem and head."""
    blocks = {f"{name}.": index for index, name in enumerate(FAMILIES[spec.family].blocks(spec))}
    return MappingProxyType(
        {
            name: next((index for block, index in blocks.items() if name.startswith(block)), None)
            for name in shapes(spec)
        }
    )


def cost(spec: Spec, batch: int) -> Work:
    """FLOPs of forward and backward, and the memory they need, for a batch of this size.

    FLOPs are those of matrix products and convolutions. Activations are the tensors that autograd saves for the
    backward pass. Each storage counts once. The batch itself counts if a layer needs it. A forward that depends on its
    data is counted on one random batch.
    """
    two, three, weights = _step_counts(spec)

    def for_batch(of_two: int, of_three: int) -> int:
        return of_two + (of_three - of_two) * (batch - 2)

    return Work(
        flops=for_batch(two.flops, three.flops),
        forward_flops=for_batch(two.forward_flops, three.forward_flops),
        parameter_bytes=sum(size for _, size in weights),
        activation_bytes=for_batch(two.saved_bytes, three.saved_bytes),
        parameters=sum(count for count, _ in weights),
    )


@lru_cache(maxsize=1024)
def _step_counts(spec: Spec) -> tuple[PassCount, PassCount, tuple[tuple[int, int], ...]]:
    """Counts of a step on two examples and on three (all grow linearly), and the parameters' sizes."""
    if spec.options.get("norm") == "counted":  # needs numbers, which are not here; its cost is that of running
        spec = replace(spec, options={**spec.options, "norm": "running"})
    net, three = probe(spec, 3)
    two = three[:2].clone()  # a copy: the bytes of a whole storage are counted
    weights = tuple((tensor.numel(), tensor.nbytes) for tensor in net.parameters())
    if needs_numbers(spec):  # two examples may take another way than three, so these are counted once
        with _without_onednn():
            found = _step_count(net, three)
        of_two = PassCount(found.flops * 2 // 3, found.forward_flops * 2 // 3, found.saved_bytes * 2 // 3)
        return of_two, found, weights
    return _step_count(net, two), _step_count(net, three), weights


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Inside this context, recurrent layers on the CPU are matrix products, which are counted."""
    before = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags also sets TF32, with a warning
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _step_count(net: nn.Module, batch: Tensor) -> PassCount:
    """Counts of a training step."""
    return count_pass(lambda: net(batch), (*net.parameters(), *net.buffers()))
