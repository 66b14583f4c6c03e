"""What a large run folder costs: reports of many runs and of a long ledger, and the memories of many clients.

    python benchmarks/folders.py [--runs 500] [--ledger 200] [--clients 2000] [--rounds 25]

The folders are made up: runs of 100 rounds with 10 clients each, one run with a ledger of 200 MB, and memories of 2 KB
for every client in every round, as SCAFFOLD keeps them for a small network. Each line is measured in a process of its
own; memory is the peak of that process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from potluck.ledger import Memories, RunFolder

TIERS = ("watch", "phone", "laptop")
MEMORY_BYTES = 2000


def make_run(folder: Path, rounds: int, cohort: int, seed: int = 0, method: str = "fedavg") -> None:
    """A run folder with the events and scores of a finished run."""
    tiers = [{"name": name, "share": 1 / 3, "clients": 20, "profile": name, "parameters": 5000} for name in TIERS]
    facts = {"name": "made", "method": method, "label": method, "seed": seed, "rounds": rounds, "status": "done"}
    facts |= {"classes": 10, "clients": 60, "tiers": tiers}
    with RunFolder.create(folder, "[score]\ntargets = [0.5]\n", facts, mark="made") as run:
        for index in range(1, rounds + 1):
            for number in range(cohort):
                run.journal.append(_task(index, number))
            run.journal.append({"event": "round", "round": index, "seconds": 1.5, "sent": cohort, "accepted": cohort})
            if index % 10 == 0 or index == rounds:
                run.scores.append(_scores(index, rounds, seed))
            if index % 100 == 0:
                run.journal.flush()


def _task(index: int, number: int) -> dict[str, Any]:
    return {
        "event": "task",
        "round": index,
        "client": f"c{(index * 7 + number) % 5000}",
        "tier": TIERS[number % 3],
        "verb": "fit",
        "key": "",
        "outcome": "accepted" if number % 9 else "absent",
        "reason": "" if number % 9 else "failed: dropped out",
        "measured": {"bytes_down": 20_480, "bytes_up": 20_480, "seconds": 0.0123456789},
        "modelled": {"flops": 123_456_789, "memory": 654_321, "seconds": 0.34567891, "joules": 1.23456789},
        "loss": 0.987654321,
        "samples": 120,
    }


def _scores(index: int, rounds: int, seed: int) -> dict[str, Any]:
    score = 0.9 * index / rounds + seed / 1000
    whole = {"accuracy": score, "loss": 1 - score, "count": 300, "per_class": [score] * 10}
    return {
        "round": index,
        "metric": "accuracy",
        "global": {"validation": whole, "test": whole},
        "tiers": {name: {"validation": whole, "test": whole} for name in TIERS},
        "clients": {"mean": score, "sd": 0.05, "worst": score / 2, "count": 20, "values": [score] * 20},
    }


def report(folders: list[Path], to: Path) -> str:
    """Writes a report about these runs."""
    from potluck.report import write_report

    write_report(folders, to)
    return f"page of {to.stat().st_size / 1e6:.1f} MB"


def keep_memories(folder: Path, clients: int, rounds: int, cohort: int) -> str:
    """Commits the memories of a cohort in every round, as a run with two checkpoints does."""
    store, most = Memories(folder), 0
    for index in range(rounds):
        chosen = [f"c{(index * cohort + number) % clients}" for number in range(cohort)]
        for client in chosen:
            store.read(client)
        store.commit(index, {client: f"{client} {index}".encode().ljust(MEMORY_BYTES) for client in chosen})
        store.prune(index - 1)
        most = max(most, _count_files(folder))
    return f"{most} files at most, {_count_files(folder)} at the end, {_size(folder) / 1e6:.0f} MB"


def recall_memories(folder: Path, clients: int, rounds: int) -> str:
    """Opens the memories after a kill, and reads every client's."""
    store = Memories(folder)
    store.forget_after(rounds)
    store.prune(rounds - 2)
    found = sum(store.read(f"c{number}") is not None for number in range(clients))
    return f"{found} memories read"


def _count_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measured(what: str, work: Callable[..., str], *arguments: Any) -> None:
    """Does this in a process of its own, and prints seconds and peak memory."""
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    process = context.Process(target=_measure, args=(results, work, arguments))
    process.start()
    seconds, memory, told = results.get()
    process.join()
    print(f"{what:<42} {seconds:>8.1f} s {memory:>8.0f} MB   {told}", flush=True)


def _measure(results: Any, work: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    start = time.perf_counter()
    told = work(*arguments)
    results.put((time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, told))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--ledger", type=int, default=200, help="MB of the long ledger")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=25)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        if given.runs:
            methods = ("fedavg", "fedprox", "fedrolex", "heterofl", "scaffold")
            runs = [root / "runs" / str(index) for index in range(given.runs)]
            for index, folder in enumerate(runs):
                make_run(folder, 100, 10, index // len(methods), methods[index % len(methods)])
            measured(f"report of {given.runs} runs", report, runs, root / "many.html")
        if given.ledger:
            make_run(root / "long", given.ledger * 1_000_000 // 35_000, 100)
            size = (root / "long" / "ledger.jsonl").stat().st_size / 1e6
            measured(f"report of a ledger of {size:.0f} MB", report, [root / "long"], root / "long.html")
        for share in (1, 10) if given.clients else ():
            folder, cohort = root / f"memory of a share of {share}", given.clients // share
            words = f"{given.clients} clients, {cohort} in each of {given.rounds} rounds"
            measured(f"memories: {words}", keep_memories, folder, given.clients, given.rounds, cohort)
            measured("  opened again", recall_memories, folder, given.clients, given.rounds)


if __name__ == "__main__":
    main()
