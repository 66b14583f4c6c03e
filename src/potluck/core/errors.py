"""Errors that a user can correct: a message of one line, and an exit code for each kind."""

from __future__ import annotations

import os
import signal
import threading
import traceback

from potluck.core.text import one_line

BY_USER = "Ctrl-C or SIGTERM"
MOST_SHOWN = 2000
"""The most letters of a line of an error."""


class UserError(Exception):
    """An error that a user can correct. The message says what was asked, what was found, and what to do."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: its lines; with POTLUCK_DEBUG=1, the traceback."""
        return shown_lines(self)


def shown_lines(fault: BaseException) -> list[str]:
    """An error as a notebook shows it: its name and its message, without a traceback unless POTLUCK_DEBUG=1."""
    if os.environ.get("POTLUCK_DEBUG", "") not in ("", "0"):
        return traceback.format_exception(fault)
    first, *rest = [one_line(line, MOST_SHOWN) for line in str(fault).splitlines()] or [""]
    return [f"{type(fault).__name__}: {first}", *rest]


class SettingsError(UserError):
    """A setting that is missing, misspelt, of the wrong type, or in conflict with another setting."""

    exit_code = 2


class InputError(UserError):
    """A file that cannot be read, or that has the wrong content."""

    exit_code = 3


class QuorumError(UserError):
    """Too few clients answered, in every attempt at a round."""

    exit_code = 5


class DivergedError(QuorumError):
    """A round without a result because the clients' updates, or the server's model, are not finite."""


class ResourceError(UserError):
    """The machine lacks a resource: disk space, a port, a lock, memory, a GPU."""

    exit_code = 6


GPU_FULL = ("cuda out of memory", "cuda error: out of memory", "cuda-capable device(s) is/are busy")
"""What CUDA and torch say if a GPU has no memory left, or no room for one more process."""


def gpu_advice(fault: BaseException) -> str:
    """What to do about a GPU that has no room; empty if the error is another one."""
    if not any(words in str(fault).lower() for words in GPU_FULL):
        return ""
    return (
        "the GPU has no room left. Start fewer runs at once (--jobs), train fewer clients side by side "
        "(--set run.streams=4), or use smaller batches."
    )


class Skip(Exception):
    """Raised on the client side if there is nothing to do. The client counts as absent; the ledger says why."""


def user_interrupt() -> KeyboardInterrupt:
    """The exception for a signal of the user; `by_user` tells it from one that client code raises."""
    made = KeyboardInterrupt()
    made.add_note(BY_USER)
    return made


def by_user(fault: BaseException) -> bool:
    """Whether the user asked for this exception: Ctrl-C or SIGTERM, and not client code that raises the same."""
    if not isinstance(fault, KeyboardInterrupt):
        return False
    if BY_USER in getattr(fault, "__notes__", ()):
        return True
    # Without a handler of ours, only Python's own can have raised it for the user, and only in the main thread.
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def client_fault(fault: BaseException) -> BaseException:
    """The exception of a client's code, which must not end the run; the user's own Ctrl-C is raised again."""
    if by_user(fault):
        raise fault
    return fault


def describe(fault: BaseException) -> str:
    """A client's exception: its name and text."""
    return one_line(f"{type(fault).__name__}: {text_of(fault)}")


def text_of(fault: BaseException) -> str:
    """The text of a client's exception."""
    try:
        return one_line(str(fault))
    except BaseException as odd:
        client_fault(odd)
        return "(its text cannot be read)"
