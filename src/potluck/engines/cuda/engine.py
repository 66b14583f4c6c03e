"""A cohort on one GPU: local steps are captured once as CUDA graphs and replayed for many clients side by side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

import torch

from potluck.core import Fit, client_fault
from potluck.engines.context import SimulationContext, TaskEnvelope, TaskResult
from potluck.engines.cuda.trainer import CapturedTrainer, capture_key, replay
from potluck.engines.worker import Worker
from potluck.learn import CapturePolicy, FitJob, run_fit

TRAINERS = 4
"""Captured trainers kept for each network; the least recently used one is dropped."""
CHANGES = 12
"""A network that needs more new trainers than this is no longer captured."""
STREAMS = 30
"""The number of CUDA streams. A graph is replayed on its own stream, as libraries keep workspaces per stream."""


class Graphs:
    """Trains a cohort side by side on one GPU: every local step is captured once as a CUDA graph and then replayed."""

    def __init__(self, context: SimulationContext, workers: int = 1) -> None:
        torch.set_num_threads(1)
        self.notes: list[str] = []
        self.worker = Worker(context)
        self._trainers: dict[int, NetworkTrainers] = {}
        self._streams: list[torch.cuda.Stream] = []
        if self.worker.hardware.type == "cuda":
            self._streams = [torch.cuda.Stream() for _ in range(STREAMS)]  # type: ignore[no-untyped-call]
        self._noted: set[str] = set()

    def run(self, envelopes: Iterable[TaskEnvelope]) -> Iterator[TaskResult]:
        rest = iter(envelopes)
        while chosen := list(islice(rest, max(self.worker.context.streams, 1))):
            yield from self.worker.run_side_by_side(chosen, self.run_fits)

    def close(self) -> None:
        self._trainers.clear()
        self.worker.close()

    def run_fits(self, jobs: Sequence[FitJob]) -> list[Fit | BaseException]:
        """Runs fit jobs side by side; a job that cannot be captured runs alone."""
        found: dict[int, Fit | BaseException] = {}
        trainers: dict[int, CapturedTrainer] = {}
        for at, job in enumerate(jobs):
            try:
                trainer = self._trainer(job)
                if trainer is None:
                    found[at] = run_fit(job)
                else:
                    trainer.load(job)
                    trainers[at] = trainer
            except BaseException as fault:
                found[at] = client_fault(fault)
        faults = replay(list(trainers.values()))
        means = torch.stack([trainer.mean_loss() for trainer in trainers.values()]).tolist() if trainers else []
        for (at, trainer), mean in zip(trainers.items(), means, strict=True):
            found[at] = faults.get(trainer) or trainer.result(mean)
        return [found[at] for at in range(len(jobs))]

    def _trainer(self, job: FitJob) -> CapturedTrainer | None:
        """The captured trainer for a job; None: the job runs alone."""
        if not job.local.count(len(job.examples)):
            return None
        trainers = self._trainers.get(id(job.net))
        if trainers is None:
            stream = self._stream(noisy=job.noise is not None)
            trainers = self._trainers[id(job.net)] = NetworkTrainers(stream, CapturePolicy(self._note))
        try:
            return trainers.find(job, self.worker.resident(job.examples))
        except TypeError as fault:
            self._note(str(fault))
            return None

    def _stream(self, noisy: bool) -> torch.cuda.Stream | None:
        """A stream for the next network. Networks with dropout share the first, as they share torch's generator."""
        if not self._streams:
            return None
        return self._streams[0 if noisy else 1 + len(self._trainers) % (STREAMS - 1)]

    def _note(self, why: str) -> None:
        """Notes the reason why something is not captured; each reason once."""
        short = why.strip().splitlines()[0] if why.strip() else "no reason was given"
        if short not in self._noted:
            self._noted.add(short)
            self.notes.append(f"some local training is not captured as a CUDA graph and runs step by step: {short}")


class NetworkTrainers:
    """The captured trainers of one live network, the most recently used ones."""

    def __init__(self, stream: torch.cuda.Stream | None, policy: CapturePolicy) -> None:
        self.stream, self.policy = stream, policy
        self._trainers: OrderedDict[Hashable, CapturedTrainer] = OrderedDict()
        self._changes = 0

    def find(self, job: FitJob, resident: bool) -> CapturedTrainer | None:
        """The trainer for this job; None if the network has needed too many trainers."""
        key = capture_key(job, resident)
        if key not in self._trainers:
            if self._changes >= CHANGES:
                self.policy.refuse("its losses or edits are new again and again")
                return None
            self._changes += 1
            self._trainers[key] = CapturedTrainer(job, resident, self.stream, self.policy)
            if len(self._trainers) > TRAINERS:
                self._trainers.popitem(last=False)
        self._trainers.move_to_end(key)
        return self._trainers[key]
