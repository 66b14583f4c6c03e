"""Errors about unknown names end in one way."""

from potluck.core import nearest_name, suggestion


def test_the_nearest_name_is_suggested_or_all_are_told():
    assert suggestion("widht", ["width", "depth"]) == " Did you mean 'width'?"
    assert suggestion("colour", ["width", "depth"]) == " There are: width, depth."
    assert suggestion("colour", [], "There is none yet.") == " There is none yet."
    assert suggestion("widht", {"width": 1}, "There is none yet.") == " Did you mean 'width'?"


def test_names_may_be_numbers_and_nothing_is_near_what_is_unlike_all():
    assert nearest_name(128, [127, 5]) == "127"
    assert nearest_name("", ["width"]) == ""
