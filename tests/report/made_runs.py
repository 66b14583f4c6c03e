"""Run folders made by hand, for tests and for looking at a page: `python tests/report/made_runs.py demo/`."""

from __future__ import annotations

import hashlib
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from potluck.ledger import RunFolder

Events = Sequence[Mapping[str, object]]

TIERS = [
    {
        "name": "watch",
        "share": 0.4,
        "clients": 20,
        "profile": "watch",
        "parameters": 1690,
        "width": 0.25,
        "depth": None,
    },
    {
        "name": "phone",
        "share": 0.4,
        "clients": 20,
        "profile": "pixel5",
        "parameters": 6050,
        "width": 0.5,
        "depth": None,
    },
    {
        "name": "laptop",
        "share": 0.2,
        "clients": 10,
        "profile": "laptop",
        "parameters": 22_666,
        "width": 1.0,
        "depth": None,
    },
]
SETTINGS = (
    '[run]\nname = "digits"\nrounds = 20\ncohort = 10\n\n[data]\nset = "digits"\npartition = "dirichlet"\nalpha = 0.3\n'
)
SPEED = {"watch": 2e8, "phone": 2e9, "tablet": 4e9, "laptop": 2e10, "desktop": 8e10}
WATTS = {"watch": 0.8, "phone": 3.0, "tablet": 5.0, "laptop": 20.0, "desktop": 90.0}
FIVE = [
    {
        "name": name,
        "share": 0.2,
        "clients": 10,
        "profile": name,
        "parameters": round(22_666 * width**1.8),
        "width": width,
    }
    for name, width in (("watch", 0.0625), ("phone", 0.125), ("tablet", 0.25), ("laptop", 0.5), ("desktop", 1.0))
]
UNITS = {"stage0": 64, "stage0.0": 64, "stage1": 128, "stage1.0": 128, "stage2": 256, "stage2.0": 256, "embed": 512,
         "heads": 8, "gate": 16, "patch": 24}  # fmt: skip


def manifest(label: str = "FedAvg", seed: int = 0, **changes: object) -> dict[str, object]:
    facts = {"potluck": "0.1.0", "name": "digits", "method": label.lower(), "label": label, "seed": seed, "rounds": 20}
    facts |= {
        "engine": "pool",
        "python": "3.11.9",
        "torch": "2.13.0",
        "host": "bench",
        "started": "2025-01-02T03:04:05",
    }
    return {**facts, "status": "done", "classes": 10, "clients": 50, "cohort": 10, "tiers": TIERS, **changes}


def write_folder(
    folder: Path, facts: dict[str, object], events: Events, scores: Events, settings: str = SETTINGS
) -> Path:
    """A run folder with exactly these contents, as the ledger writes it."""
    with RunFolder.create(folder, settings, facts, mark="made by hand") as run:
        for event in events:
            run.journal.append(event)
        for line in scores:
            run.scores.append(line)
    return folder


def task(
    round_: int, client: str, tier: str, outcome: str = "accepted", reason: str = "", **amounts: float
) -> dict[str, object]:
    measured = {key: amounts.get(key, 0) for key in ("bytes_down", "bytes_up")} | {
        "seconds": amounts.get("seconds", 0.01)
    }
    modelled = {key: amounts.get(f"modelled_{key}", 0) for key in ("flops", "memory", "seconds", "joules")}
    event = {
        "event": "task",
        "round": round_,
        "client": client,
        "tier": tier,
        "verb": "train",
        "key": "",
        "outcome": outcome,
    }
    return event | {"reason": reason, "measured": measured, "modelled": modelled, "loss": 0.3, "samples": 25}


