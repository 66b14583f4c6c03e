"""Forward hooks on layers, inside a context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import nn

After: TypeAlias = Callable[[nn.Module, Any, Any], Any]
"""(layer, inputs, output) -> a new output, or None to keep it."""
Before: TypeAlias = Callable[[nn.Module, Any], Any]
"""(layer, inputs) -> new inputs, or None to keep them."""


@contextmanager
def forward_hooks(
    net: nn.Module, after: Mapping[str, After] | None = None, before: Mapping[str, Before] | None = None
) -> Iterator[None]:
    """Inside this context, these hooks run before and after the layers with these names."""
    handles = [net.get_submodule(path).register_forward_pre_hook(hook) for path, hook in (before or {}).items()]
    handles += [net.get_submodule(path).register_forward_hook(hook) for path, hook in (after or {}).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
