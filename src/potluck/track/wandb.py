"""Weights & Biases: a run in a project, written to the run folder (offline), or sent as well (online).

An offline run cannot be resumed by W&B. So a resumed run writes all its rounds again into a new folder under the same
id, and then removes the older ones: what is there is always one whole run.

Code, command line, console output, machine and packages are not recorded, and error reports are switched off. W&B works
in a process of its own, `wandb-core`, which ends with the run.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from netrc import NetrcParseError, netrc
from typing import Any, Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

from potluck.core import ResourceError, one_line
from potluck.ledger.files import list_subfolder
from potluck.track.environment import environment
from potluck.track.tracking import Line, TrackedRun, Tracking

Mode = Literal["offline", "online"]

ALWAYS = {
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_SILENT": "true",
}
SERVICE = "WANDB_SERVICE"
"""W&B sets it while its process is there, for processes that this one starts."""
FOLDER = "wandb"
"""In the run folder; W&B calls it so."""
WAIT = 10.0
"""Seconds to wait for an answer before the first round."""
LONGEST_FINISH = 120.0
"""Seconds to wait at the end until all is sent; the rest stays in the run folder, for `wandb sync`."""


@contextmanager
def contained() -> Iterator[None]:
    """Calls W&B, and restores what it changes of the process: environment, sys.exit and sys.excepthook."""
    before = sys.exit, sys.excepthook
    service = os.environ.get(SERVICE)
    try:
        with environment(ALWAYS, {}):
            yield
    finally:
        sys.exit, sys.excepthook = before
        if service is None:
            os.environ.pop(SERVICE, None)


try:
    with contained():
        import wandb
        from wandb.sdk import wandb_setup
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "wandb":
        raise
    raise ResourceError("[track] wandb needs the package wandb: pip install 'potluck[track]'") from None


def check_login(mode: Mode) -> None:
    """Refuses online mode if nobody is logged in, or if the server cannot be reached."""
    if mode != "online":
        return
    with contained(), process_of_its_own():
        address = str(wandb.setup().settings.base_url)
    if not _has_key(urlsplit(address).hostname or ""):
        raise ResourceError(
            f"track.wandb_mode = 'online' needs a key for {address}: run `wandb login`, set WANDB_API_KEY, or use "
            'wandb_mode = "offline".'
        )
    try:
        urlopen(address, timeout=WAIT).close()
    except HTTPError as answer:  # it is there
        answer.close()
    except (OSError, ValueError, HTTPException) as fault:
        reason = one_line(str(getattr(fault, "reason", fault)), 100)
        raise ResourceError(
            f"W&B at {address} cannot be reached within {WAIT:g} s: {reason}. "
            'Use track.wandb_mode = "offline", and `wandb sync` later.'
        ) from None


@contextmanager
def process_of_its_own() -> Iterator[None]:
    """Ends the process of W&B, and forgets its settings, unless the user's own program had them before."""
    ours = getattr(wandb_setup, "_singleton", None) is None
    try:
        yield
    finally:
        if ours:
            with suppress(SystemExit):  # W&B leaves the whole program if its own process ends with an error
                wandb.teardown()


def _has_key(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    with suppress(OSError, NetrcParseError):
        return netrc(os.environ.get("NETRC")).authenticators(host) is not None
    return False


class WandB(Tracking):
    """Logs settings as the run's config, scores and costs with the round as their step, and the report."""

    def __init__(self, run: TrackedRun, project: str, mode: Mode) -> None:
        super().__init__(run)
        self.entity, _, self.project = project.rpartition("/")
        self.mode = mode
        self._run: Any = None
        self._process = ExitStack()

    def open(self, tags: Mapping[str, str], done: int) -> int:
        with contained(), ExitStack() as stack:
            stack.enter_context(process_of_its_own())
            self._run = wandb.init(
                entity=self.entity or None,
                project=self.project,
                id=self.run.id,
                name=self.run.name,
                group=tags["group"],
                tags=[tags[name][:64] for name in ("method", "data", "variant") if tags[name]],
                config={**self.run.settings, **{f"tag.{name}": value for name, value in tags.items()}},
                dir=str(self.run.path.absolute()),
                mode=self.mode,
                resume="allow" if self.mode == "online" else None,
                reinit="create_new",
                allow_val_change=True,
                settings=_settings(),
            )
            self._process = stack.pop_all()
        return int(self._run.starting_step) - 1 if self.mode == "online" else -1

    def log(self, line: Line) -> None:
        round, values = line
        with contained():
            self._run.log(dict(values), step=round, commit=True)

    def close(self, status: str) -> None:
        with contained():
            if status != "interrupted":
                report = wandb.Artifact(f"report-{self.run.id}", "report")
                report.add_file(str(self.run.report.absolute()), "report.html", skip_cache=True, policy="immutable")
                self._run.log_artifact(report)
            here = self._run.settings.sync_dir
            self._run.finish(exit_code=0 if status == "done" else 1)
        if self.mode == "offline":
            self._remove_older(os.path.basename(here))

    def let_go(self) -> None:
        with contained():
            self._process.close()

    def _remove_older(self, newest: str) -> None:
        """Removes what earlier processes wrote of this run: the newest folder holds all of it."""
        for name in list_subfolder(self.run.path / FOLDER):
            if name.startswith("offline-run-") and f"-{self.run.id}" in name and name != newest:
                shutil.rmtree(self.run.path / FOLDER / name, ignore_errors=True)


def _settings() -> Any:
    """Nothing of the machine, the code or the command line; nothing on the screen."""
    return wandb.Settings(
        console="off",
        silent=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        host="",
        init_timeout=3 * WAIT,
        login_timeout=WAIT,
        finish_timeout=LONGEST_FINISH,
        symlink=False,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
