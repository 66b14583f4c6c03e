"""Starts the server's side of a transport from its kit."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path

from potluck.engines.remote import Transport
from potluck.engines.remote.grpc_transport import GrpcLimits, GrpcServer
from potluck.federation.admission import FILE, AdmittedNodes
from potluck.federation.kits import Kit


def listen_grpc(
    kit: Kit, admitted: AdmittedNodes, grace: float, most_bytes: int, listen: str = ""
) -> Callable[[Path], Transport]:
    """A function that starts to listen; it gets a folder for large messages on their way."""

    def start(spool: Path) -> Transport:
        limits = GrpcLimits(message=most_bytes)
        where = listen or listen_address(kit.address)
        made = GrpcServer(where, kit.ca, kit.cert, kit.key, admitted.reason, grace, spool, limits)
        admitted.notes = made.notes  # whoever reads the transport's notes reads these too
        return made

    return start


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
