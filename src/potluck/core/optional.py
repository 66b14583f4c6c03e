"""Libraries that come with an extra: asked for where they are needed, and named in one line where they are missing."""

from __future__ import annotations

from importlib import import_module

from potluck.core.errors import ResourceError


def require_library(name: str, extra: str, what: str) -> None:
    """Refuses in one line to go on without a library; `what` needs it, and `extra` of Potluck brings it."""
    try:
        import_module(name)
    except ImportError:
        raise ResourceError(f"{what} needs the package {name}: pip install 'potluck[{extra}]'") from None
