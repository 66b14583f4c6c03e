"""Work that is captured once as a CUDA graph and replayed: launching it piece by piece takes longer than running it."""

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

WARM_UPS = 2
"""Times that work runs as it is before it is captured: libraries set themselves up in them."""


class CudaGraph:
    """One piece of work, captured on the current stream; without a GPU, merely kept as a function."""

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
        # A graph has all it needs; to keep the function as well would keep both alive for ever.
        self._graph, self._work = graph, None

    def replay(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._work is not None:
            self._work()


class CapturePolicy:
    """Whether anything is to be captured for a network."""

    def __init__(self, note: Callable[[str], None], wanted: bool = True) -> None:
        self.wanted = wanted
        self._note = note

    def refuse(self, why: str) -> None:
        """Captures no more for this network."""
        self.wanted = False
        self._note(why)


class GraphCache:
    """Graphs of several kinds of work: each kind runs as it is a few times, then is captured and replayed."""

    def __init__(self, stream: torch.cuda.Stream | None, pool: Any, policy: CapturePolicy) -> None:
        """`pool`: memory for all of it, since no two graphs run at the same time."""
        self._stream, self._pool, self._policy = stream, pool, policy
        self._warm: Counter[Hashable] = Counter()
        self.made: dict[Any, CudaGraph] = {}

    def run(self, kind: Hashable, work: Callable[[], None], patience: int = WARM_UPS) -> None:
        """Runs work of a kind, which must touch the same memory each time; captured after it ran so many times."""
        if kind not in self.made and self._policy.wanted and self._warm[kind] >= patience:
            try:
                self.made[kind] = CudaGraph(work, self._stream, self._pool)
            except RuntimeError as fault:
                self._policy.refuse(str(fault))
        if kind in self.made:
            self.made[kind].replay()
        else:
            self._warm[kind] += 1
            work()


class CapturePool:
    """A stream and memory that captured steps share, for no two of them run at the same time."""

    def __init__(self, hardware: torch.device) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        if hardware.type == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()


class CapturedStep:
    """Work on batches that changes tensors in place, captured once for every size of batch."""

    def __init__(self, work: Callable[[Batch], Tensor], capture_pool: CapturePool) -> None:
        self._work, self.capture_pool = work, capture_pool
        self.policy = CapturePolicy(_warn, wanted=capture_pool.stream is not None)
        self.graphs = GraphCache(capture_pool.stream, capture_pool.pool, self.policy)
        self._inputs: dict[int, Batch] = {}
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Runs the work on a batch; its output. On a GPU, call it on the pool's stream."""
        size = len(batch["x"])
        if size in self._inputs:
            for name, column in self._inputs[size].items():
                column.copy_(batch[name])
        else:
            self._inputs[size] = {name: column.clone() for name, column in batch.items()}
        self.graphs.run(size, partial(self._run, size))
        return self._outputs[size].clone()

    def _run(self, size: int) -> None:
        self._outputs[size] = self._work(self._inputs[size])


def _warn(why: str) -> None:
    short = (why.strip() or "no reason was given").splitlines()[0]
    warnings.warn(f"the server's work is not captured as a CUDA graph and runs step by step: {short}", stacklevel=2)


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """While this lasts, work goes to this stream, if there is one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


@contextlib.contextmanager
def side_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
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
