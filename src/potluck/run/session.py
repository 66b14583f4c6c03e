"""Starts and resumes runs."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import os
import platform
import re
import shlex
import socket
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from potluck.core import (
    DivergedError,
    QuorumError,
    SettingsError,
    UserError,
    facts_of,
    settings,
    stream,
    to_plain,
)
from potluck.data import OWN, Source
from potluck.engines import Engine
from potluck.ledger import LedgerError, RunFolder, planned_rounds, read_regular
from potluck.run import config, data_record, privacy, toml
from potluck.run.advice import advice
from potluck.run.assemble import Setup, assemble, describe_data, engine_name
from potluck.run.code_checksum import code_checksum
from potluck.run.devices import Devices
from potluck.run.features import keep_features
from potluck.run.holdings import holdings_text
from potluck.run.interrupts import Interrupted, Interrupts
from potluck.run.labels import label
from potluck.run.loop import Loop
from potluck.run.observers import check_observers, observers
from potluck.run.restoring import restore_state
from potluck.run.result import FailedRun, Result, reason_of
from potluck.run.settings import Experiment, TierSettings
from potluck.run.watch import Watch, Watches, whole
from potluck.run.world import start_engine

RUNS = Path("runs")
MAX_TRACEBACK = 8000
"""Letters of a traceback in the manifest."""


def run(
    experiment: Experiment | Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    *,
    source: Source | None = None,
    method: Any = None,
    watch: Watch | None = None,
    advise: bool = True,
) -> Result:
    """Runs an experiment from round 0 and saves everything in a run folder.

    `experiment` is an `Experiment`, or a mapping with the keys of a TOML file; None runs the built-in digits. `source`
    is your own data, `method` your own method object. `watch` hears of the run; with `advise`, also what to know of it
    before round 0.
    """
    if experiment is None:
        experiment = config.read_experiment(None)
    if not isinstance(experiment, Experiment):
        experiment = config.experiment(experiment)
    if source is not None:
        experiment = with_own_data(experiment, source)
    setup = assemble(experiment, source, method)
    for text in advice(setup) if advise else ():
        whole(watch).warn(text)
    path = Path(out) if out is not None else fresh_folder(experiment)

    def folder() -> RunFolder:
        text = toml.write(experiment.plain())
        words = data_record.vocabulary_text(setup.source) if setup.source is not None else b""
        held = holdings_text(setup)
        return RunFolder.create(path, text, manifest(setup), mark(setup), experiment.run.keep, words, held)

    return run_in_folder(setup, folder, watch)


def with_own_data(experiment: Experiment, source: Source | None = None) -> Experiment:
    """The experiment with data that is handed over in Python; without a name of its own, it has that of the data."""
    data = dataclasses.replace(experiment.data, name=OWN, path="", test_path="")
    name = experiment.name if source is None else experiment.name_for(Path(source.name).name)
    return dataclasses.replace(experiment, name=name, data=data)


def resume(
    path: Path | str,
    *,
    rounds: int | None = None,
    engine: str | None = None,
    source: Source | None = None,
    method: Any = None,
    watch: Watch | None = None,
) -> Result:
    """Resumes a run from its newest valid checkpoint; `rounds` and `engine` may be changed.

    Without `rounds`, it runs to the number of rounds that was last asked for. A run on data of your own needs the same
    `source` again.
    """
    path = Path(path)

    def folder() -> RunFolder:
        return opened

    with RunFolder.open(path) as opened:
        if "charter" in opened.manifest():
            raise SettingsError(f"{path} is a federation of real nodes; go on with `potluck server` and --out {path}.")
        began = settings_of(opened)
        length = planned_rounds(path, opened.manifest()) if rounds is None else rounds
        experiment = _apply_overrides(began, length, engine)
        privacy.refuse_other_length(began, experiment, path)
        record = data_record.read(opened.manifest(), path)
        if record is not None and record.own and source is None:
            raise data_record.ask_for_source(record, path, f"pl.resume({str(path)!r}")
        setup = assemble(experiment, source, method)
        if record is not None and setup.source is not None:
            data_record.refuse_other_data(record, setup.source, setup.public, path)
        if mark(setup) != opened.mark:
            raise SettingsError(f"{path}: its settings.toml was changed since it began; start a new run instead.")
        return run_in_folder(setup, folder, watch, resumed=True)


def settings_of(folder: RunFolder) -> Experiment:
    """The experiment that a run folder holds."""
    path = folder.path / "settings.toml"
    plain, text = toml.parse(read_regular(path), path)
    return config.experiment(plain, str(path), text)


def _apply_overrides(experiment: Experiment, rounds: int, engine: str | None) -> Experiment:
    plain = experiment.plain() | {"rounds": rounds}
    if engine is not None:
        plain["run"] |= {"engine": engine} | ({"hardware": "cuda"} if engine == "graphs" else {})
    return config.experiment(plain, "resume")


def run_in_folder(
    setup: Setup,
    open_folder: Callable[[], RunFolder],
    watch: Watch | None,
    resumed: bool = False,
    start: Callable[[Setup], Engine] = start_engine,
    done: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Runs the remaining rounds, and closes the engine and the folder in every case; `done` is called before that."""
    threads, heard = torch.get_num_threads(), whole(watch)
    check_observers(setup)
    gc.freeze()  # existing objects stay until the end, so the collector need not scan them in every round
    try:
        with Interrupts() as stops, closing(start(setup)) as engine, ExitStack() as stack:
            folder = None
            try:
                with stops.defer():  # no folder may be left that says "running"
                    folder = stack.enter_context(open_folder())
                told = Watches(heard, observers(setup, folder))
                result = _run_to_end(Loop(setup, engine, folder, told, stops), resumed)
                done(result)
                told.end(result)
                return result
            except KeyboardInterrupt:
                if folder is None:
                    raise
                _mark_interrupted(folder)
                raise Interrupted(_resume_hint(folder)) from None
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)
        if setup.context.hardware != "cpu":  # frees this run's GPU memory before the next run
            gc.collect()
            torch.cuda.empty_cache()


