"""Whatever is typed into a settings file, the answer is an experiment or one clear line."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import TEXT, tiny

from potluck.core import InputError, SettingsError
from potluck.run import assemble, experiment, read_experiment

PIECES = ("nan", "-1", "0", "1e999", "''", "[]", "{}", "[[", "true", '"', "\n", ".", "=", "\x00", "é", "99999999", "x")
LINES = TEXT.splitlines()
WORDS = ("data", "tier", "local", "method", "run", "score", "gate", "fleet", "compare", "model", "name", "width", "lr")

edits = st.lists(
    st.tuples(st.integers(0, len(TEXT)), st.integers(0, 3), st.one_of(st.sampled_from(PIECES), st.text(max_size=3))),
    min_size=1,
    max_size=3,
)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)


def answered(ask):
    said = "an experiment"
    try:
        ask()
    except (SettingsError, InputError) as refusal:
        said = str(refusal)
    assert said
    assert "\n" not in said


@settings(max_examples=150, deadline=None)
@given(edits)
def test_small_edits_of_a_file_give_an_experiment_or_one_line(changes):
    text = TEXT
    for at, length, piece in changes:
        text = text[:at] + piece + text[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_text(text, "utf-8", errors="surrogatepass")
        answered(lambda: assemble(read_experiment(path)))


@settings(max_examples=150, deadline=None)
@given(st.permutations(LINES).map(lambda lines: lines[:12]), st.lists(st.sampled_from(LINES), max_size=3))
def test_shuffled_and_doubled_lines_give_an_experiment_or_one_line(lines, more):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.toml"
        path.write_text("\n".join([*lines, *more]), "utf-8")
        answered(lambda: read_experiment(path))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "0", "small", ""]), min_size=1, max_size=4), st.text(max_size=5))
def test_any_change_gives_an_experiment_or_one_line(path, given):
    answered(lambda: read_experiment(None, [".".join(path) + "=" + given]))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(WORDS), plain_values, max_size=3))
def test_any_plain_values_give_an_experiment_or_one_line(plain):
    answered(lambda: assemble(experiment(plain)))


@pytest.mark.parametrize("section", ["model", "method", "data", "local", "gate", "score", "run", "fleet"])
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["name", "share", "depth", "hidden", "width", "local", "server", "lr", "norm"]), plain_values)
def test_any_value_in_a_section_gives_an_experiment_or_one_line(section, key, value):
    answered(lambda: assemble(experiment({**tiny().plain(), section: {**tiny().plain()[section], key: value}})))
