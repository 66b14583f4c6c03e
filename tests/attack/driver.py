"""Runs attacks by turns until the time is over, and prints each finding with the one line that repeats it."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Finding(Exception):
    """Something that Potluck promises, and did not keep."""


@dataclass
class Attack:
    """One kind of attack. `try_one` gets a number's random source and a new folder, and raises a `Finding`."""

    name: str
    try_one: Callable[[random.Random, Path], int]
    """Returns how many cases it tried; most try one at a time."""
    enough: int
    """So many cases are a whole attack."""
    cases: int = 0
    numbers: int = 0
    seconds: float = 0.0
    findings: list[str] = field(default_factory=list)


def attempt(attack: Attack, seed: int, number: int, folder: Path) -> None:
    """Tries the case of this number; it depends on seed and number alone."""
    folder.mkdir(parents=True)
    started = time.perf_counter()
    try:
        attack.cases += attack.try_one(random.Random(f"{attack.name}/{seed}/{number}"), folder)
    except Exception as fault:
        what = str(fault) if isinstance(fault, Finding) else "".join(traceback.format_exception(fault))
        repeat = f"cd tests && python -m attack --only {attack.name} --seed {seed} --number {number}"
        attack.findings.append(f"{what}\n  repeat: {repeat}")
        print(f"FINDING in {attack.name}: {attack.findings[-1]}", flush=True)
    attack.seconds += time.perf_counter() - started


def run(attacks: Sequence[Attack], minutes: float, seed: int, place: Path, most: int = 5) -> int:
    """Tries cases by turns: always of the attack that is furthest from its goal. Returns the number of findings."""
    end, told = time.monotonic() + 60 * minutes, time.monotonic()
    while time.monotonic() < end:
        open_ = [one for one in attacks if one.cases < one.enough and len(one.findings) < most]
        if not open_:
            break
        attack = min(open_, key=lambda one: one.cases / one.enough)
        attack.numbers += 1
        attempt(attack, seed, attack.numbers, place / f"{attack.name}-{attack.numbers}")
        if time.monotonic() - told > 30:
            told = time.monotonic()
            done = ", ".join(f"{one.name} {one.cases:,}" for one in attacks)
            print(f"{(end - told) / 60:.1f} minutes left: {done}", file=sys.stderr, flush=True)
    return sum(len(one.findings) for one in attacks)


def run_side_by_side(attacks: Sequence[Attack], minutes: float, seed: int, place: Path, jobs: int) -> int:
    """Several processes, each with its share of the cases and numbers of its own; then one table of all."""
    if jobs == 1:
        run(attacks, minutes, seed, place)
        return report(attacks)
    children = {}
    for job in range(jobs):
        if (child := os.fork()) == 0:
            for one in attacks:
                one.enough, one.numbers = math.ceil(one.enough / jobs), job * 1_000_000
            (place / str(job)).mkdir()
            try:
                run(attacks, minutes, seed, place / str(job))
            finally:
                told = [[one.cases, one.seconds, one.findings] for one in attacks]
                (place / f"{job}.json").write_text(json.dumps(told))
                os._exit(0)
        children[job] = child
    for job, child in children.items():
        os.waitpid(child, 0)
        for one, (cases, seconds, findings) in zip(
            attacks, json.loads((place / f"{job}.json").read_text()), strict=True
        ):
            one.cases, one.seconds = one.cases + cases, one.seconds + seconds
            one.findings += findings
    return report(attacks)


def report(attacks: Sequence[Attack]) -> int:
    print(f"{'attack':<10} {'cases':>9} {'of':>9} {'seconds':>8} findings")
    for one in attacks:
        print(f"{one.name:<10} {one.cases:>9,} {one.enough:>9,} {one.seconds:>8.0f} {len(one.findings)}")
    return sum(len(one.findings) for one in attacks)


def parse(arguments: Sequence[str], names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attack", description="Attacks Potluck, and prints what it finds.")
    parser.add_argument("--minutes", type=float, default=10, help="stop after so many minutes (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another attack")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--only", choices=names, help="this kind of attack alone")
    parser.add_argument("--number", type=int, help="with --only: the case of this number alone")
    return parser.parse_args(arguments)
