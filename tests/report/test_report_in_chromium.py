"""The report in a real browser: sorting, one method alone, the axes, the words at the pointer, and saved files."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from browser import browser, watched
from made_runs import made_everything, made_family, made_run

from potluck.report import compare_rows, read_record, write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

__all__ = ["browser"]
pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '=HYPERLINK("http://x") <b>\x01&'


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds each, one that diverged, and one with an odd name."""
    base = tmp_path_factory.mktemp("few")
    lost = {"status": "diverged", "fault_round": 12}
    folders = [*made_family(base / "runs"), made_run(base / "lost", "AAA", rounds=4, **lost)]
    folders.append(made_run(base / "odd", HOSTILE, rounds=4))
    return write_report(folders, base / "report.html")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("many")
    return write_report(made_everything(base / "runs", rounds=6), base / "report.html")


@contextmanager
def opened(browser: Browser, page: Path, **options: object) -> Iterator[Page]:
    with watched(browser, **options) as found:
        found.goto(page.as_uri())
        yield found


def part(page: Page, title: str) -> Locator:
    """The section with this heading."""
    return page.locator("section", has=page.get_by_role("heading", name=title, exact=True, level=2))


def names(table: Locator) -> list[str]:
    return [str(name) for name in table.locator("tbody th").evaluate_all("all => all.map(one => one.dataset.name)")]


def values(table: Locator, column: int) -> list[float]:
    """The numbers of a column from top to bottom; NaN for a gap."""
    found = table.locator(f"tbody td:nth-child({column})").evaluate_all("all => all.map(one => one.dataset.value)")
    return [math.nan if value is None else float(value) for value in found]


def test_a_click_on_a_heading_sorts_by_number_with_runs_without_a_result_last(browser: Browser, few: Path) -> None:
    with opened(browser, few) as page:
        table = part(page, "Accuracy").locator("table")
        before, head = names(table), table.get_by_role("columnheader", name="global")
        head.get_by_role("button").click()
        falling = values(table, 3)
        assert falling[:4] == sorted(falling[:4], reverse=True)
        assert head.get_attribute("aria-sort") == "descending"
        assert names(table)[-1] == "AAA"
        assert math.isnan(falling[-1])
        head.get_by_role("button").press("Enter")
        assert values(table, 3)[:4] == falling[3::-1]
        assert head.get_attribute("aria-sort") == "ascending"
        assert names(table)[-1] == "AAA"
        assert "diverged in round 12" in table.locator("tbody tr").last.inner_text()
        table.get_by_role("button", name="method").click()
        assert names(table)[-1] == "AAA"
        assert names(table)[:-1] == sorted(set(before) - {"AAA"}, key=str.casefold)
        head.get_by_role("button").click()
        head.get_by_role("button").click()
        head.get_by_role("button").click()
        assert names(table) == before


def test_gaps_are_last_and_bytes_are_sorted_as_numbers(browser: Browser, many: Path) -> None:
    with opened(browser, many) as page:
        scores = part(page, "Accuracy").locator("table")
        for _ in ("descending", "ascending"):
            scores.get_by_role("button", name="average").click()
            assert names(scores)[-2:] == ["Hermes", "FedMask"]
        page.get_by_text("Cost of every method").click()
        table = page.locator("table[data-title=cost]")
        table.get_by_role("button", name="compute").click()
        table.get_by_role("button", name="compute").click()
        rising = values(table, 5)[:-1]
        assert rising == sorted(rising)
        texts = table.locator("tbody td:nth-child(5)").all_inner_texts()
        assert (texts[0].split()[1], texts[-2].split()[1], texts[-1]) == ("MFLOP", "GFLOP", "—")


def shown(section: Locator) -> list[set[str]]:
    """The keys of the lines that each chart shows."""
    script = "all => all.map(svg => [...svg.querySelectorAll('[data-key]:not(.off)')].map(one => one.dataset.key))"
    return [set(keys) for keys in section.locator("svg.chart").evaluate_all(script)]


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_a_name_in_a_legend_shows_its_method_alone_and_then_all_again(
    browser: Browser, many: Path, by_keyboard: bool
) -> None:
    with opened(browser, many) as page:
        section, other = part(page, "Learning"), part(page, "What accuracy costs")
        before, name = shown(section), section.get_by_role("button", name="FedRolex").first
        name.press("Enter") if by_keyboard else name.click()
        key = name.get_attribute("data-key")
        assert shown(section) == [{key}] * len(before)
        assert name.get_attribute("aria-pressed") == "true"
        assert shown(other)[0] != {key}
        assert part(page, "Accuracy").locator("tr.chosen").all_inner_texts()[0].startswith("FedRolex")
        name.press("Space") if by_keyboard else name.click()
        assert shown(section) == before
        assert name.get_attribute("aria-pressed") == "false"


