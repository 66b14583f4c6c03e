"""Before round 0 with [privacy] where = "server": which methods and cohorts are refused, and which noise is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from potluck.core import (
    SERVER,
    Client,
    Mean,
    Reply,
    Round,
    Selection,
    SettingsError,
    Task,
    Weight,
    Zoo,
    display_name,
    facts_of,
)
from potluck.fleet import Clients
from potluck.learn import ServerClip
from potluck.parts import Index, Part
from potluck.run.central_epsilon import largest_sensitivity, noise_for_sums, noise_for_tree, tree_sensitivity
from potluck.run.dry_run import DryRun
from potluck.run.settings import Experiment, Privacy

LATER = (1, 2, 3, 7)
"""Rounds in which parts are compared with those of the first."""
ASKS = '[privacy] where = "server"'


def make_server_clip(experiment: Experiment, method: Any, zoo: Zoo, population: Clients) -> ServerClip:
    """What clients do with their updates, and the noise of the server; refuses what would not be private."""
    wanted = experiment.privacy
    refuse_cohorts(experiment)
    _refuse_method(experiment, method, zoo)
    clip, adaptive = wanted.clip_at_first, wanted.clip == "adaptive"
    if wanted.noise is not None:
        return ServerClip(clip, wanted.noise, adaptive)
    return ServerClip(clip, _noise(experiment, population), adaptive)


def largest_rate(population: Clients, cohort: int) -> float:
    """The largest probability with which a client of any tier is drawn."""
    return max((odds.rate for odds in population.odds(cohort).values()), default=0.0)


def _noise(experiment: Experiment, population: Clients) -> float:
    """The noise for the epsilon that is wanted; if nobody is there yet, as with real nodes, for clients that are drawn
    every time."""
    wanted, rounds = experiment.privacy, max(experiment.rounds, 1)
    assert wanted.epsilon is not None
    if wanted.mechanism == "tree":
        return noise_for_tree(wanted.epsilon, wanted.delta, _sensitivity(experiment, population, rounds))
    rate = largest_rate(population, experiment.cohort) if population.clients else 1.0
    return noise_for_sums(experiment.fleet.draw, wanted.epsilon, wanted.delta, rate, rounds, wanted.neighbours)


def _sensitivity(experiment: Experiment, population: Clients, rounds: int) -> float:
    """The largest sensitivity of prefix sums, for the cohorts that will be drawn."""
    clips = tree_clips(experiment.privacy)
    if not population.clients:
        return clips * tree_sensitivity(range(1, rounds + 1), rounds)
    took: dict[str, list[int]] = {}
    for index in range(rounds):
        for client in population.cohort(index, experiment.cohort):
            took.setdefault(client.id, []).append(index + 1)
    return clips * max(1.0, largest_sensitivity(took, rounds))


def tree_clips(wanted: Privacy) -> float:
    """How many clips apart a client's updates are in neighbouring data sets, if noise is on prefix sums."""
    return 2.0 if wanted.neighbours == "replace-one" else 1.0


def refuse_cohorts(experiment: Experiment) -> None:
    """Refuses settings under which one client's data decides about others, or the odds of being drawn are not known."""
    fleet, wanted = experiment.fleet, experiment.privacy
    if experiment.gate.bound == "auto":
        raise SettingsError(
            f'{ASKS} and gate.bound = "auto": its limit follows from the updates of all clients, without noise. Leave '
            "it out: privacy.clip bounds every update."
        )
    if wanted.mechanism == "gaussian" and fleet.draw != "poisson" and (fleet.availability < 1 or fleet.file):
        named = "fleet.file" if fleet.file else f"fleet.availability = {fleet.availability:g}"
        raise SettingsError(
            f"{ASKS} and {named}: with few clients there, each is drawn more often "
            'than epsilon allows for. Set fleet.draw = "poisson", or privacy.mechanism = "tree".'
        )


