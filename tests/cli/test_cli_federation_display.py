"""What the server of a federation prints while it runs."""

from __future__ import annotations

import pytest

from potluck.cli.display import LineProgress
from potluck.cli.federation_display import WithNodes
from potluck.federation.host import NodeState

ID = "40c9cff9da2babca405d51979169455d"


def test_warnings_name_nodes_in_place_of_their_ids(capfd: pytest.CaptureFixture[str]) -> None:
    watch = WithNodes(LineProgress(4, "digits"))
    watch.nodes([NodeState(ID, "clinic-a", "phone", 20, "here")], "")
    watch.warn(f"scoring after round 1: {ID}: it failed; {'0' * 32} is unknown")
    assert capfd.readouterr().err.splitlines() == [
        "digits: clinic-a is here: tier 'phone', 20 samples",
        f"digits: scoring after round 1: clinic-a: it failed; {'0' * 32} is unknown",
    ]
