"""What the commands print while runs go on, where there is no terminal."""

from __future__ import annotations

import math

import pytest

from potluck.cli.display import LineProgress

SENT = {"bytes_down": 1500.0, "bytes_up": 500.0}
SCORES = {"metric": "accuracy", "global": {"test": {"accuracy": 0.5}}, "tiers": {}}


@pytest.mark.parametrize(("silence", "told"), [(0.0, ["1/3", "2/3", "3/3"]), (math.inf, ["2/3", "3/3"])])
def test_long_rounds_get_a_line_between_scorings(
    silence: float, told: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = LineProgress(3, "moss", pause=0.0, silence=silence)
    for done, scores in ((1, None), (2, SCORES), (3, None)):
        watch.round(done, scores, SENT)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == told
    assert lines[0].startswith(
        "moss: round 1/3  2.0 kB" if len(told) == 3 else "moss: round 2/3  accuracy 50.0%  2.0 kB"
    )
