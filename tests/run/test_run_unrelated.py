"""Public rows of another data set: who learns from them, and who is refused."""

import numpy as np
import pytest
from tiny_runs import tiny

from potluck.core import SettingsError
from potluck.run import assemble, read_experiment, resume, run


@pytest.fixture
def clothes(tmp_path):
    """Twenty pictures of 4 by 4, of classes that digits do not have."""
    x = np.random.default_rng(0).integers(0, 255, (20, 4, 4)).astype(np.uint8)
    np.savez(tmp_path / "clothes.npz", x=x, y=np.arange(20) + 50)
    return {"name": "npz", "path": str(tmp_path / "clothes.npz"), "size": [1, 8, 8]}


def wanted(clothes, method, **data):
    return tiny(data={"public": 12, "public_from": clothes, **data}, method=method, rounds=2)


def test_the_servers_public_rows_are_those_of_the_other_set(clothes):
    setup = assemble(wanted(clothes, {"name": "feddf"}))
    public = setup.context.datasets.public
    assert (len(public), set(public.columns), public.all()["x"].shape) == (12, {"x"}, (12, 1, 8, 8))
    assert setup.context.zoo.public == 12


def test_moss_takes_its_teachers_answers_where_labels_do_not_fit(clothes, tmp_path):
    told, asked = (
        run(wanted(clothes, {"name": "moss", "wire": {"target": target}}), tmp_path / target)
        for target in ("labels", "soft")
    )
    assert told.weights_sha256 == asked.weights_sha256
    related = run(tiny(data={"public": 12}, method={"name": "moss"}, rounds=2), tmp_path / "related")
    assert related.weights_sha256 != told.weights_sha256


@pytest.mark.parametrize("name", ["feddf", "dsfl", "fedet"])
def test_methods_that_need_no_labels_learn_from_any_rows(clothes, tmp_path, name):
    assert run(wanted(clothes, {"name": name}), tmp_path / "run").rounds == 2


@pytest.mark.parametrize(("name", "said"), [("fedmd", "FedMD"), ("fedgems", "FedGEMS")])
def test_methods_that_learn_labels_are_refused_in_one_line(clothes, name, said):
    with pytest.raises(SettingsError) as caught:
        assemble(wanted(clothes, {"name": name}))
    assert str(caught.value).startswith(f"{said} learns labels of public rows, and those of data.public_from are of")
    assert "\n" not in str(caught.value)


def test_a_run_with_rows_of_another_set_is_resumed(clothes, tmp_path):
    whole = run(wanted(clothes, {"name": "feddf"}), tmp_path / "whole")
    run(tiny(data={"public": 12, "public_from": clothes}, method={"name": "feddf"}, rounds=1), tmp_path / "part")
    assert resume(tmp_path / "part", rounds=2).weights_sha256 == whole.weights_sha256


def test_a_file_may_name_another_set_and_a_misspelt_setting_of_it_is_told(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('[data]\npublic = 5\npublic_from = {name = "digits", scale = "standard"}\n')
    assert read_experiment(path).data.public_from.scale == "standard"
    path.write_text('[data]\npublic = 5\n\n[data.public_from]\nname = "digits"\nsise = [1, 8, 8]\n')
    with pytest.raises(SettingsError, match=r"\[data\.public_from\] has no setting 'sise'\. Did you mean 'size'\?"):
        read_experiment(path)
