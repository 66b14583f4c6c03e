"""Hooks of `make docs`: README.md is the start page, and files of the repository that pages link to become pages."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([\w./-]+)(#[\w-]*)?(\))")
START = ("examples", "experiments", "CONTRIBUTING.md", "CHANGELOG.md")
"""What the navigation names."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "sh", "": "text"}


def on_files(files: Files, config: Any) -> Files:
    """Adds the start page, and a page for every file or folder of the repository that a page links to."""
    pages = {"index.md": _rewritten((ROOT / "README.md").read_text("utf-8"), "README.md")}
    waiting = list(START)
    for page in files.documentation_pages():
        waiting += _outside(page.content_string, f"docs/{page.src_uri}")
    waiting += _outside((ROOT / "README.md").read_text("utf-8"), "README.md")
    while waiting:
        path = waiting.pop()
        if (uri := _page_uri(path)) not in pages:
            pages[uri] = _page(path)
            waiting += _children(path) if (ROOT / path).is_dir() else []
            waiting += _outside((ROOT / path).read_text("utf-8"), path) if path.endswith(".md") else []
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **more: Any) -> str:
    """Points links to files of the repository at their pages."""
    generated = page.file.generated_by is not None
    return markdown if generated else _rewritten(markdown, f"docs/{page.file.src_uri}")


def _outside(text: str, path: str) -> list[str]:
    """The files and folders outside docs/ that this file links to."""
    found = (_target(match[2], path) for match in LINK.finditer(text))
    return [each for each in found if each and not each.startswith("docs/")]


def _target(link: str, path: str) -> str | None:
    """The path in the repository that a link in this file leads to; None if there is no such file."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return found if not found.startswith("..") and (ROOT / found).exists() else None


def _rewritten(text: str, path: str) -> str:
    """The text with its links to files of the repository turned into links to pages."""
    here = posixpath.dirname(_page_uri(path))

    def link(match: re.Match[str]) -> str:
        target = _target(match[2], path)
        found = match[2] if target is None else posixpath.relpath(_page_uri(target), here or ".")
        return f"{match[1]}{found}{match[3] or ''}{match[4]}"

    return LINK.sub(link, text)


def _page_uri(path: str) -> str:
    """Where in the site a file of the repository stands."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path.removesuffix('.md')}.md"


def _page(path: str) -> str:
    file = ROOT / path
    if file.is_dir():
        here = posixpath.dirname(_page_uri(path))
        rows = (f"- [{_name(each)}]({posixpath.relpath(_page_uri(each), here)})" for each in _children(path))
        return f"{_head(path)}{chr(10).join(rows)}\n"
    text = file.read_text("utf-8")
    if path.endswith(".md"):
        return _rewritten(text, path)
    if path.endswith(".ipynb"):
        return _head(path) + "\n\n".join(_cell(cell) for cell in json.loads(text)["cells"]) + "\n"
    return f"{_head(path)}{_fenced(text, LANGUAGES.get(file.suffix, 'text'))}\n"


def _head(path: str) -> str:
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n"


def _cell(cell: dict[str, Any]) -> str:
    """A cell of a notebook; of what it printed, the text."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return source
    printed = ["".join(out.get("text") or out.get("data", {}).get("text/plain", "")) for out in cell.get("outputs", ())]
    return "\n\n".join([_fenced(source, "python"), *(_fenced(text, "text") for text in printed if text)])


def _fenced(text: str, language: str) -> str:
    return f"````{language}\n{text.rstrip()}\n````"


def _children(path: str) -> list[str]:
    """The files and folders in a folder of the repository, without what tools leave there."""
    inside = sorted((ROOT / path).iterdir())
    kept = (each for each in inside if not each.name.startswith((".", "__")) and (each.is_dir() or _is_text(each)))
    return [each.relative_to(ROOT).as_posix() for each in kept]


def _is_text(file: Path) -> bool:
    return file.suffix in {*LANGUAGES, ".ipynb", ".md", ".service", ".conf"}


def _name(path: str) -> str:
    return f"{posixpath.basename(path)}/" if (ROOT / path).is_dir() else posixpath.basename(path)
