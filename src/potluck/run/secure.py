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
    Reply,
    Selection,
    SettingsError,
    Task,
    Weight,
    Zoo,
    display_name,
    facts_of,
)
from potluck.learn import ServerClip
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


def make_client(experiment: Experiment, method: Any, zoo: Zoo) -> SecureClient | None:
    """What clients need for secure sums, or None without [secure]; refuses methods for which sums are not enough."""
    wanted = experiment.secure
    if not wanted.enabled:
        return None
    from potluck.secure.client import SecureClient
    from potluck.secure.protocol import SeededIdentities
    from potluck.secure.ring import check_bits

    facts, name = facts_of(method), display_name(method)
    if facts is not None and not facts.sums:
        raise SettingsError(
            f"[secure] lets the server see sums of updates alone, and {name} needs every single upload. Use a method "
            'whose "secure sums" says yes in `potluck list methods`, such as fedavg or heterofl.'
        )
    if experiment.privacy.enabled and experiment.privacy.where == "server":
        raise SettingsError(
            '[secure] and [privacy] where = "server": which blocks are opened depends on who takes part, and the noise '
            'does not cover that. Use where = "device", or leave [secure] out.'
        )
    check_bits(wanted.bits, wanted.clip, experiment.cohort)
    if wanted.min_holders > experiment.cohort:
        raise SettingsError(
            f"secure.min_holders = {wanted.min_holders} is above cohort = {experiment.cohort}: no sum would ever be "
            "opened; raise cohort."
        )
    SumsOnly(method, zoo, experiment.seed)
    return SecureClient(wanted, SeededIdentities(experiment.seed))


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
                "clients. A larger cohort, a larger share of this tier, or fewer tiers help."
            )
    return found


def cut_noise(setup: Setup) -> list[str]:
    """A warning if updates with the noise of devices are longer than [secure] lets through."""
    mechanism, zoo, wanted = setup.context.mechanism, setup.context.zoo, setup.experiment.secure
    if setup.context.secure is None or mechanism is None or isinstance(mechanism, ServerClip):
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
        super().__init__(method, zoo, seed)

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
                    f"'{task.verb}') one by one.{self._help()}"
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
        for task in tasks:
            part, beside = held[task.to], list(task.expects.arrays)
            if beside or list(task.expects.models) != ["model"]:
                raise SettingsError(
                    f"[secure] masks one model of each client; {self.name}'s clients also upload "
                    f"'{[*beside, *task.expects.models][0]}'.{self._help()}"
                )
            if not isinstance(part, Part):
                raise SettingsError(f"[secure] and {self.name}: which entries a client holds follows from its data.")
            self._check_start(task, part, mean)
            shapes = task.expects.models["model"]
            self._names[task.to] = [name for name, (_, dtype) in shapes.items() if dtype.is_floating_point]
            self._held[task.to] = part
        self._start = mean.start
        self._check_parts()
        return ()

    def _check_start(self, task: Task, part: Part, mean: OverlapMean) -> None:
        """The sum is of changes, so all that hold an entry must have started from the server's value."""
        sent: Model = task.models["model"]
        for name, tensor in part.take(mean.start).items():
            if name in sent.arrays and not torch.equal(sent.arrays[name], tensor):
                raise SettingsError(f"[secure] adds up changes; {self.name}'s clients start from other values.")

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

    def _help(self) -> str:
        """What to change, if batch norm is the cause."""
        fields = getattr(type(self.method), "__dataclass_fields__", {})
        return ' Set norm = "group" in [model], or method.bn_eval = "batch".' if "bn_eval" in fields else ""
