"""The board's page in a real Chromium: it follows runs without a reload, and nothing that it shows can act."""

import re
import shutil
from contextlib import contextmanager

import pytest
from board_life import DEADLINE, ended_round, held_run, make_run, scored, served, settings_and_method, start, task
from browser import browser

from potluck.run import resume

__all__ = ["browser"]
pytestmark = pytest.mark.slow
LIMIT = 1000 * DEADLINE


@pytest.fixture
def opened(browser):
    """Opens the board in a page of its own; at the end, it has asked no other origin and had no error."""

    @contextmanager
    def open_page(address, path="/", width=1280, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        page.set_default_timeout(LIMIT)
        asked, errors = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda fault: errors.append(str(fault)))
        page.goto(address + path)
        page.errors = errors
        try:
            yield page
            assert errors == []
            assert {url for url in asked if not url.startswith(address + "/")} == set()
        finally:
            page.close()

    return open_page


def wait_for(page, selector, text):
    page.locator(selector).filter(has_text=re.compile(text)).first.wait_for()


def points(page, number=0):
    """How many points the curve of the server's model has, in the panel of this number."""
    path = page.locator(".panel").nth(number).locator("polyline.thick").get_attribute("points")
    return len(path.split())


def unload_marker(page):
    """Notes in the page that it was not loaded again."""
    page.evaluate("window.sameLoad = true")
    return lambda: page.evaluate("window.sameLoad === true")


def test_a_run_that_goes_on_is_followed_to_its_end_and_beyond_its_folder(opened, tmp_path):
    path = tmp_path / "runs" / "a"
    with held_run(tmp_path / "a", path, rounds=1) as held, served(tmp_path / "runs") as address:
        held.reached(1)
        with opened(address) as page:
            same = unload_marker(page)
            wait_for(page, ".panel .chip", "^running$")
            wait_for(page, ".card b", r"^1 / 6$")
            wait_for(page, ".legend", "small.*large")
            assert points(page) == 2  # before the first round, and after it
            held.allow(3)
            wait_for(page, ".card b", r"^3 / 6$")
            wait_for(page, ".card b", r"^about \d+")
            assert points(page) == 4
            assert page.locator(".bars .answered").count() == 3
            assert page.locator("button.stop:visible").count() == 0
            held.allow(6)
            wait_for(page, ".panel .chip", "^done$")
            wait_for(page, ".card b", r"^6 / 6$")
            assert points(page) == 7
            assert held.process.wait(timeout=DEADLINE) == 0
            shutil.rmtree(path)
            wait_for(page, ".panel .chip", "^folder deleted$")
            wait_for(page, "#rows .chip", "^folder deleted$")
            assert points(page) == 7
            assert same()


def test_two_runs_stand_side_by_side_on_the_same_scale(opened, tmp_path):
    runs = tmp_path / "runs"
    make_run(runs / "a", [start(), *(ended_round(n, 100.0 + n, scored(n, n / 10, small=n / 20)) for n in range(1, 6))])
    make_run(runs / "b", scores=[scored(0, 0.9), scored(50, 0.95)], label="Other", started="2025-01-01")
    with served(runs) as address, opened(address) as page:
        wait_for(page, ".panel h2", "^FedAvg$")
        page.locator("#rows input").nth(1).check()
        wait_for(page, ".panel h2", "^Other$")
        page.locator(".panel").nth(1).locator("polyline").first.wait_for()

        def axis(number):
            return page.locator(".panel").nth(number).locator("svg.curve text").all_text_contents()

        assert axis(0) == axis(1)
        assert "50" in axis(0)
        assert "80 %" in axis(0)
        paths = [page.locator(".panel").nth(n).locator("polyline.thick").get_attribute("points") for n in (0, 1)]
        (x, y), (far, high) = (map(float, path.split()[-1].split(",")) for path in paths)
        assert x < far  # round 5 and round 50
        assert y > high  # 50 % and 95 %
        boxes = [page.locator(".panel").nth(number).bounding_box() for number in (0, 1)]
        assert boxes[0]["y"] == boxes[1]["y"]
        hash_ = page.evaluate("location.hash")
        page.locator("#rows button.name").nth(1).click()
        wait_for(page, ".panel h2", "^Other$")
        assert page.locator(".panel").count() == 1
        with opened(address, f"/{hash_}") as again:  # the address remembers the choice
            again.locator(".panel").nth(1).wait_for()


