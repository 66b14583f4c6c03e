"""Calls of a library that reads environment variables and draws random numbers, without a trace in the process."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(always: Mapping[str, str], unless_set: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the block, those of `unless_set` only if the user has not.

    Then they are as before, and so is Python's own generator: MLflow draws names from it.
    """
    chosen = {**{name: value for name, value in unless_set.items() if name not in os.environ}, **always}
    before, drawn = {name: os.environ.get(name) for name in chosen}, random.getstate()
    os.environ.update(chosen)
    try:
        yield
    finally:
        random.setstate(drawn)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
