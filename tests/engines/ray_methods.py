"""Methods whose clients end or stop their worker: once, in the middle of a reply, or always."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from potluck.methods import FedAvg


@dataclass(frozen=True)
class Deadly(FedAvg):
    """FedAvg with a client that kills its worker before it replies; with a `mark`, only if that file is not there."""

    client: str = "c0"
    mark: str = ""

    def report(self, task, device, fit):
        if task.to == self.client and first(self.mark):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().report(task, device, fit)


@dataclass(frozen=True)
class Hanging(FedAvg):
    """FedAvg with a client whose worker hangs; with a `mark`, only if that file is not there."""

    client: str = "c0"
    mark: str = ""

    def report(self, task, device, fit):
        while task.to == self.client and first(self.mark):
            time.sleep(60)
        return super().report(task, device, fit)


def first(mark):
    """Whether this is the first time that a mark is looked for; always, without a mark."""
    if not mark:
        return True
    if Path(mark).exists():
        return False
    Path(mark).touch()
    return True
