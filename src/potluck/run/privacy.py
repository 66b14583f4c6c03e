"""Local differential privacy: the noise on clients' updates, and the epsilon that it guarantees.

The guarantee holds for each client alone. Neighbouring data sets differ in the client's whole data set, for another of
the same size. Two updates that are clipped to the norm C are then at most 2C apart. There is no amplification by
sampling or shuffling, because the server knows whom it asked and sees every single update. Composition is exact: n
uploads reveal as much as one upload with noise smaller by the square root of n.
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
from potluck.fleet import Clients
from potluck.learn import GaussianMechanism
from potluck.ledger import Journal, read_journal
from potluck.run.settings import Experiment, Privacy

APART = 2.0
"""The largest distance of two clipped updates (the sensitivity), as a multiple of `clip`."""
MISSING = "[privacy] needs the package dp-accounting: pip install 'potluck[privacy]'"


def make_mechanism(experiment: Experiment, method: Any, zoo: Zoo, population: Clients) -> GaussianMechanism | None:
    """The Gaussian mechanism for all updates, or None without [privacy]; refuses methods that upload anything else."""
    wanted = experiment.privacy
    if not wanted.enabled:
        return None
    _accountant()
    _refuse_statistics(method, zoo)
    if settings(method).get("label_mask"):
        raise SettingsError("[privacy] and method.label_mask: it shows the server a client's labels; set it to false.")
    seen = DryRun(method, zoo, experiment.seed)
    if wanted.noise is not None:
        return GaussianMechanism(wanted.clip, wanted.noise)
    assert wanted.epsilon is not None
    times = 1 if wanted.per == "upload" else max(1, seen.uploads * _most_rounds(experiment, population, seen.recruits))
    return GaussianMechanism(wanted.clip, noise(wanted.epsilon, wanted.delta, times))


def guarantee(
    wanted: Privacy, mechanism: GaussianMechanism, uploads: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The guarantee as plain values: for each upload and, if the uploads were counted, for all of them."""
    found: dict[str, Any] = {"clip": mechanism.clip, "noise": mechanism.noise, "delta": wanted.delta}
    found["epsilon_each"] = epsilon(mechanism.noise, wanted.delta)
    if uploads is not None:
        most = max(uploads.values(), default=0)
        found |= {"uploads": most, "epsilon": epsilon(mechanism.noise, wanted.delta, most)}
    return found


def count_uploads(before: Mapping[str, int], entries: Iterable[LedgerEntry]) -> dict[str, int]:
    """How often each client has uploaded an update, after these tasks; refused and lost updates count too."""
    left = (entry.task.to for entry in entries if entry.task.to != SERVER and (entry.cost.bytes_up or entry.lost))
    return dict(Counter(before) + Counter(left))


