"""A cohort on one GPU: every client's local step is recorded once as a CUDA graph, and many are played side by side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

import torch

from potluck.core import Fit
from potluck.engines.batched import BatchedFits
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.cuda.trainer import CapturedTrainer, play, recipe
from potluck.engines.worker import Worker
from potluck.learn import CapturePolicy, FitJob

TRACKS = 4
"""Ways of training that a network keeps ready; the one that was used longest ago makes room."""
CHANGES = 12
"""A network whose ways of training change more often than this is not worth recording."""
LANES = 30
"""Streams in all. What was recorded on a stream is played on it, for libraries keep scratch memory by stream."""


class Graphs:
    """Trains a cohort side by side on one GPU, every local step recorded once as a CUDA graph and then played."""

    def __init__(self, context: SimulationContext, workers: int = 1) -> None:
        torch.set_num_threads(1)
        self.notes: list[str] = []
        self.site = Worker(context)
        self.together = BatchedFits(self.site, self.grant)
        self._slots: dict[int, Slot] = {}
        self._lanes: list[torch.cuda.Stream] = []
        if self.site.hardware.type == "cuda":
            self._lanes = [torch.cuda.Stream() for _ in range(LANES)]  # type: ignore[no-untyped-call]
        self._said: set[str] = set()

    def carry(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        rest = iter(envelopes)
        while chosen := list(islice(rest, max(self.site.context.streams, 1))):
            if any(envelope.task.verb == "score" for envelope in chosen):  # nothing is fitted
                yield from map(self.site.answer, chosen)
            else:
                yield from self.together.answer(chosen)

    def close(self) -> None:
        self.together.close()
        self._slots.clear()
        self.site.close()

    def grant(self, jobs: Sequence[FitJob]) -> list[Fit | Exception]:
        """Does fits side by side; what cannot be recorded is done by itself."""
        found: dict[int, Fit | Exception] = {}
        tracks: dict[int, CapturedTrainer] = {}
        for at, job in enumerate(jobs):
            try:
                track = self._track(job)
                if track is None:
                    found[at] = job.granted()
                else:
                    track.load(job)
                    tracks[at] = track
            except Exception as fault:
                found[at] = fault
        faults = play(list(tracks.values()))
        means = torch.stack([track.mean() for track in tracks.values()]).tolist() if tracks else []
        for (at, track), mean in zip(tracks.items(), means, strict=True):
            found[at] = faults.get(track) or track.fit(mean)
        return [found[at] for at in range(len(jobs))]

    def _track(self, job: FitJob) -> CapturedTrainer | None:
        """The track for a wish; None: it is to be granted by itself."""
        if not job.local.count(len(job.examples)):
            return None
        slot = self._slots.get(id(job.net))
        if slot is None:
            lane = self._lane(noisy=job.noise is not None)
            slot = self._slots[id(job.net)] = Slot(lane, CapturePolicy(self._tell))
        try:
            return slot.track(job, self.site.resident(job.examples))
        except TypeError as fault:
            self._tell(str(fault))
            return None

    def _lane(self, noisy: bool) -> torch.cuda.Stream | None:
        """A stream for the next network. Noisy ones share the first: graphs read torch's generator at one place."""
        if not self._lanes:
            return None
        return self._lanes[0 if noisy else 1 + len(self._slots) % (LANES - 1)]

    def _tell(self, why: str) -> None:
        """Notes a reason for which something is not recorded, once."""
        short = why.strip().splitlines()[0] if why.strip() else "no reason was given"
        if short not in self._said:
            self._said.add(short)
            self.notes.append(f"some local training is not recorded and runs at its usual speed: {short}")


class Slot:
    """A live network on the GPU, with the ways of training it that were last used."""

    def __init__(self, lane: torch.cuda.Stream | None, recordings: CapturePolicy) -> None:
        self.lane, self.recordings = lane, recordings
        self._tracks: OrderedDict[Hashable, CapturedTrainer] = OrderedDict()
        self._changes = 0

    def track(self, job: FitJob, resident: bool) -> CapturedTrainer | None:
        """The track for this wish; None once a network's ways have changed too often."""
        key = recipe(job, resident)
        if key not in self._tracks:
            if self._changes >= CHANGES:
                self.recordings.refused("its losses or edits are new again and again")
                return None
            self._changes += 1
            self._tracks[key] = CapturedTrainer(job, resident, self.lane, self.recordings)
            if len(self._tracks) > TRACKS:
                self._tracks.popitem(last=False)
        self._tracks.move_to_end(key)
        return self._tracks[key]
