"""Federated averaging as one would write it by hand: a loop over HTTPS with client certificates, in plain PyTorch.

python https_loop.py server KITS NODES ROUNDS EPOCHS     prints the seconds of each round
python https_loop.py node KIT DATA EPOCHS
"""

from __future__ import annotations

import http.client
import io
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def lenet() -> nn.Module:
    """The network of the family "lenet", by hand."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def pack(arrays: dict[str, torch.Tensor]) -> bytes:
    out = io.BytesIO()
    np.savez(out, **{name: tensor.numpy() for name, tensor in arrays.items()})  # type: ignore[arg-type]
    return out.getvalue()


def unpack(data: bytes) -> dict[str, torch.Tensor]:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return {name: torch.from_numpy(found[name]) for name in found.files}


def context(kit: Path, side: ssl.Purpose) -> ssl.SSLContext:
    made = ssl.create_default_context(side, cafile=str(kit / "ca.pem"))
    made.load_cert_chain(kit / "cert.pem", kit / "key.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


class Loop:
    """The server: hands out the model of a phase (train or score), and waits for all nodes."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.news = nodes, threading.Condition()
        self.phase, self.model, self.answers = 0, b"", list[bytes]()

    def ask(self, model: dict[str, torch.Tensor]) -> list[bytes]:
        with self.news:
            self.phase, self.model, self.answers = self.phase + 1, pack(model), []
            self.news.notify_all()
            self.news.wait_for(lambda: len(self.answers) == self.nodes)
            return self.answers

    def end(self) -> None:
        with self.news:
            self.phase, self.model = self.phase + 1, pack({})
            self.news.notify_all()
        time.sleep(1.0)  # nodes fetch it

    def get(self, seen: int) -> tuple[int, bytes]:
        with self.news:
            self.news.wait_for(lambda: self.phase != seen)
            return self.phase, self.model

    def put(self, answer: bytes) -> None:
        with self.news:
            self.answers.append(answer)
            self.news.notify_all()


def serve(kits: Path, nodes: int, rounds: int) -> None:
    loop = Loop(nodes)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            phase, model = loop.get(int(self.path.strip("/")))
            self.send_response(200)
            self.send_header("Phase", str(phase))
            self.send_header("Content-Length", str(len(model)))
            self.end_headers()
            self.wfile.write(model)

        def do_POST(self) -> None:
            loop.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context(kits / "server", ssl.Purpose.CLIENT_AUTH).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (kits / "port").write_text(str(server.server_address[1]))
    model = dict(lenet().state_dict())
    for _ in range(rounds + 1):  # the first one waits for nodes to start, and does not count
        started = time.perf_counter()
        found = [unpack(answer) for answer in loop.ask(model)]
        model = {name: torch.stack([each[name] for each in found]).mean(0) for name in model}
        loop.ask(model)
        print(f"round {time.perf_counter() - started:.4f}", flush=True)
    loop.end()


def node(kit: Path, data: Path, epochs: int) -> None:
    torch.set_num_threads(1)
    with np.load(data) as found:
        x, y = torch.from_numpy(found["x"]), torch.from_numpy(found["y"])
    held = round(0.3 * len(x))
    net, seen = lenet(), 0
    while not (kit.parent / "port").exists():
        time.sleep(0.1)
    port = int((kit.parent / "port").read_text())
    link = http.client.HTTPSConnection("127.0.0.1", port, context=context(kit, ssl.Purpose.SERVER_AUTH))
    while True:
        link.request("GET", f"/{seen}")
        answer = link.getresponse()
        seen, model = int(answer.headers["Phase"]), unpack(answer.read())
        if not model:
            return
        net.load_state_dict(model)
        link.request("POST", "/", pack(train(net, x[held:], y[held:], epochs) if seen % 2 else score(net, x[:held], y)))
        link.getresponse().read()


def train(net: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> dict[str, torch.Tensor]:
    net.train()
    rule = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(32):
            rule.zero_grad()
            functional.cross_entropy(net(x[rows]), y[rows]).backward()
            rule.step()
    return dict(net.state_dict())


def score(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    net.eval()
    with torch.inference_mode():
        return {"right": (net(x).argmax(1) == y[: len(x)]).sum()}


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        node(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
