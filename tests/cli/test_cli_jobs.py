"""`potluck compare --jobs`: real processes, really stopped and killed, and the table that shows them."""

import io
import json
import os
import signal
from pathlib import Path

import pytest
from cli_life import end_with_second_ctrl_c, members, saved, until
from rich.progress import Progress

from potluck.cli import display
from potluck.cli.safe_text import SafeConsole
from potluck.ledger import read_run
from potluck.run import FailedRun, Result

COMPARE = ("compare", "tiny.toml", "--methods", "held:Held:share=layerwise", "--seeds", "0,1", "--out", "all")
FOLDERS = tuple(Path("all", f"held_Held_share=layerwise-s{seed}") for seed in (0, 1))


@pytest.fixture
def hold_both(hold, place):
    """Starts a comparison of two runs at once, and holds both after two rounds."""

    def begin(*arguments):
        process = hold("after 2", *COMPARE, "--jobs", "2", *arguments)
        until(lambda: len(list(place.glob("held-*"))) == 2 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        return process

    return begin


def ended(process):
    """What a process said, once it and all that it started are gone."""
    out, err = process.communicate(timeout=60)
    until(lambda: not members(process.pid))
    return process.returncode, out, err


def test_ctrl_c_saves_all_runs_of_a_comparison_and_the_same_command_goes_on(hold_both, release, potluck, whole):
    process = hold_both("--set", "run.checkpoint_every=5")
    assert len(members(process.pid)) == 3
    assert [saved(folder) for folder in FOLDERS] == [0, 0]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    last = "potluck: interrupted with 0 runs done; go on with: the same command and --out all"
    assert err.splitlines()[-1] == last
    assert [saved(folder) for folder in FOLDERS] == [2, 2]
    assert [read_run(folder).manifest["status"] for folder in FOLDERS] == ["interrupted"] * 2
    release()
    code, out, _ = potluck(*COMPARE, "--format", "json")
    assert code == 0
    found = json.loads(out)["runs"]
    assert [run["rounds"] for run in found] == [24, 24]
    assert found[0]["weights_sha256"] == whole.weights_sha256


def test_no_process_outlives_a_comparison_that_is_killed(hold_both):
    process = hold_both("--engine", "pool")
    assert len(members(process.pid)) == 1 + 2 * 4  # each run has a fork server and two workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    until(lambda: not members(process.pid), seconds=5)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_comparison_that_does_not_heed_the_first(hold_both, place):
    process = hold_both()
    (place / "stubborn").touch()
    end_with_second_ctrl_c(process, place)


@pytest.mark.slow
def test_sigterm_to_all_processes_at_once_saves_all_runs(hold_both):
    """As service managers send it."""
    process = hold_both()
    for pid in sorted(members(process.pid)):
        os.kill(pid, signal.SIGTERM)
    code, out, err = ended(process)
    assert (code, out) == (130, "")
    assert "potluck: interrupted with 0 runs done; go on with" in err.splitlines()[-1]
    assert [read_run(folder).manifest["status"] for folder in FOLDERS] == ["interrupted"] * 2


@pytest.mark.slow
def test_ctrl_c_while_the_processes_start_is_one_line(start, place):
    """The method's own module waits in its import, as torch's would, in the children alone."""
    text = "import os, time\nfrom potluck.methods import FedAvg as Held\n"
    text += "while os.environ.get('POTLUCK_CORES'): open(f'held-{os.getpid()}', 'w').close(); time.sleep(0.002)\n"
    (place / "held.py").write_text(text)
    process = start(*COMPARE, "--jobs", "2")
    until(lambda: len(list(place.glob("held-*"))) == 2 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    line = "potluck: interrupted with 0 runs done; go on with: the same command and --out all\n"
    assert ended(process) == (130, "", line)


@pytest.mark.slow
def test_a_mistake_in_the_settings_is_the_same_line_with_and_without_jobs(fail):
    wrong = ("compare", "tiny.toml", "--methods", "heterofl,fedrolex", "--set", "model.hidden=0")
    assert fail(*wrong, "--out", "a", "--jobs", "2") == fail(*wrong, "--out", "b")


@pytest.mark.parametrize("jobs", ["0", "-1", "two"])
def test_jobs_that_are_no_number_of_runs_are_refused(jobs, fail, place):
    code, said = fail(*COMPARE, "--jobs", jobs)
    assert code == 2
    assert "'--jobs'" in said
    assert not (place / "all").exists()


def test_a_terminal_shows_one_table_with_a_row_for_every_run(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(display, "ERR", SafeConsole(file=screen, force_terminal=True, width=100, color_system=None))
    with display.show_comparison_progress(4) as watcher:
        rows = [watcher(name, 0) for name in ("fedavg", "fedprox", "local", "moon")]
        for row in rows:
            row.waits()
        for row in rows[:3]:
            row.starts()
        scores = {"global": {"test": {"accuracy": 0.5}}, "tiers": {}, "metric": "accuracy"}
        rows[0].round(3, scores, {"bytes_up": 2000})
        rows[1].warn("resumed at round 1")
        rows[1].end(Result(Path("a"), "fedprox", 2, 0, scores, {"bytes_up": 3000}, ""))
        rows[2].end(FailedRun(Path("b"), "local", "local", 0, "diverged", 2, "not finite"))
        shown = table_of(rows[0].progress)
    assert [" ".join(line.replace("━", "").replace("╸", "").split()[:-1]) for line in shown] == [
        "fedavg seed 0 3/4 accuracy 50.0% 2.0 kB",
        "fedprox seed 0 2/4 done accuracy 50.0% 3.0 kB",
        "local seed 0 0/4 diverged in round 2",
        "moon seed 0 0/4 waiting",
    ]
    assert "fedprox seed 0: resumed at round 1" in screen.getvalue()


def table_of(progress: Progress) -> list[str]:
    """The lines that a table of bars shows now."""
    screen = io.StringIO()
    SafeConsole(file=screen, width=100, color_system=None).print(progress.get_renderable())
    return screen.getvalue().splitlines()
