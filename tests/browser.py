"""A headless Chromium for tests of pages. Tests skip, with the reason, where it or Playwright is missing.

Take the fixture by importing it: ``from browser import browser``. It lives for one module: while Playwright runs, the
thread has an event loop, in which no other test could start its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """One headless Chromium, closed in the end."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'potluck[dev]'")
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM}")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The module's Chromium."""
    with chromium() as found:
        yield found


@contextmanager
def watched(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a context of its own. At the end it must have made no error, and no request but to its own origin."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    page = context.new_page()
    errors: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    try:
        yield page
        own = page.evaluate("location.origin === 'null' ? location.protocol : location.origin")
        assert errors == []
        assert [url for url in requests if not url.startswith((own, "blob:", "data:"))] == []
    finally:
        context.close()
