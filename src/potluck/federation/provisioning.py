"""Makes a federation's private authority and its kits, and adds sites to it later. No key is ever replaced.

The first time, everything is written beside and renamed in one step. Later, so is each site's kit; a kit that was made
but not admitted, because the machine died in between, is admitted the next time.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from potluck.core import InputError, SettingsError
from potluck.federation import authority
from potluck.federation.admission import (
    FILE,
    SHORT,
    Entries,
    change_nodes,
    find_node,
    named_node,
    pack_nodes,
    read_nodes,
    refuse_other_key,
    with_node,
    with_status,
)
from potluck.federation.authority import Authority, Certificate, Role
from potluck.federation.files import alone_in, read_file, read_key, replace_file, write_new
from potluck.federation.kits import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    LONGEST_NAME,
    README,
    SETTINGS,
    address_fault,
    canonical_host,
    host_fault,
    naming,
    read_authority_certificate,
    read_issued,
    read_kit_settings,
    site_name_fault,
    split_address,
)
from potluck.ledger.errors import os_error, printable
from potluck.ledger.files import discard, make_folder, sync_folder, temporary_path
from potluck.run import toml
from potluck.run.config import parse_settings

AUTHORITY_KEY = "ca.key"
AUTHORITY_FOLDER, SERVER_FOLDER = "authority", "server"
MOST_DAYS = 3650
_PREFIX, _SUFFIX = ".potluck-kits-", ".part"
_EXAMPLES = {"name": '"three-clinics"', "server": '"potluck.example.org:9443"', "sites": '["clinic-a", "clinic-b"]'}


@dataclass(frozen=True)
class FederationSettings:
    """The file federation.toml: who takes part."""

    name: str
    server: str
    """The server's address, as host:port."""
    sites: tuple[str, ...]
    days: int = 365
    """How long certificates are valid."""
    also: tuple[str, ...] = ()
    """Further names and addresses of the server, for its certificate."""

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable() or len(self.name.encode()) > LONGEST_NAME:
            raise ValueError(f"name = {self.name!r}: give one line of 1 to {LONGEST_NAME} bytes")
        if fault := address_fault(self.server):
            raise ValueError(f"server = {self.server!r}: {fault}")
        if not 1 <= self.days <= MOST_DAYS:
            raise ValueError(f"days = {self.days}: give 1 to {MOST_DAYS}")
        for host in self.also:
            if fault := host_fault(host):
                raise ValueError(f"also = {host!r}: {fault}")
        self._check_sites()

    def _check_sites(self) -> None:
        seen: dict[str, str] = {}
        for site in self.sites:
            if fault := site_name_fault(site):
                raise ValueError(f"sites = {site!r}: {fault}")
            if site.lower() in seen:
                raise ValueError(f"sites = '{site}': '{seen[site.lower()]}' is there already")
            seen[site.lower()] = site

    @property
    def hosts(self) -> tuple[str, ...]:
        """All that the server's certificate is valid for."""
        return tuple(dict.fromkeys(map(canonical_host, (split_address(self.server)[0], *self.also))))


@dataclass(frozen=True)
class Outcome:
    """What became of one folder."""

    done: str
    """`made`, `kept` or `admitted`."""
    name: str
    text: str


def read_federation(path: Path) -> FederationSettings:
    """The settings in a federation.toml, checked."""
    if not path.exists():
        lines = "; ".join(f"{key} = {value}" for key, value in _EXAMPLES.items())
        raise SettingsError(f"{printable(path)}: there is no such file. Write these lines into it: {lines}")
    plain, text = toml.parse(read_file(path)[0], path)
    for key, example in _EXAMPLES.items():
        if key not in plain and not set(plain) - {*_EXAMPLES, "days", "also"}:
            raise SettingsError(f"{printable(path)}: '{key}' is missing. Add {key} = {example}.")
    return parse_settings(FederationSettings, plain, printable(path), text)


def read_site_key(path: Path) -> bytes:
    """The public key of a site that made its own; loudly refuses a private key."""
    with naming(path):
        return authority.read_public_key(read_file(path)[0])


def make_site_key(folder: Path, name: str) -> Path:
    """Makes a private key in a folder, and beside it the public key, whose path is returned: only that is sent away.

    If the private key is there and the public one is not, it is written again.
    """
    if fault := site_name_fault(name):
        raise SettingsError(f"'{name}': {fault}.")
    key, public = folder / KEY, folder / f"{name}.pub"
    make_folder(folder)
    with alone_in(folder):
        if os.path.lexists(key) and os.path.lexists(public):
            raise InputError(
                f"{printable(key)}: it is there already, and no key is ever replaced. Choose another --to."
            )
        if not os.path.lexists(key):
            part = temporary_path(folder)
            try:
                write_new(part, authority.make_key(), 0o600)
                os.rename(part, key)
            finally:
                discard(part)
        with naming(key):
            write_new(public, authority.public_key(read_key(key)))
        _sync(folder)
    return public


