"""A server and a node whose network is silent for a while. For `unshare -rn`, where the loopback may be switched off.

python grpc_silence.py FOLDER SECONDS      prints one line of JSON
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from grpc_life import DEADLINE, Site, serving, text, there, until


def link(state):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def main(folder, seconds):
    link("up")
    silent, left = threading.Event(), []

    def respond(parts):
        """Its second message is answered in the silence, and so is a large one."""
        if parts[0].tobytes() == b"during":
            silent.wait(DEADLINE)
        if parts[0].tobytes() == b"large":
            return [parts[0], np.zeros(5_000_000, np.uint8)]
        return parts

    with serving(folder) as server, Site(folder, server.port, respond=respond) as site:
        found = []

        def post(number, said):
            server.post(site.id, number, text(said), 300.0)

        def wait(count):
            until(lambda: found.extend(server.fetch(0.05)) or len(found) >= count)

        there(server, site)
        post(0, "before")
        wait(1)
        post(1, "during")
        until(lambda: len(site.asked) == 2)
        link("down")
        silent.set()
        post(2, "large")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found.extend(server.fetch(0.05))
            if not server.present():
                left.append(True)
        assert len(found) == 1, found
        link("up")
        wait(3)
        post(3, "after")
        wait(4)
        told = [[answer.fault or answer.parts[0].tobytes().decode(), *map(len, answer.parts[1:])] for answer in found]
        lines = {"answers": told, "asked": len(site.asked), "left": bool(left), "notes": server.notes}
        print(json.dumps({**lines, "lines": site.lines}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
