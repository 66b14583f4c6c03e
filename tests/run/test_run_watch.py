"""Who watches a run hears of its start, its rounds, its warnings and its end."""

import pytest
from tiny_runs import Listener, tiny

from potluck.core import SettingsError
from potluck.run import FailedRun, Interrupted, Watch, resume, run
from potluck.run.watch import Silent, Watches, whole


class Hears(Watch):
    def __init__(self, stop_after=None):
        self.heard, self.stop_after = [], stop_after

    def start(self, folder, manifest, done):
        self.heard.append(("start", manifest["status"], done))

    def round(self, done, scores, totals):
        self.heard.append(("round", done))
        if done == self.stop_after:
            raise KeyboardInterrupt

    def end(self, outcome):
        self.heard.append(("end", outcome))


def test_a_watch_hears_the_start_every_round_and_the_result(tmp_path):
    watch = Hears()
    result = run(tiny(rounds=2), tmp_path / "run", watch=watch)
    assert watch.heard == [("start", "running", 0), ("round", 1), ("round", 2), ("end", result)]


def test_a_run_that_is_interrupted_ends_as_such_and_starts_again_where_it_stopped(tmp_path):
    first, second = Hears(stop_after=1), Hears()
    with pytest.raises(Interrupted):
        run(tiny(rounds=2), tmp_path / "run", watch=first)
    (_, outcome) = first.heard[-1]
    assert isinstance(outcome, FailedRun)
    assert (outcome.status, outcome.round, outcome.method) == ("interrupted", 2, "fedavg")
    result = resume(tmp_path / "run", watch=second)
    assert second.heard == [("start", "running", 1), ("round", 2), ("end", result)]


def test_an_object_with_some_of_the_functions_will_do(tmp_path):
    class OnlyRounds:
        rounds = ()

        def round(self, done, scores, totals):
            self.rounds += (done,)

    watch = OnlyRounds()
    run(tiny(rounds=2), tmp_path / "run", watch=watch)
    assert watch.rounds == (1, 2)


def test_an_object_with_none_of_the_functions_is_refused_before_the_run(tmp_path):
    with pytest.raises(SettingsError, match="none of the functions start, round, warn, end"):
        run(tiny(rounds=2), tmp_path / "run", watch=print)
    assert not (tmp_path / "run").exists()


def test_an_observer_that_fails_is_told_of_and_left_out():
    class Fails(Silent):
        calls = 0

        def round(self, done, scores, totals):
            self.calls += 1
            raise OSError("no space")

    fails, user = Fails(), Listener()
    both = Watches(whole(user), [fails])
    both.round(1, None, {})
    both.round(2, None, {})
    assert user.rounds == [1, 2]
    assert fails.calls == 1
    assert user.warnings == ["Fails failed, and is left out: no space"]
