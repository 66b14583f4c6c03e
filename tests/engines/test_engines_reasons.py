"""Reasons in the ledger: whatever a client says is one short line."""

from dataclasses import dataclass

import pytest
from tiny_runs import events, tiny

from potluck.core import Task, on_client
from potluck.core.text import MOST_LETTERS, one_line
from potluck.engines import LedgerEntry
from potluck.methods import FedAvg
from potluck.run import run


@dataclass(frozen=True)
class Talkative(FedAvg):
    """FedAvg whose client c0 fails with a very long text."""

    @on_client
    def train(self, task, device):
        if task.to in ("c0", "c1", "c2"):
            raise OSError("\x1b[2J no\nspace " + "left " * 200_000)
        return super().train(task, device)


def test_a_text_is_cut_to_one_line_without_control_characters():
    assert one_line("as it is") == "as it is"
    assert one_line("a\nb\t\x1b[31mc\u202e\ud800d") == "a b [31mc d"
    assert one_line("abcdef", 5) == "abcd…"
    assert one_line("a" + " " * 100 + "b", 5) == "a…"
    assert len(one_line("long " * 10**6)) == MOST_LETTERS


@pytest.mark.parametrize("verdict", ["absent", "quarantined"])
def test_every_entry_of_the_ledger_has_a_short_reason(verdict):
    entry = LedgerEntry(0, Task("train", "c0"), verdict, "'" + "w" * 10**6 + "' is\nnot finite")
    assert (len(entry.reason), entry.reason[:3], entry.reason[-1]) == (MOST_LETTERS, "'ww", "…")


def test_a_talkative_client_does_not_fill_the_ledger(tmp_path):
    settings = tiny(rounds=2, cohort=8)
    found = run(settings, tmp_path / "run", method=Talkative(share="layerwise", local=settings.local))
    reasons = {event["reason"] for event in events(found.folder, "task") if event["outcome"] == "absent"}
    assert [reason[:35] for reason in reasons] == ["failed: OSError: [2J no space left "]
    assert (found.folder / "ledger.jsonl").stat().st_size < 20_000
