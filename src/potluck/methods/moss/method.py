"""Moss: models of any architecture are averaged through proxy models, which all have the largest architecture.

Cai et al., "Moss: Proxy Model-based Full-Weight Aggregation in Federated Learning with Heterogeneous Models", IMWUT
2025, https://arxiv.org/abs/2503.10218. A type of device in the paper is a tier here. One round:

1. Devices train as in FedAvg, and the server averages their models within each tier.
2. PROM and WIRE: each tier's model teaches a proxy model on the public rows.
3. FILE: the server averages the proxies, weighted by fidelity: how much a proxy agrees with its teacher.
4. WIRE: the average proxy teaches each tier's model.

The server does steps 2 to 4. Their cost grows with the number of tiers, not of devices.

What differs from the paper, which has no public code:

- The paper trains WIRE's meta-networks on the student's own loss, on all rows at once, and initialises them again in
  each call: `wire.train = "joint"`, `wire.full_batch` and `meta_persist = False` do so. But then they switch the
  transfer off, because that makes the loss smallest. By default they are trained as in Jang et al. (ICML 2019), on
  which WIRE builds, and kept between rounds.
- The paper does not say where proxies start. Here they start each round from their average (`proxy_sync`).
- After each transfer, batch norm statistics are gathered anew on the public rows (`wire.recalibrate`).
- If every transfer into the proxies is refused because it diverged, proxies start again from the last average that
  could be taught.
- Static batch norm, which keeps no statistics, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import torch

from potluck.core import (
    EMPTY,
    SERVER,
    Arrays,
    Client,
    ContractSettings,
    Device,
    Expected,
    Facts,
    Model,
    Newborn,
    Reply,
    Round,
    SettingsError,
    Spec,
    Task,
    Zoo,
    on_client,
    shapes_of,
)
from potluck.methods.bases.public_logits import need_public
from potluck.methods.fedavg import AveragedState, Averaging
from potluck.methods.moss.feature_matching import MetaNetworks
from potluck.methods.moss.fidelity import weighted_mean
from potluck.methods.moss.taps import tap_shapes
from potluck.methods.moss.wire import WireSettings, run_transfer
from potluck.parts import Part, Place

PROXY = "the proxies"
TransferKey: TypeAlias = tuple[str, str]
"""The names of a transfer's teacher and student: of tiers, or PROXY."""


@dataclass(frozen=True)
class MossState(AveragedState):
    """The server's state: `model` holds the models of all tiers."""

    wires: Mapping[str, Arrays] = EMPTY
    """Meta-networks and transforms of each WIRE transfer, if they are kept between rounds."""
    proxy: Model = Newborn(Spec("none"))
    """The average of the proxies."""
    proxies: Mapping[str, Model] = EMPTY
    """Each tier's proxy, if proxies do not start from their average."""
    restart: Model = Newborn(Spec("none"))
    """The last average of the proxies before a round in which a transfer into them was accepted: they start again from
    it if all are refused."""