def test_the_stop_button_is_there_only_if_it_was_allowed_and_it_stops_a_run(opened, tmp_path):
    path = tmp_path / "runs" / "a"
    with held_run(tmp_path / "a", path, rounds=2) as held:
        held.reached(2)
        with served(tmp_path / "runs") as address, opened(address) as page:
            wait_for(page, ".panel .chip", "^running$")
            assert page.locator("button.stop:visible").count() == 0
        token = "/?token=a-token"
        with served(tmp_path / "runs", "a-token", allow_stop=True) as address, opened(address, token) as page:
            wait_for(page, ".panel .chip", "^running$")
            assert page.url.split("#")[0] == f"{address}/"  # the token is not left in the address
            page.once("dialog", lambda dialog: dialog.dismiss())
            page.locator("button.stop:visible").click()
            assert held.process.poll() is None
            page.once("dialog", lambda dialog: dialog.accept())
            page.locator("button.stop:visible").click()
            wait_for(page, ".panel .chip", "^interrupted$")
            assert page.locator("button.stop:visible").count() == 0
        assert "interrupted after round 2" in held.process.communicate(timeout=DEADLINE)[1]
    held.allow(6)
    assert resume(path, method=settings_and_method(tmp_path / "a")[1]).rounds == 6


HOSTILE = '<img src=x onerror="window.bad=1"><script>window.bad=1</script>"\'&\u202e\x07'


def test_hostile_text_in_a_run_folder_is_inert(opened, tmp_path):
    live = [
        start(),
        task(1, HOSTILE, "quarantined", reason=HOSTILE, tier=HOSTILE),
        {"event": "warning", "round": 1, "text": HOSTILE},
        ended_round(1, 101.0, scored(1, 0.5) | {"tiers": {HOSTILE: {"test": {"accuracy": 0.5}}}, "metric": "accuracy"}),
    ]
    facts = {"label": HOSTILE, "name": HOSTILE, "variant": HOSTILE, "engine": HOSTILE, "fault": HOSTILE}
    make_run(tmp_path / "runs" / "<img src=x onerror=alert(1)>", live, status="diverged", fault_round=2, **facts)
    with served(tmp_path / "runs") as address, opened(address) as page:
        wait_for(page, ".panel .chip", "^diverged in round 2$")
        wait_for(page, ".panel h2", "<img src=x")
        wait_for(page, ".panel td", "<script>")
        wait_for(page, ".panel li", "<script>")
        wait_for(page, ".reason", "<script>")
        wait_for(page, ".legend", "<script>")
        page.locator("svg.curve").hover()
        wait_for(page, ".tip", "<script>")
        assert page.evaluate("window.bad") is None
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 1


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_its_window_and_finds_new_runs_by_itself(width, opened, tmp_path):
    runs = tmp_path / "runs"
    runs.mkdir()
    with served(runs) as address, opened(address, width=width) as page:
        wait_for(page, "#empty", "There are no runs")
        make_run(runs / ("long-name-" * 12) / ("inner-" * 20), [start(), ended_round(1, 101.0, scored(1, 0.5))])
        wait_for(page, ".panel h2", "FedAvg")
        make_run(runs / "second", status="failed", fault="word " * 50, label="W" * 150)
        page.locator("#rows tr").nth(1).wait_for()
        page.locator("#rows input").nth(1).check()
        page.locator(".panel").nth(1).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator("#filter").fill("failed")
        page.locator("#rows tr[hidden]").wait_for(state="attached")  # no function: the page's policy forbids eval
        assert page.locator("#rows tr:visible").count() == 1


def test_a_board_that_comes_back_is_found_again_and_ten_pages_do_not_starve_each_other(browser, opened, tmp_path):
    make_run(tmp_path / "runs" / "a")
    context = browser.new_context()
    with served(tmp_path / "runs") as address:
        pages = [context.new_page() for _ in range(10)]
        for page in pages:
            page.set_default_timeout(LIMIT)
            page.goto(address)
            wait_for(page, ".panel h2", "FedAvg")
        make_run(tmp_path / "runs" / "b", label="Newcomer")
        for page in pages:
            wait_for(page, "#rows td", "Newcomer")
    wait_for(pages[0], "#link", "no connection")
    port = int(address.rsplit(":", 1)[1])
    with served(tmp_path / "runs", port=port):
        shutil.rmtree(tmp_path / "runs" / "b")
        wait_for(pages[0], "#link", "live")
        wait_for(pages[0], "#rows .chip", "^folder deleted$")
    context.close()