def provision(
    wanted: FederationSettings, folder: Path, own: Mapping[str, bytes] | None = None, now: datetime | None = None
) -> list[Outcome]:
    """Makes authority, server's kit and sites' kits in a folder, or adds what is new to it.

    `own` holds the public keys of sites that made their own, by name; their kits have no key.
    """
    own, now = own or {}, now or datetime.now(UTC)
    parent = Path(os.path.abspath(folder)).parent
    make_folder(parent)
    with alone_in(parent):
        _sweep(parent)
        if not os.path.lexists(folder) or (folder.is_dir() and not os.listdir(folder)):
            return _found(wanted, folder, own, now)
        if not (folder / AUTHORITY_FOLDER).is_dir():
            raise InputError(
                f"{printable(folder)}: it is there, and `potluck provision` did not make it. Choose another --to."
            )
        _sweep(folder)
        return _extend(wanted, folder, own, now)


def _found(wanted: FederationSettings, folder: Path, own: Mapping[str, bytes], now: datetime) -> list[Outcome]:
    """The first time: everything or nothing."""
    if Path(os.path.abspath(folder)) == Path.cwd():
        raise SettingsError(f"{printable(folder)}: --to names the current folder; give the name of a new one.")
    keys = _keys(wanted, own, ())
    signer = authority.make_authority(wanted.name, now)
    with _made_beside(folder) as part:
        _write(part / AUTHORITY_FOLDER, {AUTHORITY: signer.cert, AUTHORITY_KEY: signer.key})
        nodes: Entries = ()
        for name, public in keys.items():
            found = _write_kit(part / name, signer, wanted, name, "node", public, now)
            nodes = with_node(nodes, found.node_id, name, found.expires, now, authority.certified_key(found))
        server = _write_kit(part / SERVER_FOLDER, signer, wanted, SERVER_FOLDER, "server", None, now, nodes)
    until = authority.read_certificate(signer.cert).expires
    return [
        Outcome("made", AUTHORITY_FOLDER, f"until {until:%Y-%m-%d}; keep it offline, whoever has it can admit anyone"),
        Outcome("made", SERVER_FOLDER, f"for {', '.join(wanted.hosts)}, until {server.expires:%Y-%m-%d}"),
        *(Outcome("made", node.name, _node_text(nodes, node.name, node.name in own)) for node in nodes),
    ]


def _extend(wanted: FederationSettings, folder: Path, own: Mapping[str, bytes], now: datetime) -> list[Outcome]:
    """Later: kits for new sites."""
    signer, path = read_authority(folder / AUTHORITY_FOLDER), folder / SERVER_FOLDER / FILE
    server = _check_same_federation(wanted, folder)
    nodes = read_nodes(path)
    keys = _keys(wanted, own, nodes)
    begun = {name: _begun_kit(folder, name, keys[name]) for name in keys if os.path.lexists(folder / name)}
    kept = [
        Outcome("kept", AUTHORITY_FOLDER, "as it was"),
        Outcome("kept", SERVER_FOLDER, f"until {server.expires:%Y-%m-%d}"),
        *(Outcome("kept", node.name, _node_text(nodes, node.name)) for node in nodes),
    ]
    for name, public in keys.items():
        found = begun.get(name)
        if found is None:
            with _made_beside(folder / name, folder) as part:
                found = _write_kit(part, signer, wanted, name, "node", public, now)
        _admit(path, found, now)
    nodes = read_nodes(path)
    made = [
        Outcome("admitted" if name in begun else "made", name, _node_text(nodes, name, name in own)) for name in keys
    ]
    return [*kept, *made]