class Charges:
    """Uploads that clients were asked for, written into the ledger before they are asked.

    When a round is committed, or an attempt at it has failed, what was uploaded is counted and the charges are settled.
    If the process is killed before that, the next one counts every charge that was not settled: too many rather than
    too few.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.number = 0
        self.open: Counter[str] = Counter()
        """The charges that are not settled yet, by client."""

    def add(self, task: Task) -> None:
        """Records that this client is asked for an upload."""
        self.number += 1
        self.open[task.to] += 1
        # Round 0, because a resumed run drops later rounds that are not in its checkpoint, and this has to stay.
        facts = {"number": self.number, "client": task.to, "of": task.round + 1}
        self.journal.append({"event": "charge", "round": 0, **facts})
        self.journal.flush()

    def settle(self) -> int:
        """Settles all charges; returns the number of the last one."""
        self.open.clear()
        return self.number

    def restore(self, settled: int) -> None:
        """Reads the charges in the ledger after this number, which a killed process left."""
        self.number = settled
        for event in read_journal(self.journal.path):
            if event.get("event") == "charge" and event["number"] > settled:
                self.open[event["client"]] += 1
                self.number = max(self.number, event["number"])


@lru_cache(maxsize=1024)
def epsilon(noise: float, delta: float, times: int = 1) -> float:
    """The epsilon of `times` uploads with this noise."""
    if not times:
        return 0.0
    with np.errstate(all="ignore"):
        return float(_accountant().get_epsilon_gaussian(noise / APART / math.sqrt(times), delta))


def noise(epsilon: float, delta: float, times: int = 1) -> float:
    """The noise for which `times` uploads have this epsilon."""
    with np.errstate(all="ignore"):
        return float(_accountant().get_sigma_gaussian(epsilon, delta)) * APART * math.sqrt(times)


def refuse_other_length(began: Experiment, now: Experiment, path: Path) -> None:
    """Refuses to resume a run with a number of rounds for which its noise was not computed."""
    wanted = began.privacy
    if wanted.epsilon is not None and wanted.per == "run" and now.rounds != began.rounds:
        raise SettingsError(
            f"{path}: privacy.epsilon = {wanted.epsilon:g} is promised for {began.rounds} rounds, and resuming to "
            f"{now.rounds} would break that; start a new run instead."
        )


def _accountant() -> Any:
    """The package dp_accounting, which is an optional dependency."""
    try:
        return importlib.import_module("dp_accounting")
    except ImportError:
        raise SettingsError(MISSING) from None


def _refuse_statistics(method: Any, zoo: Zoo) -> None:
    """Refuses batch norm networks: their statistics of a client's data would leave the device without noise."""
    asked = settings(method).get("bn_eval", "batch") != "batch"
    for spec in dict.fromkeys([zoo.full, *(tier.spec for tier in zoo.tiers)]):
        net = zoo.build(Newborn(spec), stream(0, "blank"))
        gathers = any(getattr(layer, "running_mean", None) is not None for layer in net.modules())
        if gathers or (asked and zoo.counting(spec) != spec):
            raise SettingsError(
                f"[privacy] and {spec.family}: batch norm gathers statistics of a client's data, which are no part of "
                'an update; set norm = "group" where the model is named.'
            )


def _most_rounds(experiment: Experiment, population: Clients, recruits: bool) -> int:
    """The number of rounds of the most often asked client; all rounds if the method chooses its own clients."""
    if recruits or experiment.cohort >= population.clients:
        return experiment.rounds
    asked = Counter(
        client.id for index in range(experiment.rounds) for client in population.cohort(index, experiment.cohort)
    )
    return max(asked.values(), default=0)


class DryRun:
    """Calls the method's first round with one client per tier, none of which answers, to see what it asks them for."""

    def __init__(self, method: Any, zoo: Zoo, seed: int) -> None:
        self.method, self.zoo = method, zoo
        self.recruits = False
        """Whether the method chooses its own clients."""
        self._asked: Counter[str] = Counter()
        self._closing = False
        self._cohort = [Client(f"c{number}", tier) for number, tier in enumerate(zoo.tiers)]
        now = Round(
            *(0, self._cohort, len(self._cohort), zoo, seed, self._send, self._fold, self._recruit),
            everyone=lambda: iter(self._cohort),
        )
        state = method.init(zoo, stream(seed, "init"))
        for act in (method.round, method.ready):
            try:
                act(state, now)
            except UserError:
                raise
            except Exception:  # some methods fail if nobody answers, but by then they have sent their tasks
                pass
            self._closing = True

    @property
    def uploads(self) -> int:
        """The most updates that one client uploads in a round."""
        return max(self._asked.values(), default=0)

    def _send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            if task.to != SERVER:
                self._check_task(task)
        return iter(())

    def _fold(
        self,
        tasks: Iterable[Task],
        mean: Mean,
        held: Mapping[str, Selection],
        weigh: Callable[[Reply], Weight] | None = None,
    ) -> Sequence[Reply]:
        return list(self._send(tasks))

    def _recruit(self, wanted: Callable[[Client], bool]) -> Sequence[Client]:
        self.recruits = True
        return [client for client in self._cohort if wanted(client)]

    def _check_task(self, task: Task) -> None:
        expected = task.expects
        beside = [*expected.arrays, *(expected.models if self._closing else ())]
        unknown = [key for key in expected.models if key not in task.models or isinstance(task.models[key], Newborn)]
        if beside or unknown:
            raise SettingsError(
                f"[privacy] adds noise to model updates; {display_name(self.method)}'s clients also upload "
                f"'{(beside or unknown)[0]}' (in '{task.verb}'), which would leave without noise. Use a method "
                "that uploads only models, such as fedavg."
            )
        self._asked[task.to] += bool(expected.models)
