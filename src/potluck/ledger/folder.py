"""The run folder: everything that is known of one run, and all that is needed to continue it.

- `settings.toml`: the complete settings, every default included. `potluck run` with this file repeats the run.
- `manifest.json`: what the run is, where it ran and how it ended. A folder with it is a run.
- `ledger.jsonl`: an event on each line: tasks, rounds, costs, warnings. Written when a checkpoint is.
- `scores.jsonl`: on each line, the scores after a round.
- `checkpoints/`: the state after the newest rounds, from which `potluck resume` goes on.
- `memory/`: what clients keep between rounds, if the method has them keep something.
- `vocabulary.json`: for texts, the tokens and their ids, so that an exported model can read texts.
- `holdings.json`: how many rows of each label clients hold, of at most some hundred clients; not between real nodes.
- `features.json`: with score.features, how alike the tiers' features are.
- `live.jsonl`: what happens as it happens, for `potluck board`. A resumed run begins it anew; `run.live = false`
  leaves it out.
- `track.json`: with [track], which runs of the trackers belong to this one.
- `report.html`: the report, if one was written.
- `lock`: names the process that holds the folder.

`RunFolder` is for the process that runs; `read_run` is for readers, who lock and change nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from potluck.ledger.checkpoints import Checkpoints
from potluck.ledger.errors import (
    CheckpointError,
    DamagedRecord,
    FolderError,
    LedgerError,
    MissingRun,
    UnreadableSettings,
    os_error,
    printable,
)
from potluck.ledger.files import (
    NotRegular,
    make_folder,
    not_regular,
    open_regular,
    read_regular,
    remove_partial_files,
    write_atomically,
)
from potluck.ledger.journal import Journal, read_journal
from potluck.ledger.lock import Lock
from potluck.ledger.memories import Memories

SCHEMA = 2
READABLE_SCHEMAS = (1, 2)
"""Schemas whose manifest, settings and journals are as today; only the newest can be resumed."""
SETTINGS, MANIFEST, EVENTS, SCORES = "settings.toml", "manifest.json", "ledger.jsonl", "scores.jsonl"
FEATURES, LIVE, VOCABULARY, HOLDINGS = "features.json", "live.jsonl", "vocabulary.json", "holdings.json"
_CHECKPOINTS, _MEMORY = "checkpoints", "memory"
_FIXED_FIELDS = ("schema", "mark", "keep")
_SAVED = "saved"
"""In the manifest once a checkpoint was written: from then on there must be one."""
_RESTORE = "Restore it from a backup, or start a new run with another --out."
_CLIENTS, _VERSIONS = "clients with a memory", "sum of their versions"


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
        self._saved = False

    @classmethod
    def create(
        cls,
        path: Path,
        settings: str,
        manifest: Mapping[str, Any],
        mark: str,
        keep: int = 2,
        vocabulary: bytes = b"",
        holdings: bytes = b"",
    ) -> RunFolder:
        """Starts a new run in a folder that holds none.

        `mark` identifies model and settings (see `Checkpoints`). It and `keep` are written to the manifest, for `open`.
        `vocabulary` is the text of ``vocabulary.json``, if the run's inputs are texts; `holdings` that of
        ``holdings.json``, if clients are simulated.
        """
        make_folder(path)
        lock = Lock(path / "lock")
        try:
            _refuse_other_run(path, settings)
            folder = cls(path, lock, mark, keep)
            folder._remove_partial_files()
            write_atomically(path / SETTINGS, settings.encode())
            if vocabulary:
                write_atomically(path / VOCABULARY, vocabulary)
            if holdings:
                write_atomically(path / HOLDINGS, holdings)
            # Last, because the manifest makes it a run: a process killed before this can simply start again.
            folder._write_manifest(manifest)
            return folder
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens a run that was stopped or killed, to continue it; call `rewind` next."""
        _read_current_manifest(path)  # before locking, which would leave a file in a folder that is not a run
        lock = Lock(path / "lock")
        try:
            manifest = _read_current_manifest(path)
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
        needs = self.prepare(round, memories or {})
        self.checkpoints.write(round, payload, needs)
        self.prune()

    def prepare(self, round: int, memories: Mapping[str, bytes]) -> dict[str, int]:
        """Writes what the checkpoint of this round needs, and returns a summary of it.

        Call `checkpoints.write` with the summary after it, and then `prune`.
        """
        self._lock.check()
        self.memories.commit(round, memories)
        self.journal.flush(sync=True)
        self.scores.flush(sync=True)
        events, scores = self.journal.size_up_to(round), self.scores.size_up_to(round)
        clients, versions = self.memories.totals()
        return {EVENTS: events, SCORES: scores, _CLIENTS: clients, _VERSIONS: versions}

    def latest(self, warn: Callable[[str], None]) -> tuple[int, bytes] | None:
        """The newest valid checkpoint, as (round, payload); None if none was ever written.

        It is an error if something that belongs to the checkpoint is missing, or if there must be one.
        """
        found = self.checkpoints.latest(warn)
        if found is not None:
            self._require_parts(found[0])
        elif self.manifest().get(_SAVED):
            raise CheckpointError(
                f"{printable(self.checkpoints.folder)}: the checkpoints of this run are missing. {_RESTORE}"
            )
        return found

    def rewind(self, warn: Callable[[str], None]) -> tuple[int, bytes] | None:
        """Goes back to the newest valid checkpoint and drops all that came after it; returns (round, payload).

        None if no round was ever saved; then the run starts from the beginning. If parts of the folder are missing,
        that is an error, and nothing is dropped.
        """
        found = self.latest(warn)
        last = -1 if found is None else found[0]
        self.journal.drop_after(last)
        self.scores.drop_after(last)
        self.memories.forget_after(last)
        with suppress(OSError):
            os.unlink(self.path / LIVE)  # it tells of the process that was stopped
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
        self._lock.check()
        self._write_manifest({**self.manifest(), **fields})

    def update_settings(self, text: str) -> None:
        """Replaces the settings: only for those that say how the run is looked at, since `mark` must stay true."""
        self._lock.check()
        write_atomically(self.path / SETTINGS, text.encode())

    def write_features(self, found: Mapping[str, Any]) -> None:
        """Writes what was measured of the tiers' networks at the end, for `RunFiles.features`."""
        self._lock.check()
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
            if not self._saved and not self.manifest().get(_SAVED):
                self.update_manifest(**{_SAVED: True})
            self._saved = True

    def _require_parts(self, round: int) -> None:
        """Raises an error if the folder lacks something that it held when the checkpoint of this round was written."""
        needs = self.checkpoints.needs(round)
        for journal in (self.journal, self.scores):
            there, needed = _file_size(journal.path), needs.get(journal.path.name, 0)
            if there < needed:
                raise CheckpointError(
                    f"{printable(journal.path)}: it holds {there} bytes, but the rounds up to the checkpoint of round "
                    f"{round} wrote {needed}. {_RESTORE}"
                )
        clients, versions = self.memories.totals(up_to=round)
        if (clients, versions) != (needs.get(_CLIENTS, 0), needs.get(_VERSIONS, 0)):
            raise CheckpointError(
                f"{printable(self.memories.folder)}: memories are missing: at the checkpoint of round {round}, "
                f"{needs.get(_CLIENTS, 0)} clients had one; {clients} of them are there, or some only as older "
                f"versions. {_RESTORE}"
            )

    def _remove_partial_files(self) -> None:
        for folder in (self.path, self.checkpoints.folder, self.memories.folder):
            remove_partial_files(folder)


