"""Starts the server's side of a transport from its kit."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path

from potluck.engines.remote import Transport
from potluck.federation.admission import FILE, AdmittedNodes
from potluck.federation.kits import AUTHORITY, CERTIFICATE, KEY, Kit


def listen(
    kit: Kit, admitted: AdmittedNodes, grace: float, most_bytes: int, where: str = "", transport: str = "grpc"
) -> Callable[[Path], Transport]:
    """A function that starts to listen; it gets a folder for large messages on their way."""
    where = where or listen_address(kit.address)

    def start_grpc(spool: Path) -> Transport:
        from potluck.engines.remote.grpc_transport import GrpcLimits, GrpcServer

        limits = GrpcLimits(message=most_bytes)
        made = GrpcServer(where, kit.ca, kit.cert, kit.key, admitted.reason, grace, spool, limits)
        admitted.notes = made.notes  # whoever reads the transport's notes reads these too
        return made

    def start_flower(spool: Path) -> Transport:
        from potluck.engines.remote.flower_transport import FlowerServer

        cert, key, ca = (kit.folder / name for name in (CERTIFICATE, KEY, AUTHORITY))
        made = FlowerServer(admitted.keys, cert, key, ca, where, patience=grace, most=most_bytes)
        admitted.notes = made.notes
        return made

    return start_flower if transport == "flower" else start_grpc


def admitted_nodes(kit: Kit) -> AdmittedNodes:
    """The nodes that the server's kit admits."""
    return AdmittedNodes(kit.folder / FILE)


def listen_address(address: str) -> str:
    """Where a server listens that nodes reach at this address: on all of the machine's addresses, but only on loopback
    if nodes are on the same machine."""
    host, _, port = address.rpartition(":")
    try:
        alone = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        alone = host == "localhost"
    return address if alone else f"[::]:{port}"
