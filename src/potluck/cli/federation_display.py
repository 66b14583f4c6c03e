"""What the server and the nodes of a federation print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.cli import display
from potluck.cli.safe_text import visible

if TYPE_CHECKING:
    from potluck.core import Task
    from potluck.engines import TaskResult
    from potluck.federation.charter import Charter
    from potluck.federation.host import NodeState
    from potluck.federation.measure import Measured
    from potluck.run import FailedRun, Result, Watch


class WithNodes:
    """A watch that also says who comes, who goes, and what the server waits for."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._states: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._waiting = ""

    def start(self, folder: Path, manifest: Mapping[str, Any], done: int) -> None:
        self.watch.start(folder, manifest, done)

    def round(self, done: int, scores: Mapping[str, Any] | None, totals: Mapping[str, float]) -> None:
        self.watch.round(done, scores, totals)

    def warn(self, text: str) -> None:
        from potluck.report import name_nodes

        self.watch.warn(name_nodes(text, self._names))

    def end(self, outcome: Result | FailedRun) -> None:
        self.watch.end(outcome)

    def nodes(self, nodes: Sequence[NodeState], waiting: str) -> None:
        for node in nodes:
            if self._states.get(node.id, "away") != node.state:
                self.watch.warn(_news(node))
            self._states[node.id], self._names[node.id] = node.state, node.name
        here = sum(node.state == "here" for node in nodes)
        away = ", ".join(node.name for node in nodes if node.state != "here")
        told = f"waiting for {waiting}: {here} of {len(nodes)} here" + (f"; not {away}" if away else "")
        if waiting and told != self._waiting:
            self.watch.warn(told)
        self._waiting = told if waiting else ""


def _news(node: NodeState) -> str:
    if node.state == "here":
        return f"{node.name} is here: tier '{node.tier}', {node.samples} samples"
    if node.state == "asked":
        return f"{node.name} connected from {node.address}"
    return f"{node.name} is away" if node.state == "away" else f"{node.name} declined: {node.reason}"


class NodeLines:
    """Says what a node does, a line for each task."""

    def __init__(self, name: str) -> None:
        self.name = name

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name}: {visible(text)}\n")  # in one piece: two threads speak
        sys.stderr.flush()

    def measured(self, found: Mapping[str, Measured], tier: str) -> None:
        for name, one in found.items():
            taken = "  (taken)" if name == tier else ""
            self.say(
                f"tier '{name}': {one.seconds * 1000:.1f} ms a step, {one.round:.1f} s a round, "
                f"{one.memory / 1e6:,.0f} MB{taken}"
            )

    def begins(self, task: Task) -> None:
        if task.verb != "score":
            self.say(f"round {task.round + 1}: {task.verb} begins")

    def ends(self, task: Task, result: TaskResult, sent: int) -> None:
        seconds = result.reply.cost.seconds if result.reply else 0.0
        what = (
            f"failed: {result.fault}" if result.reply is None else f"{seconds:.1f} s, sent {display.format_bytes(sent)}"
        )
        when = f"after round {task.round}" if task.verb == "score" else f"round {task.round + 1}"
        self.say(f"{when}: {task.verb}, {what}")


def consent(yes: bool) -> Callable[[Charter, str], bool]:
    """Asks at the terminal whether to take part; with `yes`, nobody is asked."""

    def ask(charter: Charter, tier: str) -> bool:
        from potluck.core import SettingsError
        from potluck.federation.explaining import describe_charter

        for line in describe_charter(charter, tier):
            print(visible(line), file=sys.stderr, flush=True)
        if yes:
            return True
        if not sys.stdin.isatty():
            raise SettingsError("nobody is here to ask whether to take part; give --yes.")
        try:
            return input("Take part? [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    return ask
