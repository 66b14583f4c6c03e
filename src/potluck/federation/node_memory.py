"""The memory that a node keeps between rounds, in several versions. It never leaves the node; the server has a receipt.

A version is a file, named by the round that wrote it, by its hash, and by the hash of the version that it was made
from. A task names the version to start from: the server may have gone back to an earlier checkpoint.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from potluck.core import STORED, MessageError, pack, unpack
from potluck.ledger import DamagedRecord, read_regular, remove_partial_files, write_atomically

_NAME = re.compile(r"(\d{9})-([0-9a-f]{64})(?:-([0-9a-f]{64}))?\.memory")


class Version(NamedTuple):
    """One file of a memory."""

    round: int
    sha256: str
    before: str
    """The hash of the version that it was made from; empty if there was none."""
    path: Path


class NodeMemory:
    """The versions of a node's memory in one run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove_partial_files(folder)

    def save(self, round: int, memory: Mapping[str, Any], tier: str, before: str = "") -> dict[str, Any]:
        """Writes a version, and returns its receipt: all that the server gets."""
        data = pack(dict(memory))
        name = hashlib.sha256(data).hexdigest()
        write_atomically(self.folder / f"{round:09d}-{name}{before and f'-{before}'}.memory", data)
        return {"sha256": name, "bytes": len(data), "tier": tier}

    def load(self, receipt: Mapping[str, Any], tier: str) -> dict[str, Any] | None:
        """The version of this receipt; None if it is not here, is damaged, or is of another tier's network."""
        if receipt.get("tier") != tier:
            return None
        for version in self._versions():
            if version.sha256 == receipt.get("sha256") and (found := _read(version)) is not None:
                return found
        return None

    def prune(self, named: str, round: int, oldest: int, keep: Collection[str] = ()) -> None:
        """Removes versions that the server cannot name any more.

        A task of `round` names one; that one, and those that it was made from, are the server's history. The server can
        go back to its oldest checkpoint, and so to the last one that was written before round `oldest`.
        """
        versions = list(self._versions())
        needed = self._history(versions, named, oldest)
        if named and not needed:  # it is not here: nothing is known of the others
            return
        for version in versions:
            old = version.round != round if named else version.round < min(oldest, round)
            if old and version.sha256 not in needed and version.sha256 not in keep:
                version.path.unlink(missing_ok=True)

    def _history(self, versions: Collection[Version], named: str, oldest: int) -> set[str]:
        found: set[str] = set()
        ahead = [named]
        while ahead:
            at = ahead.pop()
            here = [version for version in versions if version.sha256 == at and at not in found]
            found |= {version.sha256 for version in here}
            ahead += [version.before for version in here if version.round >= oldest]
        return found

    def _versions(self) -> Iterator[Version]:
        for path in sorted(self.folder.iterdir()):
            if named := _NAME.fullmatch(path.name):
                yield Version(int(named[1]), named[2], named[3] or "", path)


def _read(version: Version) -> dict[str, Any] | None:
    """The memory in a file; None if it is damaged."""
    try:
        data = read_regular(version.path)
        found = unpack(data, STORED) if hashlib.sha256(data).hexdigest() == version.sha256 else None
    except (MessageError, DamagedRecord, OSError):
        return None
    return found if isinstance(found, dict) else None
