"""Models of types of devices that teach each other on the server, by features of public rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

import torch

from potluck.core import (
    EMPTY,
    SERVER,
    Arrays,
    Device,
    Expected,
    Facts,
    Model,
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
from potluck.methods.fedavg import AveragedState
from potluck.methods.moss.per_tier import PerTier
from potluck.methods.moss.teach import taught
from potluck.methods.moss.watch import tap_shapes
from potluck.methods.moss.wire import MetaNetworks, WireSettings

Link: TypeAlias = tuple[str, str]
"""Who teaches whom, by name."""


@dataclass(frozen=True)
class TransferState(AveragedState):
    """What the server keeps: each type's model, and what is between them."""

    wires: Mapping[str, Arrays] = EMPTY
    """What each transfer has learned about transferring."""


S = TypeVar("S", bound=TransferState)


@dataclass(frozen=True)
class WireTransfers(PerTier):
    """FedAvg within each type, and transfers between their models."""

    wire: WireSettings = WireSettings()
    fidelity: Literal["samples", "flat", "equal"] = "samples"
    """Students count by the mean cosine of their scores with their teachers'; by that of all rows as one; all alike."""
    meta_persist: bool = True
    """Keep from round to round what transfers learned about transferring."""

    @property
    def facts(self) -> Facts:
        return Facts(networks="any", public="labels" if self.wire.target == "labels" else "inputs", unlabelled=True)

    @abstractmethod
    def links(self, zoo: Zoo) -> Mapping[Link, tuple[Spec, Spec]]:
        """Who teaches whom in a round, and their networks."""

    def initial_wires(self, zoo: Zoo, rng: torch.Generator) -> dict[str, Arrays]:
        """What transfers start from in the first round."""
        links = self.links(zoo) if self.meta_persist else {}
        taught = {link: ends for link, ends in links.items() if not self.copies(link, *ends)}
        return {_link_name(link): self.initial_wire(*ends, zoo, rng) for link, ends in taught.items()}

    def initial_wire(self, teacher: Spec, student: Spec, zoo: Zoo, rng: torch.Generator) -> Arrays:
        """What a transfer that has learned nothing yet starts from."""
        return MetaNetworks.initial(self.wire.matching(teacher, student, zoo), rng).rest()

    def run_transfers(
        self, lessons: Mapping[Link, tuple[Model, Model]], state: S, now: Round, gather: bool = False
    ) -> tuple[S, dict[Link, tuple[Model, float]]]:
        """The state after teachers taught students, and each student that learned, with its fidelity."""
        tasks = {
            link: self.task(link, teacher, student, state, now, gather)
            for link, (teacher, student) in lessons.items()
            if not self.copies(link, teacher.spec, student.spec)
        }
        replies = {reply.task.key: reply for reply in now.send(tasks.values())}
        done, wires = dict[Link, tuple[Model, float]](), dict(state.wires)
        for link, (teacher, _) in lessons.items():
            if link not in tasks:
                done[link] = (teacher, 1.0)
            elif (reply := replies.get(_link_name(link))) is not None:
                arrays = dict(reply.arrays)
                true = float(arrays.pop("fidelity"))
                done[link] = (reply.models["student"], 1.0 if self.fidelity == "equal" else true)
                wires |= {_link_name(link): arrays} if self.meta_persist else {}
        return replace(state, wires=wires), done

    def copies(self, link: Link, teacher: Spec, student: Spec) -> bool:
        """Whether a student becomes a copy of its teacher, in place of being taught."""
        return False

    def task(self, link: Link, teacher: Model, student: Model, state: TransferState, now: Round, gather: bool) -> Task:
        """One transfer, as the server is asked for it."""
        name = _link_name(link)
        own = state.wires.get(name) or self.initial_wire(teacher.spec, student.spec, now.zoo, now.rng("wire", name))
        models, returns = {"teacher": teacher, "student": student}, {**shapes_of(own), "fidelity": ((), torch.float64)}
        expects = Expected({"student": now.zoo.shapes(student.spec)}, returns)
        return Task("teach", SERVER, name, 0, models, own, {"gather": gather}, expects=expects)

    @on_client
    def teach(self, task: Task, device: Device) -> Reply:
        """A teacher teaches a student; on the server."""
        return taught(task, device, self.wire, self.fidelity == "flat")

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


def _link_name(link: Link) -> str:
    return " > ".join(link)
