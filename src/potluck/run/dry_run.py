"""A round without clients, before round 0: what a method asks them for, to refuse what must not leave them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from potluck.core import (
    SERVER,
    Client,
    Mean,
    Newborn,
    Reply,
    Round,
    Selection,
    SettingsError,
    Task,
    UserError,
    Weight,
    Zoo,
    display_name,
    settings,
    stream,
)


def refuse_statistics(method: Any, zoo: Zoo) -> None:
    """Refuses batch norm networks: their statistics of a client's data would leave the device without noise."""
    asked = settings(method).get("bn_eval", "batch") != "batch"
    for spec in dict.fromkeys([zoo.full, *(tier.spec for tier in zoo.tiers)]):
        net = zoo.build(Newborn(spec), stream(0, "blank"))
        gathers = any(getattr(layer, "running_mean", None) is not None for layer in net.modules())
        if gathers or (asked and zoo.counting(spec) != spec):
            raise SettingsError(
                f"[privacy] and {spec.family}: batch norm gathers statistics of a client's data, which are no part of "
                'an update; set norm = "group" where the model is named.'
            )


class DryRun:
    """Calls the method's first round with clients of each tier, none of which answers, to see what it asks them for."""

    per_tier: ClassVar[int] = 1

    def __init__(self, method: Any, zoo: Zoo, seed: int) -> None:
        self.method, self.zoo, self._seed = method, zoo, seed
        self.recruits = False
        """Whether the method chooses its own clients."""
        self._asked: Counter[str] = Counter()
        self._closing = False
        tiers = (tier for tier in zoo.tiers for _ in range(self.per_tier))
        self._cohort = [Client(f"c{number}", tier) for number, tier in enumerate(tiers)]
        now = Round(
            *(0, self._cohort, len(self._cohort), zoo, seed, self._send, self._fold, self._recruit),
            everyone=lambda: iter(self._cohort),
        )
        state = method.init(zoo, stream(seed, "init"))
        for act in (method.round, method.ready):
            try:
                act(state, now)
            except UserError:
                raise
            except Exception:  # some methods fail if nobody answers, but by then they have sent their tasks
                pass
            self._closing = True

    @property
    def uploads(self) -> int:
        """The most updates that one client uploads in a round."""
        return max(self._asked.values(), default=0)

    def _send(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            if task.to != SERVER:
                self._check_task(task)
        return iter(())

    def _fold(
        self,
        tasks: Iterable[Task],
        mean: Mean,
        held: Mapping[str, Selection],
        weigh: Callable[[Reply], Weight] | None = None,
    ) -> Sequence[Reply]:
        return list(self._send(tasks))

    def _recruit(self, wanted: Callable[[Client], bool]) -> Sequence[Client]:
        self.recruits = True
        return [client for client in self._cohort if wanted(client)]

    def _check_task(self, task: Task) -> None:
        expected = task.expects
        beside = [*expected.arrays, *(expected.models if self._closing else ())]
        unknown = [key for key in expected.models if key not in task.models or isinstance(task.models[key], Newborn)]
        if beside or unknown:
            raise SettingsError(
                f"[privacy] adds noise to model updates; {display_name(self.method)}'s clients also upload "
                f"'{(beside or unknown)[0]}' (in '{task.verb}'), which would leave without noise. Use a method "
                "that uploads only models, such as fedavg."
            )
        self._asked[task.to] += bool(expected.models)
