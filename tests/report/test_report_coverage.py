"""How often units were trained: what is read, counted and drawn."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from made_runs import FIVE, made_run, made_width_run, made_widths, manifest, write_folder

from potluck.report import read_record, rounds_until, write_report
from potluck.report.coverage import (
    disjoint_windows,
    least_trained_line,
    make_steps,
    mean_coverage,
    milestones,
    rounds_at_random,
    rounds_in_turn,
)
from potluck.report.html import palette

ONE = palette(["one"])[0]
SECTION = "How often each unit was trained"


def ended(round_: int, least: object) -> dict[str, object]:
    return {"event": "round", "round": round_, "least": least}


def counted(groups: object, round_: int = 1) -> dict[str, object]:
    return {"event": "coverage", "round": round_, "groups": groups}


def folder(path: Path, *events: dict[str, object], **facts: object) -> Path:
    return write_folder(path, manifest(**facts), events, [])


def source(folders: list[Path], to: Path) -> str:
    return write_report(folders, to).read_text(encoding="utf-8")


def tiers(*widths: object) -> list[dict[str, object]]:
    return [{"name": f"t{index}", "width": width} for index, width in enumerate(widths)]


def test_the_last_coverage_counts_and_the_largest_group_comes_first(tmp_path: Path) -> None:
    events = [counted({"a": [9]}), counted({"a": [3, 2], "b": [1, 1, 0]}, 4)]
    run = read_record(folder(tmp_path / "run", *events))
    assert [(one.name, one.counts) for one in run.coverage] == [("b", (1, 1, 0)), ("a", (3, 2))]


def test_counts_that_are_none_leave_holes_and_empty_groups_are_dropped(tmp_path: Path) -> None:
    groups = {"a": [1, math.nan, None, "x", -1, 10**400, 1e300, True, 4], "b": [], "c": [math.nan], "d": 7, "e": None}
    run = read_record(folder(tmp_path / "run", counted({"z": [1]}), counted(groups), counted(None), counted({"a": []})))
    assert [(one.name, one.counts) for one in run.coverage] == [("a", (1, *[None] * 7, 4))]
    assert run.coverage[0].known == [1, 4]


def test_rounds_until_is_the_first_round_after_which_all_units_had_so_many(tmp_path: Path) -> None:
    run = read_record(
        folder(tmp_path / "run", *(ended(n, least) for n, least in enumerate((0, 1, None, 1, 4, math.nan), 1)))
    )
    assert [rounds_until(run, times) for times in (1, 2, 4, 5)] == [2, 5, 5, None]
    assert milestones([run]) == [1, 2, 5]


def test_milestones_end_with_the_first_that_nobody_reached(tmp_path: Path) -> None:
    none = read_record(folder(tmp_path / "a", ended(1, 0)))
    many = read_record(folder(tmp_path / "b", ended(1, 10**12)))
    assert milestones([none]) == [1]
    assert milestones([none, many]) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]


def test_seeds_are_averaged_unit_by_unit_and_round_by_round(tmp_path: Path) -> None:
    first = read_record(folder(tmp_path / "a", ended(1, 1), ended(2, 3), counted({"g": [1, 2, None]})))
    second = read_record(folder(tmp_path / "b", ended(1, 2), counted({"g": [3, None, None], "h": [0]})))
    other = read_record(folder(tmp_path / "c", counted({"g": [100]})))
    assert mean_coverage([first, second, other], "g", 3).counts == (2, 2, None)
    assert least_trained_line([first, second, other]) == [(1, 1.5), (2, 3)]


@pytest.mark.parametrize(
    ("widths", "found"),
    [
        ([0.25, 0.25], 4),
        ([0.3], 3),
        ([0.0625] * 5, 16),
        ([0.25, 0.5], "the tiers differ in width"),
        ([0.25, None], "the tiers differ in width"),
        ([{"stage0": 0.5}], "no tier's width is one number"),
        ([], "no tier's width is one number"),
        ([1.0], "no two sub-models of this width are disjoint"),
        ([0.0], "no two sub-models of this width are disjoint"),
    ],
)
def test_disjoint_windows_are_known_where_all_tiers_have_one_width(
    tmp_path: Path, widths: list[object], found: object
) -> None:
    assert disjoint_windows([read_record(folder(tmp_path / "run", tiers=tiers(*widths)))]) == found


def test_theory_is_that_of_the_paper() -> None:
    assert [rounds_in_turn(16, times) for times in (1, 5)] == [16, 80]
    assert rounds_at_random(16, 1) == pytest.approx(44.361, abs=1e-3)
    assert rounds_at_random(16, 5) == pytest.approx(44.361 + 16 * 4 * 1.01978, abs=1e-3)
    assert rounds_at_random(2, 5) is None


def test_cells_hold_a_unit_each_until_there_are_too_many() -> None:
    assert [(step.first, step.last, step.mean) for step in make_steps([4, None, 6])] == [
        (0, 0, 4),
        (1, 1, None),
        (2, 2, 6),
    ]
    few = make_steps([1, 3, 5, None, None], most=3)
    assert [(step.first, step.last, step.mean, step.low, step.high) for step in few] == [
        (0, 1, 2, 1, 3),
        (2, 3, 5, 5, 5),
        (4, 4, None, 0, 0),
    ]
    assert make_steps([]) == []


def test_a_run_shows_its_eight_largest_groups_with_least_mean_and_most(tmp_path: Path) -> None:
    groups = {f"g{index}": [index, 0, 2] + [1] * index for index in range(10)}
    page = source([folder(tmp_path / "run", counted(groups), ended(1, 0))], tmp_path / "a.html")
    strips = [json.loads(found.replace("&quot;", '"')) for found in re.findall(r'data-strip="([^"]*)"', page)]
    assert [strip["units"] for strip in strips] == [12, 11, 10, 9, 8, 7, 6, 5]
    assert strips[-1] == {"units": 5, "size": 1, "cells": [2, 0, 2, 1, 1]}
    for words in (SECTION, "The 8 largest groups of 10 are shown", "least 0 · mean 1.2 · most 2", "1 never trained"):
        assert words in page


def test_runs_that_train_everything_have_no_such_section(tmp_path: Path) -> None:
    folders = [made_run(tmp_path / name, name, rounds=2) for name in ("a", "b")]
    assert SECTION not in source(folders[:1], tmp_path / "a.html")
    assert SECTION not in source(folders, tmp_path / "b.html")


def test_methods_are_set_side_by_side_over_the_largest_group(tmp_path: Path) -> None:
    folders = [*made_widths(tmp_path / "runs", rounds=6), made_run(tmp_path / "plain", rounds=2)]
    page = source(folders, tmp_path / "a.html")
    part = page[page.index(f"<h2>{SECTION}") : page.index("<h2>Every run")]
    charts = [json.loads(found.replace("&quot;", '"')) for found in re.findall(r'data-chart="([^"]*)"', part)]
    assert [[line["label"] for line in chart["lines"]] for chart in charts] == [
        ["FedRolex", "HeteroFL", "Federated Dropout"]
    ] * 2
    assert "Units of embed" in part
    assert "says nothing here: the tiers differ in width" in part
    assert "theory, rolling" not in part


def test_rounds_until_stand_beside_the_theory(tmp_path: Path) -> None:
    same = {"tiers": tiers(0.25, 0.25), "cohort": 1}
    folders = [
        folder(tmp_path / "a", *(ended(n, n // 4) for n in range(1, 9)), label="A", **same),
        folder(tmp_path / "b", *(ended(n, n // 6) for n in range(1, 9)), label="B", **same),
        folder(tmp_path / "c", *(ended(n, n // 5) for n in range(1, 5)), label="B", seed=1, **same),
    ]
    page = source(folders, tmp_path / "page.html")
    part = page[page.index("<h3>Rounds until every unit") : page.index("<h2>Every run")]
    rows = [re.findall(r"<t[hd][^>]*>(?:<div>)?([^<]*)", row) for row in re.findall(r"<tr[^>]*>.*?</tr>", part)]
    assert rows == [
        ["m", "1", "2", "5"],
        ["A", "4", "8", "—"],
        ["B", "6 (1 of 2 runs)", "—", "—"],
        ["theory, rolling", "4", "8", "20"],
        ["theory, random", "5.55", "6.85 ‡", "10.8 ‡"],
    ]
    assert "one of I = 4 disjoint windows" in part


def test_ten_thousand_units_do_not_blow_the_page_up(tmp_path: Path) -> None:
    groups = {f"g{index}": [(unit * 7919) % 101 for unit in range(10_000 + index)] for index in range(12)}
    folders = [folder(tmp_path / label, counted(groups), ended(1, 0), label=label) for label in "ab"]
    assert len(source(folders[:1], tmp_path / "a.html")) < 150_000
    page = source(folders, tmp_path / "b.html")
    assert len(page) < 150_000
    assert "Each step: the mean of 40 units" in page


def test_hostile_group_names_and_counts_stay_text(tmp_path: Path) -> None:
    nasty = '</h2><script>alert(1)</script>"'
    broken = counted({nasty: [math.nan, 0, 1e14, None], "": [0], "all zero": [0, 0]})
    folders = [folder(tmp_path / label, broken, ended(1, "x"), label=label, tiers=[None, {}]) for label in "ab"]
    for chosen in (folders[:1], folders):
        page = source(chosen, tmp_path / "page.html")
        assert page.count("<script") == 1
        assert "&lt;/h2&gt;&lt;script&gt;" in page
        assert not re.search(r"\b(nan|inf|None)\b", page[page.index(SECTION) : page.index("</main>")].split("<pre>")[0])


def test_the_made_methods_differ_as_the_picture_should_show(tmp_path: Path) -> None:
    folders = [
        made_width_run(tmp_path / rule, rule, rule, 0, 0.8, FIVE, 48) for rule in ("rolling", "prefix", "random")
    ]
    even, stepped, noisy = (
        next(one for one in read_record(path).coverage if one.name == "stage0").known for path in folders
    )
    assert list(stepped) == sorted(stepped, reverse=True)
    assert len(set(stepped)) == 5
    assert max(even) < 1.3 * min(even) < max(stepped) / 2
    assert len(set(noisy)) > 10