def _run_to_end(loop: Loop, resumed: bool) -> Result:
    """Runs all remaining rounds, and writes into the manifest how the run ended."""
    folder, watch, experiment = loop.folder, loop.watch, loop.experiment
    found = folder.rewind(watch.warn)
    if found:
        loop.restore(*found)
        watch.warn(f"resumed at round {found[0]}")
    elif resumed:
        watch.warn("no checkpoint was written yet: starting at round 0")
    fresh = dict.fromkeys(("fault", "fault_round", "traceback", "totals"))
    folder.update_manifest(status="running", rounds=experiment.rounds, **fresh)
    watch.start(folder.path, folder.manifest(), loop.progress.done)
    try:
        loop.run()
        keep_features(loop)
    except BaseException as fault:
        try:
            loop.save_before_exit()
            at = loop.progress.done + 1 if isinstance(fault, QuorumError) else None
            ended = _status_after(fault)
            told: dict[str, Any] = {"privacy": loop.promise, "secure": loop.secured}
            told |= {"traceback": _traceback(fault), "totals": dict(loop.progress.totals)}
            folder.update_manifest(status=ended, fault=reason_of(fault), fault_round=at, **told)
        except LedgerError as second:  # it must not hide the first
            if str(second) != str(fault):
                watch.warn(str(second))
        watch.end(_failed_run(loop, fault))
        raise
    result = Result(
        folder.path,
        str(experiment.method.get("name", type(loop.context.method).__name__)),
        loop.progress.done,
        experiment.seed,
        loop.scores or {},
        dict(loop.progress.totals),
        loop.weights(),
        loop.promise,
    )
    folder.update_manifest(status="done", result=result.plain(), privacy=loop.promise, secure=loop.secured)
    return result


def _traceback(fault: BaseException) -> str | None:
    """The end of the traceback of an error that nobody expects; None of others, whose message says all."""
    if isinstance(fault, UserError | LedgerError | KeyboardInterrupt):
        return None
    return "".join(traceback.format_exception(fault))[-MAX_TRACEBACK:]


def _failed_run(loop: Loop, fault: BaseException) -> FailedRun:
    """The run that this exception ended."""
    experiment, at = loop.experiment, loop.progress.done + 1
    name, told = str(experiment.method.get("name")), label(loop.context.method, experiment.local)
    return FailedRun(loop.folder.path, told, name, experiment.seed, _status_after(fault), at, reason_of(fault))


def _mark_interrupted(folder: RunFolder) -> None:
    """Writes into the manifest that the run was interrupted, if that came before its first round could say so."""
    with suppress(LedgerError):
        if folder.manifest().get("status") == "running":
            folder.update_manifest(status="interrupted")


def _resume_hint(folder: RunFolder) -> str:
    saved = folder.checkpoints.rounds()
    when = f"after round {saved[-1]}" if saved else "before anything was saved"
    if "charter" in folder.manifest():
        return f"interrupted {when}; go on with the same `potluck server` command and --out {folder.path}"
    return f"interrupted {when}; go on with: potluck resume {shlex.quote(str(folder.path))}"


def state_of(setup: Setup, fields: Mapping[str, Any]) -> Any:
    """A method's state from the fields of a checkpoint."""
    method, zoo = setup.context.method, setup.context.zoo
    return restore_state(method.init(zoo, stream(setup.context.seed, "init")), fields)


