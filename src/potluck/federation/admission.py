"""The nodes that a federation admits: nodes.json in the server's kit.

A running server reads the file again when it changes, so an admission or a revocation counts at once.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from potluck.core import InputError, SettingsError, one_line, suggestion
from potluck.federation.files import alone_in, read_file, replace_file
from potluck.ledger import DamagedRecord
from potluck.ledger.errors import printable

FILE = "nodes.json"
SHORT = 12
"""The digits of a node's id that people see."""
_FEWEST = 8
"""The fewest digits of an id that name a node in a command."""
_RESTORE = "Restore it from a backup."


@dataclass(frozen=True)
class NodeEntry:
    """A node that was admitted at some time."""

    id: str
    """The fingerprint of its public key."""
    name: str
    status: str
    """`admitted` or `revoked`."""
    since: str
    """Since when it has this status, in ISO 8601."""
    expires: str
    """When its certificate expires, in ISO 8601."""
    key: str = ""
    """Its public key, as PEM."""

    def expired(self, now: datetime) -> bool:
        return now > datetime.fromisoformat(self.expires)


Entries: TypeAlias = tuple[NodeEntry, ...]


class AdmittedNodes:
    """The nodes of a nodes.json, as it is now. Any thread may ask.

    If the file is damaged or gone while a server runs, the last good list counts, and `notes` says so once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        """What the operator should know, one line each; the reader removes them."""
        self._lock = threading.Lock()
        self._nodes, self._stamp = _read(path)

    def reason(self, node_id: str) -> str:
        """Why a node may not take part; empty if it may."""
        found = self._current().get(node_id)
        if found is None:
            return "not admitted"
        if found.status == "revoked":
            return "revoked"
        if found.expired(datetime.now(UTC)):
            return f"expired on {found.expires}"
        return ""

    def name(self, node_id: str) -> str:
        """The name of a node, admitted or revoked; empty if it is not known."""
        found = self._current().get(node_id)
        return found.name if found else ""

    def names(self) -> dict[str, str]:
        """The names of the nodes that are admitted now, by id."""
        now = datetime.now(UTC)
        found = (entry for entry in self._current().values() if entry.status == "admitted" and not entry.expired(now))
        return {entry.id: entry.name for entry in found}

    def keys(self) -> list[bytes]:
        """The public keys of the nodes that are admitted now, as PEM."""
        names = self.names()
        return [entry.key.encode() for entry in self._current().values() if entry.key and entry.id in names]

    def _current(self) -> Mapping[str, NodeEntry]:
        with self._lock:
            stamp = _stamp_of(self.path)
            if stamp != self._stamp:
                try:
                    self._nodes, self._stamp = _read(self.path)
                except (InputError, DamagedRecord) as fault:
                    self._stamp = stamp  # one note for each damaged version
                    self.notes.append(one_line(f"the last good list of nodes counts: {fault}"))
            return self._nodes


_Stamp: TypeAlias = tuple[int, int, int] | None


def _read(path: Path) -> tuple[Mapping[str, NodeEntry], _Stamp]:
    if not path.exists():
        raise DamagedRecord(f"{printable(path)}: the list of nodes is missing. {_RESTORE}")
    raw, status = read_file(path)
    return {entry.id: entry for entry in _parse(raw, path)}, _stamp(status)


def _stamp_of(path: Path) -> _Stamp:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return None


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_nodes(path: Path) -> Entries:
    """All nodes in a nodes.json."""
    return tuple(_read(path)[0].values())


def pack_nodes(entries: Iterable[NodeEntry]) -> bytes:
    """The bytes of a nodes.json."""
    return json.dumps({"nodes": [asdict(entry) for entry in entries]}, indent=1).encode() + b"\n"


def _parse(raw: bytes, path: Path) -> Entries:
    try:
        found = json.loads(raw)
        rows = found["nodes"]
        if set(found) != {"nodes"} or not isinstance(rows, list):
            raise ValueError("it holds something else")
        entries = tuple(map(_entry, rows))
        for what in ("id", "name"):
            values = [str(getattr(entry, what)).lower() for entry in entries]
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"it names {twice[0]} twice")
    except (ValueError, TypeError, KeyError, RecursionError) as fault:
        why = str(fault) if type(fault) is ValueError else "it is not the JSON that Potluck wrote"
        raise DamagedRecord(f"{printable(path)}: the list of nodes is damaged: {one_line(why)}. {_RESTORE}") from None
    return entries


def _entry(row: object) -> NodeEntry:
    names = {field.name for field in fields(NodeEntry)}
    if (
        not isinstance(row, dict)
        or not names - {"key"} <= set(row) <= names
        or not all(isinstance(value, str) for value in row.values())
    ):
        raise ValueError(f"each node has the texts {', '.join(sorted(names - {'key'}))}")
    if row["status"] not in ("admitted", "revoked"):
        raise ValueError(f"status '{row['status']}' is neither admitted nor revoked")
    if not re.fullmatch("[0-9a-f]{32}", row["id"]):
        raise ValueError(f"'{row['id']}' is no id of a node")
    for key in ("since", "expires"):
        if datetime.fromisoformat(row[key]).tzinfo is None:
            raise ValueError(f"{key} '{row[key]}' has no time zone")
    return NodeEntry(**row)


def change_nodes(path: Path, change: Callable[[Entries], Entries]) -> None:
    """Replaces the list of nodes by a changed one, all or nothing; one process at a time."""
    with alone_in(path.parent):
        before = read_nodes(path)
        after = change(before)
        if after != before:
            replace_file(path, pack_nodes(after))


def find_node(entries: Entries, wanted: str) -> NodeEntry | None:
    """The node with this name or id; eight digits of an id are enough if no other node's begins with them."""
    for entry in entries:
        if wanted in (entry.name, entry.id):
            return entry
    alike = [entry for entry in entries if len(wanted) >= _FEWEST and entry.id.startswith(wanted.lower())]
    if len(alike) > 1:
        raise SettingsError(f"the ids of several nodes begin with '{wanted}': {', '.join(e.name for e in alike)}.")
    return alike[0] if alike else None