def _keys(wanted: FederationSettings, own: Mapping[str, bytes], nodes: Entries) -> dict[str, bytes | None]:
    """The sites that need a kit, with the public key of those that made their own; checks their names."""
    keys: dict[str, bytes | None] = {}
    for name in dict.fromkeys((*wanted.sites, *own)):
        public = own.get(name)
        if fault := site_name_fault(name):
            raise SettingsError(f"'{name}': {fault}.")
        if public is not None:
            refuse_other_key(nodes, authority.fingerprint(public), name)
        if any(node.name == name for node in nodes):
            continue
        if twin := [other for other in (*keys, *(node.name for node in nodes)) if other.lower() == name.lower()]:
            raise SettingsError(f"site '{name}': there is a '{twin[0]}' already; names must differ in more than case.")
        keys[name] = public
    ids = [authority.fingerprint(public) for public in keys.values() if public]
    if len(set(ids)) < len(ids):
        raise SettingsError("two of the public keys are the same; every site needs a key of its own.")
    return keys


def _check_same_federation(wanted: FederationSettings, folder: Path) -> Certificate:
    """The server's certificate; an error if the settings now ask for something else than what was made."""
    server = folder / SERVER_FOLDER
    said = read_kit_settings(server, "server")
    found = read_issued(server / CERTIFICATE, folder / AUTHORITY_FOLDER / AUTHORITY)
    if said.federation != wanted.name:
        raise SettingsError(
            f"{printable(folder)} belongs to the federation '{said.federation}', not to '{wanted.name}'. "
            "Choose another --to."
        )
    if lacking := [host for host in wanted.hosts if host not in found.hosts]:
        options = " ".join(f"--also {host}" for host in lacking)
        raise SettingsError(
            f"{printable(server)}: its certificate is not valid for {', '.join(lacking)}. Run: potluck nodes renew "
            f"{server} --authority {folder / AUTHORITY_FOLDER} {options}"
        )
    if said.address != wanted.server:
        raise SettingsError(
            f"{printable(server)}: kit.toml says that the server is {said.address}, the settings say {wanted.server}. "
            "Write the new address into the kit.toml of every kit."
        )
    return found


def _begun_kit(folder: Path, name: str, public: bytes | None) -> Certificate:
    """The certificate of a kit that is there, but was not admitted."""
    try:
        found = read_issued(folder / name / CERTIFICATE, folder / AUTHORITY_FOLDER / AUTHORITY)
    except InputError as fault:
        raise InputError(f"{printable(folder / name)} is there, but is no kit of this federation: {fault}") from None
    if found.name != name or (public is not None and found.node_id != authority.fingerprint(public)):
        raise InputError(f"{printable(folder / name)}: this kit is for another name or key. Move it away.")
    return found


def read_authority(folder: Path) -> Authority:
    """The authority in a folder, checked."""
    key = read_key(folder / AUTHORITY_KEY)
    found = read_authority_certificate(folder / AUTHORITY)
    with naming(folder / AUTHORITY_KEY):
        authority.check_key(key, found)
    return Authority(found.pem, key)


def renew(
    folder: Path,
    signer: Path,
    days: int = 365,
    also: Sequence[str] = (),
    server: Path | None = None,
    now: datetime | None = None,
) -> Certificate:
    """Replaces the certificate in a kit by a new one for the same key; with the server's kit, notes the new date there.

    The private key is not needed, so this can be done where the authority is.
    """
    now = now or datetime.now(UTC)
    said, owner = read_kit_settings(folder), read_authority(signer)
    before = read_issued(folder / CERTIFICATE, signer / AUTHORITY)
    for host in also:
        if fault := host_fault(host) or (
            "" if said.kind == "server" else "only the server's certificate has addresses"
        ):
            raise SettingsError(f"--also {host}: {fault}.")
    if said.kind == "node" and server is not None:
        _check_renewable(server, before)
    if not 1 <= days <= MOST_DAYS:
        raise SettingsError(f"--days {days}: give 1 to {MOST_DAYS}.")
    public, hosts = authority.certified_key(before), (*before.hosts, *map(canonical_host, also))
    with naming(signer / AUTHORITY):
        made = authority.issue(owner, public, before.name, said.kind, days, now, hosts)
    replace_file(folder / CERTIFICATE, made)
    found = authority.read_certificate(made)
    if said.kind == "node" and server is not None:
        admit_certificate(folder / CERTIFICATE, server, now)
    return found


def _check_renewable(server: Path, found: Certificate) -> None:
    read_kit_settings(server, "server")
    node = named_node(read_nodes(server / FILE), found.node_id)
    if node.status == "revoked":
        raise SettingsError(f"node '{node.name}' is revoked; a new certificate would not let it in. Admit it first.")


def admit_certificate(path: Path, server: Path, now: datetime | None = None) -> str:
    """Admits the node of a certificate file that the federation's authority signed; returns its id."""
    now = now or datetime.now(UTC)
    read_kit_settings(server, "server")
    found = read_issued(path, server / AUTHORITY)
    if "node" not in found.roles or site_name_fault(found.name):
        raise InputError(f"{printable(path)}: this is not the certificate of a node.")
    with naming(path):
        authority.check_dates(found, now)
    _admit(server / FILE, found, now)
    return found.node_id


