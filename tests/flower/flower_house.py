"""Keys, certificates and processes for tests of the transport "flower". It needs the packages of the extra `flower`."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PATIENCE = 120.0


def until(condition, seconds=PATIENCE):
    """Waits until something is the case; an error if it is not in time. Returns what the condition gave."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited for {seconds} s in vain")
        time.sleep(0.05)
    return found


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def make_key(path):
    """A new private key in a file; returns its public key (PEM)."""
    key = ec.generate_private_key(ec.SECP384R1())
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    path.chmod(0o600)
    return key, key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)


def make_certificate(path, name, key, authority=None, authority_key=None):
    """A certificate for a key, for this machine's loopback address; its own authority if none is given."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(authority_key or key, hashes.SHA256())
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return made


class House:
    """A folder with an authority, the server's certificate, and nodes' keys."""

    def __init__(self, folder):
        self.folder = Path(folder)
        authority_key, _ = make_key(self.folder / "ca.key")
        authority = make_certificate(self.folder / "ca.pem", "authority", authority_key)
        server_key, _ = make_key(self.folder / "key.pem")
        make_certificate(self.folder / "cert.pem", "server", server_key, authority, authority_key)
        self.ca, self.cert, self.key = (self.folder / name for name in ("ca.pem", "cert.pem", "key.pem"))
        self.publics = {}

    def node(self, name):
        """Makes a node's key; returns its public key (PEM)."""
        self.publics[name] = make_key(self.folder / f"{name}.key")[1]
        return self.publics[name]


class NodeProcess:
    """A node in a process of its own, which answers with the parts that it got, and its name."""

    def __init__(self, house, name, address, mode="echo"):
        self.log = house.folder / f"{name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, address, str(house.ca), str(house.folder / f"{name}.key"), name, mode],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def said(self, word):
        return word in self.log.read_text(errors="replace")

    def kill(self):
        """As if the machine lost its power: the node and its SuperNode."""
        with_children = [self.process.pid, *children(self.process.pid)]
        for pid in with_children:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


def children(pid):
    """The processes that a process started, by any of its threads."""
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def descendants(pid, word):
    """Processes below one that have a word in their command line."""
    found = []
    for child in children(pid):
        if word in Path(f"/proc/{child}/cmdline").read_text():
            found.append(child)
        found += descendants(child, word)
    return found


def main():
    import threading

    import numpy as np

    from potluck.engines.remote.flower_transport import attend_flower

    address, ca, key, name, mode = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def respond(parts):
        print(json.dumps({"asked": [int(part.size) for part in parts]}), flush=True)
        while mode == "hang" and not (Path(key).parent / "go").exists() and not stop.is_set():
            stop.wait(0.05)
        return [*parts, np.frombuffer(name.encode(), np.uint8)]

    attend_flower(address, Path(ca), Path(key), respond, stop, note=lambda line: print("note:", line, flush=True))


if __name__ == "__main__":
    main()
