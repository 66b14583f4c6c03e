"""What a running server says of itself, for `potluck status`: a small file in its run folder."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from potluck.core import InputError, ResourceError
from potluck.federation.host import NodeState
from potluck.ledger import RunFiles, process_in, read_run


class StatusFile:
    """Writes the file, whole or not at all. It is not synced to the disk: it is of no use after a crash."""

    NAME = "status.json"

    def __init__(self, folder: Path) -> None:
        self.path = folder / self.NAME

    def write(self, nodes: Sequence[NodeState], waiting: str, pid: int) -> None:
        """Writes who is there and what the server waits for; before the run folder exists, nothing."""
        if not self.path.parent.is_dir():
            return
        told = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "pid": pid,
            "waiting": waiting,
            "nodes": [asdict(node) for node in nodes],
        }
        part = self.path.with_name(f".{self.NAME}.{pid}")
        part.write_text(json.dumps(told, indent=1))
        os.replace(part, self.path)

    def read(self) -> dict[str, Any]:
        """What the file says; empty if there is none."""
        try:
            found = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def describe(folder: Path) -> dict[str, Any]:
    """What a federation in a run folder does now: a summary, and its nodes."""
    run = _read_federation(folder)
    told, owner = StatusFile(folder).read(), process_in(folder)
    done = max((event.get("round", 0) for event in run.events() if event.get("event") == "round"), default=0)
    state = str(run.manifest.get("status"))
    if state == "running" and owner is None:
        state = "stopped without saving its last round; `potluck server` goes on"
    waiting = f"; waits for {told['waiting']}" if owner is not None and told.get("waiting") else ""
    nodes = told.get("nodes") if owner is not None else None
    return {
        "summary": f"{run.manifest.get('name')}: {state}, {done} of {run.manifest.get('rounds')} rounds{waiting}",
        "status": state,
        "round": done,
        "pid": owner,
        "nodes": [_shown(node) for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else [],
    }


def _read_federation(folder: Path) -> RunFiles:
    run = read_run(folder)
    if "charter" not in run.manifest:
        raise InputError(f"{folder}: a run without nodes; `potluck report` tells about it.")
    return run


def _shown(node: Mapping[str, Any]) -> dict[str, Any]:
    return {name: node.get(name, "") for name in ("name", "state", "tier", "samples", "address", "reason")}


def stop(folder: Path, seconds: float = 60.0) -> str:
    """Asks the server of a run folder to save and stop, and waits for it; returns what happened."""
    _read_federation(folder)
    pid = process_in(folder)
    if pid is None:
        return f"{folder}: no server runs here."
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise ResourceError(f"{folder}: its server (process {pid}) belongs to another user.") from None
    except ProcessLookupError:
        pass  # it has just ended
    until = time.monotonic() + seconds
    while process_in(folder) == pid:
        if time.monotonic() > until:
            raise ResourceError(f"{folder}: its server (process {pid}) is still saving after {seconds:g} s.")
        time.sleep(0.1)
    return f"stopped and saved; go on with the same `potluck server` command (--out {folder})."