@pytest.mark.parametrize("by_keyboard", [False, True])
def test_a_row_shows_its_method_alone_in_the_charts_of_its_part(browser: Browser, few: Path, by_keyboard: bool) -> None:
    with opened(browser, few) as page:
        table, charts = part(page, "Accuracy").locator("table"), part(page, "Learning")
        row = table.locator("tr", has_text="HeteroFL")
        if by_keyboard:
            table.locator(".pick").first.focus()
            while "HeteroFL" not in page.evaluate("document.activeElement.textContent"):
                page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowRight")
            page.keyboard.press("Enter")
        else:
            row.locator("td").nth(2).click()
        assert shown(charts) == [{row.get_attribute("data-key")}] * 4
        table.get_by_role("button", name="HeteroFL").click()
        assert all(len(keys) == 4 for keys in shown(charts))


def test_a_method_without_a_result_has_nothing_to_show_alone(browser: Browser, few: Path) -> None:
    with opened(browser, few) as page:
        row = part(page, "Accuracy").locator("table tr", has_text="AAA")
        assert row.get_by_role("button").count() == 0


def test_axes_begin_at_zero_and_again_where_the_data_does(browser: Browser, few: Path) -> None:
    with opened(browser, few) as page:
        section = part(page, "Learning")
        chart = section.locator("svg.chart").first
        ticks, line = chart.locator(".levels text"), chart.locator("path.line").first
        before, path = ticks.all_text_contents(), line.get_attribute("d") or ""
        assert before[0] != "0 %"
        page.locator(".switch").first.click()
        assert ticks.all_text_contents()[0] == "0 %"
        assert line.get_attribute("d") != path
        scale = chart.evaluate("svg => JSON.parse(svg.dataset.zero)")
        end = chart.evaluate("svg => JSON.parse(svg.dataset.chart).lines[0].points.at(-1)[1]")
        high = scale["scales"][1]["high"]
        level = scale["start"] + end / high * (scale["end"] - scale["start"])
        drawn = re.findall(r"[\d.]+", line.get_attribute("d") or "")
        assert float(drawn[-1]) == pytest.approx(level, abs=0.3)
        page.locator(".switch").first.click()
        assert ticks.all_text_contents() == before
        assert line.get_attribute("d") == path


def test_the_pointer_and_the_arrow_keys_bring_up_mean_deviation_and_seeds(browser: Browser, few: Path) -> None:
    words = re.compile(r"[\d.]+ ± [\d.]+ %, 2 seeds")
    with opened(browser, few) as page:
        chart, tip = part(page, "Learning").locator("svg.chart").first, page.locator(".tip")
        chart.hover()
        assert words.search(tip.inner_text())
        page.mouse.move(1, 1)
        assert not tip.is_visible()
        chart.focus()
        page.keyboard.press("ArrowRight")
        assert tip.inner_text().startswith("round 0")
        page.keyboard.press("End")
        assert tip.inner_text().startswith("round 20")
        assert words.search(tip.inner_text())
        page.keyboard.press("Escape")
        assert not tip.is_visible()
        part(page, "Accuracy").locator(".pick").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert re.fullmatch(r"[\d.]+ % ± [\d.]+ %, 2 seeds \(0, 1\)", tip.inner_text())
        part(page, "Cost").locator("svg.chart").first.focus()
        page.keyboard.press("End")
        assert re.search(r"[\d.]+ ± [\d.]+ % for [\d.]+ MB, 2 seeds", tip.inner_text())


def test_a_finger_brings_up_the_same_words_and_they_stay(browser: Browser, few: Path) -> None:
    with opened(browser, few, has_touch=True, viewport={"width": 400, "height": 800}) as page:
        part(page, "Accuracy").locator("td[data-tip]").first.tap()
        assert "2 seeds" in page.locator(".tip").inner_text()
        part(page, "Learning").locator("svg.chart").first.tap()
        assert "± " in page.locator(".tip").inner_text()
        assert page.locator(".tip").is_visible()


def saved(page: Page, button: Locator) -> str:
    with page.expect_download() as found:
        button.click()
    return Path(found.value.path()).read_text(encoding="utf-8")


def csv_of(page: Page, title: str) -> list[dict[str, str]]:
    box = page.locator(".scroll", has=page.locator(f"table[data-title='{title}']"))
    text = saved(page, box.locator("xpath=following-sibling::div[1]").get_by_role("button", name="save as CSV"))
    return list(csv.DictReader(text.splitlines()))


