"""Writes docs/settings.md and reference.json anew; with ``--check``, only says whether they are out of date."""

from __future__ import annotations

import sys
from pathlib import Path

from potluck.reference.collect import collect
from potluck.reference.page import settings_page
from potluck.reference.records import FILE

ROOT = FILE.parents[3]


def stale_files(root: Path = ROOT) -> dict[Path, str]:
    """The files that differ from what the docstrings say now, and what they should hold."""
    found = collect()
    wanted = {FILE: found.text(), root / "docs" / "settings.md": settings_page(found)}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}


def main(arguments: list[str]) -> None:
    """Writes what is out of date, or complains of it."""
    if not (ROOT / "docs").is_dir():
        sys.exit("there is no docs/ here; run this in a checkout of Potluck")
    stale = stale_files()
    if "--check" in arguments:
        names = ", ".join(path.name for path in stale)
        sys.exit(f"{names}: out of date; run `make reference`" if stale else None)
    for path, text in stale.items():
        path.write_text(text, "utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