def _admit(path: Path, found: Certificate, now: datetime) -> None:
    key = authority.certified_key(found)
    change_nodes(path, lambda nodes: with_node(nodes, found.node_id, found.name, found.expires, now, key))


def admit(wanted: str, server: Path) -> str:
    """Admits a node again, by name or id, or the node of a certificate file; returns its id."""
    read_kit_settings(server, "server")
    nodes = read_nodes(server / FILE)
    if find_node(nodes, wanted) is None and (Path(wanted).is_file() or "/" in wanted or wanted.endswith(".pem")):
        return admit_certificate(Path(wanted), server)
    return _set_status(wanted, server, "admitted")


def revoke(wanted: str, server: Path) -> str:
    """Shuts a node out, by name or id, from now on; returns its id."""
    read_kit_settings(server, "server")
    return _set_status(wanted, server, "revoked")


def _set_status(wanted: str, server: Path, status: str) -> str:
    now, found = datetime.now(UTC), named_node(read_nodes(server / FILE), wanted)
    change_nodes(server / FILE, lambda nodes: with_status(nodes, named_node(nodes, found.id), status, now))
    return found.id


def _node_text(nodes: Entries, name: str, own: bool = False) -> str:
    node = named_node(nodes, name)
    return (
        f"node {node.id[:SHORT]}, {node.status}, until {node.expires[:10]}{'; the key is at the site' if own else ''}"
    )


def _write_kit(
    folder: Path,
    signer: Authority,
    wanted: FederationSettings,
    name: str,
    role: Role,
    public: bytes | None,
    now: datetime,
    nodes: Entries | None = None,
) -> Certificate:
    """Writes a kit, with a new key unless the site has its own; returns what the certificate says."""
    key = None if public else authority.make_key()
    public = public or authority.public_key(key or b"")
    hosts = wanted.hosts if role == "server" else ()
    with naming(Path(AUTHORITY_FOLDER) / AUTHORITY):
        cert = authority.issue(signer, public, name, role, wanted.days, now, hosts)
    said = {"kind": role, "federation": wanted.name, "name": name, "address": wanted.server}
    files = {SETTINGS: toml.write(said).encode(), AUTHORITY: signer.cert, CERTIFICATE: cert}
    if key is not None:
        files[KEY] = key
    if nodes is not None:
        files[FILE] = pack_nodes(nodes)
    files[README] = _readme(wanted.name, name, role, key is None).encode()
    _write(folder, files)
    return authority.read_certificate(cert)


def _readme(federation: str, name: str, role: Role, own: bool) -> str:
    if role == "server":
        return (
            f"This is the kit of the server of the federation '{federation}'. key.pem is secret: it stays here.\n"
            "Run: potluck server EXPERIMENT.toml --kit .\n"
            "If key.pem is lost or seen by others: make a new federation, and tell every site.\n"
        )
    start = "Put these files beside your key.pem, then run" if own else "Run"
    return (
        f"This is the kit of '{name}' in the federation '{federation}'. key.pem is secret: it stays with you.\n"
        f"{start}: potluck join --kit . --data FILE\n"
        f"If key.pem is lost or seen by others, tell who runs the server at once: potluck nodes revoke {name}\n"
    )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        if not folder.is_dir():
            folder.mkdir(mode=0o700)
    except OSError as fault:
        raise os_error(folder, "cannot make the folder", fault) from fault
    for name, data in files.items():
        write_new(folder / name, data, 0o600 if name in (KEY, AUTHORITY_KEY) else 0o644)
    _sync(folder)


@contextmanager
def _made_beside(folder: Path, within: Path | None = None) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end; if something fails, nothing is left of it."""
    part = (within or folder.parent) / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    try:
        try:
            part.mkdir(mode=0o700)
        except OSError as fault:
            raise os_error(part, "cannot make the folder", fault) from fault
        yield part
        _sync(part)
        try:
            os.rename(part, folder)
        except OSError as fault:
            raise os_error(folder, "cannot make the folder", fault) from fault
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    _sync(folder.parent)


def _sweep(folder: Path) -> None:
    """Removes what a broken-off command left; nobody has used those keys."""
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    try:
        sync_folder(folder)
    except OSError as fault:
        raise os_error(folder, "cannot write to the disk", fault) from fault
