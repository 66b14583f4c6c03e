"""The trackers that an experiment asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potluck.ledger import RunFolder
from potluck.track.tracking import TrackedRun, Tracking


def trackers(wanted: Mapping[str, Any], folder: RunFolder, settings: Mapping[str, Any]) -> list[Tracking]:
    """The trackers that [track] names, for a run in this folder with these settings."""
    if not any(wanted[name] for name in ("tensorboard", "mlflow", "wandb")):
        return []
    run, found = TrackedRun(folder, settings), list[Tracking]()
    if wanted["tensorboard"]:
        from potluck.track.tensorboard import TensorBoard

        found.append(TensorBoard(run, wanted["tensorboard"]))
    if wanted["mlflow"]:
        from potluck.track.mlflow import MLflow

        found.append(MLflow(run, wanted["mlflow"]))
    if wanted["wandb"]:
        from potluck.track.wandb import WandB

        found.append(WandB(run, wanted["wandb"], wanted["wandb_mode"]))
    return found


def check(wanted: Mapping[str, Any], name: str) -> None:
    """Refuses what [track] asks for if its library is missing, or if its folder or address cannot be reached.

    `name` is the name of the experiment.
    """
    if wanted["tensorboard"]:
        from potluck.track.tensorboard import check_folder

        check_folder(wanted["tensorboard"])
    if wanted["mlflow"]:
        from potluck.track.mlflow import check_store

        check_store(wanted["mlflow"], name)
    if wanted["wandb"]:
        from potluck.track.wandb import check_login

        check_login(wanted["wandb_mode"])
