"""Two traps of Flower: anyone may use its Control API, and nodes run the code that the server sends."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra flower: make flower")

import httpx
import numpy as np
from cryptography.hazmat.primitives import serialization
from flower_house import House, NodeProcess, free_port, until
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from potluck.engines.remote import flower_transport
from potluck.engines.remote.flower_transport import FlowerServer, fingerprint

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "nginx.conf"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
CONTROL = "/v1/control/list-nodes"


@contextmanager
def program(command, folder, **environment):
    """A program that is ended with the test; its output is in a file."""
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(folder / "flwr")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "PATH": path, **off, **environment}
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def echo(server, node, number=1):
    server.post(node, number, [np.arange(7, dtype=np.uint8)], 120)
    found = []
    until(lambda: found.extend(server.fetch(1.0)) or found)
    return found[0]


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_behind_our_nginx_a_stock_superlink_has_only_the_fleet(tmp_path):
    house = House(tmp_path)
    key, secret = house.node("a"), tmp_path / "secret"
    secret.write_bytes(secrets.token_bytes(32))
    inner, outer = free_port(), free_port()
    config = (
        EXAMPLE.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{inner}").replace("listen 9443", f"listen {outer}")
    )
    (tmp_path / "nginx.conf").write_text(config)
    superlink = [
        "flower-superlink", "--isolation", "process", "--superexec-auth-secret-file", str(secret),
        "--enable-supernode-auth", "--ssl-certfile", str(house.cert), "--ssl-keyfile", str(house.key),
        "--ssl-ca-certfile", str(house.ca), "--port", str(inner),
    ]  # fmt: skip
    nginx = [NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"]
    trust = ssl.create_default_context(cafile=house.ca)
    head = {"content-type": PROTOBUF_MEDIA_TYPE}
    with program(superlink, tmp_path), program(nginx, tmp_path):
        server = FlowerServer(
            lambda: [key], house.cert, house.key, house.ca, superlink=f"127.0.0.1:{inner}", secret=secret.read_bytes()
        )
        node = NodeProcess(house, "a", f"127.0.0.1:{outer}")
        try:
            until(lambda: fingerprint(key) in server.present())
            answer = echo(server, fingerprint(key))
            assert answer.parts[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
            for path in (
                CONTROL,
                "/v1/control/start-run",
                "/v1/runtime/acquire-task",
                "/v1/fleet/register-node",
                "/docs",
            ):
                assert httpx.post(f"https://127.0.0.1:{outer}{path}", verify=trust, headers=head).status_code == 404, (
                    path
                )
            url = f"https://127.0.0.1:{outer}/v1/fleet/push-object"
            assert httpx.post(url, verify=trust, headers=head, content=bytes(17 << 20)).status_code == 413
            assert httpx.post(f"https://127.0.0.1:{inner}{CONTROL}", verify=trust, headers=head).status_code == 200
        finally:
            node.end()
            server.close()


def app_with(canary):
    """An app (FAB) whose ClientApp leaves a file behind when it is imported."""
    made = io.BytesIO()
    toml = flower_transport.APP.replace("potluck.none:app", "canary.client_app:app").replace(
        'version = "1.0.0"', 'version = "1.0.0"\ndependencies = []'
    )
    code = (
        f"open({str(canary)!r}, 'w').close()\n"
        "from flwr.clientapp import ClientApp\nfrom flwr.app import Message, RecordDict\napp = ClientApp()\n"
        "@app.query()\ndef query(message, context):\n    return Message(RecordDict(), reply_to=message)\n"
    )
    files = {"pyproject.toml": toml, "canary/__init__.py": "", "canary/client_app.py": code}
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()}
        lines = [f"{name},{sums[name]},{len(text) * 8}" for name, text in files.items()]
        archive.writestr(".info/CONTENT", "\n".join(lines))
    return made.getvalue()


def test_an_app_that_the_server_sends_is_not_executed_at_a_node_of_ours_but_at_one_of_flower(tmp_path, monkeypatch):
    house, canary = House(tmp_path), tmp_path / "canary"
    ours, theirs = house.node("ours"), house.node("theirs")
    monkeypatch.setattr(flower_transport, "_app", lambda: app_with(canary))
    server = FlowerServer(lambda: [ours, theirs], house.cert, house.key, house.ca)
    node = NodeProcess(house, "ours", server.address)
    try:
        until(lambda: fingerprint(ours) in server.present())
        assert echo(server, fingerprint(ours)).parts[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert not canary.exists()
        private = serialization.load_pem_private_key((tmp_path / "theirs.key").read_bytes(), None)
        openssh, none = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        (tmp_path / "theirs.ssh").write_bytes(private.private_bytes(serialization.Encoding.PEM, openssh, none))
        stock = [
            "flower-supernode", "--superlink", server.address, "--root-certificates", str(house.ca), "--port",
            str(free_port()), "--auth-supernode-private-key", str(tmp_path / "theirs.ssh"),
        ]  # fmt: skip
        with program(stock, tmp_path):
            until(lambda: fingerprint(theirs) in server.present())
            server.post(fingerprint(theirs), 2, [np.zeros(1, np.uint8)], 120)
            until(canary.exists)  # so the app was one that runs
    finally:
        node.end()
        server.close()
