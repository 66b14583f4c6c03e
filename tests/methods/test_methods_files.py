"""Where methods lie: beside the registry, one file or one folder each; what several share lies under bases/."""

import inspect
from pathlib import Path

import potluck.methods
from potluck.methods import METHODS

FOLDER = Path(potluck.methods.__file__).parent


def place(path):
    """The file or folder beside the registry that a file is, or is in."""
    return FOLDER / path.relative_to(FOLDER).parts[0]


def test_a_file_or_folder_beside_the_registry_is_a_methods():
    files = {Path(inspect.getfile(kind)) for kind in METHODS.values()}
    assert len(files) > 20
    beside = {path for path in FOLDER.glob("*.py") if path.name != "__init__.py"}
    beside |= {path.parent for path in FOLDER.glob("*/__init__.py") if path.parent.name != "bases"}
    assert beside == {place(path) for path in files}


def test_bases_stay_below_300_lines():
    bases = list((FOLDER / "bases").glob("*.py"))
    assert len(bases) > 5
    assert all(len(path.read_text("utf-8").splitlines()) < 300 for path in bases)
