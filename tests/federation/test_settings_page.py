"""docs/deploying.md lists every setting under [nodes]."""

import re
from dataclasses import fields
from pathlib import Path

from potluck.run.settings import Nodes

PAGE = Path(__file__).parents[2] / "docs" / "deploying.md"


def test_the_page_on_deploying_has_a_row_for_every_setting_of_nodes():
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {field.name for field in fields(Nodes)} <= named
