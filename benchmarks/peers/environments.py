"""A virtual environment for each peer, made when it is first needed and kept under build/bench."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDS = {
    "pfl": ("pfl==0.6.0",),
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1"),
}


def python_of(peer: str) -> str:
    """The Python that can import this peer; raises `CalledProcessError` where it cannot be installed."""
    folder = ROOT / "build" / "bench" / peer
    python, ready = folder / "bin" / "python", folder / "ready"
    wanted = "\n".join((*_pins(), *NEEDS[peer]))
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making an environment for {peer} in {folder.relative_to(ROOT)} ...", flush=True)
        _run(sys.executable, "-m", "venv", "--clear", str(folder))
        # torch comes first and alone: asked for by a range, pip would take a build with gigabytes of CUDA.
        _pip(python, *_pins())
        _pip(python, *_pins(), *NEEDS[peer])
        ready.write_text(wanted)
    return str(python)


def _pins() -> list[str]:
    """The torch and numpy that Potluck is tested with, so that all systems compute with the same kernels."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return [line for line in lines if line.startswith(("torch==", "numpy=="))]


def _pip(python: Path, *wanted: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
