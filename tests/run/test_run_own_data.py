"""What a run's manifest says of its data, and that resume and export go by it."""

import json

import numpy as np
import pytest
import torch
from tiny_runs import Liar, tiny

from potluck.core import InputError, SettingsError
from potluck.data import from_arrays
from potluck.ledger import CheckpointError, read_run
from potluck.models import load
from potluck.run import export, resume, run
from potluck.run.toml import read

WIDE = [{"name": "small", "width": 0.5}, {"name": "large", "width": 1.0}]
STATIC = {"method": {"name": "fedrolex"}, "model": {"name": "mlp", "hidden": 8, "norm": "static"}, "tier": WIDE}


def rows(seed=0, classes=3):
    """120 images of 3x16x16 in three classes."""
    rng = np.random.default_rng(seed)
    return rng.random((120, 3, 16, 16), dtype=np.float32), np.arange(120) % classes


def source(seed=0, **more):
    return from_arrays(*rows(seed), **more)


def written(folder):
    return json.loads((folder / "model.json").read_text())["spec"]


def test_the_manifest_says_what_the_data_was(tmp_path):
    own = run(tiny(rounds=1), tmp_path / "own", source=source(name="gait"))
    told = read_run(own.folder).manifest["data"]
    assert len(told.pop("sha256")) == 64
    assert told == {
        "own": True, "name": "gait", "path": "", "problem": "classify", "rows": 120, "test_rows": 0,
        "shape": [3, 16, 16], "classes": 3, "tokens": 0, "pad": 0, "sep": -1, "clients": 8, "samples": 11, "public": 0,
        "names": [], "form": "array", "columns": [], "dtype": "float32", "mean": None, "std": None, "vocabulary": "",
    }  # fmt: skip
    assert read(own.folder / "settings.toml")[0]["data"]["name"] == "own"
    digits = read_run(run(tiny(rounds=0), tmp_path / "digits").folder).manifest["data"]
    assert (digits["own"], digits["name"], digits["classes"], digits["shape"]) == (False, "digits", 10, [1, 8, 8])


def test_the_fingerprint_is_over_every_row_label_user_and_scale():
    x, y = rows()
    x = (255 * x).astype(np.uint8)
    one_pixel, one_label = x.copy(), y.copy()
    one_pixel[-1, -1, -1, -1] ^= 1
    one_label[-1] = 0
    found = [
        from_arrays(x, y),
        from_arrays(one_pixel, y),
        from_arrays(x, one_label),
        from_arrays(x, y, user=y),
        from_arrays(x, y, x_test=x, y_test=y),
        from_arrays(x, y, scale="standard"),
        from_arrays(x.reshape(120, 3, 8, 32), y),
        from_arrays(x[::-1][::-1], y, name="another name"),
    ]
    prints = [one.fingerprint for one in found]
    assert prints[-1] == prints[0]
    assert len(set(prints)) == len(prints) - 1


def test_a_model_of_ones_own_data_is_exported_as_what_it_is(tmp_path):
    own = run(tiny(), tmp_path / "run", source=source())
    export(own.folder, tmp_path / "model", tier="large")
    assert (written(tmp_path / "model")["options"]["classes"], written(tmp_path / "model")["options"]["input"]) == (
        3,
        [3, 16, 16],
    )
    assert load(tmp_path / "model")(torch.zeros(2, 3, 16, 16)).shape == (2, 3)
    with_data = export(own.folder, tmp_path / "with data", tier="large", source=source())
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == (
        tmp_path / "with data" / "model.safetensors"
    ).read_bytes()
    assert with_data.spec.options["classes"] == 3


def test_an_export_that_needs_the_data_asks_for_it(tmp_path):
    own = run(tiny(rounds=1, **STATIC), tmp_path / "run", source=source())
    asks = r"ran on data of your own \(arrays: 120 rows of 3x16x16, 3 classes\).*pl\.export\(.*data=\.\.\.\)"
    with pytest.raises(InputError, match=asks):
        export(own.folder, tmp_path / "model", tier="small")
    with pytest.raises(InputError, match=asks):
        export(own.folder, tmp_path / "model", client="c0")
    with pytest.raises(InputError, match="is not the data of this run"):
        export(own.folder, tmp_path / "model", tier="small", source=source(1))
    assert not (tmp_path / "model").exists()
    model = export(own.folder, tmp_path / "model", tier="small", source=source())
    assert model.arrays["stem.norm.running_mean"].abs().sum() > 0