def named_node(entries: Entries, wanted: str) -> NodeEntry:
    """The node with this name or id; an error that names the nearest one if there is none."""
    found = find_node(entries, wanted)
    if found is None:
        raise SettingsError(f"there is no node '{one_line(wanted, 80)}'.{nearest(wanted, [e.name for e in entries])}")
    return found


def nearest(wanted: str, known: list[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or all of them."""
    there = f"There are: {', '.join(known[:20])}{', …' if len(known) > 20 else ''}." if known else "There is none yet."
    return suggestion(wanted, known, there)


def with_status(entries: Entries, node: NodeEntry, status: str, now: datetime) -> Entries:
    """The list with another status of this node."""
    changed = replace(node, status=status, since=iso(now)) if node.status != status else node
    return tuple(changed if entry.id == node.id else entry for entry in entries)


def with_node(entries: Entries, node_id: str, name: str, expires: datetime, now: datetime, key: bytes = b"") -> Entries:
    """The list with this node admitted until its certificate expires; `key` is its public key, as PEM."""
    refuse_other_key(entries, node_id, name)
    known = [entry for entry in entries if entry.id == node_id]
    if known:
        renewed = replace(known[0], expires=iso(expires), key=key.decode() or known[0].key)
        return with_status(tuple(renewed if e.id == node_id else e for e in entries), renewed, "admitted", now)
    return (*entries, NodeEntry(node_id, name, "admitted", iso(now), iso(expires), key.decode()))


def refuse_other_key(entries: Entries, node_id: str, name: str) -> None:
    """Raises an error if the name is another key's, or the key has another name: a name belongs to one key for ever."""
    for entry in entries:
        if entry.id == node_id and entry.name != name:
            raise SettingsError(f"this key is there already, under the name '{entry.name}'.")
        if entry.id != node_id and entry.name.lower() == name.lower():
            raise SettingsError(
                f"there is a node '{entry.name}' with another key ({entry.id[:SHORT]}). Give the new key a new name, "
                f"such as '{name}-2', and then revoke '{entry.name}'."
            )


def iso(time: datetime) -> str:
    """A time as nodes.json has it."""
    return time.astimezone(UTC).isoformat(timespec="seconds")
