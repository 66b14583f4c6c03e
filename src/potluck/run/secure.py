"""Secure aggregation in a run: which methods can use it, and which blocks will hardly ever be opened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from potluck.core import (
    SERVER,
    Mean,
    Model,
    Plain,
    Reply,
    Selection,
    SettingsError,
    Task,
    Weight,
    Zoo,
    display_name,
    facts_of,
    settings,
)
from potluck.learn import GaussianMechanism, SumClip
from potluck.methods.bases.personal_models import PersonalModels
from potluck.parts import OverlapMean, Part
from potluck.run.dry_run import DryRun
from potluck.run.settings import Experiment

if TYPE_CHECKING:
    from potluck.run.assemble import Setup
    from potluck.secure.client import SecureClient

LOOKED_AT = 200
"""Rounds whose cohorts are looked at before round 0."""
RARELY = 0.1
"""A tier's own entries that are opened in fewer rounds than this share are warned of."""


def make_client(
    experiment: Experiment, method: Any, zoo: Zoo, mechanism: GaussianMechanism | None = None
) -> SecureClient | None:
    """What clients need for secure sums, or None without [secure]; refuses methods for which sums are not enough."""
    wanted = experiment.secure
    if not wanted.enabled:
        return None
    from potluck.secure.client import SecureClient
    from potluck.secure.noise import NoiseShare
    from potluck.secure.protocol import SeededIdentities, most_neighbours
    from potluck.secure.ring import check_bits

    facts, name = facts_of(method), display_name(method)
    if isinstance(method, PersonalModels):
        raise SettingsError(
            f"[secure] masks what clients of a tier hold together. With {name}, each client's data decide which "
            'entries it uploads, and the set of entries would show that. Use a method whose "secure sums" says yes '
            "in `potluck list methods`, such as fedavg or heterofl."
        )
    if facts is not None and not facts.sums:
        raise SettingsError(
            f"[secure] lets the server see sums of updates alone, and {name} needs every single upload. Use a method "
            'whose "secure sums" says yes in `potluck list methods`, such as fedavg or heterofl.'
        )
    if settings(method).get("label_mask"):
        raise SettingsError(
            "[secure] and method.label_mask = true: only clients that have a class train its row of the head, and the "
            "row would be opened with all others, also if one client alone has it. Set method.label_mask = false."
        )
    share = None
    if isinstance(mechanism, SumClip):
        share = NoiseShare(mechanism.clip, mechanism.noise, wanted.min_holders)
        wanted = share.settings(wanted, experiment.cohort)
    check_bits(wanted.bits, wanted.clip, experiment.cohort)
    if wanted.min_holders > experiment.cohort:
        raise SettingsError(
            f"secure.min_holders = {wanted.min_holders} is above cohort = {experiment.cohort}: no sum would ever be "
            "opened; raise cohort."
        )
    near = most_neighbours(experiment.cohort)
    if wanted.min_holders > 1 + near:
        raise SettingsError(
            f"secure.min_holders = {wanted.min_holders}: in a cohort of {experiment.cohort}, each client shares masks "
            f"with {near} others, so no sum would ever be opened; set it to {1 + near} or less."
        )
    SumsOnly(method, zoo, experiment.seed)
    return SecureClient(wanted, SeededIdentities(experiment.seed), noise=share)


def closed_blocks(setup: Setup) -> list[str]:
    """A warning for each set of tiers whose own entries will hardly ever be opened."""
    experiment, method, zoo = setup.experiment, setup.context.method, setup.context.zoo
    if setup.context.secure is None:
        return []
    shares = SumsOnly(method, zoo, experiment.seed).shares()
    rounds = range(min(experiment.rounds, LOOKED_AT))
    cohorts = [Counter(client.tier.name for client in setup.cohort(index)) for index in rounds]
    found = []
    for tiers, share in shares.items():
        opened = sum(sum(cohort[tier] for tier in tiers) >= experiment.secure.min_holders for cohort in cohorts)
        if cohorts and opened < RARELY * len(cohorts):
            named = " and ".join(f"'{tier}'" for tier in tiers)
            found.append(
                f"[secure] opens what only {named} holds ({share:.0%} of the server's model) in {opened} of the first "
                f"{len(cohorts)} rounds: so few cohorts have secure.min_holders = {experiment.secure.min_holders} such "
                f"clients. {_first_help(experiment.fleet.draw)} larger cohort, a larger share of this tier, or fewer "
                "tiers help."
            )
    return found


