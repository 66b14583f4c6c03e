"""HTML: text is escaped, and series can be told apart."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import pytest

from potluck.report.html import Cell, Markup, RowName, palette, table, tabs, tag


def test_more_series_than_colours_differ_in_their_dashes() -> None:
    series = palette(map(str, range(20)))
    assert len({(one.colour, one.dash) for one in series}) == 20


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    made = tag("p", "<b>", tag("i", "&"), class_="a", data_tip='"><script>')
    assert made == '<p class="a" data-tip="&quot;&gt;&lt;script&gt;">&lt;b&gt;<i>&amp;</i></p>'
    assert isinstance(made, Markup)


def test_a_cell_keeps_its_number_with_all_digits_and_its_deviation() -> None:
    made = table(["", "a"], [["x", Cell("33.3 ± 0.1", 1 / 3, 0.001)]])
    assert f'<td data-value="{1 / 3!r}" data-sd="0.001">33.3 ± 0.1</td>' in made
    assert float(repr(1 / 3)) == 1 / 3


def test_rows_about_methods_say_which_and_whether_they_have_a_result() -> None:
    lost = RowName('"<b>', " ‡ (seed 0 diverged)", "s3", failed=True)
    made = table(["", "a"], [[lost, "—"]], last=[["all", "1"]], names=["method"], title="t<")
    assert '<tr data-key="s3" class="no-result"><th scope="row" data-name="&quot;&lt;b&gt;"' in made
    assert made.count("<tbody>") == 2
    assert 'data-title="t&lt;"' in made


def test_tabs_have_all_their_parts_without_a_script() -> None:
    made = tabs("x", ("<a>", tag("p", "one")), ("b", tag("p", "two")))
    assert made.count("<p>") == 2
    assert "<h4>&lt;a&gt;</h4>" in made
    assert tabs("x", ("a", tag("p", "one"))) == "<p>one</p>"


VIEWS = {
    "full colour": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What eyes make of linear red, green and blue (Machado, Oliveira and Fernandes, 2009)."""


def lab(colour: str, view: list[list[float]]) -> np.ndarray:
    """The colour in CIE L*a*b*, in which distances are about as large as they look."""
    rgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(view) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("view", VIEWS)
def test_colour_blind_people_can_tell_the_eight_colours_apart(theme: int, view: str) -> None:
    style = files("potluck.report").joinpath("assets", "report.css").read_text(encoding="utf-8")
    colours = [re.findall(f"--c{index}:(#[0-9a-f]{{6}})", style)[theme] for index in range(8)]
    seen = [lab(colour, VIEWS[view]) for colour in colours]
    apart = [np.linalg.norm(one - other) for place, one in enumerate(seen) for other in seen[place + 1 :]]
    assert min(apart) > 15
