"""The command that follows runs in a browser: board."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.serving import app

__all__ = ["app"]

RUNS = Path("runs")


@app.command(epilog="Example: potluck board runs --port 8080 --allow-stop")
def board(
    runs: Annotated[
        Path | None, typer.Argument(help="The folder of the runs, or of comparisons; by default runs/.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on. Any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 0,
    token: Annotated[str, typer.Option(help="The token to ask for; if one is needed, it is made up.")] = "",
    allow_stop: Annotated[bool, typer.Option("--allow-stop", help="Show a button that stops a run; it saves.")] = False,
    open_browser: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the page in a browser; by default if there is one.")
    ] = None,
) -> None:
    """Follow the runs of a folder in a browser, live; Ctrl-C closes the board, and runs go on."""
    import webbrowser

    from potluck.board.server import BoardServer, address_of, listen, make_token
    from potluck.cli import display

    if runs is not None and not runs.is_dir():
        _refuse_folder(runs)
    if token and not re.fullmatch(r"[A-Za-z0-9_-]{8,200}", token):
        raise typer.BadParameter("--token must have at least 8 letters, of a to z, A to Z, 0 to 9, - and _.")
    wanted = make_token(host, token, allow_stop)
    with listen(host, port) as listening:
        address = address_of(listening, host, wanted)
        display.print_line(f"board of {runs or RUNS}: {address}")
        display.print_line("Ctrl-C closes it; runs go on.")
        sys.stdout.flush()
        if open_browser if open_browser is not None else _has_display():
            webbrowser.open(address)
        BoardServer(runs or RUNS, host, wanted, allow_stop).serve(listening)
    display.print_line("the board is closed.")


def _refuse_folder(path: Path) -> None:
    from potluck.core import InputError  # here, because it brings torch along, which takes seconds

    raise InputError(f"{path} is no folder; give one that holds runs, or leave it out for {RUNS}/.")


def _has_display() -> bool:
    """Whether someone sits at a screen."""
    shown = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) and sys.stdout.isatty()
