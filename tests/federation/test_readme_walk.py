"""The federation of the README, line by line, in an empty folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import blocks

from potluck.federation.rehearsal import free_port

README = Path(__file__).parents[2] / "README.md"
WAIT_FOR_EACH = """
set -e
wait() { for job in $(jobs -p); do builtin wait "$job" || exit "$?"; done; }
"""
"""Bash's own `wait` forgets how the jobs ended."""


@pytest.mark.slow
def test_the_readme_s_federation_runs_as_written_in_an_empty_folder(tmp_path):
    (walk,) = [block for block in blocks(README.read_text("utf-8"), "sh") if "potluck join" in block]
    assert walk.endswith("\nwait\n")
    assert walk.count(":8443") == 1
    script = WAIT_FOR_EACH + walk.replace(":8443", f":{free_port()}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "log.txt").open("wb") as log:
        ended = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path}, stdout=log, stderr=log, timeout=600
        )
    told = (tmp_path / "log.txt").read_text("utf-8")
    assert ended.returncode == 0, told
    (folder,) = (tmp_path / "runs").iterdir()
    found = json.loads((folder / "manifest.json").read_text("utf-8"))
    assert (found["status"], found["result"]["rounds"], found["clients"]) == ("done", 5, 3), told
    for site in ("clinic-a", "clinic-b", "clinic-c"):
        lines = (tmp_path / "kits" / site / "state" / "audit.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line).get("verb") for line in lines].count("train") == 5
