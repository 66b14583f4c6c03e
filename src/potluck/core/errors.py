"""Errors that a person caused or can mend: one line each, and a distinct exit code."""

from __future__ import annotations


class UserError(Exception):
    """Something a person can mend. The message names what was asked, what was found, what to do."""

    exit_code = 1


class SettingsError(UserError):
    """A setting that is missing, misspelt, of the wrong type or at odds with another."""

    exit_code = 2


class InputError(UserError):
    """A file that cannot be read as what it should be."""

    exit_code = 3


class QuorumError(UserError):
    """Too few clients answered, again and again."""

    exit_code = 5


class ResourceError(UserError):
    """The machine lacks something: disk, a port, a lock, memory."""

    exit_code = 6


class Skip(Exception):
    """Raised by a client's half that has nothing to do; the client is absent, with this note in the ledger."""