def _refuse_other_run(path: Path, settings: str) -> None:
    try:
        there = os.listdir(path)
    except OSError as fault:
        raise os_error(path, "cannot look into the folder", fault) from fault
    held = [name for name in (MANIFEST, EVENTS, SCORES, LIVE, _CHECKPOINTS, _MEMORY) if name in there]
    kept = path / SETTINGS
    other = SETTINGS in there and read_regular(kept) != settings.encode()
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
        return _read_json(self.path / FEATURES) if os.path.lexists(self.path / FEATURES) else {}

    def holdings(self) -> dict[str, Any]:
        """How many rows of each label clients hold; empty if that was not recorded."""
        return _read_json(self.path / HOLDINGS) if os.path.lexists(self.path / HOLDINGS) else {}


def read_run(path: Path) -> RunFiles:
    """Reads the run in this folder as it is now."""
    return RunFiles(path, read_manifest(path), read_settings(path), list(read_journal(path / SCORES)))


def read_settings(path: Path) -> str:
    """Reads the complete settings of the run in this folder, as TOML."""
    raw = read_regular(path / SETTINGS)
    try:
        return raw.decode()
    except UnicodeDecodeError as fault:
        line, utf16 = raw[: fault.start].count(b"\n") + 1, raw.startswith((b"\xff\xfe", b"\xfe\xff"))
        what = "this is UTF-16" if utf16 else "this is not UTF-8"
        raise UnreadableSettings(f"{printable(path / SETTINGS)}: line {line}: {what}. Save it as UTF-8.") from None


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """A manifest as the bytes of its file."""
    return json.dumps(manifest, indent=2).encode() + b"\n"


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of the run in this folder; an error if the folder is not a run."""
    _require_run(path)
    file = path / MANIFEST
    manifest = _read_json(file)
    schema = manifest.get("schema")
    if type(schema) is not int:
        raise _damaged_file(file, "it has no schema number")
    if schema > SCHEMA:
        raise DamagedRecord(f"{printable(file)}: a newer Potluck wrote it (schema {schema}). Use that version.")
    if schema not in READABLE_SCHEMAS:
        raise _damaged_file(file, f"there is no schema {schema}")
    if not isinstance(manifest.get("mark"), str) or type(manifest.get("keep")) is not int or manifest["keep"] < 1:
        raise _damaged_file(file, "mark or keep is missing")
    return manifest


def _read_current_manifest(path: Path) -> dict[str, Any]:
    """Reads the manifest of a run that is to be resumed."""
    manifest = read_manifest(path)
    if manifest["schema"] != SCHEMA:
        raise DamagedRecord(
            f"{printable(path / MANIFEST)}: an older Potluck wrote this run (schema {manifest['schema']}; this one "
            f"resumes {SCHEMA}). It can be reported; to go on with it use that version, or start a new run."
        )
    return manifest


def planned_rounds(path: Path, manifest: Mapping[str, Any]) -> int:
    """How many rounds the run in this folder was last asked to do."""
    rounds = manifest.get("rounds")
    if type(rounds) is not int or rounds < 0:
        raise _damaged_file(path / MANIFEST, "'rounds' is missing, or no number of rounds")
    return rounds


def _read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one for any other value."""
    raw = read_regular(file)
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise _damaged_file(file, "it is not JSON") from None
    return found if isinstance(found, dict) else {}


def _require_run(path: Path) -> None:
    """Raises an error if the folder is not a run, or if it is one without its settings."""
    try:
        there = path.is_dir()
    except OSError as fault:
        raise os_error(path, "cannot look into the folder", fault) from fault
    if not there:
        raise MissingRun(f"{printable(path)} is not a run folder: there is no such folder. Check the path.")
    if not os.path.lexists(path / MANIFEST):
        raise MissingRun(
            f"{printable(path)} is not a run folder: it has no {MANIFEST}. "
            "Check the path, or start a run there with `potluck run … --out`."
        )
    if not os.path.lexists(path / SETTINGS):
        raise DamagedRecord(f"{printable(path / SETTINGS)} is missing. {_RESTORE}")


def _file_size(path: Path) -> int:
    try:
        descriptor = open_regular(path)
    except FileNotFoundError:
        return 0
    except NotRegular as fault:
        raise not_regular(path, fault) from None
    except OSError as fault:
        raise os_error(path, "cannot open the file", fault) from fault
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _damaged_file(path: Path, reason: str) -> DamagedRecord:
    return DamagedRecord(f"{printable(path)} is damaged: {reason}. Restore it from a backup.")
