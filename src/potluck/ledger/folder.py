"""The run folder: everything that is known of one run, and all that is needed to go on with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from potluck.ledger.checkpoints import Checkpoints
from potluck.ledger.errors import FolderError, LedgerError, refused, shown
from potluck.ledger.files import make_folder, sweep, write_atomically
from potluck.ledger.journal import Journal
from potluck.ledger.lock import Lock
from potluck.ledger.memories import Memories
from potluck.ledger.record import (
    EVENTS,
    FEATURES,
    MANIFEST,
    SCHEMA,
    SCORES,
    SETTINGS,
    manifest_bytes,
    read_manifest,
    read_settings,
)

_CHECKPOINTS, _MEMORY = "checkpoints", "memory"
_OURS = ("schema", "mark", "keep")


class RunFolder:
    """A run that is being written. Only one process at a time has it, from `create` or `open` to `close`."""

    def __init__(self, path: Path, lock: Lock, mark: str, keep: int) -> None:
        self.path = path
        self.mark = mark
        self.journal = Journal(path / EVENTS)
        self.scores = Journal(path / SCORES)
        self.checkpoints = Checkpoints(path / _CHECKPOINTS, mark, keep)
        self.memories = Memories(path / _MEMORY)
        self._lock = lock

    @classmethod
    def create(cls, path: Path, settings: str, manifest: Mapping[str, Any], mark: str, keep: int = 2) -> RunFolder:
        """A new run in a folder that holds none.

        `mark` identifies model and settings (see `Checkpoints`); it and `keep` are noted in the manifest, for `open`.
        """
        make_folder(path)
        lock = Lock(path / "lock")
        try:
            _refuse_another_run(path, settings)
            folder = cls(path, lock, mark, keep)
            folder._sweep()
            write_atomically(path / SETTINGS, settings.encode())
            # Last, because the manifest is what makes it a run: one killed before this can simply be started again.
            folder._write_manifest(manifest)
            return folder
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A run that was stopped or killed, to go on with; call `rewind` next."""
        read_manifest(path)  # before the lock, which would leave a file in a folder that is not a run
        lock = Lock(path / "lock")
        try:
            manifest = read_manifest(path)
            folder = cls(path, lock, str(manifest["mark"]), int(manifest["keep"]))
            folder._sweep()
            return folder
        except BaseException:
            lock.release()
            raise

    def commit(self, round: int, payload: bytes, memories: Mapping[str, bytes] | None = None) -> None:
        """Finish a round: what clients remember, the journals and, last, the state after it (the payload).

        The checkpoint is what counts: the rest reaches the disk before it, and `rewind` drops the rest without it. So
        events and scores of a round belong in the journals before this is called.
        """
        self.prepare(round, memories or {})
        self.checkpoints.write(round, payload)
        self.prune()

    def prepare(self, round: int, memories: Mapping[str, bytes]) -> None:
        """Put on the disk what a checkpoint of this round rests on; `checkpoints.write` and `prune` are to follow."""
        self.memories.commit(round, memories)
        self.journal.flush(sync=True)
        self.scores.flush(sync=True)

    def rewind(self, warn: Callable[[str], None]) -> tuple[int, bytes] | None:
        """Back to the newest checkpoint that verifies, as (round, payload): all that happened after it is forgotten.

        None where no round was ever committed; then the run starts from the beginning.
        """
        found = self.checkpoints.latest(warn)
        last = -1 if found is None else found[0]
        self.journal.cut(last)
        self.scores.cut(last)
        self.memories.forget_after(last)
        self.prune()  # a kill may have come before that
        return found

    def settings(self) -> str:
        """The complete settings, as TOML."""
        return read_settings(self.path)

    def manifest(self) -> dict[str, Any]:
        """What the run was made with: versions, host, seed."""
        return read_manifest(self.path)

    def update_manifest(self, **fields: Any) -> None:
        """Add to the manifest, or replace what it says."""
        if wrong := [name for name in _OURS if name in fields]:
            raise ValueError(f"{wrong[0]!r} is fixed when the run is created")
        self._write_manifest({**self.manifest(), **fields})

    def write_features(self, found: Mapping[str, Any]) -> None:
        """What was seen of the tiers' networks at the end, for `Run.features`."""
        write_atomically(self.path / FEATURES, json.dumps(found, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Write what is waiting in the journals, and let others have the folder."""
        try:
            self.journal.flush()
            self.scores.flush()
        finally:
            self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        with suppress(LedgerError) if fault else nullcontext():  # a second error must not hide the first
            self.close()

    def _write_manifest(self, fields: Mapping[str, Any]) -> None:
        ours = {"schema": SCHEMA, "mark": self.mark, "keep": self.checkpoints.keep}
        write_atomically(self.path / MANIFEST, manifest_bytes({**fields, **ours}))

    def prune(self) -> None:
        """Drop checkpoints that are not kept; memories stay as far back as the oldest of the others may ask."""
        self.checkpoints.prune()
        for oldest in self.checkpoints.rounds()[:1]:
            self.memories.prune(oldest)

    def _sweep(self) -> None:
        for folder in (self.path, self.checkpoints.folder, self.memories.folder):
            sweep(folder)


def _refuse_another_run(path: Path, settings: str) -> None:
    try:
        held = [name for name in (MANIFEST, EVENTS, SCORES, _CHECKPOINTS, _MEMORY) if (path / name).exists()]
        kept = path / SETTINGS
        other = kept.exists() and kept.read_bytes() != settings.encode()
    except OSError as fault:
        raise refused(path, "cannot look into the folder", fault) from fault
    if held:
        name = shown(path)
        raise FolderError(f"{name} already holds a run ({held[0]}). Use `potluck resume {name}`, or another --out.")
    if other:
        raise FolderError(f"{shown(kept)} exists and is not this run's; it would be lost. Choose another --out.")
