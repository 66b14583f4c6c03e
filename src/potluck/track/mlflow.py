"""MLflow: a run in the experiment of the same name, in a folder or on a server.

Only `MlflowClient` is used. It sends what it is given and nothing of its own: no command line, no user, no code.
MLflow's usage telemetry is switched off.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from potluck.core import ResourceError, one_line
from potluck.ledger.files import make_folder
from potluck.track.environment import environment
from potluck.track.tracking import Line, TrackedRun, Tracking

ALWAYS = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "MLFLOW_DISABLE_AGENT_HINT": "1"}
UNLESS_SET = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow refuses folders without it
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
"""A server that does not answer holds a run up for some 20 seconds, not for minutes."""
quiet = partial(environment, ALWAYS, UNLESS_SET)

try:
    with quiet():
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "mlflow":
        raise
    raise ResourceError("[track] mlflow needs the package mlflow-skinny: pip install 'potluck[track]'") from None

MOST = 100
"""Parameters that MLflow takes at once."""
LONGEST = 6000
"""Characters of a parameter that MLflow takes."""
STATUS = {"done": "FINISHED", "interrupted": "KILLED"}
"""How MLflow calls the end of a run; all else is FAILED."""


def check_store(address: str, name: str) -> None:
    """Refuses a folder or server that does not give an experiment of this name."""
    try:
        with environment({**ALWAYS, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}, UNLESS_SET):
            _experiment(_client(address), name)
    except Exception as fault:  # whatever MLflow and what it uses may raise
        raise ResourceError(
            f"track.mlflow = {address!r} cannot be used: {one_line(_reason(fault), 200)}. "
            "Start that server, choose another place, or leave mlflow out of [track]."
        ) from None


def _reason(fault: BaseException) -> str:
    """What went wrong, without the names of Python objects that network errors are full of."""
    text = str(fault)
    if "unsupported URI" in text:
        return "give a folder or the address of a server; databases need the whole package, pip install mlflow"
    for known in ("Connection refused", "Name or service not known", "timed out", "No route to host"):
        if known in text:
            return known.lower()
    return text.rstrip(".")


def _client(address: str) -> MlflowClient:
    """MLflow at this address. A folder is made, and named in full: MLflow remembers those that it has seen by name."""
    scheme, _, path = address.rpartition(":")
    if scheme not in ("", "file") or path.startswith("//"):
        return MlflowClient(address)
    make_folder(Path(path))
    return MlflowClient(Path(path).absolute().as_uri())


def _experiment(client: MlflowClient, name: str) -> str:
    """The id of the experiment of this name, which is made if there is none."""
    name = name or "potluck"
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another run may have made it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        raise ResourceError(f"its experiment '{name}' was deleted; restore it there, or change the experiment's name")
    return str(found.experiment_id)


class MLflow(Tracking):
    """Logs settings as parameters, scores and costs as metrics with the round as their step, and the report."""

    def __init__(self, run: TrackedRun, address: str) -> None:
        super().__init__(run)
        self.address = address
        self._id = ""
        self._known: dict[str, set[int]] = {}
        """The rounds that MLflow has of each metric: a metric cannot be changed, and must not be there twice."""

    def open(self, tags: Mapping[str, str], done: int) -> int:
        with quiet():
            self._client = _client(self.address)
            found = self._earlier_run()
            if found is None:
                experiment = _experiment(self._client, tags["name"])
                found = self._client.create_run(experiment, tags=dict(tags), run_name=self.run.name)
                self.run.keep_id("mlflow", found.info.run_id)
            self._id = found.info.run_id
            self._client.update_run(self._id, status="RUNNING")
            self._log_settings(found.data.params)
            for name in found.data.metrics:
                history = self._client.get_metric_history(self._id, name)
                self._known[name] = {point.step for point in history}
        return -1

    def log(self, line: Line) -> None:
        (round, values), now = line, int(time.time() * 1000)
        fresh = {name: value for name, value in values.items() if round not in self._known.get(name, ())}
        with quiet():
            metrics = [Metric(name, value, now, round) for name, value in fresh.items()]
            for some in _chunks(metrics, 10 * MOST):
                self._client.log_batch(self._id, metrics=some)

    def close(self, status: str) -> None:
        with quiet():
            if status != "interrupted":
                self._client.log_artifact(self._id, str(self.run.report))
            self._client.set_terminated(self._id, STATUS.get(status, "FAILED"))

    def let_go(self) -> None:
        pass

    def _earlier_run(self) -> Any:
        """The run that this one goes on with; None if there is none, or none here."""
        id = self.run.id_at("mlflow")
        if id is None:
            return None
        try:
            return self._client.get_run(id)
        except MlflowException as fault:
            if fault.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None

    def _log_settings(self, there: Mapping[str, str]) -> None:
        """Logs the settings. One that was changed when the run was resumed is a tag: a parameter cannot be changed."""
        told = {name: str(value)[:LONGEST] for name, value in self.run.settings.items()}
        fresh = [Param(name, value) for name, value in told.items() if name not in there]
        for some in _chunks(fresh, MOST):
            self._client.log_batch(self._id, params=some)
        changed = [RunTag(f"resumed.{name}", value) for name, value in told.items() if there.get(name, value) != value]
        if changed:
            self._client.log_batch(self._id, tags=changed[:MOST])


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of at most this size."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
