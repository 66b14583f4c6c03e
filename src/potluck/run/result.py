"""The result of a run, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    folder: Path
    method: str
    rounds: int
    seed: int
    scores: Mapping[str, Any]
    """The last scores: ``global``, ``tiers``, ``clients``, and the name of the main score, ``metric``."""
    totals: Mapping[str, float]
    """Costs of the whole run. Modelled time: ``device_seconds``, the slowest device of each round, summed, and
    ``round_seconds``, with the wait for the server's own work."""
    weights_sha256: str
    privacy: Mapping[str, Any] | None = None
    """The privacy guarantee; None without [privacy]."""

    @property
    def metric(self) -> str:
        """The name of the main score."""
        return str(self.scores.get("metric", "accuracy"))

    @property
    def score(self) -> float | None:
        """The main score: of the server's model on the test set, or the clients' mean if only clients have models."""
        whole = self.scores.get("global")
        found: float | None = whole["test"][self.metric] if whole else (self.scores.get("clients") or {}).get("mean")
        return found

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the server's model, or the clients' mean; None if there is none."""
        whole = self.scores.get("global")
        return whole["test"].get("accuracy") if whole else self.score if self.metric == "accuracy" else None

    def plain(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        totals = self.totals
        return {
            "run": str(self.folder),
            "method": self.method,
            "rounds": self.rounds,
            "seed": self.seed,
            "metric": self.metric,
            "scores": {"global": self.scores.get("global"), "tiers": self.scores.get("tiers")},
            "bytes_down": int(totals.get("bytes_down", 0)),
            "bytes_up": int(totals.get("bytes_up", 0)),
            "seconds": totals.get("seconds", 0.0),
            "device_seconds": totals.get("device_seconds", 0.0),
            "round_seconds": totals.get("round_seconds", 0.0),
            "joules": totals.get("joules", 0.0),
            "weights_sha256": self.weights_sha256,
            **({"privacy": dict(self.privacy)} if self.privacy else {}),
        }


@dataclass(frozen=True)
class FailedRun:
    """A run of a comparison that has no result: it diverged, too few clients answered, or its process died twice."""

    folder: Path
    label: str
    """The method with its settings, and the variant."""
    method: str
    seed: int
    status: str
    """diverged: the clients' updates were not finite. failed: they did not answer, or the process of the run died."""
    round: int
    """The round in which it ended; 0 if that is not known."""
    reason: str

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return f"{self.status} in round {self.round}" if self.round else self.status

    def plain(self) -> dict[str, Any]:
        """What is known of it as plain values, for JSON."""
        names = ("label", "method", "seed", "status", "round", "reason")
        return {"run": str(self.folder), **{name: getattr(self, name) for name in names}}
