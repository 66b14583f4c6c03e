"""Live networks: filled and used again, task after task."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from potluck.core import Arrays, FlatArrays, Layout, Spec, Work, Zoo
from potluck.learn import dense, weights_of


class NetworkSlot:
    """A live network that is filled anew for every model of its spec."""

    def __init__(self, spec: Spec, net: nn.Module, channels_last: bool = False) -> None:
        self.spec, self.net = spec, net
        self.tensors = dict(net.state_dict(keep_vars=True))
        self.buffer, self.layout = _laid_out(self.tensors, channels_last)
        self._others = self.tensors.keys() - self.layout.views.keys()
        self.weights = weights_of(net)
        # Whether it draws from torch's own generator as it trains.
        self.noisy = any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in net.modules())
        self.dense = dense(net)
        self._work: dict[int, Work] = {}

    def fill(self, arrays: Arrays) -> None:
        if arrays.keys() != self.tensors.keys():
            odd = sorted(arrays.keys() ^ self.tensors.keys())
            raise ValueError(f"a {self.spec.family} has other tensors than were sent: {', '.join(odd[:3])}")
        with torch.no_grad():
            torch._foreach_copy_(list(self.tensors.values()), [arrays[name] for name in self.tensors])

    def work(self, zoo: Zoo, batch: int) -> Work:
        """What a training step on a batch asks of a device."""
        if batch not in self._work:
            self._work[batch] = zoo.cost(self.spec, batch)
        return self._work[batch]

    def rest(self) -> FlatArrays:
        """A copy of its numbers, where it lives."""
        others = {name: self.tensors[name].detach().clone() for name in self._others}
        return FlatArrays(self.buffer.clone(), self.layout, others)


def _laid_out(tensors: Mapping[str, Tensor], channels_last: bool) -> tuple[Tensor, Layout]:
    """Moves a network's floats into one buffer, each at a place that processors like."""
    chosen = {name: tensor for name, tensor in tensors.items() if tensor.dtype is torch.float32 and tensor.numel()}
    if len({tensor.data_ptr() for tensor in chosen.values()}) < len(chosen):  # tied weights stay where they are
        chosen = {}
    entries, end = [], 0
    for name, tensor in chosen.items():
        entries.append((name, end, tuple(tensor.shape)))
        end += -(-tensor.numel() // 16) * 16
    device = next((tensor.device for tensor in chosen.values()), None)
    buffer, layout = torch.zeros(end, device=device), Layout(tuple(entries), channels_last)
    for name, view in layout.cut(buffer).items():
        chosen[name].data = view.copy_(chosen[name].detach())
    return buffer, layout
