"""Reads command lines in documents and examples with the program's own parser, without running them."""

import re
import shlex
from pathlib import Path

import typer

from potluck.cli.measuring import app

COMMANDS = typer.main.get_command(app)
PLACEHOLDERS = ("…", "...")


def blocks(text, language=""):
    """The code blocks of a Markdown text with this language after the fence."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [body for kind, body in found if kind == language]


def command_lines(script):
    """The words after `potluck` of every command that calls it, by a path, through `sudo` or in a container too."""
    found = []
    for line in script.replace("\\\n", " ").splitlines():
        for command in re.split(r" (?:&&|\||;) ", line):
            words = _without_prefix([word for word in shlex.split(command, comments=True) if word != "&"])
            if len(words) > 1 and Path(words[0]).name == "potluck":
                found.append(words[1:])
    return found


def _without_prefix(words):
    if words[:1] == ["sudo"]:
        return words[3:] if words[1:2] == ["-u"] else words[1:]
    return words[4:] if words[:3] == ["docker", "compose", "exec"] else words


def parse(words):
    """Parses a whole command line; an error if a command, an option or an argument is wrong. Returns the values."""
    command, context, rest = COMMANDS, COMMANDS.make_context("potluck", list(words)), list(words)
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
    return context.params


def unknown_words(words):
    """Names of commands and options that do not exist. For lines with gaps, which cannot be parsed."""
    command, rest = COMMANDS, list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name.startswith("-") or name in PLACEHOLDERS:
            break
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h", "--debug"}
    return [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