def _first_help(draw: str) -> str:
    """What helps first: cohorts that always have their share of every tier."""
    return "A" if draw == "by_tier" else 'fleet.draw = "by_tier" (the same share of each tier in every cohort), a'


def cut_noise(setup: Setup) -> list[str]:
    """A warning if updates with the noise of devices are longer than [secure] lets through."""
    mechanism, zoo, wanted = setup.context.mechanism, setup.context.zoo, setup.experiment.secure
    if setup.context.secure is None or type(mechanism) is not GaussianMechanism:
        return []
    entries = max(
        sum(math.prod(shape) for shape, dtype in zoo.shapes(spec).values() if dtype.is_floating_point)
        for spec in dict.fromkeys([zoo.full, *(tier.spec for tier in zoo.tiers)])
    )
    length = mechanism.clip * math.hypot(1.0, mechanism.noise * math.sqrt(entries))
    if length <= wanted.clip:
        return []
    return [
        f"[privacy] makes updates about {length:.3g} long, most of it noise, and secure.clip = {wanted.clip:g} scales "
        f"them down to that. Set secure.clip to {1.1 * length:.2g} or more."
    ]


class SumsOnly(DryRun):
    """A dry run that refuses methods which need more than sums of models, and sees which part each tier holds."""

    per_tier = 2

    def __init__(self, method: Any, zoo: Zoo, seed: int) -> None:
        self.name = display_name(method)
        self._held: dict[str, Part] = {}
        self._start: Mapping[str, torch.Tensor] = {}
        self._names: dict[str, list[str]] = {}
        self._other_weights = False
        """Whether the method weighs a client by anything but its samples."""
        self._reads_weights = False
        """Whether the method reads the weight of a reply after it was added up."""
        super().__init__(method, zoo, seed)
        if self._other_weights and self._reads_weights:
            raise SettingsError(
                f"[secure] shows the server sums of weights; {self.name} weighs clients by more than samples, and "
                "needs the weight of each. Use a method such as fedavg."
            )

    def shares(self) -> dict[tuple[str, ...], float]:
        """For each set of tiers that holds entries which no other tier holds: their share of the server's model."""
        if not self._held:
            return {}
        from potluck.secure.blocks import RoundBlocks

        blocks = RoundBlocks.of(self._start, self._held, self._names)
        tiers = {client.id: client.tier.name for client in self._cohort}
        sizes: Counter[tuple[str, ...]] = Counter()
        for tensor in blocks.whole.tensors:
            grid = tensor.grid()
            inner = self._start[tensor.name].numel() // max(grid.size, 1)
            for block in tensor.blocks() - {0}:
                holders = tuple(dict.fromkeys(tiers[client] for client in blocks.holders(block, list(self._held))))
                sizes[holders] += int((grid == block).sum()) * inner
        return {holders: size / sizes.total() for holders, size in sizes.items()}

    def _send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            told = [*task.expects.models, *task.expects.arrays]
            if task.to != SERVER and told:
                raise SettingsError(
                    f"[secure] lets the server see sums of models alone; {self.name}'s clients upload '{told[0]}' (in "
                    f"'{task.verb}') one by one.{self._help(task, told[0])}"
                )
        return iter(())

    def _fold(
        self,
        tasks: Iterable[Task],
        mean: Mean,
        held: Mapping[str, Selection],
        weigh: Callable[[Reply], Weight] | None = None,
    ) -> Sequence[Reply]:
        if weigh is not None or not isinstance(mean, OverlapMean) or type(mean).add is not OverlapMean.add:
            raise SettingsError(f"[secure] adds up updates by their weights alone; {self.name} weighs them otherwise.")
        replies = []
        for task in tasks:
            part, beside = held[task.to], list(task.expects.arrays)
            if beside or list(task.expects.models) != ["model"]:
                raise SettingsError(
                    f"[secure] masks one model of each client; {self.name}'s clients also upload "
                    f"'{(beside or sorted({*task.expects.models} - {'model'}))[0]}'."
                    f"{self._help(task, beside[0] if beside else '')}"
                )
            if not isinstance(part, Part):
                raise SettingsError(f"[secure] and {self.name}: which entries a client holds follows from its data.")
            self._check_start(task, part, mean)
            self._check_weights(task)
            replies.append(_Watched({"model": Model(task.models["model"].spec, {})}, task=task))
            shapes = task.expects.models["model"]
            self._names[task.to] = [name for name, (_, dtype) in shapes.items() if dtype.is_floating_point]
            self._held[task.to] = part
        self._start = mean.start
        self._check_parts()
        for reply in replies:
            reply.watch(self)
        return replies

    def _check_start(self, task: Task, part: Part, mean: OverlapMean) -> None:
        """The sum is of changes, so all that hold an entry must have started from the server's value."""
        sent: Model = task.models["model"]
        for name, tensor in part.take(mean.start).items():
            if name in sent.arrays and not torch.equal(sent.arrays[name], tensor):
                raise SettingsError(f"[secure] adds up changes; {self.name}'s clients start from other values.")

    def _check_weights(self, task: Task) -> None:
        """A client's weight must be one number, but for rows of classes that it does not have."""
        model = task.models["model"]
        rows = self.zoo.class_rows(model.spec) if settings(self.method).get("label_mask") else ()
        plain: list[dict[str, Plain]] = [{"steps": 7}, {"steps": 7, "labels": [0]}]
        for told in plain:
            reply = Reply({"model": model}, weight=640.0, metrics=told, task=task)
            weight = self.method.weigh(reply, self.zoo)
            one = weight.get("") if isinstance(weight, Mapping) else weight
            if isinstance(weight, Mapping) and (weight.keys() - {"", *rows} or isinstance(one, torch.Tensor)):
                other = getattr(self.method, "weighting", "samples") not in ("samples", "uniform")
                hint = ' Set method.weighting = "uniform" or "samples".' if other else ""
                raise SettingsError(
                    f"[secure] adds up one weight for each client; {self.name} gives every tensor its own.{hint}"
                )
            self._other_weights |= one not in (1.0, reply.weight)

    def _check_parts(self) -> None:
        """Refuses parts that differ between clients of one tier."""
        from potluck.secure.blocks import RoundBlocks

        numbers = RoundBlocks.of(self._start, self._held, self._names).number
        by_tier: dict[str, set[int]] = {}
        for client in self._cohort:
            if client.id in numbers:
                by_tier.setdefault(client.tier.name, set()).add(numbers[client.id])
        if any(len(found) > 1 for found in by_tier.values()):
            hint = " Set method.shared_per_round = true." if hasattr(self.method, "shared_per_round") else ""
            raise SettingsError(
                f"[secure] masks what the clients of a tier hold together; {self.name} draws another part for each "
                f"client.{hint}"
            )

    def _help(self, task: Task, name: str) -> str:
        """What to change: the norm, if these are its statistics; else the method."""
        model = task.models.get("model")
        if model is None or name not in self.zoo.buffers(model.spec):
            return " Use a method whose clients upload models alone, such as fedavg."
        fields = getattr(type(self.method), "__dataclass_fields__", {})
        return ' Set norm = "group" in [model]' + (', or method.bn_eval = "batch".' if "bn_eval" in fields else ".")


class _Watched(Reply):
    """A reply as a secure sum returns it. It notices if its weight is read."""

    def watch(self, by: SumsOnly) -> None:
        object.__setattr__(self, "_by", by)

    def __getattribute__(self, name: str) -> Any:
        if name == "weight" and "_by" in object.__getattribute__(self, "__dict__"):
            self._by._reads_weights = True
        return super().__getattribute__(name)