def manifest(setup: Setup) -> dict[str, Any]:
    """The manifest, one JSON object: what a run is, where it ran, and how it ended.

    - What it is: `name`, `method`, its `label` for people, its `facts` (what it needs and allows), `variant`, `seed`,
      `rounds` to do, `cohort`, `privacy` (the guarantee, or null), `secure` (how much secure sums opened, or null).
    - Its data: `classes`; `data`, with the sizes of the data set and a checksum of its rows; `clients`; `tiers`, each
      with `name`, `share`, `clients`, `profile`, `parameters`, `width` and `depth`; `basis` and `source` of its device
      if they are no built-in figures. In a federation between machines also `nodes` (their names) and `charter`.
    - Where it runs: `potluck` (the version), `code` (a checksum), `engine`, `hardware`, `stack`, `python`, `torch`,
      `numpy`, `host`, `pid`, `started`.
    - How it goes: `status` (running, done, interrupted, diverged or failed); `fault` and `fault_round`, why and in
      which round it ended early, then `totals`, what it had cost, and `traceback`, if nobody expected the error;
      `result`, the scores and costs at the end; `features`, with score.features the mean CKA of clients by stage and
      the separation of classes by tier; `saved`, whether there is a checkpoint.
    - For resuming: `schema`, the version of these layouts; `mark`, a hash of settings and networks; `keep`, how many
      checkpoints are kept.
    """
    experiment, zoo = setup.experiment, setup.context.zoo
    counts = setup.population.counts()
    return {
        "potluck": version("potluck"),
        "code": code_checksum(),
        "name": experiment.name,
        "method": str(experiment.method.get("name")),
        "label": label(setup.context.method, experiment.local),
        "facts": dataclasses.asdict(told) if (told := facts_of(setup.context.method)) else None,
        "privacy": privacy.guarantee(experiment.privacy, setup.context.mechanism) if setup.context.mechanism else None,
        "secure": {"min_holders": experiment.secure.min_holders} if experiment.secure.enabled else None,
        "variant": experiment.variant,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "engine": engine_name(experiment),
        "hardware": experiment.run.hardware,
        "stack": experiment.run.stack,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": "running",
        "classes": setup.classes,
        "data": describe_data(setup).plain(),
        "clients": setup.population.present,
        "cohort": experiment.cohort,
        "tiers": [
            {
                "name": tier.name,
                "share": tier.share,
                "clients": counts[tier.name],
                "profile": tier.profile,
                "parameters": zoo.cost(tier.spec, 1).parameters,
                "width": to_plain(tier.width),
                "depth": tier.depth,
                **_device_facts(setup, tier.name),
            }
            for tier in zoo.tiers
        ],
    }


def _device_facts(setup: Setup, tier: str) -> dict[str, str]:
    """What a tier's speed and memory rest on, if not on a built-in profile."""
    if setup.experiment.fleet.file:
        return {"basis": "drawn", "source": setup.experiment.fleet.file}
    device = setup.population.devices[tier]
    return {} if device.basis == "modelled" else {"basis": device.basis, "source": device.source}


def mark(setup: Setup) -> str:
    """A hash that identifies a run: its settings, without its length and without how the work is done.

    Settings that have their default value are left out. So a run can be resumed with code that knows more settings.
    """
    plain, usual, method = setup.experiment.plain(), Experiment().plain(), setup.context.method
    for name in ("name", "variant", "rounds", "run", "compare", "score", "method", "nodes", "track"):
        plain.pop(name)
    tier = to_plain(dataclasses.asdict(TierSettings()))
    plain = {name: changed_settings(value, usual[name]) for name, value in plain.items()}
    plain["tier"] = [changed_settings(one, tier) for one in setup.experiment.plain()["tier"]]
    if files := Devices(setup.experiment).checksums():
        plain["devices"] = files
    plain["method"] = [type(method).__name__, changed_settings(settings(method), _usual_settings(type(method)))]
    plain["networks"] = [
        spec.plain() for spec in (setup.context.zoo.full, *(tier.spec for tier in setup.population.tiers))
    ]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def changed_settings(found: Any, usual: Any) -> Any:
    """The settings that differ from the usual ones."""
    if not isinstance(found, Mapping) or not isinstance(usual, Mapping):
        return found
    return {
        name: changed_settings(value, usual.get(name))
        for name, value in found.items()
        if name not in usual or value != usual[name]
    }


def _usual_settings(kind: type) -> Mapping[str, Any]:
    """The settings of a method as its class has them; none if it cannot be made without any."""
    try:
        return settings(kind())
    except (TypeError, ValueError):
        return {}


def fresh_folder(experiment: Experiment) -> Path:
    """A folder under runs/ that does not exist yet."""
    return _unused(folder_name(experiment))


def folder_name(experiment: Experiment) -> str:
    """The name of an experiment's run folder, if there is none of this name yet."""
    method = str(experiment.method.get("name", "run")).replace(":", ".")
    return _clean(experiment.name, f"{method}-s{experiment.seed}")


def fresh_path(name: str, kind: str) -> Path:
    """A path under runs/ that does not exist yet. Whatever the name holds, it is one folder directly in there."""
    return _unused(_clean(name, kind))


def _clean(name: str, kind: str) -> str:
    clean, end = (re.sub(r"[^\w.-]+", "_", text)[:80] for text in (name, kind))
    return f"{clean or 'run'}-{end}"


def _unused(base: str) -> Path:
    number = 1
    while (RUNS / (base if number == 1 else f"{base}-{number}")).exists():
        number += 1
    return RUNS / (base if number == 1 else f"{base}-{number}")


def _status_after(fault: BaseException) -> str:
    """The status of a run that this exception ended."""
    if isinstance(fault, KeyboardInterrupt):
        return "interrupted"
    return "diverged" if isinstance(fault, DivergedError) else "failed"
