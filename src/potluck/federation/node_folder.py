"""What a node keeps in its folder: the charters that it agreed to, its memory, its last model, and the audit log."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from potluck.core import Bytes
from potluck.federation.audit import AuditLog
from potluck.federation.charter import Charter
from potluck.federation.node_memory import NodeMemory
from potluck.ledger import read_regular, write_atomically

_RUN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Served:
    """The model that a node would use now, as the server last sent it to be scored."""

    charter: str
    round: int
    """Rounds that were done."""
    tier: str
    labels: Sequence[int]
    """The classes that the node has: its own model may depend on them."""
    receipt: Mapping[str, Any]
    """Of the memory that goes with it; empty if there was none."""
    model: str
    """The mark of the model; empty if the method has none for this node on the server."""


class NodeFolder:
    """The folder of a node. Nothing in it leaves the node."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.audit = AuditLog(path / "audit.jsonl")

    def memory(self, charter: Charter) -> NodeMemory:
        """The memory of the run that a charter is for."""
        run = str(charter.plain.get("run"))
        return NodeMemory(self.path / "memory" / (run if _RUN.fullmatch(run) else "unknown"))

    def agreement(self, charter: str) -> Mapping[str, Any]:
        """What was agreed to under a charter before; empty if it was not, or if the file is damaged."""
        found = self._read(f"charters/{charter}.json") if charter.isalnum() else {}
        plain = found.get("charter")
        return found if isinstance(plain, dict) and Charter(plain).hash == charter else {}

    def keep_agreement(self, charter: Charter, **facts: Any) -> None:
        """Writes down what was agreed to, so that a restarted node need not ask again."""
        (self.path / "charters").mkdir(exist_ok=True, mode=0o700)
        text = json.dumps({"charter": charter.plain, **facts}, indent=1)
        write_atomically(self.path / "charters" / f"{charter.hash}.json", text.encode())

    def keep_served(self, found: Served, part: Bytes | None) -> None:
        """Keeps the model that the server sent to be scored, in the place of the last one."""
        before = self.served()
        if part is not None and (before is None or before.model != found.model):
            write_atomically(self.path / f"served-{found.model}.model", part.tobytes())
        write_atomically(self.path / "served.json", json.dumps(asdict(found)).encode())
        for path in self.path.glob("served-*.model"):
            if path.name != f"served-{found.model}.model":
                path.unlink(missing_ok=True)

    def served(self) -> Served | None:
        """The last model that the server sent to be scored; None if there was none yet."""
        with suppress(TypeError):
            return Served(**found) if (found := self._read("served.json")) else None
        return None

    def served_part(self, found: Served) -> bytes:
        """The bytes of that model."""
        return read_regular(self.path / f"served-{found.model}.model")

    def _read(self, name: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads((self.path / name).read_bytes())
            return found if isinstance(found, dict) else {}
        return {}
