"""The entry point: one line for every error, and an exit code that says which kind it is."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any

DEBUG_VARIABLE = "POTLUCK_DEBUG"
INTERRUPTED = 130
RESOURCE = 6
OUTPUT_CLOSED = 141
"""The exit code of SIGPIPE: the reader of our output closed it before the end."""
TOGETHER = 1.0
"""Seconds within which a Ctrl-C and a SIGTERM are one request to stop."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; ``--debug`` anywhere, or POTLUCK_DEBUG=1, shows the traceback of an error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
    given = [argument for argument in given if argument != "--debug"]
    before = _set_signals(_interrupt)
    try:
        try:
            code = _run_command(given)
        except KeyboardInterrupt as stop:
            _set_signals(signal.SIG_IGN)
            _complain(_what_was_interrupted(stop))
            code = INTERRUPTED
        except BrokenPipeError:
            code = OUTPUT_CLOSED
        except Exception as fault:
            if debug:
                traceback.print_exc()
            code = _print_error(fault)
        if arguments is None:  # the process ends now: libraries clean up, and a signal must not show them to the user
            _set_signals(lambda number, frame: os._exit(code))
            before = {}
        _exit(code)
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _set_signals(handler: Any) -> dict[signal.Signals, Any]:
    """Sets what Ctrl-C and SIGTERM do, unless they are ignored; returns what they did. A run has its own handler."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    kinds = (signal.SIGINT, signal.SIGTERM)
    return {
        kind: signal.signal(kind, handler) for kind in kinds if signal.getsignal(kind) not in (signal.SIG_IGN, None)
    }


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Turns a signal into KeyboardInterrupt; the same one again ends the process at once."""
    first = time.monotonic()

    def end(other: int, frame: FrameType | None) -> None:
        if other == number or time.monotonic() - first > TOGETHER:
            os._exit(INTERRUPTED)

    _set_signals(end)
    if _is_importing(frame):  # nothing has begun yet, and libraries do not expect an exception there
        os.write(2, b"potluck: interrupted\n")
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _what_was_interrupted(stop: BaseException | None) -> str:
    """What an interruption says; a second one on its way out says nothing, and is not asked."""
    while stop is not None:
        if isinstance(stop, KeyboardInterrupt) and str(stop):
            return str(stop)
        stop = stop.__context__
    return "interrupted"


def _run_command(given: list[str]) -> int:
    import typer

    from potluck.cli import completion
    from potluck.cli.measuring import app  # with all commands

    # Typer may use click or its own copy of it; in both, the usage errors have the same common parent.
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]
    command = typer.main.get_command(app)
    if completion.asked():
        return completion.answer(command)
    try:
        # Not `app(...)`, which would hide the message of an interruption.
        with command.make_context("potluck", given or ["--help"]) as context:
            command.invoke(context)
        return 0
    except typer.Exit as left:
        return int(left.exit_code)
    except usage_error as fault:
        message = getattr(fault, "format_message", fault.__str__)()
        text = " ".join(str(message).replace("Value error, ", "").split()).rstrip(".")
        end = "" if text.endswith("?") else "."
        _complain(f"{text}{end} Try `potluck --help`.")
        return int(getattr(fault, "exit_code", 2))


def _print_error(fault: Exception) -> int:
    """Prints what went wrong in one line; returns the exit code."""
    if _out_of_memory(fault):
        _complain("out of memory. Use fewer workers (--set run.workers=1) or a smaller model.")
        return RESOURCE
    if advice := _gpu_advice(fault):
        _complain(advice)
        return RESOURCE
    code = getattr(fault, "exit_code", None)
    if isinstance(code, int):
        first, *others = getattr(fault, "lines", None) or [str(fault)]
        _complain(first)
        for line in others:
            _complain(line, "  ")
        return code
    if isinstance(fault, OSError) and fault.strerror:
        _complain(f"{fault.filename or 'the machine'}: {fault.strerror}.")
        return RESOURCE
    _complain(f"{type(fault).__name__}: {fault} (internal error; rerun with --debug)")
    return 1


def _complain(text: str, start: str = "potluck: ") -> None:
    """Prints an error in one line; control characters in it are shown as marks."""
    from potluck.cli.safe_text import visible

    print(f"{start}{visible(' '.join(text.split()))}", file=sys.stderr)


def _gpu_advice(fault: Exception) -> str:
    """What to do about a GPU that has no room; empty if the error is another one."""
    if "cuda" not in str(fault).lower():
        return ""
    from potluck.core import gpu_advice

    return gpu_advice(fault)


def _out_of_memory(fault: Exception) -> bool:
    """Whether memory ran out, according to Python, the system or torch."""
    if isinstance(fault, OSError) and fault.errno == errno.ENOMEM:
        return True
    messages = ("not enough memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(fault, MemoryError) or any(words in str(fault).lower() for words in messages)


def _exit(code: int) -> None:
    """Exits with this code; a reader that closed our output early (`| head`) is not an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
