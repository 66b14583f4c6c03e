"""The reference of settings and files: complete, fresh, and true of what a run writes."""

import dataclasses
import json
import re
import typing
from pathlib import Path

import pytest
from tiny_runs import tiny

from potluck.methods import METHODS
from potluck.models.families import LISTED
from potluck.reference.__main__ import stale_files
from potluck.reference.collect import collect
from potluck.reference.docstrings import attribute_docs
from potluck.reference.page import settings_page
from potluck.reference.records import parse_reference
from potluck.reference.types import as_toml, choices_of, type_in_words
from potluck.run import read_experiment, run
from potluck.run.settings import Experiment

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference():
    return collect()


@pytest.fixture(scope="module")
def settings(reference):
    return {each.name: each for section in reference.sections for each in section.settings}


@pytest.fixture(scope="module")
def layouts(reference):
    return {each.name: each.text for each in reference.layouts}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of which every committed file is read."""
    asked = tiny(
        rounds=6,
        tier=[{"name": "small", "width": 0.5}, {"name": "large"}],
        method={"name": "heterofl", "label_mask": False},
        fleet={"dropout": 0.3},
        privacy={"noise": 0.1},
        gate={"bound": "auto"},
    )
    return run(asked, tmp_path_factory.mktemp("run") / "r").folder


def test_the_page_and_the_file_that_explain_reads_are_fresh():
    assert [path.name for path in stale_files()] == [], "run `make reference`"


def test_every_setting_has_a_meaning(settings):
    assert [name for name, setting in settings.items() if not setting.about.endswith((".", "?", ")"))] == []


def test_every_section_has_a_meaning(reference):
    assert [section.name for section in reference.sections if not section.about] == []


def test_every_field_of_an_experiment_is_found(settings, reference):
    sections = {section.name for section in reference.sections}
    for name, kind in typing.get_type_hints(Experiment).items():
        inner = next((part for part in (kind, *typing.get_args(kind)) if dataclasses.is_dataclass(part)), None)
        if inner is None:
            assert name in settings or name in sections
        else:
            assert {f"{name}.{field.name}" for field in dataclasses.fields(inner)} <= settings.keys()


def test_every_method_and_every_family_is_found_with_all_that_it_takes(settings):
    for name, kind in METHODS.items():
        assert {f"method.{name}.{field.name}" for field in dataclasses.fields(kind)} <= settings.keys()
    for family in LISTED:
        assert {f"model.{family.name}.{key}" for key in (*family.base, *family.options)} <= settings.keys()
    assert "model.bert.pretrained" in settings


def test_defaults_are_those_of_the_experiment_and_not_of_the_class(settings):
    assert (settings["local.epochs"].default, settings["local.batch"].default) == ("5", "8")
    assert settings["method.fedadam.server"].default == '{name = "adam", lr = 0.03}'
    assert settings["method.fedprox.local"].default == "as in [local]"
    assert settings["data.samples"].default == "not set"


def test_tables_inside_a_section_are_sections_too(settings, reference):
    assert settings["data.public_from"].tables == ("data.public_from",)
    assert settings["method.fedavg.server"].tables[:2] == ("method.server.replace", "method.server.momentum")
    assert settings["method.moss.wire"].tables == ("method.moss.wire",)
    assert "method.moss.wire.meta_lr" in settings
    top = [section.name for section in reference.sections if "." not in section.name]
    assert top[:4] == ["", "data", "model", "tier"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (float, "number"),
        (int | None, "whole number"),
        (bool, "true or false"),
        (bool | str, "true, false or text"),
        (typing.Literal["sgd", "adam"], '"sgd" or "adam"'),
        (typing.Literal["a", "b", "c"], '"a", "b" or "c"'),
        (tuple[int, ...], "list of whole numbers"),
        (tuple[float, float], "list of 2 numbers"),
        (dict[str, tuple[str, ...]], "table of lists of texts"),
        (float | dict[str, float] | typing.Literal["fit"] | None, 'number, table of numbers or "fit"'),
    ],
)  # fmt: skip
def test_types_are_told_in_plain_words(kind, words):
    assert type_in_words(kind) == words


def test_of_a_few_values_or_another_text_the_few_can_be_completed():
    assert choices_of(typing.Literal["iid", "user"] | str) == ("iid", "user")
    assert choices_of(str) == choices_of(float | typing.Literal["fit"]) == ()


@pytest.mark.parametrize(("value", "text"), [(None, "not set"), (0.1, "0.1"), ((1, 2), "[1, 2]"), ("a", '"a"')])
def test_defaults_are_told_as_toml(value, text):
    assert as_toml(value) == text


@dataclasses.dataclass
class Base:
    """Two settings."""

    one: int = 1
    """The first
    one."""
    two: int = 2
    """The second one."""


@dataclasses.dataclass
class Derived(Base):
    """One is told anew, and one has another default."""

    one: int = 3
    """Now three."""
    two: int = 4
    three: int = 5


def test_a_setting_without_a_docstring_of_its_own_has_that_of_the_base_class():
    assert attribute_docs(Base) == {"one": "The first one.", "two": "The second one."}
    assert attribute_docs(Derived) == {"one": "Now three.", "two": "The second one."}


def test_the_reference_survives_its_file_and_every_setting_is_on_the_page(reference):
    assert parse_reference(reference.text()) == reference
    page = settings_page(reference)
    for section in reference.sections:
        assert re.search(rf"^##+ {re.escape(section.heading)}$", page, re.MULTILINE)
        assert all(f"| `{setting.key}` | " in page for setting in section.settings)
    assert all(f"### {layout.name}\n" in page for layout in reference.layouts)


def test_no_word_on_the_page_is_taken_for_html(reference):
    text = re.sub(r"<!--.*?-->|(`+).*?\1", "", settings_page(reference), flags=re.DOTALL)
    assert re.findall(r"<[a-z/].{20}", text) == []


def test_a_default_on_the_page_can_be_written_into_a_file(settings, tmp_path):
    for name, setting in settings.items():
        if name.startswith(("model.", "method.", "tier.", "data.public_from.", "variant")) or "[" in name:
            continue
        if setting.default != "not set" and not setting.tables:
            (tmp_path / "a.toml").write_text(f"{name} = {setting.default}\n")
            read_experiment(tmp_path / "a.toml")


def fields_of(text, event):
    """The fields that a layout names for an event or file: what is in backticks in its paragraph of the list."""
    [item] = re.findall(rf"^- `{event}`[,:](.*?)(?=^- |^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([\w]+)`", item))


def test_every_event_in_the_ledger_has_the_fields_that_the_layout_names(layouts, folder):
    seen = set()
    for line in (folder / "ledger.jsonl").read_text("utf-8").splitlines():
        event = json.loads(line)
        named = fields_of(layouts["ledger.jsonl"], event.pop("event"))
        inner = {key for value in event.values() if isinstance(value, dict) for key in value}
        assert event.keys() <= named
        assert not (lacking := named - event.keys() - inner - {"metrics", "attempt", "least"}), lacking
        seen.add(tuple(sorted(event)))
    assert len(seen) > 4


def test_every_event_that_the_code_writes_is_in_the_layout(layouts):
    written = set()
    others = {ROOT / "src/potluck/run/live.py"}  # live.jsonl has events of its own
    for path in ({*(ROOT / "src/potluck/run").glob("*.py")} - others) | {ROOT / "src/potluck/federation/roster.py"}:
        written |= set(re.findall(r'"event": "(\w+)"', path.read_text("utf-8")))
    assert written >= {"task", "round", "nodes"}
    assert set(re.findall(r"^- `(\w+)`", layouts["ledger.jsonl"], re.MULTILINE)) == written


def test_the_manifest_has_the_fields_that_the_layout_names(layouts, folder):
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    named = set(re.findall(r"`(\w+)`", layouts["manifest.json"]))
    assert manifest.keys() <= named
    sometimes = {"nodes", "charter", "basis", "source", "features"}
    assert not (lacking := named - manifest.keys() - manifest["tiers"][0].keys() - sometimes), lacking


def test_a_line_of_scores_has_the_fields_that_the_layout_names(layouts, folder):
    for line in (folder / "scores.jsonl").read_text("utf-8").splitlines():
        assert json.loads(line).keys() <= set(re.findall(r"^- `(\w+)`", layouts["scores.jsonl"], re.MULTILINE))


def test_every_file_of_a_run_folder_is_in_the_layout(layouts, folder):
    for path in folder.iterdir():
        assert f"`{path.name}`" in layouts["run folder"].replace("/`", "`"), path.name


def test_the_columns_of_npz_files_and_npy_folders_have_types_and_shapes(layouts):
    for name in ("npz", "npy"):
        for column in ("x", "y", "user", "x_test", "y_test", "classes"):
            assert re.search(rf"^- .*`{column}(\.npy)?`", layouts[name], re.MULTILINE), (name, column)
