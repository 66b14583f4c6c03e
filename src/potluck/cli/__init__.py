"""The `potluck` command."""

from potluck.cli.main import main

__all__ = ["main"]
