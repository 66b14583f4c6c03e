"""Client memories: what clients keep between rounds. The version of a memory is the round that saved it.

The memories of a round are one file, a pack: ``memory/round-<round>.pack``. It begins with an index, sorted by client,
which has a checksum. Then come the memories, each with a checksum of its own. A pack is written completely or not at
all, and it is valid once the checkpoint of its round is written: `forget_after` removes the packs of a round that will
be done again.

Packs that every checkpoint is newer than are *old*. Of an old pack only the newest memory of each client is needed. A
pack without any is removed; one that is mostly waste is written anew; and if there are many, neighbours are merged. A
merged pack has the name of its newer half and replaces it, and then the older half is removed. So a kill at any moment
leaves every memory, at most twice. What is done depends only on the files and on the oldest checkpoint, so a run that
was killed and resumed ends with the same files.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

from potluck.ledger.errors import CheckpointError, os_error, printable
from potluck.ledger.files import (
    InvalidFile,
    list_subfolder,
    make_subfolder,
    open_checked,
    pack_with_checksum,
    read_header,
    read_payload,
    remove,
    sync_folder,
    write_stream,
)

MOST_OLD_PACKS = 16
"""If there are more old packs than this, some are merged."""

_NAME = re.compile(r"round-(\d{6,})\.pack", re.ASCII)
_RECORD = struct.Struct("<16sQQQ")
_KEY_BYTES = 16
_CHUNK = 1 << 20


class Entry(NamedTuple):
    """A record of an index: a hash of the client's id, and where behind the index its memory is."""

    key: bytes
    version: int
    start: int
    length: int


class Totals(NamedTuple):
    """Two sums that show whether memories are missing: without one, its client has none or an older version."""

    clients: int = 0
    versions: int = 0
    """The newest version of every client, summed."""


class Pack:
    """One file of memories. Its index is read and checked at its first use, and kept: 40 bytes for each client."""

    def __init__(self, path: Path, round: int) -> None:
        self.path, self.round = path, round
        self.waste = 0
        """Bytes of memories that no checkpoint needs any more."""

    def __len__(self) -> int:
        return len(self._index) // _RECORD.size

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry._make, _RECORD.iter_unpack(self._index))

    def keys(self) -> Iterator[bytes]:
        """The key of every entry, in order."""
        return map(itemgetter(0), _RECORD.iter_unpack(self._index))

    def entry(self, position: int) -> Entry:
        return Entry._make(_RECORD.unpack_from(self._index, position * _RECORD.size))

    def find(self, key: bytes) -> int | None:
        """The position of a client's entry; None if there is none."""
        index, width = self._index, _RECORD.size
        at = bisect_left(range(len(self)), key, key=lambda n: index[n * width : n * width + _KEY_BYTES])
        return at if index[at * width : at * width + _KEY_BYTES] == key else None

    @cached_property
    def needed(self) -> bytearray:
        """For each entry, 1 if a checkpoint may need it and 0 if not."""
        return bytearray(b"\1") * len(self)

    @property
    def size(self) -> int:
        """Bytes of all memories, without the index."""
        return self._loaded[2]

    def release(self, position: int) -> None:
        """Notes that no checkpoint needs this entry any more."""
        if self.needed[position]:
            self.needed[position] = 0
            self.waste += self.entry(position).length

    def read(self, client: str, entry: Entry) -> bytes:
        """A client's memory; an error if it is damaged or another client's."""
        with self.errors_of(client), open_checked(self.path) as file:
            end = self.seek(file, entry) + entry.length
            header = read_header(file, kind="memory", client=client, version=entry.version)
            return read_payload(file, header, min(end, os.fstat(file.fileno()).st_size) - file.tell())

    def client_of(self, entry: Entry) -> str:
        """The id of the client whose memory this is."""
        with self.errors_of(), open_checked(self.path) as file:
            self.seek(file, entry)
            client = read_header(file, kind="memory", version=entry.version).get("client")
            if not isinstance(client, str) or _key(client) != entry.key:
                raise InvalidFile("its index names another client")
            return client

    def copy(self, file: BinaryIO, entry: Entry) -> Iterator[bytes]:
        """The bytes of a memory as they are in the file; if they are damaged, that shows when the memory is read."""
        self.seek(file, entry)
        left = entry.length
        while left:
            chunk = file.read(min(left, _CHUNK))
            if not chunk:
                raise InvalidFile("it is shorter than its index says")
            left -= len(chunk)
            yield chunk

    def seek(self, file: BinaryIO, entry: Entry) -> int:
        """Goes to a memory in the opened file; returns where that is."""
        if entry.start + entry.length > self.size:
            raise InvalidFile("its index is damaged")
        return file.seek(self._loaded[1] + entry.start)

    @property
    def _index(self) -> bytes:
        return self._loaded[0]

    @cached_property
    def _loaded(self) -> tuple[bytes, int, int]:
        """The index, where the memories begin, and how many bytes they have."""
        with self.errors_of(), open_checked(self.path) as file:
            header = read_header(file, kind="memories", round=self.round)
            size = header.get("memories")
            if type(size) is not int or size < 0:
                raise InvalidFile("its header is damaged")
            index = read_payload(file, header, os.fstat(file.fileno()).st_size - file.tell() - size)
            if len(index) % _RECORD.size:
                raise InvalidFile("its index is damaged")
            return index, file.tell(), size

    @contextmanager
    def errors_of(self, client: str | None = None) -> Iterator[None]:
        """Turns `InvalidFile` into an error that names the file and the remedy."""
        try:
            yield
        except InvalidFile as fault:
            whose = "it" if client is None else f"the memory of client {client!a}"
            raise CheckpointError(
                f"{printable(self.path)}: {whose} cannot be used: {fault}. "
                "Restore the file from a backup, or start a new run with another --out."
            ) from fault


