"""Runs an exported folder from Python, with the program that is in the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from potluck.core import InputError
from potluck.shipping.standalone import ModelError, ShippedModel


def predict(folder: str | os.PathLike[str], x: ArrayLike | str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What the model of an exported folder says of each row: its class and probabilities, its number, or its tags.

    `x` holds rows as they were before scaling, or is the path of a file, as for the folder's ``predict.py``. A graph is
    a program: use only folders of people whom you trust.
    """
    try:
        model = ShippedModel(Path(folder))
        if isinstance(x, str | os.PathLike):
            return [said for _, said in model.predict(Path(x))]
        return model.answers(x)
    except ModelError as fault:
        raise InputError(str(fault)) from None