def node_id(name: str) -> str:
    """An id as a node has it: 32 hex digits."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def nodes_event(round_: int, **states: str) -> dict[str, object]:
    """The event of a round about its nodes: `ANSWERED`, `SILENT`, `THERE` or `AWAY` by name.

    A node that was asked was sent 1,000 bytes; one that answered sent 400.
    """
    told = [
        {
            "client": node_id(name),
            "name": name,
            "tier": "phone" if name == "b" else "watch",
            "there": state in "at",
            "asked": state in "as",
            "answered": state == "a",
            "bytes_down": 1000 if state in "as" else 0,
            "bytes_up": 400 if state == "a" else 0,
        }
        for name, state in states.items()
    ]
    return {"event": "nodes", "round": round_, "nodes": told}


def made_federation(folder: Path, label: str = "FedAvg", **presence: str) -> Path:
    """A federation of real nodes: a letter for each round says what a node did in it; a blank: it had not joined."""
    rounds = max(map(len, presence.values()))
    events: list[dict[str, object]] = []
    for index in range(1, rounds + 1):
        now = {name: letters[index - 1] for name, letters in presence.items() if letters[index - 1 : index].strip()}
        asked = {name: state for name, state in now.items() if state in "as"}
        for name, state in asked.items():
            outcome, reason = ("accepted", "") if state == "a" else ("absent", "no answer within 60 s")
            cost = {"bytes_down": 900, "bytes_up": 300 if state == "a" else 0, "seconds": 2, "modelled_seconds": 5}
            events.append(task(index, node_id(name), "phone" if name == "b" else "watch", outcome, reason, **cost))
        events += [{"event": "round", "round": index, "seconds": 1.0}, nodes_event(index, **now)]
    values = {"values": [0.5 + 0.1 * index for index, _ in enumerate(presence)]}
    scores = {"mean": 0.6, "count": len(presence), **values, "ids": [node_id(name) for name in presence]}
    line = {"round": rounds, "global": {"test": {"accuracy": 0.8}}, "clients": scores}
    facts = {"charter": "0" * 64, "nodes": {node_id(name): name for name in presence}, "engine": "remote"}
    facts |= {"clients": len(presence), "rounds": rounds}
    return write_folder(folder, manifest(label, **facts), events, [line])


def held(rule: str, width: float, units: int, round_: int, dice: random.Random) -> list[int]:
    """The units of one group that a client of this width trains: a prefix, a rolling window or a random set."""
    many = max(1, math.ceil(width * units))
    if rule == "random":
        return dice.sample(range(units), many)
    start = round_ * max(1, units // 16) if rule == "rolling" else 0
    return [(start + index) % units for index in range(many)]


def covered(rule: str, tiers: Events, rounds: int, seed: int, cohort: int = 10) -> list[dict[str, object]]:
    """The events of a width method: the least count after every round, and all counts at the end."""
    dice = random.Random(f"{rule} {seed}")
    counts = {name: [0] * units for name, units in UNITS.items()}
    found: list[dict[str, object]] = []
    for index in range(1, rounds + 1):
        for _ in range(cohort):
            width = float(str(dice.choice(tiers)["width"]))
            for name, units in UNITS.items():
                for unit in held(rule, width, units, index, dice):
                    counts[name][unit] += 1
        found.append({"least": min(map(min, counts.values()))})
    return [*found, {"event": "coverage", "round": rounds, "groups": counts}]


def _events(rounds: int, dice: random.Random, tiers: Events = TIERS, cost: float = 1.0) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for index in range(1, rounds + 1):
        slowest = 0.0
        for number in dice.sample(range(50), 10):
            tier = (
                tiers[0 if number < 20 else 1 if number < 40 else 2] if tiers is TIERS else tiers[number % len(tiers)]
            )
            name, weights = str(tier["name"]), cost * float(str(tier["parameters"]))
            flops = 6 * weights * 25 * 5
            seconds = flops / SPEED[name] + 8 * weights / 1e6
            outcome, reason = dice.choices(
                [("accepted", ""), ("absent", "battery"), ("absent", "late: 62 s"), ("quarantined", "not finite")],
                [92, 4, 3, 1],
            )[0]
            slowest = max(slowest, seconds)
            amounts = {
                "bytes_down": 4 * weights,
                "bytes_up": 4 * weights if outcome != "absent" else 0,
                "seconds": 0.02,
            }
            modelled = {
                "modelled_flops": flops,
                "modelled_memory": 12 * weights,
                "modelled_seconds": seconds,
                "modelled_joules": seconds * WATTS[name],
            }
            found.append(task(index, f"c{number}", name, outcome, reason, **amounts, **modelled))
        loss = 2.2 * math.exp(-index / 6) + 0.1 + dice.gauss(0, 0.03)
        found.append(
            {
                "event": "round",
                "round": index,
                "seconds": 0.4,
                "sent": 10,
                "accepted": 9,
                "loss": loss,
                "device_seconds": slowest,
            }
        )
    found.append({"event": "warning", "round": 7, "text": "3 of 10 clients were absent"})
    found.append({"event": "something new", "round": 7})
    return found


def _score(accuracy: float, dice: random.Random, count: int) -> dict[str, object]:
    classes = [min(1.0, max(0.0, accuracy + dice.gauss(0, 0.06))) for _ in range(10)]
    return {"accuracy": accuracy, "loss": 2.4 * (1 - accuracy) + 0.05, "count": count, "per_class": classes}


def _spread(accuracy: float, dice: random.Random, count: int) -> dict[str, object]:
    values = [min(1.0, max(0.0, accuracy + dice.gauss(0, 0.07))) for _ in range(count)]
    mean = sum(values) / count
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / count)
    worst = sorted(values)[: max(1, count // 10)]
    return {"mean": mean, "sd": sd, "worst": sum(worst) / len(worst), "count": count, "values": values}


def _scores(
    rounds: int, top: float, pace: float, dice: random.Random, *, shared: bool, tiers_: Events = TIERS
) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for index in range(rounds + 1):
        reach = 0.1 + (top - 0.1) * (1 - math.exp(-index / pace))
        tiers: dict[str, object] = {}
        for behind, tier in enumerate(reversed(tiers_)):
            level = max(0.1, reach - 0.045 * behind + dice.gauss(0, 0.008))
            scores = {"validation": _score(level - 0.01, dice, 180), "test": _score(level, dice, 360)} if shared else {}
            tiers[str(tier["name"])] = scores | {"clients": _spread(level - 0.01, dice, int(str(tier["clients"])))}
        whole = {"validation": _score(reach - 0.01 + dice.gauss(0, 0.006), dice, 180), "test": _score(reach, dice, 360)}
        clients = _spread(reach - 0.04, dice, 50)
        del clients["values"]
        found.append({"round": index, "global": whole if shared else None, "tiers": tiers, "clients": clients})
    return found


def made_run(
    folder: Path,
    label: str = "FedAvg",
    seed: int = 0,
    top: float = 0.93,
    pace: float = 4.0,
    rounds: int = 20,
    *,
    shared: bool = True,
    settings: str = SETTINGS,
    cost: float = 1.0,
    like: str = "",
    **changes: object,
) -> Path:
    """A run that looks like one: three tiers, fifty clients, curves that rise to `top`; or just `like` another."""
    dice = random.Random(f"{like or label} {seed}")
    top += dice.gauss(0, 0.012)
    events, scores = _events(rounds, dice, cost=cost), _scores(rounds, top, pace, dice, shared=shared)
    return write_folder(folder, manifest(label, seed, **changes), events, scores, settings)


def _local(top: float, dice: random.Random) -> dict[str, object]:
    """Local accuracies in the shape that papers show: most clients high, a tail of poor ones."""
    return _spread(top + 0.04 - abs(dice.gauss(0, 0.03)), dice, 50)


def made_width_run(
    folder: Path,
    label: str,
    rule: str,
    seed: int,
    top: float,
    tiers: Events = FIVE,
    rounds: int = 60,
    settings: str = SETTINGS,
    cost: float = 1.0,
    **changes: object,
) -> Path:
    """A run of a method that trains parts: counts of how often each unit was trained, local accuracy, five tiers."""
    dice = random.Random(f"{label} {seed}")
    counted = covered(rule, tiers, rounds, seed)
    events = [
        {**event, **counted[int(str(event["round"])) - 1]} if event["event"] == "round" else event
        for event in _events(rounds, dice, tiers, cost)
    ]
    scores = _scores(rounds, top + dice.gauss(0, 0.01), 15, dice, shared=True, tiers_=tiers)
    scores[-1]["local"] = _local(top, dice)
    facts = manifest(label, seed, **{"rounds": rounds, "tiers": list(tiers), **changes})
    return write_folder(folder, facts, [*events, counted[-1]], scores, settings)


def made_widths(base: Path, tiers: Events = FIVE, rounds: int = 60) -> list[Path]:
    """Three ways to choose a sub-model's units, two seeds each."""
    methods = [("FedRolex", "rolling", 0.82), ("HeteroFL", "prefix", 0.76), ("Federated Dropout", "random", 0.68)]
    return [
        made_width_run(base / f"{rule}-{seed}", label, rule, seed, top, tiers, rounds)
        for label, rule, top in methods
        for seed in (0, 1)
    ]