Source = tuple[Entry, Pack | Sequence[bytes]]
"""A memory to write into a pack: the pack that holds it, or its bytes. The entry's start counts only in that pack."""


class Memories:
    """The memories of all clients of one run. One process at a time uses them: it caches the indices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listed: list[Pack] | None = None
        self._totals: Totals | None = None
        self._marked: int | None = None  # up to this round, packs are old and `needed` says what is needed of them

    def read(self, client: str, version: int | None = None) -> tuple[int, bytes] | None:
        """The newest memory up to this version, as (version, bytes); None if the client has none."""
        found = self._find(_key(client), version) if self._packs() else None
        return None if found is None else (found[1].version, found[0].read(client, found[1]))

    def commit(self, round: int, staged: Mapping[str, bytes]) -> None:
        """Writes these memories to the disk as version `round`; the checkpoint of that round must follow."""
        if round < 0:
            raise ValueError(f"rounds count from 0; there is no round {round}")
        if not staged:
            return
        sources: dict[bytes, Source] = {}
        for pack in self._packs():
            if pack.round == round:  # an earlier commit of this round
                sources |= {entry.key: (entry, pack) for entry in pack}
        totals = self.totals()
        for client, payload in staged.items():
            pieces = pack_with_checksum(payload, kind="memory", client=client, version=round)
            key = _key(client)
            sources[key] = (Entry(key, round, 0, sum(map(len, pieces))), pieces)
            before = self._find(key)
            gained = round - before[1].version if before else round
            totals = Totals(totals.clients + (before is None), totals.versions + gained)
        make_subfolder(self.folder)
        self._write(round, list(sources.values()))
        self._totals = totals

    def totals(self, up_to: int | None = None) -> Totals:
        """The sums over all clients' newest memories; with `up_to`, newer versions do not count."""
        if up_to is None and self._totals is not None:
            return self._totals
        packs = [pack for pack in self._packs() if up_to is None or pack.round <= up_to]
        clients = versions = 0
        for *_, (pack, position) in _by_client(packs):
            clients, versions = clients + 1, versions + pack.entry(position).version
        found = Totals(clients, versions)
        if up_to is None:
            self._totals = found
        return found

    def forget_after(self, round: int) -> None:
        """Removes the versions newer than this round, which a resumed run will make again."""
        if newer := [pack for pack in self._packs() if pack.round > round]:
            self._remove(newer)
            self._totals = None

    def prune(self, oldest: int) -> None:
        """Removes versions that no checkpoint from round `oldest` on can need, as soon as that is worth a write."""
        old = [pack for pack in self._packs() if pack.round <= oldest]
        if self._marked is None:
            for group in _by_client(old):
                for pack, position in group[:-1]:
                    pack.release(position)
        else:
            for at, pack in enumerate(old):
                if pack.round > self._marked:
                    _release_all(pack.keys(), old[:at])
        if self._marked is None or (old and old[-1].round > self._marked):
            self._marked = oldest
            self._tidy(oldest)

    def clients(self) -> Iterator[str]:
        """Every client that has a memory, one at a time, in no special order."""
        for *_, (pack, position) in _by_client(self._packs()):
            yield pack.client_of(pack.entry(position))

    def _tidy(self, oldest: int) -> None:
        """Removes, rewrites and merges old packs until all are in order."""
        while old := [pack for pack in self._packs() if pack.round <= oldest]:
            if unused := [pack for pack in old if not any(pack.needed)]:
                self._remove(unused)
            elif wasteful := [pack for pack in old if pack.waste * 2 > pack.size]:
                self._merge(wasteful[:1])
            elif len(old) > MOST_OLD_PACKS:
                self._merge(min(map(list, pairwise(old)), key=lambda two: sum(pack.size - pack.waste for pack in two)))
            else:
                return

    def _merge(self, packs: list[Pack]) -> None:
        """Writes what is needed of these neighbours into one pack, in place of the newest of them."""
        sources: list[Source] = [
            (entry, pack) for pack in packs for entry, needed in zip(pack, pack.needed, strict=True) if needed
        ]
        self._write(packs[-1].round, sources)
        self._remove(packs[:-1])

    def _write(self, round: int, sources: list[Source]) -> None:
        """Writes a pack, in place of any other of this round."""
        index, size = [], 0
        for entry, _ in sources:
            index.append(_RECORD.pack(entry.key, entry.version, size, entry.length))
            size += entry.length
        head = pack_with_checksum(b"".join(sorted(index)), kind="memories", round=round, memories=size)
        new = Pack(self.folder / _name(round), round)
        write_stream(new.path, _joined(_pieces(head, sources)), size + sum(map(len, head)))
        others = [pack for pack in self._packs() if pack.round != round]
        self._listed = sorted([*others, new], key=lambda pack: pack.round)

    def _remove(self, packs: Sequence[Pack]) -> None:
        if not packs:
            return
        for pack in packs:
            remove(pack.path)
        self._listed = [pack for pack in self._packs() if pack not in packs]
        try:
            sync_folder(self.folder)
        except OSError as fault:
            raise os_error(self.folder, "cannot write the folder to the disk", fault) from fault

    def _find(self, key: bytes, version: int | None = None) -> tuple[Pack, Entry] | None:
        for pack in reversed(self._packs()):
            position = pack.find(key)
            if position is not None and (version is None or pack.entry(position).version <= version):
                return pack, pack.entry(position)
        return None

    def _packs(self) -> list[Pack]:
        """All packs, by round. A client's version in one is never newer than in a later one."""
        if self._listed is None:
            names = list_subfolder(self.folder)
            rounds = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
            self._listed = [Pack(self.folder / _name(each), each) for each in sorted(rounds) if _name(each) in names]
        return self._listed


