"""Moss: networks of any architecture meet in proxies of the largest one, and features, not weights, carry between them.

Cai et al., "Moss: Proxy Model-based Full-Weight Aggregation in Federated Learning with Heterogeneous Models", IMWUT
2025, https://arxiv.org/abs/2503.10218. Devices train as in FedAvg, and the server averages within each type of device
(a tier). Then, on public rows: each type's model teaches a proxy, all of the largest architecture (*WIRE*); proxies are
averaged by how much they came to speak like their teachers (*FILE*); and their average teaches each type's model. All
of that is the server's work, which grows with the number of types, not of devices.

The paper trains WIRE's small networks down the student's own loss, on all rows at once, and starts them anew in each
call: `wire.train = "joint"`, `wire.full_batch` and `meta_persist = False` do so. There they switch transfer off, since
that is what makes the loss smallest; by default they are trained as in the work that WIRE builds on, and kept. Proxies
start each round from their average, which the paper leaves open, and a device's model taught by it keeps its batch-norm
statistics. Static batch norm, which keeps none, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from potluck.core import EMPTY, SERVER, Client, Model, Newborn, Round, Spec, Zoo
from potluck.methods.fedavg import AveragedState
from potluck.methods.moss.teach import weighted_mean
from potluck.methods.moss.transfers import Link, TransferState, WireTransfers

PROXY = "the proxies"


@dataclass(frozen=True)
class MossState(TransferState):
    """What the server keeps besides: the proxies' average."""

    proxy: Model = Newborn(Spec("none"))
    proxies: Mapping[str, Model] = EMPTY
    """Each type's proxy, where they do not start from their average."""


@dataclass(frozen=True)
class Moss(WireTransfers):
    """Proxies of one architecture, taught by all types and teaching them."""

    prom: bool = True
    """Meet in proxies; else every type's model teaches a copy of every other's, and copies are averaged."""
    proxy_sync: bool = True
    """Proxies start each round from their average; else from where they were."""
    identity_shortcut: Literal["none", "up", "both"] = "none"
    """Between equal architectures copy, in place of teaching: never, into proxies alone, or out of them too."""

    def init(self, zoo: Zoo, rng: torch.Generator) -> MossState:
        model = self.initial_model(zoo, rng)
        proxy = self.types(AveragedState(model), zoo)[zoo.tiers[-1].name]
        proxies = {} if self.proxy_sync or not self.prom else {tier.name: proxy for tier in zoo.tiers}
        return MossState(model, proxy=proxy, proxies=proxies, wires=self.initial_wires(zoo, rng))

    def links(self, zoo: Zoo) -> dict[Link, tuple[Spec, Spec]]:
        specs, proxy = {tier.name: tier.spec for tier in zoo.tiers}, self.target(zoo)
        if not self.prom:
            return {(a, b): (specs[a], specs[b]) for b in specs for a in specs if a != b}
        up = {(name, PROXY): (spec, proxy) for name, spec in specs.items()}
        return up | {(PROXY, name): (proxy, spec) for name, spec in specs.items()}

    def copies(self, link: Link, teacher: Spec, student: Spec) -> bool:
        copied = self.identity_shortcut == "both" or (self.identity_shortcut == "up" and link[1] == PROXY)
        return copied and teacher == student

    def round(self, state: Any, now: Round) -> Any:
        averaged = super().round(state, now)
        return (self.through_proxies if self.prom else self.directly)(averaged, now)

    def through_proxies(self, state: MossState, now: Round) -> MossState:
        """Types teach proxies, proxies are averaged, and their average teaches the types."""
        types = self.types(state, now.zoo)
        up = {(name, PROXY): (model, state.proxies.get(name, state.proxy)) for name, model in types.items()}
        state, rose = self.run_transfers(up, state, now, gather=True)
        proxy = weighted_mean(state.proxy, rose.values())
        down = {(PROXY, name): (proxy, model) for name, model in types.items()}
        state, came = self.run_transfers(down, state, now)
        proxies = EMPTY if self.proxy_sync else {**state.proxies, **{link[0]: one for link, (one, _) in rose.items()}}
        moved: MossState = self.put(state, {link[1]: model for link, (model, _) in came.items()}, now.zoo)
        return replace(moved, proxy=proxy, proxies=proxies)

    def directly(self, state: MossState, now: Round) -> MossState:
        """Without proxies: every type's model teaches a copy of every other's, and these are averaged with it."""
        types = self.types(state, now.zoo)
        lessons = {(a, b): (types[a], types[b]) for a, b in self.links(now.zoo)}
        state, came = self.run_transfers(lessons, state, now)
        copies = {name: [copy for link, copy in came.items() if link[1] == name] for name in types}
        learned = {name: weighted_mean(own, [(own, 1.0), *copies[name]]) for name, own in types.items()}
        moved: MossState = self.put(state, learned, now.zoo)
        return replace(moved, proxy=learned[now.zoo.tiers[-1].name])

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The proxies' average to the server, a type's model to a client."""
        proxy: Model = state.proxy
        return proxy if client.id == SERVER else super().serve(state, client, zoo)