def made_family(base: Path) -> list[Path]:
    """Three methods, two seeds each."""
    methods = [("FedAvg (smallest model)", 0.86, 3.0), ("HeteroFL", 0.925, 4.5), ("FedRolex", 0.945, 6.0)]
    return [
        made_run(base / f"{label.split()[0].lower()}-{seed}", label, seed, top, pace)
        for label, top, pace in methods
        for seed in (0, 1)
    ]


ONE, MASKS = {"networks": "one"}, {"networks": "one", "memory": True, "sums": False}
WIDTH, DEPTH = {"networks": "width"}, {"networks": "depth"}
ANY, BOUND = {"networks": "any", "public": "inputs"}, {"networks": "one", "bound": True}
EVERYTHING = {
    "FedAvg": ONE, "FedProx": ONE, "SCAFFOLD": ONE, "FedNova": ONE, "MOON": ONE, "FedAvgM": ONE, "FedAdam": ONE,
    "FedYogi": ONE, "FedAdagrad": ONE, "FedAdamW": ONE, "InclusiveFL": DEPTH, "FedIN": DEPTH, "HeteroFL": WIDTH,
    "FedDropout": WIDTH, "FedRolex": WIDTH, "FjORD": WIDTH, "LotteryFL": MASKS, "Hermes": MASKS, "TailorFL": MASKS,
    "FedMask": MASKS, "FedSkel": MASKS, "FedMD": ANY, "FedDF": ANY, "DSFL": ANY, "FedGEMS": ANY, "FedET": ANY,
    "Moss": ANY, "Local": {"networks": "any"}, "AllSmall": ONE, "ExclusiveFL": ONE, "AllLarge": BOUND,
}  # fmt: skip
"""The label of every method, and what it declares."""


