"""A worker on another machine: bytes come in and bytes go out."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from potluck.core import Bytes, Spec, UserError, describe, pack_array, unpack_array
from potluck.engines.batch_run import run_batch
from potluck.engines.cluster.messages import pack_message, unpack_tasks
from potluck.engines.context import SimulationContext, TaskEnvelope
from potluck.engines.cuda import Graphs
from potluck.engines.serial import Serial


class ClusterWorker:
    """The actor that a cluster runs. Whatever goes wrong in here is told in bytes, so no exception is sent as such."""

    def __init__(self) -> None:
        self._engine: Serial | Graphs | None = None
        self._specs: dict[Spec, Spec] = {}

    def prepare(self, recipe: Bytes, data: Bytes | None = None) -> Bytes:
        """Makes the simulation, and tells what it found here; or why it cannot be made."""
        try:
            torch.set_num_threads(1)
            self.close()
            plain = unpack_array(recipe)
            if os.path.isdir(plain["folder"]):  # relative paths in settings mean the same as where the run was started
                os.chdir(plain["folder"])
            for path in plain["paths"]:  # last, so that a user's file never replaces a library
                if path not in sys.path and os.path.isdir(path):
                    sys.path.append(path)
            module, _, name = plain["maker"].partition(":")
            context, fingerprint = getattr(importlib.import_module(module), name)(plain["recipe"], data)
            self._engine = _engine(context)
        except BaseException as fault:
            return pack_array({"fault": str(fault) if isinstance(fault, UserError) else describe(fault), **machine()})
        return pack_array({"fault": "", "fingerprint": dict(fingerprint), **machine()})

    def run(self, message: Bytes, *parcels: Bytes) -> Bytes:
        """Runs tasks; returns their results, or a fault of the worker itself."""
        try:
            assert self._engine is not None, "prepare comes first"
            return self._run(self._engine, message, parcels)
        except BaseException as fault:
            return pack_array({"fault": describe(fault)})

    def _run(self, engine: Serial | Graphs, message: Bytes, parcels: Sequence[Bytes]) -> Bytes:
        def read_tasks() -> list[TaskEnvelope]:
            return unpack_tasks(message, parcels, engine.worker.context.method, self._specs)

        if isinstance(engine, Serial):
            return run_batch(engine.worker, read_tasks, pack_message)
        return run_batch(engine.worker, read_tasks, pack_message, lambda envelopes: list(engine.run(envelopes)))

    def close(self) -> None:
        """Frees the simulation that was made before."""
        if self._engine is not None:
            self._engine.close()
            self._engine, self._specs = None, {}


def _engine(context: SimulationContext) -> Serial | Graphs:
    return Graphs(context) if context.hardware != "cpu" else Serial(context)


def machine() -> Mapping[str, Any]:
    """Where a worker runs, and what its numbers may depend on."""
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "build": f"torch {torch.__version__}, numpy {np.__version__}",
        "token": os.environ.get("RAY_AUTH_MODE", "") == "token",
    }
