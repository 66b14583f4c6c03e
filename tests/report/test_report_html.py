"""HTML: text is escaped, and series can be told apart."""

from __future__ import annotations

from potluck.report.html import Markup, palette, tag


def test_more_series_than_colours_differ_in_their_dashes() -> None:
    series = palette(map(str, range(20)))
    assert len({(one.colour, one.dash) for one in series}) == 20


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    made = tag("p", "<b>", tag("i", "&"), class_="a", data_tip='"><script>')
    assert made == '<p class="a" data-tip="&quot;&gt;&lt;script&gt;">&lt;b&gt;<i>&amp;</i></p>'
    assert isinstance(made, Markup)
