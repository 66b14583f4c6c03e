"""Client memories: what clients keep between rounds. The version of a memory is the round that saved it.

A memory is one file with a checksum, ``memory/<shard>/<client>@<version>.mem``; 4096 shards by hash keep folders small
for a million clients. The memories of a round are valid once the checkpoint of that round is written. So a killed
`commit` may leave some and not others: `forget_after` removes them before the round is done again. `commit` must be on
the disk before the checkpoint. That takes one fsync per file, after all files of a batch are written (the disk then
flushes many at once), and one per folder.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from potluck.ledger.errors import CheckpointError, os_error, printable
from potluck.ledger.files import (
    InvalidFile,
    make_folder,
    pack_with_checksum,
    read_header,
    read_with_checksum,
    remove,
    sync_folder,
    write_together,
)

_NAME = re.compile(r"([a-z0-9_%A-F~-]*)@(\d{6,})\.mem", re.ASCII)
_SHARD = re.compile(r"[0-9a-f]{3}", re.ASCII)
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_LONGEST = 160
_BATCH = 128  # files open at the same time, well below the usual limit of 1024
_SHARDS_CACHED = 1024

ShardVersions = dict[str, list[int]]
"""The versions of each file name in one shard, oldest first."""


class Memories:
    """The memories of all clients of one run. One process at a time uses them: it caches what the folders hold."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._shards: dict[str, ShardVersions] = {}  # the last used; cost follows the cohort, not the population
        self._with_old_versions: set[str] = set()  # names with more than one version: only these need `prune`
        self._any = folder.exists()  # the clients of most methods have no memory

    def read(self, client: str, version: int | None = None) -> tuple[int, bytes] | None:
        """The newest memory up to this version, as (version, bytes); None if the client has none."""
        if not self._any:
            return None
        name = _name(client)
        versions = self._shard(_shard_of(name)).get(name, [])
        known = len(versions) if version is None else bisect_right(versions, version)
        if not known:
            return None
        newest = versions[known - 1]
        path = self._path(name, newest)
        try:
            return newest, read_with_checksum(path, kind="memory", client=client, version=newest)
        except InvalidFile as fault:
            raise CheckpointError(
                f"{printable(path)}: the memory of client {client!a} cannot be used: {fault}. "
                "Restore the file from a backup, or start a new run with another --out."
            ) from fault

    def commit(self, round: int, staged: Mapping[str, bytes]) -> None:
        """Writes these memories to the disk as version `round`; the checkpoint of that round must follow."""
        if round < 0:
            raise ValueError(f"rounds count from 0; there is no round {round}")
        if not staged:
            return
        waiting, touched = iter(staged.items()), set()
        self._any = True
        try:
            make_folder(self.folder)
            while batch := dict(islice(waiting, _BATCH)):
                touched |= self._write(round, batch)
            self._sync(touched)
        except BaseException:
            self._shards.clear()  # some files may exist and others not: read the folders again
            raise

    def forget_after(self, round: int) -> None:
        """Removes the versions newer than this round, which a resumed run will make again. Looks at every client."""
        touched = set()
        for shard in self._all_shards():
            for name, versions in self._shard(shard).items():
                while versions and versions[-1] > round:
                    remove(self._path(name, versions[-1]))
                    versions.pop()
                    touched.add(shard)
                if len(versions) > 1:
                    self._with_old_versions.add(name)
        self._sync(touched)

    def prune(self, oldest: int) -> None:
        """Removes the versions that no checkpoint from round `oldest` on can need."""
        for name in list(self._with_old_versions):
            versions = self._shard(_shard_of(name)).get(name, [])
            while len(versions) > 1 and versions[1] <= oldest:
                remove(self._path(name, versions[0]))
                versions.pop(0)
            if len(versions) < 2:
                self._with_old_versions.discard(name)

    def clients(self) -> Iterator[str]:
        """Every client that has a memory, one at a time, in no special order."""
        for shard in self._all_shards():
            for name, versions in sorted(self._shard(shard).items()):
                if versions:
                    yield _client(name) if "~" not in name else self._long_client(name, versions[-1])

    def _long_client(self, name: str, version: int) -> str:
        path = self._path(name, version)
        try:
            return str(read_header(path).get("client"))
        except InvalidFile as fault:
            raise CheckpointError(f"{printable(path)}: {fault}. Restore the file from a backup.") from fault

    def _write(self, round: int, batch: Mapping[str, bytes]) -> set[str]:
        """Writes some memories; returns the shards that changed."""
        names = [_name(client) for client in batch]
        shards = {_shard_of(name) for name in names}
        for shard in shards:
            self._make_shard(shard)
        contents = [
            pack_with_checksum(payload, kind="memory", client=client, version=round)
            for client, payload in batch.items()
        ]
        paths = [self._path(name, round) for name in names]
        write_together(list(zip(paths, contents, strict=True)), self.folder)
        for name in names:
            self._add_version(name, round)
        return shards

    def _make_shard(self, shard: str) -> None:
        try:
            (self.folder / shard).mkdir(exist_ok=True)
        except OSError as fault:
            raise os_error(self.folder / shard, "cannot make the folder", fault) from fault

    def _sync(self, shards: Iterable[str]) -> None:
        folders = [self.folder / shard for shard in sorted(shards)]
        for folder in [*folders, self.folder] if folders else []:
            try:
                sync_folder(folder)
            except OSError as fault:
                raise os_error(folder, "cannot write the folder to the disk", fault) from fault

    def _add_version(self, name: str, version: int) -> None:
        versions = self._shard(_shard_of(name)).setdefault(name, [])
        if version not in versions:
            insort(versions, version)
        if len(versions) > 1:
            self._with_old_versions.add(name)

    def _shard(self, shard: str) -> ShardVersions:
        """What a shard holds, read from the disk at its first use."""
        found = self._shards.pop(shard, None)
        if found is None:
            found = self._list(shard)
        self._shards[shard] = found  # at the end of the dict: those at its start were used longest ago
        if len(self._shards) > _SHARDS_CACHED:
            del self._shards[next(iter(self._shards))]
        return found

    def _list(self, shard: str) -> ShardVersions:
        found: ShardVersions = {}
        for file in _listdir(self.folder / shard):
            if match := _NAME.fullmatch(file):
                found.setdefault(match[1], []).append(int(match[2]))
        for versions in found.values():
            versions.sort()
        return found

    def _all_shards(self) -> list[str]:
        return sorted(name for name in _listdir(self.folder) if _SHARD.fullmatch(name))

    def _path(self, name: str, version: int) -> Path:
        return self.folder / _shard_of(name) / f"{name}@{version:06d}.mem"


def _listdir(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise os_error(folder, "cannot list the folder", fault) from fault


def _name(client: str) -> str:
    """A file name for any client id. All but a few lower-case characters are escaped, so that two clients differ even
    on a file system that ignores case or normalises accents. A name that is too long ends in a hash."""
    raw = client.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)
    return name if len(name) <= _LONGEST else f"{name[:80]}~{hashlib.sha256(raw).hexdigest()}"


def _client(name: str) -> str:
    plain, *quoted = name.split("%")
    raw = plain.encode() + b"".join(bytes.fromhex(piece[:2]) + piece[2:].encode() for piece in quoted)
    return raw.decode("utf-8", "surrogatepass")


def _shard_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:3]
