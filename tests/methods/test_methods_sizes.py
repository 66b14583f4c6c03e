"""A method is one short file: what several share lies under frames/."""

import inspect
from pathlib import Path
from statistics import median

import potluck.methods
from potluck.methods import METHODS

FOLDER = Path(potluck.methods.__file__).parent
LINES = {
    path: len(path.read_text("utf-8").splitlines())
    for path in sorted({Path(inspect.getfile(kind)) for kind in METHODS.values()})
}


def test_no_method_file_exceeds_150_lines_and_half_are_below_80():
    assert len(LINES) > 20
    assert {path.name: lines for path, lines in LINES.items() if lines > 150} == {}
    assert median(LINES.values()) < 80


def test_a_file_beside_the_registry_is_a_methods():
    assert {path for path in FOLDER.glob("*.py") if path.name != "__init__.py"} == set(LINES)


def test_frames_stay_below_300_lines():
    frames = list((FOLDER / "frames").glob("*.py"))
    assert len(frames) > 5
    assert all(len(path.read_text("utf-8").splitlines()) < 300 for path in frames)
