"""What a reader would try first: the examples, the experiments, and the method that the docs write."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recipes import planned

from potluck.learn import LocalTraining
from potluck.methods import METHODS
from potluck.run import experiment, read_experiment, run

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.toml"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_runs(path, tmp_path):
    assert len(path.read_text("utf-8").splitlines()) <= 60
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\d?\.\d%", done.stdout)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_experiment_has_valid_settings(path):
    found = read_experiment(path)
    assert found.rounds > 0
    assert f'\nname = "{found.name}"\n' in path.read_text("utf-8"), "its settings are not read"


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_experiment_with_static_norms_says_whose_statistics_score_them(path):
    runs = [entry.experiment for entry in planned(path)]
    static = [found for found in [read_experiment(path), *runs] if found.model.get("norm") == "static"]
    assert all("bn_eval" in found.method for found in static)
    text = path.read_text("utf-8").replace("\n# ", " ").lower()
    assert not static or "static batch norm is scored with" in text


ON_CLIENTS = {name for name, kind in METHODS.items() if kind.own is not LocalTraining.own}
"""Methods whose models live with clients, and are scored as these last trained them."""
ALIKE = {
    "hospitals": "every method's models are scored by clients, on their own tags",
    "hospitals_laptop": "every method's models are scored by clients, on their own tags",
    "everything": "its groups are not ranked, and docs/choosing.md has its table",
}
"""Recipes that need no personal scores, and why."""


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_experiment_that_mixes_served_models_and_those_of_clients_scores_all_after_local_epochs(path):
    runs = [entry.experiment for entry in planned(path)]
    names = {str(found.method["name"]) for found in runs}
    if names & ON_CLIENTS and names - ON_CLIENTS and path.stem not in ALIKE:
        assert all(found.score.personal for found in runs)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_comparison_of_an_experiment_has_valid_settings(path):
    methods = read_experiment(path).compare.methods
    wanted = {method if isinstance(method, str) else method["name"] for method in methods}
    assert not methods or {entry.experiment.method["name"] for entry in planned(path)} == wanted


def test_the_built_in_experiment_is_the_first_one_in_the_folder():
    assert read_experiment(None) == read_experiment(ROOT / "experiments" / "digits.toml")


def test_the_readme_shows_commands_and_links_that_exist():
    text = (ROOT / "README.md").read_text("utf-8")
    for target in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"^make (\w+)", text, re.MULTILINE):
        assert f"\n{name}:" in (ROOT / "Makefile").read_text("utf-8")


def test_the_method_that_the_docs_write_is_fedprox(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "writing-a-method.md").read_text("utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class FedProx" in block)
    assert len(code.splitlines()) < 40
    (tmp_path / "prox_of_the_docs.py").write_text(code)
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    tiny = {
        "rounds": 2,
        "cohort": 3,
        "data": {"clients": 6},
        "model": {"name": "mlp", "hidden": 8},
        "score": {"every": 2},
    }
    ours, theirs = (
        run(experiment({**tiny, "method": {"name": name, "mu": 0.3}}), tmp_path / name.replace(":", "."))
        for name in ("fedprox", "prox_of_the_docs:FedProx")
    )
    assert ours.weights_sha256 == theirs.weights_sha256
