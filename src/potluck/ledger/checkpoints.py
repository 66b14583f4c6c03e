"""Checkpoints: the state after a round, in files whose checksum is verified before use.

The file is ``checkpoints/round-<round>.ckpt``, with six digits or more, and a file with a checksum (see below). Its
header has ``kind`` = "checkpoint", the ``round``, the ``mark`` of the run, and ``needs``: how many bytes of the
journals and how many memories belong to it. The payload is one message (docs/wire.md) with the method's state, the
newest scores and the progress: totals, strikes, counted uploads. Nothing in it is pickled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from potluck.ledger.errors import CheckpointError, printable
from potluck.ledger.files import (
    ForeignFile,
    InvalidFile,
    list_subfolder,
    make_subfolder,
    pack_with_checksum,
    read_with_checksum,
    remove,
    write_atomically,
)

_NAME = re.compile(r"round-(\d{6,})\.ckpt", re.ASCII)
_VALID, _BROKEN, _FOREIGN = "valid", "broken", "foreign"


class Checkpoints:
    """The checkpoints of one run; the newest `keep` are kept.

    `mark` identifies model and settings: a checkpoint with another mark is never loaded, and never removed either.
    """

    def __init__(self, folder: Path, mark: str, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"a run keeps at least 1 checkpoint, not {keep}")
        self.folder = folder
        self.mark = mark
        self.keep = keep
        self._known: dict[int, str] = {}  # valid, broken or foreign; so that a file is verified only once
        self._needs: dict[int, dict[str, int]] = {}

    def write(self, round: int, payload: bytes, needs: Mapping[str, int] | None = None) -> Path:
        """Writes the state after this round, then removes older ones. When this returns, it is on the disk.

        `needs`: what else the run folder holds by now, see `needs`.
        """
        if round < 0:
            raise ValueError(f"rounds count from 0; there is no round {round}")
        make_subfolder(self.folder)
        path = self._path(round)
        facts = {"kind": "checkpoint", "round": round, "mark": self.mark, "needs": dict(needs or {})}
        write_atomically(path, *pack_with_checksum(payload, **facts))
        self._known[round] = _VALID
        self.prune(spare=round)
        return path

    def latest(self, warn: Callable[[str], None]) -> tuple[int, bytes] | None:
        """The newest valid checkpoint, as (round, payload); None if there has never been one.

        `warn` is called for each newer one that is not valid. If none is valid, that is an error: to start again from
        the beginning without a word would throw the run away.
        """
        listed = self._list()
        for round in reversed(listed):
            try:
                payload = self._load(round)
            except InvalidFile as fault:
                warn(f"skipped {printable(self._path(round))}: {fault}")
            else:
                return round, payload
        if listed:
            raise CheckpointError(
                f"{printable(self.folder)}: none of {len(listed)} checkpoints can be used. "
                "Restore one from a backup, or start a new run with another --out."
            )
        return None

    def needs(self, round: int) -> Mapping[str, int]:
        """What the run folder must hold besides this valid checkpoint, as it was when the checkpoint was written."""
        if round not in self._needs:
            self._load(round)
        return self._needs[round]

    def rounds(self) -> list[int]:
        """The rounds with a valid checkpoint, oldest first."""
        return [round for round in self._list() if self._status(round) == _VALID]

    def prune(self, spare: int | None = None) -> None:
        """Removes checkpoints older than the newest `keep` valid ones and older than `spare`."""
        kept = [*self.rounds()[-self.keep :], *([] if spare is None else [spare])]
        for round in self._list():
            if kept and round < min(kept) and self._status(round) != _FOREIGN:
                remove(self._path(round))
                self._known.pop(round, None)

    def _status(self, round: int) -> str:
        if round not in self._known:
            with suppress(InvalidFile):  # `_load` notes which kind it is
                self._load(round)
        return self._known[round]

    def _load(self, round: int) -> bytes:
        try:
            header, payload = read_with_checksum(self._path(round), kind="checkpoint", round=round, mark=self.mark)
            self._needs[round] = _checked_needs(header.get("needs"))
        except InvalidFile as fault:
            self._known[round] = _FOREIGN if isinstance(fault, ForeignFile) else _BROKEN
            raise
        self._known[round] = _VALID
        return payload

    def _list(self) -> list[int]:
        names = list_subfolder(self.folder)
        rounds = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        return sorted(round for round in rounds if self._path(round).name in names)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.ckpt"


def _checked_needs(found: object) -> dict[str, int]:
    if not isinstance(found, dict) or any(type(number) is not int for number in found.values()):
        raise InvalidFile("its header is damaged")
    return found
