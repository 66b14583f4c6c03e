"""Central differential privacy: noise on the sum of clipped updates, added by a server that is trusted to do so.

Each client clips its update once, over its whole part of the model (`learn.ServerClip`). The server adds noise to the
sum on every entry that any tier can hold, and divides it by the number of clients that are expected to hold the entry
(`parts.privatise`). What a client adds is at most one clip, whatever its tier. What epsilon means is in
`run.central_epsilon`.

An adaptive clip follows a quantile of the norms (Andrew et al., "Differentially Private Learning with Adaptive
Clipping", NeurIPS 2021, https://arxiv.org/abs/1905.03871). Each client says whether its update was within the clip;
only the sum of these bits is used, with noise of its own. The noise on the updates is a little larger for it, so that
both together have the noise that epsilon is computed for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from potluck.core import SERVER, Client, NoiseSource, Reply, Round, SecretNoise, Task, normal, stream
from potluck.engines import RoundSession
from potluck.learn import CLIP, WITHIN, ServerClip
from potluck.ledger import Journal
from potluck.parts import Holders, OverlapMean, Part, expected_holders, first_holders, privatise
from potluck.run.assemble import Setup
from potluck.run.central_checks import largest_rate, tree_clips
from potluck.run.central_epsilon import epsilon_of_sums, epsilon_of_tree, group, largest_sensitivity, neighbours
from potluck.run.privacy import Charges, guarantee

CLIP_STEP = 0.2
"""How fast an adaptive clip moves (eta in the paper)."""
COUNT_NOISE = 1 / 20
"""The noise on the number of updates within the clip, as a share of the expected cohort, as in the paper ..."""
COUNT_SHARE = 0.1
"""... but never so little that this number takes more than this share of the privacy."""


@dataclass
class Released:
    """What central privacy keeps from round to round. A checkpoint holds it."""

    clip: float
    """The clip of the next round."""
    rounds: dict[str, list[float]] = field(default_factory=dict)
    """Of each round with a released sum: the largest rate at which clients are drawn, and how often it was released."""
    nodes: dict[str, int | str] = field(default_factory=dict)
    """Noise on prefix sums: the keys of the noise that the last prefix has in it, by the round that it came in. In a
    simulation, seeds."""
    counts: list[dict[str, float]] = field(default_factory=list)
    """Noise on prefix sums: how many clients of each tier were expected in the first round; and again when a tier came
    that had not been expected before."""
    took: dict[str, list[int]] = field(default_factory=dict)
    """Noise on prefix sums: the rounds in which each client was asked."""
    settled: int = 0
    """The number of the last charge in the ledger that this includes."""


class CentralPrivacy:
    """Adds noise to the sum of every fold of a run, and counts what was released. Dispatchers call it."""

    def __init__(self, setup: Setup, journal: Journal) -> None:
        assert isinstance(setup.context.mechanism, ServerClip)
        self._setup, self._wanted, self._mechanism = setup, setup.experiment.privacy, setup.context.mechanism
        self._charges = Charges(journal)
        self.released = Released(self._mechanism.clip)
        self._next: tuple[float, dict[str, int | str], list[dict[str, float]]] | None = None
        """The clip, the nodes and the counts after this round, if it is committed."""

    def ask(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """The tasks, each with the clip that holds now."""
        return (replace(task, config={**task.config, CLIP: self.released.clip}) for task in tasks)

    def check(self, task: Task) -> None:
        """Refuses to ask a client for a model that is not added up. Dispatchers call it before they send a task."""
        if CLIP not in task.config:
            raise PermissionError(f"[privacy] where = \"server\": '{task.verb}' asks clients for more than a sum")

    def release(
        self, session: RoundSession, mean: OverlapMean, summed: OverlapMean, replies: Sequence[Reply]
    ) -> Sequence[Reply]:
        """Adds the sum with noise to the method's mean; returns the replies without what they say of their clip."""
        if not mean.empty:
            raise RuntimeError("a mean that holds something already cannot take a private sum")
        self._charge(session)
        parts, now, counts = dict(self._parts(session)), self._odds(), self._counts()
        # In prefix sums, noise is taken back. So it must have been divided by the same number when it was added.
        expected = first_holders(self.expected(mean.start, parts, each) for each in counts or [now])
        cohort = math.fsum(now.get(tier, 0.0) for tier in parts)
        key, merged = self._key(session), self._merged(session.index + 1)
        rng, undo = _source(key), [_source(self.released.nodes[number]) for number in merged]
        noise, clip = self._mechanism.noise, self.released.clip
        if self._mechanism.adaptive:
            noise, count_noise = split_noise(noise, cohort)
            within = sum(reply.metrics.get(WITHIN) == 1 for reply in replies)
            clip = next_clip(clip, self._wanted.quantile, within, len(replies), cohort, count_noise, rng)
        mean.add_block(privatise(summed.sums, mean.start, expected, self.released.clip, noise, rng, undo), 0)
        kept = {number: node for number, node in self.released.nodes.items() if number not in merged}
        self._next = (clip, kept | {str(session.index + 1): key} if self._tree else {}, counts)
        return [replace(reply, metrics={}) for reply in replies]

    @property
    def _tree(self) -> bool:
        return self._wanted.mechanism == "tree"

    def expected(
        self, start: Mapping[str, torch.Tensor], parts: Mapping[str, Part], counts: Mapping[str, float]
    ) -> Holders:
        """How many clients are expected to hold each entry of the trained tensors, if so many of each tier are."""
        method, zoo = self._setup.context.method, self._setup.context.zoo
        where = next((tensor.device for tensor in start.values()), torch.device("cpu"))
        there = ((part.on(where), counts[tier]) for tier, part in parts.items() if counts.get(tier, 0.0) > 0)
        return expected_holders(start, there, method.buffers(zoo) if hasattr(method, "buffers") else ())

    def settle(self, committed: bool) -> dict[str, Any]:
        """What a checkpoint must hold after a round that was committed, or an attempt that failed."""
        if committed and self._next is not None:
            self.released.clip, self.released.nodes, self.released.counts = self._next
        self._next = None
        self.released.settled = self._charges.settle()
        return asdict(self.released)

    def restore(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Takes up what a checkpoint holds, and counts what a killed process released after it."""
        if saved:
            self.released = Released(**saved)
        self._charges.restore(self.released.settled)
        for line in self._charges.left:
            self._count(int(line["of"]), float(line.get("rate", 1.0)), line.get("asked", ()))
        return self.settle(committed=False)

    def promise(self, done: int) -> dict[str, Any]:
        """The guarantee after so many rounds, as plain values."""
        wanted, released, experiment = self._wanted, self.released, self._setup.experiment
        times = sum(int(times) for _, times in released.rounds.values())
        found = guarantee(wanted, self._mechanism) | {"clip": released.clip, "releases": times}
        if wanted.mechanism == "tree":
            again = {int(number): int(times) - 1 for number, (_, times) in released.rounds.items()}
            far = tree_clips(wanted) * largest_sensitivity(released.took, max([done, *again]), again)
            spent = epsilon_of_tree(self._mechanism.noise, wanted.delta, far)
            most = max(map(len, released.took.values()), default=0)
            kind = "zero-out" if wanted.neighbours == "auto" else wanted.neighbours
            return found | {"neighbours": kind, "uploads": most, "epsilon": spent}
        draw, rounds = experiment.fleet.draw, group(released.rounds.values())
        rate = max((rate for rate, _ in released.rounds.values()), default=0.0)
        spent = epsilon_of_sums(draw, self._mechanism.noise, wanted.delta, rounds, wanted.neighbours)
        own = {tier: odds.rate for tier, odds in self._setup.population.odds(experiment.cohort).items() if odds.rate}
        if len(set(own.values())) > 1:
            found["rates"] = own
        return found | {"neighbours": neighbours(draw, wanted.neighbours), "draw": draw, "rate": rate, "epsilon": spent}

    def _odds(self) -> dict[str, float]:
        """How many clients of each tier are expected in a round."""
        odds = self._setup.population.odds(self._setup.experiment.cohort)
        return {tier: found.expected for tier, found in odds.items() if found.expected > 0}

    def _counts(self) -> list[dict[str, float]]:
        """Noise on prefix sums: the numbers of clients by which sums are divided, from the first round to the last."""
        if not self._tree:
            return []
        known, now = self.released.counts, self._odds()
        return known if now.keys() <= {tier for counts in known for tier in counts} else [*known, now]

    def _parts(self, session: RoundSession) -> Iterator[tuple[str, Part]]:
        """Of each tier that a method picks in this round: its part of the model."""
        setup = self._setup
        now: Round = setup.view(session.index, session)
        one_of_each = [Client(f"one of {tier.name}", tier) for tier in now.zoo.tiers]
        method, now = setup.context.method, replace(now, cohort=one_of_each)
        for client in method.pick(now):
            yield client.tier.name, method.assign(client, now)[1]

    def _charge(self, session: RoundSession) -> None:
        """Writes into the ledger that a sum will be released, and counts it."""
        if self._tree:
            asked = sorted({entry.task.to for entry in session.entries} - {SERVER})
            self._charges.write(SERVER, session.index, asked=asked)
            self._count(session.index + 1, 1.0, asked)
        else:
            rate = largest_rate(self._setup.population, self._setup.experiment.cohort)
            self._charges.write(SERVER, session.index, rate=rate)
            self._count(session.index + 1, rate)

    def _count(self, number: int, rate: float, asked: Iterable[str] = ()) -> None:
        before = self.released.rounds.get(str(number), [0.0, 0])
        self.released.rounds[str(number)] = [max(before[0], rate), before[1] + 1]
        for client in asked:
            rounds = self.released.took.setdefault(client, [])
            if number not in rounds:
                rounds.append(number)

    def _key(self, session: RoundSession) -> int | str:
        """Where this noise comes from: a key of the operating system's or, in a simulation, a seed of the run's."""
        if self._setup.context.own_noise:
            return SecretNoise().key.hex()
        return stream(self._setup.context.seed, "central", session.index, session.attempt).initial_seed()

    def _merged(self, number: int) -> list[str]:
        """The earlier rounds whose noise this round's takes the place of: those that its node of the tree covers."""
        covers = number & -number
        return [key for key in self.released.nodes if int(key) > number - covers]


def split_noise(noise: float, cohort: float) -> tuple[float, float]:
    """The noise on updates (in clips) and on the number of updates within the clip, which are `noise` together.

    A client moves the count, less half of the cohort, by one half.
    """
    count_noise = max(COUNT_NOISE * cohort, noise / (2 * math.sqrt(COUNT_SHARE)))
    return (noise**-2 - (2 * count_noise) ** -2) ** -0.5, count_noise


def next_clip(
    clip: float, quantile: float, within: int, replies: int, cohort: float, noise: float, rng: NoiseSource
) -> float:
    """The clip of the next round: larger if fewer updates than the quantile were within it."""
    drawn = float(normal((), rng))
    share = (within - 0.5 * replies + noise * drawn) / cohort + 0.5
    return min(max(clip * math.exp(-CLIP_STEP * (min(max(share, 0.0), 1.0) - quantile)), 1e-6), 1e6)


def _source(key: int | str) -> NoiseSource:
    return SecretNoise(bytes.fromhex(key)) if isinstance(key, str) else torch.Generator().manual_seed(key)
