"""The command started in a folder with files named like the libraries that it imports."""

import os
import subprocess
import sys

import pytest

LIBRARIES = (
    *("typer", "click", "rich", "torch", "numpy", "pydantic", "sklearn", "safetensors", "scipy"),
    *("tomllib", "json", "socket", "difflib", "traceback", "dataclasses"),
)
OWN = """\
from dataclasses import dataclass
from potluck.methods import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""
MINE = ("run", "tiny.toml", "--set", "method.name=own:Mine", "--set", "rounds=1", "--out", "mine")


@pytest.fixture
def foreign(place, tmp_path_factory):
    """The working folder with a canary in place of every library, and a script like the one that pip installs."""
    canary = f"from pathlib import Path\nPath({str(place / 'sung')!r}).touch()\nraise SystemExit(99)\n"
    for name in LIBRARIES:
        (place / f"{name}.py").write_text(canary)
    (place / "rich.py").unlink()
    (place / "rich").mkdir()
    (place / "rich" / "__init__.py").write_text(canary)
    (place / "own.py").write_text(OWN)
    script = tmp_path_factory.mktemp("bin") / "potluck"
    script.write_text("import sys\nfrom potluck.cli import main\nsys.exit(main())\n")
    return place, {"script": [str(script)], "module": ["-m", "potluck"]}


@pytest.mark.parametrize(
    ("way", "safe", "arguments"),
    [
        ("script", "", (*MINE, "--engine", "pool")),
        ("module", "", MINE),
        ("module", "1", ("list", "engines")),
        ("script", "1", ("--help",)),
    ],
)
def test_nothing_in_the_current_folder_runs_unless_the_settings_name_it(way, safe, arguments, foreign):
    place, ways = foreign
    env = {**os.environ, "PYTHONSAFEPATH": safe, "PYTHONDONTWRITEBYTECODE": "1"}
    found = subprocess.run(
        [sys.executable, *ways[way], *arguments], cwd=place, env=env, capture_output=True, text=True, check=False
    )
    assert not (place / "sung").exists()
    assert (found.returncode, "Traceback" in found.stderr) == (0, False), found.stderr
    assert (place / "mine" / "manifest.json").exists() == ("own:Mine" in " ".join(arguments))


def test_a_network_of_ones_own_is_found_in_the_current_folder_too(place, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(place)])
    (place / "own_net.py").write_text(
        "from torch import nn\n\n\ndef net(classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    from potluck.models import make_spec

    assert make_spec("own_net:net", input=(1, 8, 8), classes=10).family == "own_net:net"
    assert sys.path[-1] == str(place)


def test_a_current_folder_that_was_removed_is_no_traceback(tmp_path_factory):
    gone = tmp_path_factory.mktemp("gone")
    program = f"import os\nos.rmdir({str(gone)!r})\nfrom potluck.cli import main\nmain(['--version'])\n"
    found = subprocess.run([sys.executable, "-P", "-c", program], cwd=gone, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