def _refuse_method(experiment: Experiment, method: Any, zoo: Zoo) -> None:
    """Refuses methods that need more than the sum of equally weighted models."""
    facts, name = facts_of(method), display_name(method)
    if facts is not None and not facts.sums:
        raise SettingsError(
            f"{ASKS} adds noise to sums, and {name}'s server needs each client's update by itself. Use a method for "
            "which sums suffice, such as fedavg (`potluck list methods`)."
        )
    seen = DrySums(method, zoo, experiment.seed)
    if experiment.privacy.mechanism == "tree" and seen.moving:
        raise SettingsError(
            f'{ASKS} and mechanism = "tree": {name} gives tiers other parts of the model in other rounds, and noise on '
            "sums over rounds cancels only where the same clients are expected in all of them. Set privacy.mechanism = "
            '"gaussian", or use heterofl.'
        )
    if seen.recruits:
        raise SettingsError(
            f"{ASKS}: {name} chooses its own clients, so how often each is drawn is not known. Let the cohort be drawn "
            '(for exclusivefl: method.sampling = "drop").'
        )
    if seen.reads and experiment.fleet.draw == "poisson":
        raise SettingsError(
            f'{ASKS} and fleet.draw = "poisson": {name} counts the clients that took part, and that is not to be seen. '
            'Set fleet.draw = "by_tier", where the number is known.'
        )


class DrySums(DryRun):
    """A dry run that also refuses methods whose server takes more from clients than one sum a round."""

    folds = 0
    reads = False
    """Whether the method reads the replies that a fold returns."""
    moving = False
    """Whether what a tier holds is not the same in all rounds."""

    def _send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            if task.to != SERVER:
                self._check_task(task)
                self._refuse(bool(task.expects.models), f"reads each client's model by itself (in '{task.verb}')")
        return iter(())

    def _fold(
        self,
        tasks: Iterable[Task],
        mean: Mean,
        held: Mapping[str, Selection],
        weigh: Callable[[Reply], Weight] | None = None,
    ) -> Sequence[Reply]:
        self.folds += 1
        self._refuse(self.folds > 1, "adds up updates more than once a round")
        self._refuse(not all(isinstance(part, Part) for part in held.values()), "chooses entries by a client's data")
        for task in tasks:
            self._check_task(task)
            self._refuse(set(task.expects.models) != {"model"}, "adds up more than one model of a client")
            equal = all(_is_one(self.method.weigh(reply, self.zoo), reply.weight) for reply in _two_replies(task))
            self._refuse(not equal, "weighs clients by more than their samples (method.weighting)")
        self._check_parts(held)
        return Replies(self)

    def _check_parts(self, held: Mapping[str, Selection]) -> None:
        """Refuses parts that are not a function of tier and round."""
        assign = getattr(self.method, "assign", None)
        self._refuse(assign is None or not hasattr(self.method, "pick"), "does not say which part each tier holds")
        assert assign is not None
        now = Round(0, self._cohort, len(self._cohort), self.zoo, self._seed, self._send, self._fold, self._recruit)
        later = [replace(now, index=index) for index in LATER]
        for client in self._cohort:
            if client.id in held:
                self.moving |= any(not _same_part(held[client.id], assign(client, then)[1]) for then in later)
                other = assign(Client(f"not {client.id}", client.tier), now)[1]
                draws = not _same_part(held[client.id], other)
                self._refuse(draws, "draws another part for each client (for feddropout: set method.shared_per_round)")

    def _refuse(self, bad: bool, why: str) -> None:
        if bad:
            name = display_name(self.method)
            raise SettingsError(f"{ASKS} adds noise to one sum of equally weighted updates a round, and {name} {why}.")


class Replies(list[Reply]):
    """No replies. It notices if they are read."""

    def __init__(self, seen: DrySums) -> None:
        super().__init__()
        self._seen = seen

    def __iter__(self) -> Iterator[Reply]:
        self._seen.reads = True
        return super().__iter__()

    def __len__(self) -> int:
        self._seen.reads = True
        return super().__len__()


def _two_replies(task: Task) -> list[Reply]:
    """A reply as the server will get them, and one with samples and steps, to see what a method makes of these."""
    models = {"model": task.models["model"]}
    return [Reply(models, task=task), Reply(models, weight=640.0, metrics={"steps": 7}, task=task)]


def _is_one(weight: Weight, samples: float) -> bool:
    """Whether a weight is one for all, or the number of samples, in place of which clients say one."""
    found = weight.values() if isinstance(weight, Mapping) else [weight]
    return all(not isinstance(one, Tensor) and one in (1.0, samples) for one in found)


def _same_part(one: Selection, other: Selection) -> bool:
    """Whether two parts take the same entries."""
    if not isinstance(one, Part) or not isinstance(other, Part) or one.entire != other.entire:
        return False
    return one.places.keys() == other.places.keys() and all(
        place.name == other.places[name].name
        and len(place.dims) == len(other.places[name].dims)
        and all(map(_same_index, place.dims, other.places[name].dims))
        for name, place in one.places.items()
    )


def _same_index(one: Index, other: Index) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and one == other
