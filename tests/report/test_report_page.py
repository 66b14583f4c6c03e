"""The page: whole, escaped, self-contained, and true to the numbers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from made_runs import made_family, made_run, manifest, write_folder

from potluck.ledger import FolderError
from potluck.report import read_record, write_report
from potluck.report.html import VOID


class Page(HTMLParser):
    """Parses strictly: every element closes where it should; gathers text, attributes and element names."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"script", "style"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def cells(self) -> list[str]:
        return [word.strip() for word in self.words if word.strip()]


def page(folders: list[Path], to: Path, title: str | None = None) -> Page:
    return Page(write_report(folders, to, title).read_text(encoding="utf-8"))


def test_a_page_reaches_for_nothing_outside_itself(tmp_path: Path) -> None:
    folders = made_family(tmp_path / "runs")
    for name, chosen in (("one", folders[:1]), ("all", folders)):
        source = write_report(chosen, tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert not re.search(r"https?://|@import|url\(|<link|<img|<iframe", source)
        assert not [found for found in Page(source).attributes if found[1] in {"src", "href", "srcset"}]
        assert len(source.encode()) < 300_000


def test_one_run_shows_its_headline_numbers(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    run = read_record(folder)
    text = page([folder], tmp_path / "report.html").text
    assert run.curve.final
    assert f"{100 * (run.curve.final.score or 0):.1f} %" in text
    for tier in run.tiers:
        assert tier.curve.final
        assert f"{100 * (tier.curve.final.score or 0):.1f} %" in text
        assert f"{tier.parameters:,}" in text
    for words in (
        "20 of 20 rounds",
        "22,666",
        "measured",
        "modelled",
        "battery",
        "3 of 10 clients were absent",
        'set = "digits"',
    ):
        assert words in text


def test_targets_say_when_they_were_reached_or_a_dash(tmp_path: Path) -> None:
    scores = [{"round": n, "global": {"test": {"accuracy": a}}} for n, a in ((0, 0.1), (3, 0.55), (7, 0.83))]
    cells = page([write_folder(tmp_path / "run", manifest(tiers=[]), [], scores)], tmp_path / "report.html").cells()
    start = cells.index("50 %", cells.index("target"))
    assert cells[start : start + 2] == ["50 %", "3"]
    assert cells[cells.index("80 %", start) + 1] == "7"
    assert cells[cells.index("90 %", start) + 1] == "—"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    nasty = "</title><script>alert(1)</script>\"' onload='x"
    folders = [made_run(tmp_path / f"{n}", nasty, n, rounds=2, name=nasty, host=nasty, status=nasty) for n in (0, 1)]
    folders.append(made_run(tmp_path / "2", "plain", 0, rounds=2))
    for chosen in (folders[:1], folders):
        found = page(chosen, tmp_path / "report.html", None)
        assert found.names.count("script") == 1
        assert found.names.count("title") == 1
        assert not [name for _, name, _ in found.attributes if name.startswith("on")]
        assert nasty in found.text


def test_hostile_tiers_reasons_and_titles_stay_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    event = {"event": "task", "round": 1, "client": nasty, "tier": nasty, "outcome": "absent", "reason": nasty}
    scores = [{"round": 1, "global": None, "tiers": {nasty: {"clients": {"mean": 0.5, "values": [0.4, 0.6]}}}}]
    folder = write_folder(tmp_path / "run", manifest(), [event, {"event": "warning", "text": nasty}], scores)
    found = page([folder], tmp_path / "report.html", nasty)
    assert found.names.count("script") == 1
    assert found.text.count(nasty) > 5


def test_names_and_numbers_that_no_file_can_hold_do_not_stop_the_page(tmp_path: Path) -> None:
    odd = "half \ud800 pair"
    event = {"event": "task", "round": 10**400, "client": odd, "tier": odd, "outcome": odd, "reason": "late"}
    scores = [{"round": 3, "global": {"test": {"accuracy": 10**400, "loss": 1e308}}, "clients": {"mean": 7.5}}]
    folder = write_folder(tmp_path / "run", manifest(odd, 10**400, host=odd), [event], scores)
    assert "half ? pair" in page([folder], tmp_path / "report.html").text


def test_unfinished_and_empty_runs_make_a_page_too(tmp_path: Path) -> None:
    empty = write_folder(tmp_path / "empty", manifest(status="running"), [], [])
    bare = write_folder(tmp_path / "bare", {}, [], [])
    cut = made_run(tmp_path / "cut", rounds=3, status="interrupted")
    assert "no scores yet" in page([empty], tmp_path / "a.html").text
    assert "3 of 20 rounds" in page([cut], tmp_path / "b.html").text
    assert "3 not finished" in page([empty, bare, cut], tmp_path / "c.html").text


def test_models_that_live_on_clients_are_said_to(tmp_path: Path) -> None:
    local = made_run(tmp_path / "local", "FedMD", shared=False)
    text = page([local], tmp_path / "a.html").text
    assert "Accuracy, mean over clients" in text
    assert "† Models live on the clients" in text
    assert "Accuracy per class" not in text
    assert "FedMD †" in page([local, made_run(tmp_path / "shared")], tmp_path / "b.html").text


def test_charts_hold_their_points_within_the_frame(tmp_path: Path) -> None:
    found = page(made_family(tmp_path / "runs"), tmp_path / "report.html")
    charts = [json.loads(value) for _, name, value in found.attributes if name == "data-chart"]
    assert len(charts) == 7 + 2 * 6
    for chart in charts:
        for line in chart["lines"]:
            assert all(chart["x"]["low"] <= x <= chart["x"]["high"] * 1.00001 for x, _ in line["points"])
            assert all(chart["y"]["low"] <= y <= chart["y"]["high"] for _, y in line["points"])
    assert not [value for _, _, value in found.attributes if "nan" in value.lower().split()]


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    events = [{"event": "round", "round": n, "loss": 1 / n, "device_seconds": 1.0} for n in range(1, 5001)]
    scores = [{"round": n, "global": {"test": {"accuracy": n / 5000, "loss": 1.0}}} for n in range(5001)]
    to = write_report([write_folder(tmp_path / "run", manifest(rounds=5000), events, scores)], tmp_path / "report.html")
    assert to.stat().st_size < 100_000


def test_a_comparison_links_to_the_reports_of_its_runs(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / "runs" / name, name, rounds=2) for name in ("a: b", "c")]
    write_report(folders[:1], folders[0] / "report.html")
    found = page(folders, tmp_path / "out" / "report.html")
    assert [value for _, name, value in found.attributes if name == "href"] == ["./../runs/a%3A%20b/report.html"]


def test_a_page_that_cannot_be_written_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="file"):
        write_report([made_run(tmp_path / "run", rounds=1)], tmp_path / "file" / "sub" / "report.html")


def test_the_style_sheet_and_the_script_are_inside_the_page(tmp_path: Path) -> None:
    source = write_report([made_run(tmp_path / "run", rounds=1)], tmp_path / "report.html").read_text(encoding="utf-8")
    for asset in files("potluck.report").joinpath("assets").iterdir():
        assert asset.read_text(encoding="utf-8") in source


def test_only_the_pages_own_script_may_run_and_nothing_may_load(tmp_path: Path) -> None:
    source = write_report([made_run(tmp_path / "run", rounds=1)], tmp_path / "report.html").read_text(encoding="utf-8")
    (script,) = re.findall("<script>(.*?)</script>", source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = [value for _, name, value in Page(source).attributes if name == "content" and "default-src" in value]
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
