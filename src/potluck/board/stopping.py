"""Stops a run: sends its process the signal of Ctrl-C, so that it saves and can be resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from potluck.ledger import owner_of, process_in


class Refused(Exception):
    """The run is not stopped; the text says why."""


class Stops:
    """Sends each process one signal: a second one would end it at once, without saving."""

    def __init__(self) -> None:
        self._told: set[tuple[Path, int, int]] = set()

    def stop(self, path: Path) -> None:
        """Asks the process that runs in this folder, on this machine, to save and stop."""
        owner = owner_of(path)
        if owner is None:
            raise Refused("no process runs here.")
        if not owner.here:
            raise Refused(f"it runs on another machine ({owner.host}).")
        told = (path, owner.pid, _locked_at(path))
        if told in self._told:
            raise Refused("it was asked to stop already, and is saving.")
        # The handle is taken first: if the lock is held after that, it is held by the process of the handle.
        try:
            handle = os.pidfd_open(owner.pid) if hasattr(os, "pidfd_open") else None
        except OSError:
            raise Refused("it has just ended.") from None
        try:
            if process_in(path) != owner.pid:
                raise Refused("it has just ended.")
            self._told.add(told)
            if handle is None:
                os.kill(owner.pid, signal.SIGINT)
            else:
                signal.pidfd_send_signal(handle, signal.SIGINT)
        except ProcessLookupError:
            raise Refused("it has just ended.") from None
        except PermissionError:
            raise Refused(f"its process ({owner.pid}) belongs to another user.") from None
        finally:
            if handle is not None:
                os.close(handle)


def _locked_at(path: Path) -> int:
    """When the process wrote its name into the lock: the same one may resume its run later."""
    try:
        return os.lstat(path / "lock").st_mtime_ns
    except OSError:
        raise Refused("it has just ended.") from None
