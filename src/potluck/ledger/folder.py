"""The run folder: everything that is known of one run, and all that is needed to continue it.

`RunFolder` is for the process that runs; `read_run` is for readers, who lock and change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from potluck.ledger.checkpoints import Checkpoints
from potluck.ledger.errors import DamagedRecord, FolderError, LedgerError, MissingRun, os_error, printable
from potluck.ledger.files import make_folder, remove_partial_files, write_atomically
from potluck.ledger.journal import Journal, read_journal
from potluck.ledger.lock import Lock
from potluck.ledger.memories import Memories

SCHEMA = 1
SETTINGS, MANIFEST, EVENTS, SCORES = "settings.toml", "manifest.json", "ledger.jsonl", "scores.jsonl"
FEATURES = "features.json"
_CHECKPOINTS, _MEMORY = "checkpoints", "memory"
_FIXED_FIELDS = ("schema", "mark", "keep")


class RunFolder:
    """A run that is being written. One process at a time holds it, from `create` or `open` to `close`."""

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
        """Starts a new run in a folder that holds none.

        `mark` identifies model and settings (see `Checkpoints`). It and `keep` are written to the manifest, for `open`.
        """
        make_folder(path)
        lock = Lock(path / "lock")
        try:
            _refuse_other_run(path, settings)
            folder = cls(path, lock, mark, keep)
            folder._remove_partial_files()
            write_atomically(path / SETTINGS, settings.encode())
            # Last, because the manifest makes it a run: a process killed before this can simply start again.
            folder._write_manifest(manifest)
            return folder
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens a run that was stopped or killed, to continue it; call `rewind` next."""
        read_manifest(path)  # before locking, which would leave a file in a folder that is not a run
        lock = Lock(path / "lock")
        try:
            manifest = read_manifest(path)
            folder = cls(path, lock, str(manifest["mark"]), int(manifest["keep"]))
            folder._remove_partial_files()
            return folder
        except BaseException:
            lock.release()
            raise

    def commit(self, round: int, payload: bytes, memories: Mapping[str, bytes] | None = None) -> None:
        """Saves a round: client memories, the journals and, last, the state after it (the payload).

        The checkpoint decides: everything else is on the disk before it, and without it `rewind` drops the rest. So
        add the events and scores of a round to the journals before calling this.
        """
        self.prepare(round, memories or {})
        self.checkpoints.write(round, payload)
        self.prune()

    def prepare(self, round: int, memories: Mapping[str, bytes]) -> None:
        """Writes what the checkpoint of this round needs; call `checkpoints.write` and `prune` after it."""
        self.memories.commit(round, memories)
        self.journal.flush(sync=True)
        self.scores.flush(sync=True)

    def rewind(self, warn: Callable[[str], None]) -> tuple[int, bytes] | None:
        """Goes back to the newest valid checkpoint and drops all that came after it; returns (round, payload).

        None if no round was ever saved; then the run starts from the beginning.
        """
        found = self.checkpoints.latest(warn)
        last = -1 if found is None else found[0]
        self.journal.drop_after(last)
        self.scores.drop_after(last)
        self.memories.forget_after(last)
        self.prune()  # the process may have been killed before that
        return found

    def settings(self) -> str:
        """The complete settings, as TOML."""
        return read_settings(self.path)

    def manifest(self) -> dict[str, Any]:
        """The manifest: versions, host, seed."""
        return read_manifest(self.path)

    def update_manifest(self, **fields: Any) -> None:
        """Adds fields to the manifest, or replaces them."""
        if wrong := [name for name in _FIXED_FIELDS if name in fields]:
            raise ValueError(f"{wrong[0]!r} is fixed when the run is created")
        self._write_manifest({**self.manifest(), **fields})

    def write_features(self, found: Mapping[str, Any]) -> None:
        """Writes what was measured of the tiers' networks at the end, for `RunFiles.features`."""
        write_atomically(self.path / FEATURES, json.dumps(found, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Writes the journals to the disk and releases the lock."""
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
        """Removes old checkpoints, and memories that no remaining checkpoint needs."""
        self.checkpoints.prune()
        for oldest in self.checkpoints.rounds()[:1]:
            self.memories.prune(oldest)

    def _remove_partial_files(self) -> None:
        for folder in (self.path, self.checkpoints.folder, self.memories.folder):
            remove_partial_files(folder)


def _refuse_other_run(path: Path, settings: str) -> None:
    try:
        held = [name for name in (MANIFEST, EVENTS, SCORES, _CHECKPOINTS, _MEMORY) if (path / name).exists()]
        kept = path / SETTINGS
        other = kept.exists() and kept.read_bytes() != settings.encode()
    except OSError as fault:
        raise os_error(path, "cannot look into the folder", fault) from fault
    if held:
        name = printable(path)
        raise FolderError(f"{name} already holds a run ({held[0]}). Use `potluck resume {name}`, or another --out.")
    if other:
        raise FolderError(f"{printable(kept)} exists and is not this run's; it would be lost. Choose another --out.")


class RunFiles(NamedTuple):
    """The files of a run as a reader sees them; the run may still be going on."""

    path: Path
    manifest: dict[str, Any]
    settings: str
    scores: list[dict[str, Any]]

    def events(self) -> Iterator[dict[str, Any]]:
        """The events of the ledger from the beginning, one at a time: the file may be large."""
        return read_journal(self.path / EVENTS)

    def features(self) -> dict[str, Any]:
        """What was measured of the tiers' networks at the end; empty if nothing was."""
        return _read_json(self.path / FEATURES) if (self.path / FEATURES).is_file() else {}


def read_run(path: Path) -> RunFiles:
    """Reads the run in this folder as it is now."""
    return RunFiles(path, read_manifest(path), read_settings(path), list(read_journal(path / SCORES)))


def read_settings(path: Path) -> str:
    """Reads the complete settings of the run in this folder, as TOML."""
    try:
        return (path / SETTINGS).read_bytes().decode()
    except OSError as fault:
        raise os_error(path / SETTINGS, "cannot read the file", fault) from fault
    except UnicodeDecodeError:
        raise _damaged_file(path / SETTINGS, "it is not UTF-8 text") from None


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """A manifest as the bytes of its file."""
    return json.dumps(manifest, indent=2).encode() + b"\n"


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of the run in this folder; an error if the folder is not a run."""
    for name in (MANIFEST, SETTINGS):
        _require_file(path, name)
    file = path / MANIFEST
    manifest = _read_json(file)
    if type(manifest.get("schema")) is not int:
        raise _damaged_file(file, "it has no schema number")
    if manifest["schema"] > SCHEMA:
        raise DamagedRecord(
            f"{printable(file)}: a newer Potluck wrote it (schema {manifest['schema']}). Use that version to read it."
        )
    if not isinstance(manifest.get("mark"), str) or type(manifest.get("keep")) is not int or manifest["keep"] < 1:
        raise _damaged_file(file, "mark or keep is missing")
    return manifest


def _read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one for any other value."""
    try:
        found = json.loads(file.read_bytes())
    except OSError as fault:
        raise os_error(file, "cannot read the file", fault) from fault
    except (ValueError, RecursionError):
        raise _damaged_file(file, "it is not JSON") from None
    return found if isinstance(found, dict) else {}


def _require_file(path: Path, name: str) -> None:
    try:
        there, file = path.is_dir(), (path / name).is_file()
    except OSError as fault:
        raise os_error(path, "cannot look into the folder", fault) from fault
    if not there:
        raise MissingRun(f"{printable(path)} is not a run folder: there is no such folder. Check the path.")
    if not file:
        raise MissingRun(
            f"{printable(path)} is not a run folder: it has no {name}. "
            "Check the path, or start a run there with `potluck run … --out`."
        )


def _damaged_file(path: Path, reason: str) -> DamagedRecord:
    return DamagedRecord(f"{printable(path)} is damaged: {reason}. Restore it from a backup.")
