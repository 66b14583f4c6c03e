"""A bank of lent samples: what clients deposit in a round, others draw from in later ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

from potluck.core import EMPTY, Arrays

Bank: TypeAlias = Mapping[str, Arrays]
"""Arrays with a row for each sample, under ``<round> <client>``; the oldest first."""


def deposited(bank: Bank, index: int, lent: Mapping[str, Arrays], most: int | None = None) -> Bank:
    """The bank after a round in which these clients lent something.

    It holds each client's newest alone or, with `most`, whatever came last, that many samples of it. Within a round
    lenders come in the order of their names, so that no other order matters.
    """
    new = {f"{index} {client}": lent[client] for client in sorted(lent)}
    if most is None:
        return {**{key: arrays for key, arrays in bank.items() if _lender(key) not in lent}, **new}
    kept: dict[str, Arrays] = {}
    for key, arrays in reversed([*bank.items(), *new.items()]):
        most -= _samples(arrays)
        if most < 0:
            break
        kept[key] = arrays
    return dict(reversed(kept.items()))


def drawn(bank: Bank, count: int, rng: torch.Generator, without: str | None = None) -> Arrays:
    """So many samples of the bank, none twice and each as likely as any; none that this client lent itself."""
    samples = [
        (arrays, row)
        for key, arrays in bank.items()
        if without is None or _lender(key) != without
        for row in range(_samples(arrays))
    ]
    chosen = [samples[at] for at in torch.randperm(len(samples), generator=rng)[:count].tolist()]
    names = chosen[0][0] if chosen else EMPTY
    return {name: torch.stack([arrays[name][row] for arrays, row in chosen]) for name in names}


def _lender(key: str) -> str:
    return key.partition(" ")[2]


def _samples(arrays: Arrays) -> int:
    return min((len(tensor) for tensor in arrays.values()), default=0)
