"""The memory that a node keeps between rounds, in several versions. It never leaves the node; the server has a receipt.

A version is a file, named by the round that wrote it and by its hash. A task names the version to start from: the
server may have gone back to an earlier checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from potluck.core import STORED, MessageError, pack, unpack
from potluck.ledger import DamagedRecord, read_regular, remove_partial_files, write_atomically

_NAME = re.compile(r"(\d{9})-([0-9a-f]{64})\.memory")


class NodeMemory:
    """The versions of a node's memory, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_partial_files(folder)

    def save(self, round: int, memory: Mapping[str, Any], tier: str) -> dict[str, Any]:
        """Writes a version, and returns its receipt: all that the server gets."""
        data = pack(dict(memory))
        name = hashlib.sha256(data).hexdigest()
        write_atomically(self.folder / f"{round:09d}-{name}.memory", data)
        return {"sha256": name, "bytes": len(data), "tier": tier}

    def load(self, receipt: Mapping[str, Any], tier: str) -> dict[str, Any] | None:
        """The version of this receipt; None if it is not here, is damaged, or is of another tier's network."""
        wanted = receipt.get("sha256")
        if receipt.get("tier") != tier:
            return None
        for path in self._versions().get(str(wanted), ()):
            try:
                data = read_regular(path)
                if hashlib.sha256(data).hexdigest() == wanted and isinstance(found := unpack(data, STORED), dict):
                    return found
            except (MessageError, DamagedRecord, OSError):
                continue
        return None

    def prune(self, oldest: int) -> None:
        """Removes versions that no checkpoint of the server can ask for: those before the last one up to `oldest`."""
        rounds = sorted({int(_NAME.fullmatch(path.name)[1]) for paths in self._versions().values() for path in paths})  # type: ignore[index]
        before = [round for round in rounds if round <= oldest]
        for paths in self._versions().values():
            for path in paths:
                if before and int(path.name[:9]) < before[max(len(before) - 2, 0)]:
                    path.unlink(missing_ok=True)

    def newest(self) -> dict[str, Any] | None:
        """The newest version, for an export on the node; None if there is none."""
        files = sorted((path for paths in self._versions().values() for path in paths), key=lambda path: path.name)
        for path in reversed(files):
            data = read_regular(path)
            if isinstance(found := unpack(data, STORED), dict):
                return found
        return None

    def _versions(self) -> dict[str, list[Path]]:
        """The files of every version, by hash."""
        found: dict[str, list[Path]] = {}
        for path in self.folder.iterdir():
            if named := _NAME.fullmatch(path.name):
                found.setdefault(named[2], []).append(path)
        return found
