"""Work that is recorded once and played again: on a GPU, where launching it piece by piece takes longer than it."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from potluck.core import Batch

WARM = 2
"""Times that work is done as it is, before it is recorded: libraries set themselves up in them."""


class Tape:
    """One piece of work, recorded on the current stream; without a GPU, merely remembered."""

    def __init__(self, work: Callable[[], None], stream: torch.cuda.Stream | None, pool: Any) -> None:
        self._work: Callable[[], None] | None = work
        self._graph: torch.cuda.CUDAGraph | None = None
        if stream is None:
            return
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
        # A graph has all it needs; to keep what was recorded as well would keep both alive for ever.
        self._graph, self._work = graph, None

    def play(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._work is not None:
            self._work()


class Studio:
    """Where reels are recorded: a stream and memory that they share, for no two run at the same time."""

    def __init__(self, hardware: torch.device) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        if hardware.type == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()


class Reel:
    """Work on batches that changes tensors in place, recorded once for every size of batch."""

    def __init__(self, work: Callable[[Batch], Tensor], studio: Studio) -> None:
        self._work, self.studio = work, studio
        self.wanted = studio.stream is not None
        self._warm: Counter[int] = Counter()
        self._tapes: dict[int, tuple[Tape, Batch, list[Tensor]]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Does the work on a batch; what it gives. On a GPU to be called on the studio's stream."""
        size = len(batch["x"])
        if self.wanted and size not in self._tapes and self._warm[size] >= WARM:
            self._record(size, batch)
        if size not in self._tapes:
            self._warm[size] += 1
            return self._work(batch)
        tape, place, given = self._tapes[size]
        for name, column in place.items():
            column.copy_(batch[name])
        tape.play()
        return given[-1].clone()

    def _record(self, size: int, batch: Batch) -> None:
        place, given = {name: column.clone() for name, column in batch.items()}, list[Tensor]()
        try:
            self._tapes[size] = self._taped(place, given), place, given
        except RuntimeError as fault:
            self.wanted = False
            short = (str(fault).strip() or "no reason was given").splitlines()[0]
            warnings.warn(f"the server's work is not recorded and runs at its usual speed: {short}", stacklevel=2)

    def _taped(self, place: Batch, given: list[Tensor]) -> Tape:
        return Tape(lambda: given.append(self._work(place)), self.studio.stream, self.studio.pool)


def on(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """While this lasts, work goes to this stream, if there is one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


@contextlib.contextmanager
def aside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """While this lasts, work goes to this stream, after what was begun before, and what follows waits for it."""
    if stream is None:
        yield
        return
    before = torch.cuda.current_stream()
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)
