"""A checksum of the package's own source."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def code_checksum() -> str:
    """A checksum of the package's source: equal for equal code, from a checkout or installed."""
    total, package = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        total.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]
