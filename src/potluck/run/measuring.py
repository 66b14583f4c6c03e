"""Measures training steps on this machine: seconds and peak memory of a network in several widths and depths.

A machine is never quite idle, so all sizes are measured in turns, in several passes, and the least of each counts:
other programs only ever add to it. With one thread, the clock is the processor time of this process, which stands still
while another program has the core. Passes go on until none finds anything faster.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import torch

from potluck.core import Examples, Newborn, Problem, ResourceError, SettingsError, Spec, Tier, one_line, stream
from potluck.data import Source
from potluck.fleet import Cut, MeasuredProfile, MeasuredStep
from potluck.fleet.measured import best_block
from potluck.learn.fit import LocalSteps, trainable_weights
from potluck.models import ModelZoo, tier_spec, uncut
from potluck.run.assemble import learning_problem, networks, optimiser_slots
from potluck.run.devices import depths, network_id, step_size
from potluck.run.settings import Experiment, TierSettings

WIDTHS = (1.0, 0.8, 0.65, 0.5, 0.35, 0.25, 0.125, 0.0625)
"""Widths that are measured at full depth. Some give whole blocks of units, and some do not."""
SHALLOW_WIDTHS = (1.0, 0.65, 0.25)
"""Widths that are measured at each other depth."""
MOST_DEPTHS = 3
"""Depths that are measured besides the full one."""
BLOCKS = (1, 4, 8, 16, 32)
"""Units that a processor may compute at once: the numbers in a vector register, or a few of them."""
LEAST_PASSES, SETTLED = 5, 3
"""The fewest passes, and how many in a row must find nothing faster."""
GAIN = 0.02
"""A pass that makes no step faster by more than this share has found nothing."""
SLICE = 0.03
"""Seconds for which a size is measured in a pass, if its steps are short."""

MOST_STEPS = 20
"""The most steps of a size in a pass."""

Told: TypeAlias = Callable[[int, str], None]
"""Called with the number of passes done, and a line about what is done now."""


@dataclass
class MeasuredNetwork:
    """A network to measure, and what was measured so far."""

    cut: Cut
    spec: Spec
    step: Callable[[], object]
    """Does one training step."""
    memory: int = 0
    seconds: float = math.inf
    """The fastest step so far."""


@dataclass(frozen=True)
class Measurement:
    """What was measured on this machine."""

    profile: MeasuredProfile
    held: tuple[MeasuredStep, ...]
    """Steps that were measured beside the others, and of which the profile knows nothing."""
    passes: int
    settled: bool
    """Whether the last passes found nothing faster; else the time was over."""
    skipped: tuple[str, ...]
    """What was too large for this machine, one line each."""


def usual_memory() -> int:
    """Half of this machine's memory: the rest is for the system and other programs."""
    return machine_memory() // 2


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def reset_peak() -> int:
    """Resets the peak of this process's memory, and returns what it holds now; 0 where that is not possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except OSError:
        return 0


def peak_memory() -> int:
    """The peak of this process's memory since it was reset."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _return_free_memory() -> None:
    """Gives freed memory back to the system, so that it is not taken for held."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def random_source(experiment: Experiment, shape: Sequence[int], classes: int) -> Source:
    """Random rows for [model], for a measurement without data."""
    rows, rng = max(experiment.local.batch, 2), stream(0, "measure")
    blank = Source("random rows", Examples({}), None, classes, tuple(shape))
    full, _ = networks(replace(experiment, tier=(TierSettings(),)), blank, rows)
    net, x = ModelZoo(full).probe(full, rows)
    y = torch.randint(classes, net(x).shape[:-1], generator=rng)
    x = torch.randint(2, x.shape, generator=rng) if not x.is_floating_point() else torch.randn(x.shape, generator=rng)
    return replace(blank, train=Examples({"x": x, "y": y}))


def measure(
    experiment: Experiment,
    source: Source,
    told: Told = lambda passes, line: None,
    *,
    threads: int = 1,
    seconds: float = 60.0,
    like: str = "laptop",
    down: float | None = None,
    up: float | None = None,
    held_widths: Sequence[float] = (),
) -> Measurement:
    """Measures the experiment's network in several widths and depths, and its tiers' own networks.

    Passes end after so many seconds, if they have not settled before. The network is measured in `held_widths` too, but
    the profile does not learn of these.
    """
    if experiment.run.hardware != "cpu":
        raise SettingsError('run.hardware = "cuda": only the processor is measured; leave it out.')
    batch = min(experiment.local.batch, len(source.train))
    full, tiers = networks(replace(experiment, tier=tuple(map(_plain_tier, experiment.tier))), source, batch)
    wanted = {**_parts(full), **{tier.spec: _cut_of(tier) for tier in tiers}}
    apart = {tier_spec(full, width): Cut(width, full.depth) for width in held_widths}
    wanted = {spec: cut for spec, cut in wanted.items() if spec not in apart}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, skipped = _prepare({**wanted, **apart}, experiment, source, batch, told)
        passes, settled = _time_in_turns(found, time.process_time if threads == 1 else time.perf_counter, seconds, told)
    finally:
        torch.set_num_threads(before)
    told(passes, "fitting")
    block = _block([each for each in found if each.spec in wanted], batch)
    steps = {each.spec: _measured_step(each, batch, block) for each in found}
    profile = MeasuredProfile(
        machine=_processor(),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        torch=torch.__version__,
        model=str(experiment.model.get("name")),
        threads=threads,
        slots=optimiser_slots(experiment.local),
        block=block,
        memory=machine_memory(),
        step=tuple(step for spec, step in steps.items() if spec in wanted),
        like=like,
        down=down,
        up=up,
    )
    held = tuple(step for spec, step in steps.items() if spec in apart)
    return Measurement(profile, held, passes, settled, tuple(skipped))


def _plain_tier(tier: TierSettings) -> TierSettings:
    """The tier without what would have to be fitted to a device."""
    width = tier.width if tier.width != "fit" else None
    depth = tier.depth if tier.depth != "fit" else None
    return replace(tier, width=width, depth=depth, profile="laptop")


def _cut_of(tier: Tier) -> Cut:
    return Cut(tier.width if isinstance(tier.width, float | int) else 1.0, tier.spec.depth)


def _parts(full: Spec) -> dict[Spec, Cut]:
    """The parts of a network that are measured: widths at full depth, and a few widths at a few other depths."""
    cut = not uncut(full)
    found = {tier_spec(full, width): Cut(width, full.depth) for width in (WIDTHS if cut else WIDTHS[:1])}
    others = depths(full.depth)[1:] if full.depth is not None else []
    picked = sorted({len(others) * number // MOST_DEPTHS for number in range(MOST_DEPTHS)}) if others else []
    for depth in (others[number] for number in picked):
        shallow = tier_spec(full, depth=depth)
        found |= {tier_spec(shallow, width): Cut(width, depth) for width in (SHALLOW_WIDTHS if cut else (1.0,))}
    return found


def _prepare(
    wanted: Mapping[Spec, Cut], experiment: Experiment, source: Source, batch: int, told: Told
) -> tuple[list[MeasuredNetwork], list[str]]:
    """The networks, ready to train, with their peak memory; and what was left out because it is too large."""
    zoo = ModelZoo(next(iter(wanted)))
    problem = learning_problem(source, replace(zoo, tiers=()), experiment)
    room = usual_memory()
    found: list[MeasuredNetwork] = []
    skipped: list[str] = []
    sizes = {spec: step_size(spec, batch, 1).bytes(optimiser_slots(experiment.local)) for spec in wanted}
    for number, spec in enumerate(sorted(wanted, key=sizes.__getitem__)):
        told(0, f"memory, network {number + 1} of {len(wanted)}")
        room -= sizes[spec]
        if room < 0:
            skipped.append(f"{_words(wanted[spec])} needs about {sizes[spec] / 1e9:,.1f} GB: not measured")
            continue
        _do_steps(_trainer(zoo, spec, problem, experiment, source, batch), 1)  # makes and keeps kernels for its shapes
        _return_free_memory()
        before = reset_peak()
        step = _trainer(zoo, spec, problem, experiment, source, batch)
        _do_steps(step, 2)
        found.append(MeasuredNetwork(wanted[spec], spec, step, max(0, peak_memory() - before) if before else 0))
    if not found:
        raise ResourceError(f"{skipped[0]}; no size of this network fits into half of this machine's memory.")
    return found, skipped


def _trainer(
    zoo: ModelZoo, spec: Spec, problem: Problem, experiment: Experiment, source: Source, batch: int
) -> Callable[[], object]:
    """A function that does one training step, as clients do it."""
    net = zoo.build(Newborn(spec), stream(0, "blank")).train()
    local = replace(experiment.local, lr=1e-6)
    steps, rows = LocalSteps(net, trainable_weights(net), local, local.lr), torch.arange(batch)
    return lambda: steps.step(problem.loss, source.train[rows])


def _do_steps(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def _time_in_turns(
    found: Sequence[MeasuredNetwork], clock: Callable[[], float], seconds: float, told: Told
) -> tuple[int, bool]:
    """Measures all candidates in turns; returns the passes, and whether the last ones found nothing faster."""
    end, passes, quiet = time.monotonic() + seconds, 0, 0
    while passes < 2 or time.monotonic() < end:
        turn = passes % len(found)
        gains = [_time_one(each, clock) for each in (*found[turn:], *found[:turn])]
        passes, quiet = passes + 1, 0 if max(gains) > GAIN else quiet + 1
        told(passes, f"slowest step {max(each.seconds for each in found):.3g} s")
        if passes >= LEAST_PASSES and quiet >= SETTLED:
            return passes, True
    return passes, False


def _time_one(each: MeasuredNetwork, clock: Callable[[], float]) -> float:
    """Measures one candidate for a moment; returns by which share its fastest step became faster."""
    before, start = each.seconds, clock()
    for _ in range(MOST_STEPS):  # the first brings the network back into the caches
        began = clock()
        each.step()
        each.seconds = min(each.seconds, clock() - began)
        if clock() - start > SLICE:
            break
    return 1.0 if math.isinf(before) else 1 - each.seconds / before


def _block(found: Sequence[MeasuredNetwork], batch: int) -> int:
    steps = [_measured_step(each, batch, 1) for each in found]
    aligned = {block: [step_size(each.spec, batch, block).aligned_flops for each in found] for block in BLOCKS}
    return best_block(steps, aligned)


def _measured_step(each: MeasuredNetwork, batch: int, block: int) -> MeasuredStep:
    size = step_size(each.spec, batch, block)
    measured = (network_id(each.spec), batch, each.seconds, each.memory)
    return MeasuredStep(*measured, **asdict(size), width=each.cut.width or 1.0, depth=each.cut.depth)


def _words(cut: Cut) -> str:
    depth = "" if cut.depth is None else f", depth {cut.depth}"
    return f"width {cut.width:g}{depth}"


def _processor() -> str:
    """The processor's name, with its cores."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{one_line(name, 100)}, {os.cpu_count() or 1} cores"
