"""Errors that a user can correct: a message of one line, and an exit code for each kind."""

from __future__ import annotations


class UserError(Exception):
    """An error that a user can correct. The message says what was asked, what was found, and what to do."""

    exit_code = 1


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
    """A round without a quorum because the clients' updates are not finite."""


class ResourceError(UserError):
    """The machine lacks a resource: disk space, a port, a lock, memory, a GPU."""

    exit_code = 6


class Skip(Exception):
    """Raised on the client side if there is nothing to do. The client counts as absent; the ledger says why."""
