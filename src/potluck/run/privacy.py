"""Local differential privacy: the noise on clients' updates, and the epsilon that it guarantees. (Noise that the server
adds to sums is in ``central_privacy``.)

The guarantee holds for each client alone. Neighbouring data sets differ in the client's whole data set, for another of
the same size. Two updates that are clipped to the norm C are then at most 2C apart. There is no amplification by
sampling or shuffling, because the server knows whom it asked and sees every single update. Composition is exact: n
uploads reveal as much as one upload with noise smaller by the square root of n.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from potluck.core import SERVER, SettingsError, Task, Zoo, settings
from potluck.engines import LedgerEntry
from potluck.fleet import Clients
from potluck.learn import GaussianMechanism, ServerClip, SumClip
from potluck.ledger import Journal, read_journal
from potluck.run.central_checks import make_server_clip
from potluck.run.central_epsilon import accountant, epsilon_of_shares, noise_for_shares
from potluck.run.dry_run import DryRun, refuse_statistics
from potluck.run.settings import Experiment, Privacy
from potluck.secure.settings import is_protocol

APART = 2.0
"""The largest distance of two clipped updates (the sensitivity), as a multiple of `clip`."""


def make_mechanism(experiment: Experiment, method: Any, zoo: Zoo, population: Clients) -> GaussianMechanism | None:
    """The Gaussian mechanism for all updates, or None without [privacy]; refuses methods that upload anything else."""
    wanted = experiment.privacy
    if not wanted.enabled:
        return None
    accountant()
    refuse_statistics(method, zoo)
    if settings(method).get("label_mask"):
        raise SettingsError("[privacy] and method.label_mask: it shows the server a client's labels; set it to false.")
    together = wanted.where == "server" and experiment.secure.enabled
    if wanted.where == "server" and not together:
        return make_server_clip(experiment, method, zoo, population)
    clip, kind, needed = wanted.clip_at_first, GaussianMechanism, noise
    if together:
        refuse_other_noise(wanted)
        kind, needed = SumClip, noise_for_shares
    seen = DryRun(method, zoo, experiment.seed)
    if wanted.noise is not None:
        return kind(clip, wanted.noise)
    assert wanted.epsilon is not None
    times = 1 if wanted.per == "upload" else max(1, seen.uploads * _most_rounds(experiment, population, seen.recruits))
    return kind(clip, needed(wanted.epsilon, wanted.delta, times))


def refuse_other_noise(wanted: Privacy) -> None:
    """Refuses what only a server that sees single updates can do, if clients add the noise under [secure]."""
    if wanted.mechanism == "tree":
        raise SettingsError(
            '[secure] and [privacy] mechanism = "tree": clients add the noise of each round by themselves, and cannot '
            'take it back later. Set privacy.mechanism = "gaussian".'
        )
    if wanted.clip == "adaptive":
        raise SettingsError(
            '[secure] and [privacy] clip = "adaptive": each client would tell the server whether its update was within '
            "the clip. Give privacy.clip a number."
        )


def guarantee(
    wanted: Privacy, mechanism: GaussianMechanism, uploads: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The guarantee as plain values: for each upload and, if the uploads were counted, for all of them."""
    found: dict[str, Any] = {"clip": mechanism.clip, "noise": mechanism.noise, "delta": wanted.delta}
    if isinstance(mechanism, ServerClip):
        return {"where": wanted.where, "mechanism": wanted.mechanism, **found}
    together = isinstance(mechanism, SumClip)
    spent = epsilon_of_shares if together else epsilon
    if together:
        found = {"where": "clients", "neighbours": "replace-one", **found}
    found["epsilon_each"] = spent(mechanism.noise, wanted.delta, 1)
    if uploads is not None:
        most = max(uploads.values(), default=0)
        found |= {"uploads": most, "epsilon": spent(mechanism.noise, wanted.delta, most)}
    return found


def count_uploads(before: Mapping[str, int], entries: Iterable[LedgerEntry]) -> dict[str, int]:
    """How often each client has uploaded an update, after these tasks; refused and lost updates count too."""
    told = (entry for entry in entries if entry.task.to != SERVER and not is_protocol(entry.task))
    left = (entry.task.to for entry in told if entry.cost.bytes_up or entry.lost)
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
        self.left: list[Mapping[str, Any]] = []
        """The charges that a killed process left, as they are in the ledger."""

    def add(self, task: Task) -> None:
        """Records that this client is asked for an upload."""
        self.write(task.to, task.round)

    def write(self, client: str, index: int, **more: Any) -> None:
        """Records a charge for this client in this round, with more facts."""
        self.number += 1
        self.open[client] += 1
        # Round 0, because a resumed run drops later rounds that are not in its checkpoint, and this has to stay.
        facts = {"number": self.number, "client": client, "of": index + 1, **more}
        self.journal.append({"event": "charge", "round": 0, **facts})
        self.journal.flush()

    def settle(self) -> int:
        """Settles all charges; returns the number of the last one."""
        self.open.clear()
        self.left.clear()
        return self.number

    def restore(self, settled: int) -> None:
        """Reads the charges in the ledger after this number, which a killed process left."""
        self.number = settled
        for event in read_journal(self.journal.path):
            if event.get("event") == "charge" and event["number"] > settled:
                self.open[event["client"]] += 1
                self.left.append(event)
                self.number = max(self.number, event["number"])


@lru_cache(maxsize=1024)
def epsilon(noise: float, delta: float, times: int = 1) -> float:
    """The epsilon of `times` uploads with this noise."""
    if not times:
        return 0.0
    with np.errstate(all="ignore"):
        return float(accountant().get_epsilon_gaussian(noise / APART / math.sqrt(times), delta))


def noise(epsilon: float, delta: float, times: int = 1) -> float:
    """The noise for which `times` uploads have this epsilon."""
    with np.errstate(all="ignore"):
        return float(accountant().get_sigma_gaussian(epsilon, delta)) * APART * math.sqrt(times)


def refuse_other_length(began: Experiment, now: Experiment, path: Path) -> None:
    """Refuses to resume a run with a number of rounds for which its noise was not computed."""
    wanted = began.privacy
    if wanted.epsilon is not None and wanted.per == "run" and now.rounds != began.rounds:
        raise SettingsError(
            f"{path}: privacy.epsilon = {wanted.epsilon:g} is promised for {began.rounds} rounds, and resuming to "
            f"{now.rounds} would break that; start a new run instead."
        )


def _most_rounds(experiment: Experiment, population: Clients, recruits: bool) -> int:
    """The number of rounds of the most often asked client; all rounds if the method chooses its own clients."""
    if recruits or experiment.cohort >= population.clients:
        return experiment.rounds
    asked = Counter(
        client.id for index in range(experiment.rounds) for client in population.cohort(index, experiment.cohort)
    )
    return max(asked.values(), default=0)
