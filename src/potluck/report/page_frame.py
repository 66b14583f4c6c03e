"""What every page has: style, script, a heading and a footer in one file that needs no other and no network."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path

from potluck.ledger import FolderError
from potluck.report.html import Markup, tag

SCRIPTS = ("tip.js", "charts.js", "tables.js", "save.js")
"""The files of the page's one script, in their order."""


def whole_page(title: str, intro: Markup, body: Markup, footer: str = "") -> str:
    """The HTML of a page."""
    script = Markup("(() => {" + "".join(map(_asset, SCRIPTS)) + "})();")
    return "<!doctype html>\n" + tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content=_content_policy(script)),
            tag("title", f"{title} · Potluck"),
            tag("style", _asset("report.css")),
        ),
        tag("body", _header(title, intro), tag("main", body), tag("footer", footer), tag("script", script)),
        lang="en",
    )


def make_folder(folder: Path) -> None:
    """Makes the folder of a page, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        words = f"{folder}: cannot make the folder: {error.strerror or error}. Choose another path for the report."
        raise FolderError(words) from error


def _content_policy(script: str) -> str:
    """The page runs its own script and no other, and loads nothing, whatever the names in a run folder hold."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    own = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _asset(name: str) -> Markup:
    """The text of a file in `assets`."""
    return Markup("\n" + files("potluck.report").joinpath("assets", name).read_text(encoding="utf-8"))


def _header(title: str, intro: Markup) -> Markup:
    dots = (tag("i", style=f"background:var(--c{index})") for index in range(3))
    brand = tag("div", tag("span", *dots, style="display:inline-flex;gap:3px"), "Potluck report", class_="brand")
    return tag("header", brand, tag("h1", title), intro)
