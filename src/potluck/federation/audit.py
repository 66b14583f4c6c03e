"""The audit log of a node: a line for everything that leaves it, written before it leaves."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from potluck.core import Reply, Task
from potluck.engines.remote import Parts
from potluck.secure.settings import AGREE, KEYS, OPEN, REQUEST, SHARES


class AuditLog:
    """Appends to a file of JSON lines. If a line cannot be written, nothing may be sent: the error goes through."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, what: str, parts: Parts, **facts: Any) -> None:
        """Records a message that is about to leave."""
        total = hashlib.sha256()
        for part in parts:
            total.update(part.data)
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "what": what,
            "bytes": sum(len(part) for part in parts),
            "sha256": total.hexdigest(),
            **facts,
        }
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            data = json.dumps(line, ensure_ascii=False).encode() + b"\n"
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):  # the disk is full: no half lines
                os.ftruncate(descriptor, before)
                raise OSError(28, "No space left on device", str(self.path))
        finally:
            os.close(descriptor)


def contents(reply: Reply, task: Task) -> Mapping[str, Any]:
    """What a reply holds, in words: models and tensors by name with their numbers of entries, and names of metrics. Of
    a secure sum also what these are."""
    tensors = {name: tensor.numel() for name, tensor in reply.arrays.items()}
    models = {
        key: {"network": model.spec.family, "numbers": sum(tensor.numel() for tensor in model.arrays.values())}
        for key, model in reply.models.items()
    }
    secure = {"secure": _secure_words(reply, task)} if REQUEST in task.config else {}
    return {"models": models, "tensors": tensors, "weight": reply.weight, "metrics": sorted(reply.metrics), **secure}


def _secure_words(reply: Reply, task: Task) -> str:
    """What leaves in a phase of a secure sum."""
    words = {
        KEYS: "new public keys for one secure sum, signed with this node's key",
        SHARES: f"shares of this node's masks, encrypted for {len(reply.arrays.get('shares', ()))} other nodes",
        AGREE: "a signature under who uploaded to this secure sum",
        OPEN: "shares of masks, so that the server can read the sum, and no single update",
    }
    masked = reply.arrays.get("masked")
    return words.get(task.verb) or f"a masked upload of {0 if masked is None else masked.numel()} numbers"
