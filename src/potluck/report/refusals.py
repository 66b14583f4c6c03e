"""Replies that came and did not count."""

from __future__ import annotations

from potluck.report.records import SERVER, RunRecord


def refused(run: RunRecord) -> str:
    """How many replies were refused, and why most often, in a line; nothing where all were good."""
    kinds = [fault for fault in run.failures if fault.outcome == "quarantined"]
    if not kinds:
        return ""
    most, times = kinds[0], sum(fault.times for fault in kinds)
    whose = "of the server's own" if most.tier == SERVER else f"from tier '{most.tier}'"
    replies = "1 reply" if times == 1 else f"{times} replies"
    return f"{replies}; {most.times} {whose}: {most.reason or 'no reason given'}"
