"""A kit: all that the server or a node needs to take part in a federation, in one folder.

It is checked before anything starts: every file, the key's permissions, and that key, certificate and authority fit.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from potluck.core import InputError, SettingsError
from potluck.federation import authority
from potluck.federation.authority import Certificate, Role, Unusable
from potluck.federation.files import read_file, read_key
from potluck.ledger.errors import printable
from potluck.run import toml
from potluck.run.config import parse_settings

SETTINGS, AUTHORITY, CERTIFICATE, KEY, README = "kit.toml", "ca.pem", "cert.pem", "key.pem", "README.txt"
RESERVED = ("server", "authority")
LONGEST_NAME = 64
"""The most letters of a name in a certificate."""


@dataclass(frozen=True)
class KitSettings:
    """The file kit.toml."""

    kind: Literal["server", "node"]
    federation: str
    name: str
    address: str
    """The server's, as host:port."""

    def __post_init__(self) -> None:
        if fault := address_fault(self.address):
            raise ValueError(f"address = {self.address!r}: {fault}")


@dataclass(frozen=True)
class Kit:
    """What the server or a node needs to take part; checked by `read_kit`."""

    kind: Role
    federation: str
    name: str
    """The site's, or `server`."""
    address: str
    """The server's, as host:port."""
    ca: bytes = field(repr=False)
    """The authority's certificate, as PEM."""
    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)
    """The private key, as PEM."""
    node_id: str
    """The fingerprint of the public key."""
    expires: datetime
    """When the certificate expires."""
    folder: Path


def read_kit(folder: Path, kind: Role | None = None) -> Kit:
    """The kit in a folder, checked; with a kind, refuses the kit of the other side."""
    said = read_kit_settings(folder, kind)
    if lost := [name for name in (AUTHORITY, CERTIFICATE, KEY) if not (folder / name).exists()]:
        hint = " If the site made its own key, put it beside these files." if lost == [KEY] else ""
        raise InputError(f"{printable(folder)}: this kit has no {' and no '.join(lost)}.{hint}")
    key = read_key(folder / KEY)
    ca, found = read_authority_certificate(folder / AUTHORITY), read_issued(folder / CERTIFICATE, folder / AUTHORITY)
    if said.kind not in found.roles or (found.name, found.federation) != (said.name, said.federation):
        raise InputError(
            f"{printable(folder / CERTIFICATE)}: this certificate is for {' and '.join(found.roles) or 'nothing'} "
            f"'{found.name}' of '{found.federation}'; kit.toml says {said.kind} '{said.name}' of '{said.federation}'."
        )
    for name, one in ((AUTHORITY, ca), (CERTIFICATE, found)):
        with naming(folder / name):
            authority.check_dates(one, datetime.now(UTC))
    with naming(folder / KEY):
        authority.check_key(key, found)
    names = (said.kind, said.federation, said.name, said.address)
    return Kit(*names, ca.pem, found.pem, key, found.node_id, found.expires, folder)


def read_kit_settings(folder: Path, kind: Role | None = None) -> KitSettings:
    """The kit.toml of a folder; with a kind, refuses the kit of the other side."""
    path = folder / SETTINGS
    if not path.exists():
        raise InputError(f"{printable(folder)}: this is no kit, it has no {SETTINGS}. `potluck provision` makes kits.")
    plain, text = toml.parse(read_file(path)[0], path)
    for name in ("kind", "federation", "name", "address"):
        if name not in plain:
            raise SettingsError(f"{printable(path)}: '{name}' is missing.")
    said = parse_settings(KitSettings, plain, printable(path), text)
    if kind not in (None, said.kind):
        which = "the server's kit" if said.kind == "server" else f"the kit of node '{said.name}'"
        wanted = "the server's" if kind == "server" else "a node's"
        raise InputError(f"{printable(folder)}: this is {which}; {wanted} is needed here.")
    return said


def read_issued(path: Path, ca: Path) -> Certificate:
    """What a certificate says, if this authority signed it."""
    issuer = read_authority_certificate(ca)
    with naming(path):
        found = authority.read_certificate(read_file(path)[0])
        authority.check_issuer(found, issuer)
    return found


def read_authority_certificate(path: Path) -> Certificate:
    """What the authority's own certificate says."""
    with naming(path):
        return authority.read_certificate(read_file(path)[0])


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns what is wrong with a key or certificate into an error that names the file."""
    try:
        yield
    except Unusable as fault:
        raise InputError(f"{printable(path)}: {fault}") from None


def site_name_fault(name: str) -> str:
    """What is wrong with the name of a site; empty if nothing is."""
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_-])?", name) or len(name) > LONGEST_NAME:
        return f"write at most {LONGEST_NAME} letters, digits, '.', '-' and '_', with a letter or digit first"
    return "the names server and authority are taken" if name.lower() in RESERVED else ""


def address_fault(address: str) -> str:
    """What is wrong with an address host:port; empty if nothing is."""
    host, port = split_address(address)
    if not host or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        return "write host:port, such as potluck.example.org:9443 or [fd00::5]:9443"
    return host_fault(host)


def split_address(address: str) -> tuple[str, str]:
    """Host and port of an address; an IPv6 address stands in brackets."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    return ("", port) if ":" in host else (host, port)


def canonical_host(host: str) -> str:
    """A host as certificates have it."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def host_fault(host: str) -> str:
    """What is wrong with a host; empty if nothing is."""
    try:
        ipaddress.ip_address(host)
        return ""
    except ValueError:
        label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
        fine = re.fullmatch(rf"{label}(\.{label})*", host) and len(host) <= 253 and not host.split(".")[-1].isdigit()
        return "" if fine else f"{host!r} is neither the name of a host nor an IP address"
