"""The help of commands: nothing that it says is taken for markup."""

import pytest
import typer.main
from rich.text import Text

from potluck.cli.measuring import app  # with all commands


def commands(group, name="potluck"):
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


def test_all_commands_are_looked_at():
    assert {"potluck run", "potluck compare", "potluck server", "potluck join"} <= COMMANDS.keys()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_square_brackets_in_help_are_shown(name):
    """A section's name such as [nodes] would vanish as a style that does not exist."""
    texts = [COMMANDS[name].help or "", *(getattr(one, "help", None) or "" for one in COMMANDS[name].params)]
    for text in texts:
        assert not Text.from_markup(text).spans, text
