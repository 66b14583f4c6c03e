"""Compares both sides of a federation before its first round. Nothing is trained."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from potluck.core import MESSAGE, ResourceError, SettingsError, UserError, one_line
from potluck.engines import Serial
from potluck.engines.remote import Parts, Remote, Terms
from potluck.engines.remote.messages import pack_plain, read_head
from potluck.federation.charter import Charter, own_modules, read_charter, versions
from potluck.federation.host import Host, NodeState
from potluck.federation.identities import KitIdentities
from potluck.federation.joining import next_start
from potluck.federation.kits import Kit
from potluck.federation.listening import admitted_nodes, listen
from potluck.federation.node import Node, NodeOptions
from potluck.federation.server import PreparedFederation
from potluck.run.code_checksum import code_checksum

Say = Callable[[str], None]
BITS = "the last bits of results may differ"


class CheckFailed(UserError):
    """The two sides of a federation do not fit together."""

    exit_code = 2


def refuse_differences(rows: list[dict[str, Any]]) -> None:
    """Raises an error if a check found something that keeps a node from taking part."""
    wrong = [row for row in rows if row["verdict"] not in ("agrees", "the same", BITS)]
    if wrong:
        first = wrong[0]
        why = first.get("reason") or first["verdict"]
        raise CheckFailed(f"{len(wrong)} of {len(rows)} checks failed: {first[next(iter(first))]}: {why}")


def check_server(
    federation: PreparedFederation, kit: Kit, seconds: float, say: Say, where: str = ""
) -> list[dict[str, Any]]:
    """Waits for the admitted nodes, and says of each whether it would agree to the charter, and why not.

    Nodes that run `potluck join` answer; they stay and wait for the server.
    """
    admitted, nodes = admitted_nodes(kit), federation.setup.experiment.nodes
    start = listen(kit, admitted, nodes.grace, federation.charter.limits.bytes, where)
    with tempfile.TemporaryDirectory(prefix="potluck-spool-") as folder:
        spool = Path(folder)
        remote = Remote(start(spool), Serial(federation.setup.context), Terms(federation.charter.hash), spool)
        with closing(remote):
            host = Host(remote, federation.charter, federation.roster, nodes, admitted.names)
            say(
                f"waiting up to {seconds:g} s for {len(admitted.names())} nodes: charter {federation.charter.hash[:12]}"
            )
            until = time.monotonic() + seconds
            while time.monotonic() < until and not all(node.state in ("here", "declined") for node in host.states()):
                remote.look(0.2)
            found = host.states()
    if not any(node.state in ("here", "declined") for node in found):
        raise ResourceError(f"no node came within {seconds:g} s; start `potluck join` at the sites.")
    return [_row(node) for node in found]


def _row(node: NodeState) -> dict[str, Any]:
    verdict = {"here": "agrees", "declined": "declines"}.get(node.state, "did not come")
    return {"node": node.name, "verdict": verdict, "tier": node.tier, "samples": node.samples, "reason": node.reason}


def check_node(
    federation: PreparedFederation, kit: Kit, data: Path | None, public: Path | None, seconds: float, say: Say
) -> list[dict[str, Any]]:
    """Compares this site's settings, code and data with the charter that the server sends."""
    if data is None:
        raise SettingsError("--data is missing: the file with this node's own rows.")
    ours = federation.charter
    with tempfile.TemporaryDirectory(prefix="potluck-check-") as folder:
        options = NodeOptions(data, public, trusted=tuple(own_modules(ours.plain)))
        node = Node(kit.node_id, Path(folder), options, _Silent(), identities=KitIdentities.of(kit))
        rows = [_compared("data and networks, by this site's settings", *_try(node, ours))]
        told = _ask(kit, seconds, say)
        if told is None:
            rows.append(_compared("the server", "", f"no answer from {kit.address} within {seconds:g} s"))
            return rows
        theirs = read_charter(told.get("charter"), node.options.trusted)
        rows.append(_compared("settings", ours.hash[:12], _difference(ours, theirs)))
        rows.append(_compared("data and networks, by the server's charter", *_try(node, theirs)))
    return [*rows, _versions(told.get("versions"))]


def _versions(told: Any) -> dict[str, Any]:
    """Other versions keep nobody from taking part."""
    theirs = told if isinstance(told, dict) else {}
    odd = [
        f"{name} {one_line(str(theirs.get(name)))[:20]}"
        for name, here in versions().items()
        if theirs.get(name) != here
    ]
    here = ", ".join(f"{name} {version}" for name, version in versions().items())
    there = f" (the server: {', '.join(odd)})" if odd else ""
    return {"what": "versions", "here": here + there, "verdict": BITS if odd else "the same"}


class _Silent:
    def say(self, text: str) -> None:
        pass

    measured = begins = ends = lambda self, *facts: None


def _compared(what: str, here: str, fault: str) -> dict[str, Any]:
    return {"what": what, "here": here, "verdict": fault or "the same"}


def _try(node: Node, charter: Charter) -> tuple[str, str]:
    """What this node would take under a charter, or why it would decline."""
    try:
        found = node.agree(charter)
    except Exception as fault:
        return "", one_line(str(fault))
    rows = len(found.setup.context.datasets.shard(node.id).train)
    return f"tier '{found.tier}', {rows} rows to train on, code {code_checksum()}", ""


def _difference(ours: Charter, theirs: Charter) -> str:
    """The first setting that differs between two charters."""
    if ours.hash == theirs.hash:
        return ""
    a, b = dict(_flat(ours.plain)), dict(_flat(theirs.plain))
    for name in sorted(a.keys() | b.keys()):
        if a.get(name) != b.get(name):
            return f"{name} is {a.get(name)!r:.60} here and {b.get(name)!r:.60} at the server"
    return "another charter"


def _flat(value: Any, path: str = "") -> Any:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}" if path else str(name))
    else:
        yield path, list(value) if isinstance(value, tuple) else value


def _ask(kit: Kit, seconds: float, say: Say) -> dict[str, Any] | None:
    """The message with the charter that the server sends; None if it sends none in time."""
    from potluck.engines.remote.grpc_node import attend

    stop = threading.Event()
    found: list[dict[str, Any]] = []

    def respond(parts: Parts) -> Parts:
        told = read_head(parts, replace(MESSAGE, bytes=64 << 20))
        if told["kind"] == "charter":
            found.append(told)
            stop.set()
        return pack_plain("looked")

    timer = threading.Timer(seconds, stop.set)
    timer.start()
    try:
        with tempfile.TemporaryDirectory(prefix="potluck-check-") as folder:
            start = next_start(kit.folder / "state") if (kit.folder / "state").is_dir() else next_start(Path(folder))
            attend(kit.address, kit.ca, kit.cert, kit.key, *start, respond, say, stop, Path(folder))
    finally:
        timer.cancel()
    return found[0] if found else None