def _pieces(head: Sequence[bytes], sources: Sequence[Source]) -> Iterator[bytes]:
    """The bytes of a pack, one piece after another."""
    yield from head
    with ExitStack() as stack:
        files: dict[Pack, BinaryIO] = {}
        for entry, source in sources:
            if not isinstance(source, Pack):
                yield from source
                continue
            with source.errors_of():
                if source not in files:
                    files[source] = stack.enter_context(open_checked(source.path))
                yield from source.copy(files[source], entry)


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces: a system call for each memory would take longer than the memory."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _by_client(packs: Sequence[Pack]) -> Iterator[list[tuple[Pack, int]]]:
    """For each client, its entries in these packs as (pack, position), in the order of the packs."""
    streams = (zip(pack.keys(), [at] * len(pack), range(len(pack)), strict=True) for at, pack in enumerate(packs))
    for _, group in groupby(heapq.merge(*streams), key=itemgetter(0)):
        yield [(packs[at], position) for _, at, position in group]


def _release_all(keys: Iterator[bytes], older: Sequence[Pack]) -> None:
    """Notes that of these clients no checkpoint needs the newest entry in the older packs any more."""
    for key in keys:
        for pack in reversed(older):
            position = pack.find(key)
            if position is not None:
                pack.release(position)
                break


def _key(client: str) -> bytes:
    return hashlib.sha256(client.encode("utf-8", "surrogatepass")).digest()[:_KEY_BYTES]


def _name(round: int) -> str:
    return f"round-{round:06d}.pack"
