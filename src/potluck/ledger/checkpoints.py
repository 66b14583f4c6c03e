"""Checkpoints: the state after a round, as bytes that are checked before they are believed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from potluck.ledger.errors import CheckpointError, refused, shown
from potluck.ledger.files import make_folder, remove, write_atomically
from potluck.ledger.sealed import Foreign, Unsound, seal, unseal

_NAME = re.compile(r"round-(\d{6,})\.ckpt", re.ASCII)
_VALID, _BROKEN, _FOREIGN = "valid", "broken", "foreign"


class Checkpoints:
    """The checkpoints of one run, of which the newest `keep` stay.

    `mark` identifies model and settings: a checkpoint with another mark is never loaded, and never removed either.
    """

    def __init__(self, folder: Path, mark: str, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"a run keeps at least 1 checkpoint, not {keep}")
        self.folder = folder
        self.mark = mark
        self.keep = keep
        self._known: dict[int, str] = {}  # so that a file is verified once, not at every round

    def write(self, round: int, payload: bytes) -> Path:
        """Save the state after this round, then let go of older ones. It counts once this returns."""
        if round < 0:
            raise ValueError(f"rounds count from 0; there is no round {round}")
        make_folder(self.folder)
        path = self._path(round)
        write_atomically(path, *seal(payload, kind="checkpoint", round=round, mark=self.mark))
        self._known[round] = _VALID
        self.prune(spare=round)
        return path

    def latest(self, warn: Callable[[str], None]) -> tuple[int, bytes] | None:
        """The newest checkpoint that verifies, as (round, payload); None where there has never been one.

        Each newer one that does not verify is named to `warn`. If none does, that is an error: starting over
        in silence would throw a run away.
        """
        listed = self._listed()
        for round in reversed(listed):
            try:
                payload = self._payload(round)
            except Unsound as fault:
                warn(f"skipped {shown(self._path(round))}: {fault}")
            else:
                return round, payload
        if listed:
            raise CheckpointError(
                f"{shown(self.folder)}: none of {len(listed)} checkpoints can be used. "
                "Restore one from a backup, or start a new run with another --out."
            )
        return None

    def rounds(self) -> list[int]:
        """The rounds that could be resumed from, oldest first."""
        return [round for round in self._listed() if self._standing(round) == _VALID]

    def prune(self, spare: int | None = None) -> None:
        """Remove what is older than the newest `keep` that verify, and than the one to spare."""
        kept = [*self.rounds()[-self.keep :], *([] if spare is None else [spare])]
        for round in self._listed():
            if kept and round < min(kept) and self._standing(round) != _FOREIGN:
                remove(self._path(round))
                self._known.pop(round, None)

    def _standing(self, round: int) -> str:
        if round not in self._known:
            with suppress(Unsound):  # `_payload` notes which kind it is
                self._payload(round)
        return self._known[round]

    def _payload(self, round: int) -> bytes:
        try:
            payload = unseal(self._path(round), kind="checkpoint", round=round, mark=self.mark)
        except Unsound as fault:
            self._known[round] = _FOREIGN if isinstance(fault, Foreign) else _BROKEN
            raise
        self._known[round] = _VALID
        return payload

    def _listed(self) -> list[int]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as fault:
            raise refused(self.folder, "cannot list the folder", fault) from fault
        rounds = {int(match[1]) for name in names if (match := _NAME.fullmatch(name))}
        return sorted(round for round in rounds if self._path(round).name in names)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.ckpt"
