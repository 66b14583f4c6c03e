"""The transport "flower" where Flower is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from potluck.core import ResourceError


def test_without_flower_the_error_is_one_line_that_names_the_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("flwr", "potluck.engines.remote.flower"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(
        ResourceError, match=r"^the transport 'flower' needs the package flwr: pip install 'potluck\[flower\]'"
    ):
        importlib.import_module("potluck.engines.remote.flower_transport")
