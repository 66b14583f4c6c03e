"""The documentation site: every page is in it, every link leads somewhere, and nothing comes from another host."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("mkdocs", reason="the documentation needs mkdocs")


class Links(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors.add(found.get("id"))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        elif tag == "link" and found.get("rel") != "canonical" and found.get("href"):
            self.loads.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of the site by path, as `make docs` builds them: any warning ends the build."""
    to = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", to],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return {path.relative_to(to).as_posix(): Links(path.read_text("utf-8")) for path in to.rglob("*.html")}


def test_the_navigation_names_every_page():
    nav = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - set(re.findall(r": ([\w./-]+\.md)", nav)) == set()


@pytest.mark.slow
@pytest.mark.xdist_group("docs site")
def test_nothing_is_loaded_from_another_host(site):
    for name, page in site.items():
        assert [each for each in page.loads if urlsplit(each).netloc] == [], name


@pytest.mark.slow
@pytest.mark.xdist_group("docs site")
def test_every_link_within_the_site_leads_to_a_page_and_a_place_on_it(site):
    checked = 0
    for name, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or name == "404.html":
                continue
            target = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            if not target.endswith(".html"):
                continue
            assert target in site, f"{name} links to {link}"
            assert not parts.fragment or unquote(parts.fragment) in site[target].anchors, f"{name} links to {link}"
            checked += 1
    assert checked > 1000


@pytest.mark.slow
@pytest.mark.xdist_group("docs site")
def test_the_start_page_leads_to_examples_and_the_api_names_what_users_call(site):
    assert {"files/examples/first_run.py.html", "choosing.html"} <= set(site["index.html"].links)
    assert {"potluck.check_method", "potluck.front.run", "potluck.core.on_client"} <= site["api.html"].anchors
    assert "local" in site["settings.html"].anchors