@dataclass(frozen=True)
class Moss(Averaging):
    """FedAvg within each tier, then WIRE between tiers through proxies."""

    contract = ContractSettings(
        as_fedavg={"identity_shortcut": "both"}, idle={"wire": {"epochs": 0}}, quick={"wire": {"epochs": 1}}
    )

    wire: WireSettings = WireSettings()
    """How a model teaches another on the public rows (WIRE)."""
    fidelity: Literal["samples", "flat", "equal"] = "samples"
    """Weights of students in FILE: the mean cosine of their logits with their teacher's, row by row; one cosine of all
    rows in one vector; or equal weights."""
    meta_persist: bool = True
    """Keep meta-networks and transforms from round to round."""
    prom: bool = True
    """Use proxies; if false, every tier's model teaches a copy of every other's, and the copies are averaged."""
    proxy_sync: bool = True
    """Proxies start each round from their average; if false, from where they were."""
    identity_shortcut: Literal["none", "up", "both"] = "none"
    """Between equal architectures copy, and do not teach: never, only into proxies, or out of them too."""

    @property
    def facts(self) -> Facts:
        return Facts(networks="any", public="labels" if self.wire.target == "labels" else "inputs", unlabelled=True)

    # The round: FedAvg, PROM, WIRE and FILE.

    def init(self, zoo: Zoo, rng: torch.Generator) -> MossState:
        model = self.initial_model(zoo, rng)
        proxy = self.tier_models(AveragedState(model), zoo)[zoo.tiers[-1].name]
        proxies = {} if self.proxy_sync or not self.prom else {tier.name: proxy for tier in zoo.tiers}
        wires = self.initial_meta_networks(zoo, rng)
        return MossState(model, proxy=proxy, proxies=proxies, restart=proxy, wires=wires)

    def round(self, state: Any, now: Round) -> Any:
        state = super().round(state, now)
        return self.transfer_through_proxies(state, now) if self.prom else self.transfer_directly(state, now)

    def transfer_through_proxies(self, state: MossState, now: Round) -> MossState:
        """Tiers teach proxies (WIRE up), proxies are averaged (FILE), and their average teaches tiers (WIRE down)."""
        models = self.tier_models(state, now.zoo)
        up = {(name, PROXY): (model, state.proxies.get(name, state.proxy)) for name, model in models.items()}
        state, proxies = self.run_transfers(up, state, now, update_statistics=True)
        # If all are refused, the proxies themselves have blown up and would be refused in every round to come.
        restart = state.proxy if proxies else state.restart
        proxy = weighted_mean(restart, proxies.values())
        down = {(PROXY, name): (proxy, model) for name, model in models.items()}
        state, students = self.run_transfers(down, state, now)
        state = self.replace_tier_models(state, {name: model for (_, name), (model, _) in students.items()}, now.zoo)
        own = {name: proxies[name, PROXY][0] if (name, PROXY) in proxies else proxy for name in models}
        return replace(state, proxy=proxy, restart=restart, proxies=EMPTY if self.proxy_sync else own)

    def transfer_directly(self, state: MossState, now: Round) -> MossState:
        """Without PROM: every tier's model teaches a copy of every other's, and copies are averaged with the model."""
        models = self.tier_models(state, now.zoo)
        ends = {(teacher, student): (models[teacher], models[student]) for teacher, student in self.transfers(now.zoo)}
        state, students = self.run_transfers(ends, state, now)
        copies = {name: [copy for (_, student), copy in students.items() if student == name] for name in models}
        means = {name: weighted_mean(own, [(own, 1.0), *copies[name]]) for name, own in models.items()}
        return replace(self.replace_tier_models(state, means, now.zoo), proxy=means[now.zoo.tiers[-1].name])

    def serve(self, state: Any, client: Client, zoo: Zoo) -> Model | None:
        """The average proxy for the server, its tier's model for a client."""
        proxy: Model = state.proxy
        return proxy if client.id == SERVER else super().serve(state, client, zoo)

    # One model for each tier, all of them in the state's model: equal architectures too are averaged apart.

    def initial_model(self, zoo: Zoo, rng: torch.Generator) -> Model:
        """Tiers of one architecture start from the same weights."""
        fresh = {self.target(zoo): zoo.fresh(self.target(zoo), rng)}
        for tier in zoo.tiers:
            fresh[tier.spec] = fresh.get(tier.spec) or zoo.fresh(tier.spec, rng)
        return Model(self.target(zoo), _server_arrays({tier.name: fresh[tier.spec] for tier in zoo.tiers}, zoo))

    def tier_models(self, state: AveragedState, zoo: Zoo) -> dict[str, Model]:
        """Each tier's model, by the tier's name."""
        whole = state.model.arrays
        return {tier.name: Model(tier.spec, _tier_part(tier.name, tier.spec, zoo).take(whole)) for tier in zoo.tiers}

    def replace_tier_models(self, state: MossState, models: Mapping[str, Model], zoo: Zoo) -> MossState:
        """The state with these models of tiers; other tiers keep theirs."""
        return replace(state, model=Model(state.model.spec, {**state.model.arrays, **_server_arrays(models, zoo)}))

    def target(self, zoo: Zoo) -> Spec:
        """The largest tier's network, which is also the proxies'."""
        return zoo.tiers[-1].spec

    def submodel_for(self, client: Client, zoo: Zoo) -> tuple[Spec, Part]:
        tier = zoo.tiers[-1] if client.id == SERVER else client.tier
        return tier.spec, _tier_part(tier.name, tier.spec, zoo)

    def buffers(self, zoo: Zoo) -> frozenset[str]:
        parts = [(_tier_part(tier.name, tier.spec, zoo), zoo.buffers(tier.spec)) for tier in zoo.tiers]
        return frozenset(part.place(name).name for part, names in parts for name in names)

    # Transfers: tasks that the server gives to itself.

    def transfers(self, zoo: Zoo) -> dict[TransferKey, tuple[Spec, Spec]]:
        """All transfers of a round, with the networks of teacher and student."""
        specs, proxy = {tier.name: tier.spec for tier in zoo.tiers}, self.target(zoo)
        if not self.prom:
            return {(a, b): (specs[a], specs[b]) for b in specs for a in specs if a != b}
        up = {(name, PROXY): (spec, proxy) for name, spec in specs.items()}
        return up | {(PROXY, name): (proxy, spec) for name, spec in specs.items()}

    def is_copy(self, key: TransferKey, teacher: Spec, student: Spec) -> bool:
        """Whether the student becomes a copy of the teacher, without teaching."""
        shortcut = self.identity_shortcut == "both" or (self.identity_shortcut == "up" and key[1] == PROXY)
        return shortcut and teacher == student

    def initial_meta_networks(self, zoo: Zoo, rng: torch.Generator) -> dict[str, Arrays]:
        """The meta-networks of all transfers, if they are kept between rounds."""
        transfers = self.transfers(zoo) if self.meta_persist else {}
        specs = {key: specs for key, specs in transfers.items() if not self.is_copy(key, *specs)}
        return {_task_key(key): self.new_meta_networks(*ends, zoo, rng) for key, ends in specs.items()}

    def new_meta_networks(self, teacher: Spec, student: Spec, zoo: Zoo, rng: torch.Generator) -> Arrays:
        """Untrained meta-networks of one transfer."""
        return MetaNetworks.initial(self.wire.matching(teacher, student, zoo), rng).snapshot()

    def run_transfers(
        self,
        ends: Mapping[TransferKey, tuple[Model, Model]],
        state: MossState,
        now: Round,
        update_statistics: bool = False,
    ) -> tuple[MossState, dict[TransferKey, tuple[Model, float]]]:
        """Runs transfers between teachers and students: the new state, and each student with its fidelity.

        A student whose transfer failed is left out.
        """
        tasks = {
            key: self.transfer_task(key, teacher, student, state, now, update_statistics)
            for key, (teacher, student) in ends.items()
            if not self.is_copy(key, teacher.spec, student.spec)
        }
        replies = {reply.task.key: reply for reply in now.send(tasks.values())}
        students, wires = dict[TransferKey, tuple[Model, float]](), dict(state.wires)
        for key, (teacher, _) in ends.items():
            if key not in tasks:
                students[key] = (teacher, 1.0)
            elif (reply := replies.get(_task_key(key))) is not None:
                arrays = dict(reply.arrays)
                fidelity = float(arrays.pop("fidelity"))
                students[key] = (reply.models["student"], 1.0 if self.fidelity == "equal" else fidelity)
                wires |= {_task_key(key): arrays} if self.meta_persist else {}
        return replace(state, wires=wires), students

    def transfer_task(
        self, key: TransferKey, teacher: Model, student: Model, state: MossState, now: Round, update_statistics: bool
    ) -> Task:
        """The task of one transfer, for the server."""
        name, zoo = _task_key(key), now.zoo
        meta = state.wires.get(name)
        meta = meta or self.new_meta_networks(teacher.spec, student.spec, zoo, now.rng("wire", name))
        models, config = {"teacher": teacher, "student": student}, {"update_statistics": update_statistics}
        arrays = {**shapes_of(meta), "fidelity": ((), torch.float64)}
        expects = Expected({"student": zoo.shapes(student.spec)}, arrays)
        return Task("teach", SERVER, name, 0, models, meta, config, expects=expects)

    @on_client
    def teach(self, task: Task, device: Device) -> Reply:
        """A teacher teaches a student, on the server."""
        return run_transfer(task, device, self.wire, self.fidelity == "flat")

    def check(self, zoo: Zoo) -> None:
        super().check(zoo)
        need_public(self, zoo)
        for tier in zoo.tiers:
            if zoo.counting(tier.spec) != tier.spec:
                raise SettingsError(
                    f"Moss runs models in evaluation mode, and tier '{tier.name}' has static batch norm, which keeps "
                    'no statistics for that. Set norm = "running" or norm = "group" where the model is named.'
                )
            if not tap_shapes(tier.spec, zoo):
                raise SettingsError(f"Moss finds no layers to tap in tier '{tier.name}'. Use a deeper network.")
        self.wire.warn()


def _task_key(key: TransferKey) -> str:
    return " > ".join(key)


def _server_arrays(models: Mapping[str, Model], zoo: Zoo) -> Arrays:
    """The models of these tiers in one set of arrays."""
    return {
        _tier_part(tier, model.spec, zoo).place(name).name: tensor
        for tier, model in models.items()
        for name, tensor in model.arrays.items()
    }


@lru_cache(maxsize=256)
def _tier_part(tier: str, spec: Spec, zoo: Zoo) -> Part:
    """A tier's part of the server's arrays. Names of all tiers but the largest end with the tier's name."""
    largest = tier == zoo.tiers[-1].name
    return Part({name: Place(name if largest else f"{name} of {tier}") for name in zoo.shapes(spec)})
