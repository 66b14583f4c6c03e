"""Potluck: federated learning where every device brings what it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.run.contract import check_method

__all__ = ["check_method"]


def __getattr__(name: str) -> Any:
    """Loads what is asked for: torch takes seconds to import, and ``potluck --help`` needs none of it."""
    if name not in __all__:
        raise AttributeError(f"module 'potluck' has no attribute '{name}'")
    from potluck.run import contract

    return getattr(contract, name)
