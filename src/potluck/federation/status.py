"""What a running server says of itself, for `potluck status`: a small file in its run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from potluck.federation.host import NodeState


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
