"""The way in and the way out: one line for every mistake, and an exit code that says which kind it was."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

INTERRUPTED = 130
RESOURCE = 6
UNREAD = 141
"""What a shell makes of SIGPIPE: the reader of our output left while there was more to say."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; ``--debug`` anywhere shows tracebacks."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # so that `name = "my_module:MyMethod"` finds a file beside the settings
    try:
        code = _called(given)
    except KeyboardInterrupt as stop:
        print(f"potluck: {str(stop) or 'interrupted'}", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        code = UNREAD
    except Exception as fault:
        if debug:
            traceback.print_exc()
        code = _told(fault)
    _leave(code)


def _called(given: list[str]) -> int:
    import typer

    from potluck.cli.app import app

    # Typer may bring click or its own copy of it; the common parent of its usage errors is the same in both.
    mistake: type[Exception] = typer.BadParameter.__mro__[2]
    command = typer.main.get_command(app)
    try:
        # Not `app(...)`, which would swallow what an interruption has to say.
        with command.make_context("potluck", given or ["--help"]) as context:
            command.invoke(context)
        return 0
    except typer.Exit as left:
        return int(left.exit_code)
    except mistake as fault:
        said = getattr(fault, "format_message", fault.__str__)()
        text = " ".join(str(said).replace("Value error, ", "").split()).rstrip(".")
        end = "" if text.endswith("?") else "."
        print(f"potluck: {text}{end} Try `potluck --help`.", file=sys.stderr)
        return int(getattr(fault, "exit_code", 2))


def _told(fault: Exception) -> int:
    """Says what went wrong in one line, and returns the exit code for it."""
    if _out_of_memory(fault):
        print("potluck: out of memory. Use fewer workers (--set run.workers=1) or a smaller model.", file=sys.stderr)
        return RESOURCE
    code = getattr(fault, "exit_code", None)
    if isinstance(code, int):
        print(f"potluck: {' '.join(str(fault).split())}", file=sys.stderr)
        return code
    if isinstance(fault, OSError) and fault.strerror:
        print(f"potluck: {fault.filename or 'the machine'}: {fault.strerror}.", file=sys.stderr)
        return RESOURCE
    text = " ".join(str(fault).split())
    print(f"potluck: {type(fault).__name__}: {text} (an error of ours; --debug shows where)", file=sys.stderr)
    return 1


def _out_of_memory(fault: Exception) -> bool:
    """Whether memory ran out, in Python's words, the system's or torch's."""
    if isinstance(fault, OSError) and fault.errno == errno.ENOMEM:
        return True
    told = ("not enough memory", "can't allocate memory", "cannot allocate memory")
    return isinstance(fault, MemoryError) or any(words in str(fault).lower() for words in told)


def _leave(code: int) -> None:
    """Exits; a reader that closed our output early (`| head`) is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