def test_a_saved_table_has_the_numbers_of_the_comparison_with_all_their_digits(browser: Browser, few: Path) -> None:
    runs = few.parent / "runs"
    records = [read_record(folder) for folder in [*sorted(runs.iterdir()), few.parent / "lost", few.parent / "odd"]]
    rows = {str(row["label"]): row for row in compare_rows(records)}
    with opened(browser, few) as page:
        scores = {line["method"]: line for line in csv_of(page, "accuracy")}
        costs = {line["method"]: line for line in csv_of(page, "cost")}
    assert set(scores) == set(costs) == {label for label in rows if label != HOSTILE} | {"'" + HOSTILE}
    for label in ("HeteroFL", "FedRolex", "FedAvg (smallest model)"):
        for key in ("global", "average", "clients", "worst", "best"):
            told = rows[label][key]
            assert (float(scores[label][key]), float(scores[label][f"{key} sd"])) == (told["mean"], told["sd"])  # type: ignore[index]
        phone = rows[label]["tiers"]["phone"]  # type: ignore[index]
        assert float(scores[label]["phone"]) == phone["mean"]
        for key in ("bytes_down", "bytes_up", "flops", "device_seconds", "joules"):
            told = rows[label][key]
            assert (float(costs[label][key]), float(costs[label][f"{key} sd"])) == (told["mean"], told["sd"])  # type: ignore[index]
    assert (scores["AAA"]["global"], scores["AAA"]["note"]) == ("", "(seed 0 diverged in round 12)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_saved_chart_stands_alone(browser: Browser, few: Path, scheme: str) -> None:
    with opened(browser, few, color_scheme=scheme) as page:
        charts = [part(page, "Learning").locator("figure").first, part(page, "Cost").locator("figure").first]
        part(page, "Learning").get_by_role("button", name="HeteroFL").click()
        texts = [saved(page, chart.get_by_role("button", name="save as SVG")) for chart in charts]
    for text in texts:
        root = ElementTree.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert not re.search(r"var\(|url\(|href|@import", text)
        assert [one.get("fill") for one in root.findall(f"{SVG}rect")] == ["#ffffff"]
        assert not {name for one in root.iter() for name in one.attrib if name == "class" or name.startswith("data-")}
    learning = ElementTree.fromstring(texts[0])
    words = {one.text for one in learning.iter(f"{SVG}text")}
    assert {"HeteroFL", "round", "accuracy"} <= words
    assert "FedRolex" not in words
    colours = {style for one in learning.iter(f"{SVG}path") if "stroke:" in (style := one.get("style", ""))}
    assert any("rgb(204, 82, 0)" in style for style in colours), "the light theme's second colour"
    assert HOSTILE.replace("\x01", "�") in {one.text for one in ElementTree.fromstring(texts[1]).iter(f"{SVG}text")}


def test_tabs_show_one_part_and_arrow_keys_go_on(browser: Browser, many: Path) -> None:
    with opened(browser, many) as page:
        tabs = part(page, "Learning").get_by_role("tab")
        panels = part(page, "Learning").locator("[data-tab]")
        seen = "all => all.map(one => one.checkVisibility())"
        assert panels.evaluate_all(seen) == [True, False, False, False]
        tabs.first.press("ArrowRight")
        assert panels.evaluate_all(seen) == [False, True, False, False]
        assert tabs.nth(1).get_attribute("aria-selected") == "true"
        tabs.nth(3).click()
        assert panels.evaluate_all(seen) == [False, False, False, True]


def test_without_a_script_everything_is_there(browser: Browser, many: Path) -> None:
    with opened(browser, many, java_script_enabled=False) as page:
        assert part(page, "Learning").locator("svg.chart").count() == 4 * 7
        assert all(chart.is_visible() for chart in part(page, "Learning").locator("svg.chart").all())
        assert part(page, "Learning").get_by_role("heading", name="laptop").is_visible()
        assert page.get_by_text("save as").count() == 0


def test_the_page_of_31_methods_is_not_endless(browser: Browser, many: Path) -> None:
    with opened(browser, many) as page:
        assert page.evaluate("document.documentElement.scrollHeight") < 5000
    with opened(browser, many, viewport={"width": 400, "height": 800}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 400


def test_no_script_runs_but_the_pages_own(browser: Browser, few: Path) -> None:
    broken = few.with_name("broken.html")
    broken.write_text(few.read_text("utf-8").replace("</main>", "<script>window.hit = 1</script></main>"), "utf-8")
    page = browser.new_page()
    page.goto(broken.as_uri())
    assert page.evaluate("window.hit === undefined")
    assert page.locator(".sort").count() > 0
    page.close()
