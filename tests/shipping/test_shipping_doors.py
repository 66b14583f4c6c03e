"""Data by five doors: train, be killed, resume, report, export, and score where Potluck cannot be imported."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from tiny_runs import Listener, killed_after
from torch.utils.data import Dataset

from potluck.core import SERVER
from potluck.data import from_arrays, from_dataset
from potluck.report import write_report
from potluck.run import assemble, experiment, export, resume, run
from potluck.run.session import with_own_data

RNG = np.random.default_rng(0)
ROWS, KINDS = 60, ("cat", "dog", "owl")
LABELS = np.array(KINDS * (ROWS // 3))
PEOPLE = np.array(["ann", "ben", "cem", "dua"] * (ROWS // 4))
PLACES = np.array([KINDS.index(label) for label in LABELS])
PIXELS = (RNG.integers(0, 60, (ROWS, 6, 5, 3)) + 180 * np.eye(3)[PLACES][:, None, None]).astype(np.uint8)
NUMBERS = (RNG.normal(size=(ROWS, 4)) + 4 * np.eye(4)[PLACES]).astype(np.float32)

WITHOUT_POTLUCK = """
import runpy, sys
sys.modules["potluck"] = None
try:
    import potluck
except ImportError:
    pass
else:
    sys.exit("potluck can be imported")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def settings(**data):
    return {
        "name": "door",
        "rounds": 4,
        "cohort": 3,
        "data": {"clients": 3, "test": 0.4, "validation": 0.0, **data},
        "model": {"name": "mlp", "hidden": 32, "depth": 1},
        "tier": [{"name": "phone", "width": 0.5}, {"name": "laptop"}],
        "method": {"name": "heterofl"},
        "local": {"epochs": 4, "batch": 4, "lr": 0.05},
        "run": {"engine": "serial", "checkpoint_every": 2},
    }


class Walks(Dataset):
    classes = KINDS

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return NUMBERS[row], PLACES[row], PEOPLE[row]


def pictures(place):
    for row in range(ROWS):
        folder = place / "pictures" / PEOPLE[row] / LABELS[row]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[row]).save(folder / f"{row:02}.png")
    told = {"name": "pictures", "path": str(place / "pictures"), "folders": "user/class", "scale": "standard"}
    return settings(**told, partition="user"), None, as_pictures


def table(place):
    frame = pd.DataFrame(NUMBERS, columns=["age", "pulse", "height", "weight"])
    frame["diagnosis"], frame["patient"] = LABELS, PEOPLE
    frame.to_csv(place / "clinic.csv", index=False)
    told = {"name": "table", "path": str(place / "clinic.csv"), "label_column": "diagnosis", "user_column": "patient"}
    return settings(**told, scale="standard", partition="user"), None, as_table


def torch_data_set(place):
    return settings(), from_dataset(Walks(), scale="standard"), as_npy


def hugging_face(place):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(KINDS))}
    rows = {"image": [Image.fromarray(each) for each in PIXELS], "label": PLACES.tolist()}
    datasets.Dataset.from_dict(rows, features=datasets.Features(kinds)).save_to_disk(place / "hf")
    return settings(name="huggingface", path=str(place / "hf")), None, as_pictures


def arrays(place):
    return settings(), from_arrays(PIXELS, LABELS, PEOPLE, layout="channels_last"), as_channels_last


def as_pictures(x, place):
    (place / "test").mkdir()
    for row, planes in enumerate(x):
        Image.fromarray(planes.transpose(1, 2, 0)).save(place / "test" / f"{row:03}.png")
    return place / "test"


def as_table(x, place):
    frame = pd.DataFrame(x[:, ::-1], columns=["weight", "height", "pulse", "age"])
    frame.to_csv(place / "test.csv", index=False)
    return place / "test.csv"


def as_npy(x, place):
    np.save(place / "test.npy", x)
    return place / "test.npy"


def as_channels_last(x, place):
    np.savez(place / "test.npz", x=x.transpose(0, 2, 3, 1))
    return place / "test.npz"


DOORS = [pictures, table, torch_data_set, hugging_face, arrays]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
@pytest.mark.parametrize("format", ["pt2", "onnx", "executorch"])
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_folder_scores_without_potluck_what_its_run_scored(door, format, tmp_path):
    if format == "executorch":
        pytest.importorskip("executorch", reason="needs the package executorch")
    told, source, written = door(tmp_path)
    killed_after(3, told, tmp_path / "run", source=source)
    heard = Listener()
    result = resume(tmp_path / "run", source=source, watch=heard)
    assert heard.warnings[0] == "resumed at round 2", "round 3 was not saved"
    undisturbed = run(told, tmp_path / "undisturbed", source=source)
    assert (result.rounds, result.weights_sha256) == (4, undisturbed.weights_sha256)
    assert result.scores == undisturbed.scores
    page = write_report([tmp_path / "run"], tmp_path / "report.html").read_text()
    assert "4 of 4 rounds" in page
    assert f"{100 * result.scores['tiers']['phone']['test']['accuracy']:.1f} %" in page
    export(tmp_path / "run", tmp_path / "model", tier="phone", format=format)
    setup = assemble(experiment(told) if source is None else with_own_data(experiment(told)), source)
    test = setup.context.datasets.shard(SERVER).test
    file = written(test.column("x").numpy(), tmp_path)
    command = [sys.executable, "-I", "-c", WITHOUT_POTLUCK, str(tmp_path / "model" / "predict.py"), str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = [KINDS.index(json.loads(line)["class"]) for line in done.stdout.splitlines()]
    right = np.mean(np.array(said) == test.column("y").numpy())
    scored = result.scores["tiers"]["phone"]["test"]["accuracy"]
    assert right == pytest.approx(scored, abs=1e-12)
    assert scored > 0.5, "a model that learned nothing would agree by chance"
    readme = (tmp_path / "model" / "README.md").read_text()
    assert f"accuracy {scored:.4f} on {len(test)} test rows" in readme
    assert json.loads((tmp_path / "model" / "model.json").read_text())["output"]["names"] == list(KINDS)


def test_the_program_for_processes_without_potluck_indeed_bars_it(tmp_path):
    (tmp_path / "try.py").write_text("import potluck\n")
    command = [sys.executable, "-I", "-c", WITHOUT_POTLUCK, str(tmp_path / "try.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_the_sample_has_real_rows_if_the_data_leans_by_tier(tmp_path):
    told = settings(name="digits", clients=6, lean=0.5, test=0.1)
    run({**told, "rounds": 1, "local": {"epochs": 1, "batch": 64}}, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "model", tier="phone", format="pt2")
    with np.load(tmp_path / "model" / "sample.npz") as sample:
        assert sample["real"]
