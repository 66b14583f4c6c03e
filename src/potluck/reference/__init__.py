"""Every setting and every file layout, as the docstrings describe them: for `potluck explain`, completion and the docs.

`collect` reads them off the classes, which takes seconds because of torch. ``python -m potluck.reference`` keeps what
it finds in ``reference.json`` and writes ``docs/settings.md``. This module only reads that file, so it starts at once.
"""

from potluck.reference.lookup import UnknownName, explained_names, find
from potluck.reference.records import FileLayout, Reference, Section, Setting, read_reference

__all__ = [
    "FileLayout",
    "Reference",
    "Section",
    "Setting",
    "UnknownName",
    "explained_names",
    "find",
    "read_reference",
]