def test_a_run_on_own_data_is_resumed_with_the_same_data_only(tmp_path):
    whole = run(tiny(), tmp_path / "whole", source=source())
    run(tiny(rounds=1), tmp_path / "run", source=source())
    with pytest.raises(InputError, match=r"Hand over the same: pl\.resume\(.*, data=\.\.\.\)\.$"):
        resume(tmp_path / "run", rounds=3)
    with pytest.raises(InputError, match="is not the data of this run"):
        resume(tmp_path / "run", rounds=3, source=source(1))
    assert resume(tmp_path / "run", rounds=3, source=source()).weights_sha256 == whole.weights_sha256


def test_a_file_that_was_changed_since_is_not_taken_for_the_data_of_a_run(tmp_path):
    def store(seed, classes):
        x, y = rows(seed, classes)
        np.savez(tmp_path / "data.npz", x=x, y=y)

    store(0, 3)
    settings = tiny(rounds=1, data={"name": "npz", "path": str(tmp_path / "data.npz")})
    found = run(settings, tmp_path / "run")
    store(1, 3)
    with pytest.raises(InputError, match=r"npz.* is not the data of this run.*Give it the same rows"):
        resume(found.folder, rounds=2)
    store(0, 5)
    export(found.folder, tmp_path / "model")
    assert written(tmp_path / "model")["options"]["classes"] == 3
    (tmp_path / "data.npz").unlink()
    export(found.folder, tmp_path / "again")
    assert (tmp_path / "again" / "model.json").read_bytes() == (tmp_path / "model" / "model.json").read_bytes()


def test_settings_of_own_data_cannot_be_run_without_it():
    with pytest.raises(SettingsError, match=r"data\.name = 'own' stands for data of your own; .*data=\.\.\."):
        run(tiny(data={"name": "own"}))


def test_a_method_object_is_asked_for_and_not_taken_for_the_one_in_the_settings(tmp_path):
    settings = tiny(rounds=1, method={"name": "fedprox"})
    found = run(settings, tmp_path / "run", method=Liar(local=settings.local))
    with pytest.raises(SettingsError, match=r"method was Liar, and its settings name FedProx.*method=\.\.\."):
        export(found.folder, tmp_path / "model")
    export(found.folder, tmp_path / "model", method=Liar(local=settings.local))


def test_a_record_of_the_data_that_makes_no_sense_is_damage(tmp_path):
    found = run(tiny(rounds=1), tmp_path / "run")
    told = json.loads((found.folder / "manifest.json").read_text())
    changes = [{"classes": "ten"}, {"shape": [10**30]}, {"dtype": "pickle"}, {"mean": [1.0]}, {"form": "<b>"}]
    changes.append({"mean": [0.0] * 5, "std": [1.0] * 5})
    for odd in ({}, 3, *({**told["data"], **change} for change in changes)):
        (found.folder / "manifest.json").write_text(json.dumps({**told, "data": odd}))
        for ask in (lambda: resume(found.folder, rounds=2), lambda: export(found.folder, tmp_path / "model")):
            with pytest.raises(CheckpointError, match=r"manifest\.json is damaged: what it says of the data"):
                ask()


def test_a_run_from_before_manifests_had_the_data_is_not_exported_as_digits(tmp_path):
    found = run(tiny(rounds=1), tmp_path / "run", source=source())
    told = json.loads((found.folder / "manifest.json").read_text())
    del told["data"]
    (found.folder / "manifest.json").write_text(json.dumps(told))
    text = (found.folder / "settings.toml").read_text()
    (found.folder / "settings.toml").write_text(text.replace('name = "own"', 'name = "digits"'))
    with pytest.raises(InputError, match=r"had 3 classes, and data 'digits' has 10.*data=\.\.\."):
        export(found.folder, tmp_path / "model")