def made_everything(base: Path, seeds: Sequence[int] = (0,), rounds: int = 20) -> list[Path]:
    """31 methods of all families. FedProx's lines lie on FedAvg's; FedMask diverges; Hermes' models live on clients."""
    folders = []
    for place, (label, facts) in enumerate(EVERYTHING.items()):
        at = 0 if label == "FedProx" else place
        top, pace, cost = 0.6 + 0.34 * math.sin(1 + at) ** 2, 2.0 + at % 5, 1 + 0.4 * (at * 7 % 10)
        for seed in seeds:
            folder = base / f"{label}-{seed}"
            changes: dict[str, object] = {"facts": facts}
            changes |= {"status": "diverged", "fault_round": 3} if label == "FedMask" else {}
            settings = f'seed = {seed}\n{SETTINGS}[method]\nname = "{label.lower()}"\n[local]\nlr = 0.{1 + place % 3}\n'
            if facts is WIDTH:
                rule = {"FedRolex": "rolling", "FedDropout": "random"}.get(label, "prefix")
                made_width_run(folder, label, rule, seed, top, TIERS, rounds, settings, cost, **changes)
            else:
                like = "FedAvg" if label == "FedProx" else ""
                made_run(folder, label, seed, top, pace, rounds, shared=label != "Hermes", settings=settings,
                         cost=cost, like=like, **changes)  # fmt: skip
            folders.append(folder)
    return folders


def main(base: Path) -> None:
    from potluck.report import write_report

    folders = made_family(base / "runs")
    hostile = made_run(
        base / "runs" / "hostile",
        '<script>alert(1)</script> & "quotes" \'n all',
        0,
        name="<img src=x onerror=alert(2)>",
        rounds=8,
        status="interrupted",
    )
    local = made_run(base / "runs" / "local", "FedMD", 0, 0.88, shared=False)
    empty = write_folder(base / "runs" / "empty", manifest(status="running"), [], [])
    print(write_report(folders[4:5], base / "one.html"))
    print(write_report(folders, base / "several.html"))
    print(write_report([*folders, hostile, local, empty], base / "mixed.html"))
    print(write_report([hostile], base / "hostile.html"))
    print(write_report([local], base / "local.html"))
    print(write_report([empty], base / "empty.html"))
    widths = made_widths(base / "widths")
    same = [{**tier, "width": 0.0625} for tier in FIVE]
    print(write_report(widths[:1], base / "rolling.html"))
    print(write_report(widths[2:3], base / "prefix.html"))
    print(write_report(widths[4:5], base / "random.html"))
    print(write_report([*widths, folders[0]], base / "widths.html"))
    few = made_federation(
        base / "few", **{"clinic-1": "aaaasstaaa", "clinic-2": "aaa---aaaa", "clinic-10": "   aataata"}
    )
    dice = random.Random(0)
    long = {f"site-{index}": "".join(dice.choices("ast-", (8, 1, 2, index / 6), k=500)) for index in range(12)}
    print(write_report([few], base / "nodes.html"))
    print(write_report([made_federation(base / "long", **long)], base / "nodes-long.html"))
    print(write_report([few, folders[0]], base / "nodes-mixed.html"))
    print(write_report(made_widths(base / "same", same, 150), base / "same-width.html"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
