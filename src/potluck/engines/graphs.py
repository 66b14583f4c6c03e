"""A cohort on one GPU: every client's local step is recorded once as a CUDA graph, and many are played side by side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice

import torch

from potluck.core import Fit
from potluck.engines.site import Site
from potluck.engines.together import Together
from potluck.engines.tracks import Track, play, recipe
from potluck.engines.world import Letter, Outcome, World
from potluck.learn import Recordings, Wish

TRACKS = 4
"""Ways of training that a network keeps ready; the one that was used longest ago makes room."""
CHANGES = 12
"""A network whose ways of training change more often than this is not worth recording."""
LANES = 30
"""Streams in all. What was recorded on a stream is played on it, for libraries keep scratch memory by stream."""


class Graphs:
    """Trains a cohort side by side on one GPU, every local step recorded once as a CUDA graph and then played."""

    def __init__(self, world: World, workers: int = 1) -> None:
        torch.set_num_threads(1)
        self.notes: list[str] = []
        self.site = Site(world)
        self.together = Together(self.site, self.grant)
        self._slots: dict[int, Slot] = {}
        self._lanes: list[torch.cuda.Stream] = []
        if self.site.hardware.type == "cuda":
            self._lanes = [torch.cuda.Stream() for _ in range(LANES)]  # type: ignore[no-untyped-call]
        self._said: set[str] = set()

    def carry(self, letters: Iterable[Letter]) -> Iterator[Outcome]:
        rest = iter(letters)
        while chosen := list(islice(rest, max(self.site.world.streams, 1))):
            if any(letter.task.verb == "score" for letter in chosen):  # nothing is fitted
                yield from map(self.site.answer, chosen)
            else:
                yield from self.together.answer(chosen)

    def close(self) -> None:
        self.together.close()
        self._slots.clear()
        self.site.close()

    def grant(self, wishes: Sequence[Wish]) -> list[Fit | Exception]:
        """Does fits side by side; what cannot be recorded is done by itself."""
        found: dict[int, Fit | Exception] = {}
        tracks: dict[int, Track] = {}
        for at, wish in enumerate(wishes):
            try:
                track = self._track(wish)
                if track is None:
                    found[at] = wish.granted()
                else:
                    track.load(wish)
                    tracks[at] = track
            except Exception as fault:
                found[at] = fault
        faults = play(list(tracks.values()))
        means = torch.stack([track.mean() for track in tracks.values()]).tolist() if tracks else []
        for (at, track), mean in zip(tracks.items(), means, strict=True):
            found[at] = faults.get(track) or track.fit(mean)
        return [found[at] for at in range(len(wishes))]

    def _track(self, wish: Wish) -> Track | None:
        """The track for a wish; None: it is to be granted by itself."""
        if not wish.local.count(len(wish.examples)):
            return None
        slot = self._slots.get(id(wish.net))
        if slot is None:
            lane = self._lane(noisy=wish.noise is not None)
            slot = self._slots[id(wish.net)] = Slot(lane, Recordings(self._tell))
        try:
            return slot.track(wish, self.site.resident(wish.examples))
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

    def __init__(self, lane: torch.cuda.Stream | None, recordings: Recordings) -> None:
        self.lane, self.recordings = lane, recordings
        self._tracks: OrderedDict[Hashable, Track] = OrderedDict()
        self._changes = 0

    def track(self, wish: Wish, resident: bool) -> Track | None:
        """The track for this wish; None once a network's ways have changed too often."""
        key = recipe(wish, resident)
        if key not in self._tracks:
            if self._changes >= CHANGES:
                self.recordings.refused("its losses or edits are new again and again")
                return None
            self._changes += 1
            self._tracks[key] = Track(wish, resident, self.lane, self.recordings)
            if len(self._tracks) > TRACKS:
                self._tracks.popitem(last=False)
        self._tracks.move_to_end(key)
        return self._tracks[key]
