"""A run folder as its readers see it: nothing is locked or changed, and the run may still be going on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from potluck.ledger.errors import DamagedRecord, MissingRun, refused, shown
from potluck.ledger.journal import read

SCHEMA = 1
SETTINGS, MANIFEST, EVENTS, SCORES = "settings.toml", "manifest.json", "ledger.jsonl", "scores.jsonl"
FEATURES = "features.json"


class Run(NamedTuple):
    """What is known of a run."""

    path: Path
    manifest: dict[str, Any]
    settings: str
    scores: list[dict[str, Any]]

    def events(self) -> Iterator[dict[str, Any]]:
        """The ledger from its beginning, a line at a time: it may be large."""
        return read(self.path / EVENTS)

    def features(self) -> dict[str, Any]:
        """What was seen of the tiers' networks at the end; nothing where nobody looked."""
        return _read_json(self.path / FEATURES) if (self.path / FEATURES).is_file() else {}


def read_run(path: Path) -> Run:
    """The run in this folder as it stands now."""
    return Run(path, read_manifest(path), read_settings(path), list(read(path / SCORES)))


def read_settings(path: Path) -> str:
    """The complete settings of the run in this folder, as TOML."""
    try:
        return (path / SETTINGS).read_bytes().decode()
    except OSError as fault:
        raise refused(path / SETTINGS, "cannot read the file", fault) from fault
    except UnicodeDecodeError:
        raise _damaged(path / SETTINGS, "it is not UTF-8 text") from None


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """A manifest as it is written."""
    return json.dumps(manifest, indent=2).encode() + b"\n"


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the run in this folder, which proves that there is one."""
    for name in (MANIFEST, SETTINGS):
        _demand(path, name)
    file = path / MANIFEST
    manifest = _read_json(file)
    if type(manifest.get("schema")) is not int:
        raise _damaged(file, "it has no schema number")
    if manifest["schema"] > SCHEMA:
        raise DamagedRecord(f"{shown(file)}: a newer Potluck wrote it (schema {manifest['schema']}). Use that version.")
    if not isinstance(manifest.get("mark"), str) or type(manifest.get("keep")) is not int or manifest["keep"] < 1:
        raise _damaged(file, "mark or keep is missing")
    return manifest


def _read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file; nothing for any other value."""
    try:
        found = json.loads(file.read_bytes())
    except OSError as fault:
        raise refused(file, "cannot read the file", fault) from fault
    except (ValueError, RecursionError):
        raise _damaged(file, "it is not JSON") from None
    return found if isinstance(found, dict) else {}


def _demand(path: Path, name: str) -> None:
    try:
        there, file = path.is_dir(), (path / name).is_file()
    except OSError as fault:
        raise refused(path, "cannot look into the folder", fault) from fault
    if not there:
        raise MissingRun(f"{shown(path)} is not a run folder: there is no such folder. Check the path.")
    if not file:
        raise MissingRun(
            f"{shown(path)} is not a run folder: it has no {name}. "
            "Check the path, or start a run there with `potluck run … --out`."
        )


def _damaged(path: Path, reason: str) -> DamagedRecord:
    return DamagedRecord(f"{shown(path)} is damaged: {reason}. Restore it from a backup.")
