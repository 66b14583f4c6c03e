"""Real data sets for tests: in the folder that POTLUCK_DATA names, or the test is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real(name: str) -> Path:
    """The set of this name under POTLUCK_DATA."""
    folder = os.environ.get("POTLUCK_DATA")
    if not folder:
        pytest.skip("POTLUCK_DATA names no folder of real data")
    if not (Path(folder) / name).exists():
        pytest.skip(f"POTLUCK_DATA has no {name}")
    return Path(folder) / name
