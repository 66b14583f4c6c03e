"""What is promised to clients whose updates get noise: how much of it, and what it comes to as an epsilon.

The promise is local and to each client, whose whole data set may be exchanged for any other of the same size: two
updates that are cut to a length C lie at most 2C apart. Nothing is gained from being asked seldom or from being one of
many, for the server knows whom it asked and sees every update by itself. Noise upon noise adds up exactly: n uploads
tell as much as one with noise smaller by the square root of n.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from potluck.core import (
    SERVER,
    Client,
    Mean,
    Newborn,
    Reply,
    Round,
    Selection,
    SettingsError,
    Task,
    UserError,
    Weight,
    Zoo,
    display_name,
    settings,
    stream,
)
from potluck.engines import LedgerEntry
from potluck.fleet import Population
from potluck.learn import GaussianMechanism
from potluck.run.settings import Experiment, Privacy

APART = 2.0
"""How far two updates may lie apart, in lengths of the clip."""
MISSING = "[privacy] needs dp-accounting to reckon with: pip install 'potluck[privacy]'"


def make_mechanism(experiment: Experiment, method: Any, zoo: Zoo, population: Population) -> GaussianMechanism | None:
    """What every update goes through, if [privacy] asks for it; refuses what would leave devices beside updates."""
    wanted = experiment.privacy
    if not wanted.wanted:
        return None
    _accountant()
    _refuse_statistics(method, zoo)
    if settings(method).get("label_mask"):
        raise SettingsError("[privacy] and method.label_mask: it tells the server a client's labels; set it to false.")
    seen = DryRun(method, zoo, experiment.seed)
    if wanted.noise is not None:
        return GaussianMechanism(wanted.clip, wanted.noise)
    assert wanted.epsilon is not None
    times = 1 if wanted.per == "upload" else max(1, seen.uploads * _rounds(experiment, population, seen.recruits))
    return GaussianMechanism(wanted.clip, noise(wanted.epsilon, wanted.delta, times))


def guarantee(
    wanted: Privacy, mechanism: GaussianMechanism, uploads: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The promise as plain values: for each upload and, once it is known how often clients did, for all of them."""
    found: dict[str, Any] = {"clip": mechanism.clip, "noise": mechanism.noise, "delta": wanted.delta}
    found["epsilon_each"] = epsilon(mechanism.noise, wanted.delta)
    if uploads is not None:
        most = max(uploads.values(), default=0)
        found |= {"uploads": most, "epsilon": epsilon(mechanism.noise, wanted.delta, most)}
    return found


def count_uploads(before: Mapping[str, int], entries: Iterable[LedgerEntry]) -> dict[str, int]:
    """How often each client's update has left its device, after these tasks; refused ones left it too."""
    left = Counter(entry.task.to for entry in entries if entry.cost.bytes_up and entry.task.to != SERVER)
    return dict(Counter(before) + left)


@lru_cache(maxsize=1024)
def epsilon(noise: float, delta: float, times: int = 1) -> float:
    """What so many uploads with this noise come to."""
    if not times:
        return 0.0
    with np.errstate(all="ignore"):
        return float(_accountant().get_epsilon_gaussian(noise / APART / math.sqrt(times), delta))


def noise(epsilon: float, delta: float, times: int = 1) -> float:
    """The noise with which so many uploads come to this."""
    with np.errstate(all="ignore"):
        return float(_accountant().get_sigma_gaussian(epsilon, delta)) * APART * math.sqrt(times)


def refuse_other_length(began: Experiment, now: Experiment, path: Path) -> None:
    """Refuses to resume a run to another number of rounds than its noise was reckoned for."""
    wanted = began.privacy
    if wanted.epsilon is not None and wanted.per == "run" and now.rounds != began.rounds:
        raise SettingsError(
            f"{path}: privacy.epsilon = {wanted.epsilon:g} is promised for {began.rounds} rounds, and resuming to "
            f"{now.rounds} would break that; start a new run instead."
        )


def _accountant() -> Any:
    """The package that reckons, which is an extra."""
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise SettingsError(MISSING) from None


def _refuse_statistics(method: Any, zoo: Zoo) -> None:
    """Refuses networks whose statistics of a client's data would have to leave its device as they are."""
    asked = settings(method).get("bn_eval", "batch") != "batch"
    for spec in dict.fromkeys([zoo.full, *(tier.spec for tier in zoo.tiers)]):
        net = zoo.build(Newborn(spec), stream(0, "blank"))
        gathers = any(getattr(layer, "running_mean", None) is not None for layer in net.modules())
        if gathers or (asked and zoo.counting(spec) != spec):
            raise SettingsError(
                f"[privacy] and {spec.family}: batch norm gathers statistics of a client's data, which are no part of "
                'an update; set norm = "group" where the model is named.'
            )


def _rounds(experiment: Experiment, population: Population, recruits: bool) -> int:
    """In how many rounds the client that is asked most often takes part; all, where the method chooses for itself."""
    if recruits or experiment.cohort >= population.clients:
        return experiment.rounds
    asked = Counter(
        client.id for index in range(experiment.rounds) for client in population.cohort(index, experiment.cohort)
    )
    return max(asked.values(), default=0)


class DryRun:
    """A first round with a client of each tier, none of whom answers: what the method asks them for is looked at."""

    def __init__(self, method: Any, zoo: Zoo, seed: int) -> None:
        self.method, self.zoo = method, zoo
        self.recruits = False
        """Whether the method chooses its clients for itself."""
        self._asked: Counter[str] = Counter()
        self._closing = False
        self._cohort = [Client(f"c{number}", tier) for number, tier in enumerate(zoo.tiers)]
        now = Round(0, self._cohort, len(self._cohort), zoo, seed, self._send, self._fold, self._recruit)
        state = method.init(zoo, stream(seed, "init"))
        for act in (method.round, method.ready):
            try:
                act(state, now)
            except UserError:
                raise
            except Exception:  # not every method bears that nobody answers; by then it has asked
                pass
            self._closing = True

    @property
    def uploads(self) -> int:
        """How often a client's update leaves its device in a round, at most."""
        return max(self._asked.values(), default=0)

    def _send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            if task.to != SERVER:
                self._look(task)
        return iter(())

    def _fold(
        self, tasks: Iterable[Task], mean: Mean, held: Mapping[str, Selection], weigh: Callable[[Reply], Weight]
    ) -> Sequence[Reply]:
        return list(self._send(tasks))

    def _recruit(self, wanted: Callable[[Client], bool]) -> Sequence[Client]:
        self.recruits = True
        return [client for client in self._cohort if wanted(client)]

    def _look(self, task: Task) -> None:
        expected = task.expects
        beside = [*expected.arrays, *(expected.models if self._closing else ())]
        unknown = [key for key in expected.models if key not in task.models or isinstance(task.models[key], Newborn)]
        if beside or unknown:
            raise SettingsError(
                f"[privacy] puts noise on updates of models; {display_name(self.method)}'s clients also upload "
                f"'{(beside or unknown)[0]}' (in '{task.verb}'), which would leave as it is. Take a method that "
                "uploads models alone, such as fedavg."
            )
        self._asked[task.to] += bool(expected.models)
