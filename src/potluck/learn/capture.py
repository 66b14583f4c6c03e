"""CUDA graphs: work is captured once and replayed, because launching small kernels takes longer than running them."""

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
"""Times that work runs uncaptured before it is captured, so that libraries can initialise."""


class CudaGraph:
    """One piece of work, captured on the current stream; without a GPU, it is kept as a function."""

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
        # The graph no longer needs the function; keeping it would keep both in memory.
        self._graph, self._work = graph, None

    def replay(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._work is not None:
            self._work()


class CapturePolicy:
    """Whether work for a network is captured."""

    def __init__(self, note: Callable[[str], None], wanted: bool = True) -> None:
        self.wanted = wanted
        self._note = note

    def refuse(self, why: str) -> None:
        """Stops capturing for this network."""
        self.wanted = False
        self._note(why)


class GraphCache:
    """CUDA graphs by kind of work: each kind runs uncaptured a few times, then it is captured and replayed."""

    def __init__(self, stream: torch.cuda.Stream | None, pool: Any, policy: CapturePolicy) -> None:
        """`pool`: the memory pool of all graphs; they can share it because no two run at the same time."""
        self._stream, self._pool, self._policy = stream, pool, policy
        self._warm: Counter[Hashable] = Counter()
        self.made: dict[Any, CudaGraph] = {}

    def run(self, kind: Hashable, work: Callable[[], None], patience: int = WARM_UPS) -> None:
        """Runs work of a kind; after `patience` runs it is captured. It must use the same memory each time."""
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
    """A stream and a memory pool that captured steps share, because no two of them run at the same time."""

    def __init__(self, hardware: torch.device) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        if hardware.type == "cuda":
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self.pool = torch.cuda.graph_pool_handle()


class CapturedStep:
    """Work on batches that changes tensors in place, captured once for each batch size."""

    def __init__(self, work: Callable[[Batch], Tensor], capture_pool: CapturePool) -> None:
        self._work, self.capture_pool = work, capture_pool
        self.policy = CapturePolicy(_warn, wanted=capture_pool.stream is not None)
        self.graphs = GraphCache(capture_pool.stream, capture_pool.pool, self.policy)
        self._inputs: dict[int, Batch] = {}
        self._outputs: dict[int, Tensor] = {}

    def __call__(self, batch: Batch) -> Tensor:
        """Runs the work on a batch and returns its output. On a GPU, call it on the pool's stream."""
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
    """Inside this context, work goes to this stream, if there is one."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


@contextlib.contextmanager
def side_stream(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Inside this context, work goes to this stream. It waits for earlier work, and later work waits for it."""
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
