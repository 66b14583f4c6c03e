"""Takes the picture of the demo's report: `python docs/pictures/take.py [REPORT]`, after `make demo`.

It needs Chromium and playwright (the extra `dev`). The picture is the top of the page, 1,280 pixels wide, as PNG.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
REPORT = Path("runs/digits-compare/report.html")
WIDTH, HEIGHT = 1280, 900
MOST_BYTES = 200_000
OFFLINE = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync"]  # fmt: skip


def take(report: Path, picture: Path) -> None:
    """Opens the report in a headless Chromium and saves what its window shows."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=OFFLINE)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT
    if not source.exists():
        sys.exit(f"{source}: no such file; run `make demo` first")
    take(source, HERE / "report.png")
    size = (HERE / "report.png").stat().st_size
    print(f"{HERE / 'report.png'}: {size:,} bytes")
    sys.exit(f"more than {MOST_BYTES:,} bytes" if size > MOST_BYTES else None)
