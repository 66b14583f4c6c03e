"""The result of a run, or why it has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.core import UserError, gpu_advice, one_line, require_library
from potluck.ledger import LedgerError, read_run

if TYPE_CHECKING:
    from torch import nn

    from potluck.report.frames import DataFrame


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. It prints as four lines, and a notebook shows its scores and its learning curve."""

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
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What only Python can hand over again: `source`, the run's own data, and `method`, if it was an object."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder

    @property
    def history(self) -> list[dict[str, Any]]:
        """The scores of every scored round: the lines of scores.jsonl."""
        return read_run(self.folder).scores

    def frame(self, what: str = "scores") -> DataFrame:
        """The run as a pandas frame: its "scores" by round and tier, its "costs" by round, or its "tasks".

        Needs the extra `frames`.
        """
        require_library("pandas", "frames", "a data frame")
        from potluck.report.frames import make_frames

        return make_frames([self.folder])[what]

    def model(self, tier: str | None = None, *, client: str | None = None, server: bool = False) -> nn.Module:
        """The trained network of a tier, ready to use: ``result.model("phone")``. Without a name, of the largest tier.

        `client` gives the model of one client, such as "c0"; `server` the server's own, which may be larger.
        """
        from potluck.run.exporting import live_model, trained_model

        return live_model(trained_model(self.folder, tier, client, server, **self.given))

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

    def __repr__(self) -> str:
        """Four lines: the method, its scores, its costs, its folder."""
        from potluck.report.units import MetricFormat, format_bytes, format_joules, format_seconds

        metric, told = MetricFormat.of_metric(self.metric), self.totals.get
        tiers = [f"{name} {metric.format(score)}" for name, score in self.tier_scores.items()]
        sent = f"{format_bytes(told('bytes_down', 0))} down, {format_bytes(told('bytes_up', 0))} up"
        modelled = f"{format_seconds(told('device_seconds', 0.0))}, {format_joules(told('joules', 0.0))}"
        return (
            f"{self.method.rpartition(':')[2]}, seed {self.seed}, {self.rounds} rounds\n"
            f"{metric.name} {metric.format(self.score)}{': ' if tiers else ''}{', '.join(tiers)}\n"
            f"{sent}; modelled on the devices: {modelled}\n"
            f"{self.folder}"
        )

    @property
    def tier_scores(self) -> dict[str, float | None]:
        """The main score of each tier: on the test set, or else its clients' mean."""
        return {
            name: (tier.get("test") or {}).get(self.metric, (tier.get("clients") or {}).get("mean"))
            for name, tier in (self.scores.get("tiers") or {}).items()
        }

    def _repr_html_(self) -> str:
        from potluck.report.notebook_view import run_view

        return run_view(self.folder, repr(self))


@dataclass(frozen=True)
class FailedRun:
    """A run without a result: it diverged, too few clients answered, an error ended it, or it was interrupted."""

    folder: Path
    label: str
    """The method with its settings, and the variant."""
    method: str
    seed: int
    status: str
    """diverged: updates or the server's model were not finite. failed: clients did not answer, the process of the run
    died, or an error ended it. interrupted: by the user; it can be resumed."""
    round: int
    """The round in which it ended; 0 if that is not known."""
    reason: str
    totals: Mapping[str, float] = field(default_factory=dict, compare=False)
    """What it had cost when it ended, as in a `Result`; empty if that is not known."""
    given: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """As in a `Result`."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self.folder

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return f"{self.status} in round {self.round}" if self.round else self.status

    def plain(self) -> dict[str, Any]:
        """What is known of it as plain values, for JSON."""
        names = ("label", "method", "seed", "status", "round", "reason")
        return {"run": str(self.folder), **{name: getattr(self, name) for name in names}}


def reason_of(fault: BaseException) -> str:
    """An error in one line; of one that nobody expects, with the name of its class."""
    if advice := gpu_advice(fault):
        return advice.rstrip(".")
    expected = isinstance(fault, UserError | LedgerError)
    return one_line(str(fault) if expected else f"{type(fault).__name__}: {fault}", 500)
