"""Docstrings, also those of attributes, which Python does not keep: they are read from the source."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from pathlib import Path


def attribute_docs(kind: type) -> dict[str, str]:
    """What the docstrings say of the attributes of a class: its own docstring of each, or else that of a base."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _own_docs(base)
    return found


@cache
def _own_docs(kind: type) -> dict[str, str]:
    body = _class_body(kind)
    return {
        name.target.id: one_paragraph(ast.literal_eval(text.value))
        for name, text in pairwise(body)
        if isinstance(name, ast.AnnAssign)
        and isinstance(name.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _class_body(kind: type) -> list[ast.stmt]:
    try:
        file = inspect.getsourcefile(kind)
    except TypeError:  # built into Python, or made where there is no file
        return []
    if file is None or not Path(file).is_file():
        return []
    classes = (node for node in ast.walk(_parsed(file)) if isinstance(node, ast.ClassDef))
    return next((node.body for node in classes if node.name == kind.__name__), [])


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse(Path(file).read_text("utf-8"))


def one_paragraph(text: str | None) -> str:
    """A docstring in one line."""
    return " ".join((text or "").split())


def first_paragraph(thing: object) -> str:
    """The first paragraph of the docstring of a class, function or module, in one line."""
    return one_paragraph(whole_docstring(thing).partition("\n\n")[0])


def whole_docstring(thing: object) -> str:
    """The docstring of this very thing, without the indentation of its source; not that of a base class."""
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "")
