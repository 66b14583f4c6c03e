"""Work that is recorded once and played again: on a GPU, where launching it piece by piece takes longer than it."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from potluck.core import Batch

WARM = 2
"""Times that work is done as it is, before it is recorded: libraries set themselves up in them."""


class CudaGraph:
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


class CapturePolicy:
    """Whether anything is to be recorded for a network."""

    def __init__(self, tell: Callable[[str], None], wanted: bool = True) -> None:
        self.wanted = wanted
        self._tell = tell

    def refused(self, why: str) -> None:
        """No more is recorded for this network."""
        self.wanted = False
        self._tell(why)


class GraphCache:
    """Work of several kinds, each done as it is a few times, then recorded, and played from then on."""

    def __init__(self, stream: torch.cuda.Stream | None, pool: Any, recordings: CapturePolicy) -> None:
        """`pool`: memory for all of it, since no two tapes run at the same time."""
        self._stream, self._pool, self._recordings = stream, pool, recordings
        self._warm: Counter[Hashable] = Counter()
        self.made: dict[Any, CudaGraph] = {}

    def do(self, kind: Hashable, work: Callable[[], None], patience: int = WARM) -> None:
        """Work of a kind, which must touch the same places each time; recorded after it was done so many times."""
        if kind not in self.made and self._recordings.wanted and self._warm[kind] >= patience:
            try:
                self.made[kind] = CudaGraph(work, self._stream, self._pool)
            except RuntimeError as fault:
                self._recordings.refused(str(fault))
        if kind in self.made:
            self.made[kind].play()
        else:
            self._warm[kind] += 1
            work()


class CapturePool:
    """Where reels are recorded: a stream and memory that they share, for no two run at the same time."""

    def __init__(self, hardware: torch.device) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        if hardware.type == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()


class CapturedStep:
    """Work on batches that changes tensors in place, recorded once for every size of batch."""

    def __init__(self, work: Callable[[Batch], Tensor], capture_pool: CapturePool) -> None:
        self._work, self.capture_pool = work, capture_pool
        self.recordings = CapturePolicy(_warned, wanted=capture_pool.stream is not None)
        self.tapes = GraphCache(capture_pool.stream, capture_pool.pool, self.recordings)
        self._places: dict[int, Batch] = {}
        self._given: dict[int, Tensor] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Does the work on a batch; what it gives. On a GPU to be called on the studio's stream."""
        size = len(batch["x"])
        if size in self._places:
            for name, column in self._places[size].items():
                column.copy_(batch[name])
        else:
            self._places[size] = {name: column.clone() for name, column in batch.items()}
        self.tapes.do(size, partial(self._done, size))
        return self._given[size].clone()

    def _done(self, size: int) -> None:
        self._given[size] = self._work(self._places[size])


def _warned(why: str) -> None:
    short = (why.strip() or "no reason was given").splitlines()[0]
    warnings.warn(f"the server's work is not recorded and runs at its usual speed: {short}", stacklevel=2)


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
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        before.wait_stream(stream)
