"""A node exports the model that it uses, without the server."""

import pytest
import torch
from small_nodes import TIERS, identity, make_nodes, run_in_process, settings

from potluck.cli.arguments import find_node_folder
from potluck.core import InputError, SettingsError
from potluck.federation.node_export import export_node, refuse_choices
from potluck.models import load
from potluck.run import export

SAME = [{"name": name} for name in TIERS]


def finished(tmp_path, method):
    nodes = make_nodes(tmp_path)
    run_in_process(settings(method), nodes, tmp_path / "run")
    return nodes


def own_accuracy(node, net):
    """The accuracy of a network on a node's test rows."""
    test = node._agreement.setup.context.datasets.shard(node.id).test.all()
    net.eval()
    with torch.no_grad():
        return float((net(test["x"]).argmax(1) == test["y"]).float().mean())


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ({"name": "local"}, {}),
        ({"name": "lotteryfl"}, {"tier": SAME}),
        ({"name": "heterofl"}, {}),
        ({"name": "allsmall", "private": "head"}, {}),
    ],
)
def test_the_exported_model_scores_on_the_nodes_own_rows_what_the_node_scored(tmp_path, method, changes):
    nodes = make_nodes(tmp_path)
    result = run_in_process(settings(method, **changes), nodes, tmp_path / "run")
    scored = dict(zip(result.scores["clients"]["ids"], result.scores["clients"]["values"], strict=True))
    for name, node in nodes.items():
        model = export_node(node.folder, tmp_path / f"model-{name}")
        assert model.arrays.keys() == node._agreement.setup.context.zoo.shapes(model.spec).keys()
        assert own_accuracy(node, load(tmp_path / f"model-{name}")) == pytest.approx(scored[identity(name)])


def test_a_node_that_has_not_been_scored_says_what_is_missing(tmp_path):
    node = make_nodes(tmp_path)["clinic-a"]
    with pytest.raises(InputError, match=r"no model has come yet.*score\.every"):
        export_node(node.folder, tmp_path / "model")
    assert find_node_folder(node.folder) is None  # it has agreed to nothing yet


def test_damaged_parts_are_told_and_never_exported(tmp_path):
    nodes = finished(tmp_path, "heterofl")
    node = nodes["clinic-b"]
    (part,) = node.folder.glob("served-*.model")
    part.write_bytes(part.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(InputError, match="the model that the server sent is damaged"):
        export_node(node.folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_lost_memory_is_told(tmp_path):
    nodes = finished(tmp_path, "local")
    for path in (nodes["clinic-a"].folder / "memory").rglob("*.memory"):
        path.unlink()
    with pytest.raises(InputError, match="its memory of round 2 is missing or damaged"):
        export_node(nodes["clinic-a"].folder, tmp_path / "model")


def test_the_server_exports_tiers_and_names_the_place_of_personal_models(tmp_path):
    finished(tmp_path, "heterofl")
    assert export(tmp_path / "run", tmp_path / "small", tier="small").arrays
    with pytest.raises(InputError, match=r"what a node remembers is at the node\. There: potluck export KIT"):
        export(tmp_path / "run", tmp_path / "own", client=identity("clinic-a"))


def test_a_node_writes_safetensors_only():
    refuse_choices(None, None, False)
    with pytest.raises(
        SettingsError, match="--format onnx is for run folders of the server; a node writes safetensors"
    ):
        refuse_choices(None, None, False, "onnx")
    with pytest.raises(SettingsError, match="--train is for run folders of the server; a node has one model"):
        refuse_choices(None, None, False, train=True)


def test_a_kit_leads_to_the_nodes_folder(tmp_path):
    (tmp_path / "kit" / "state" / "charters").mkdir(parents=True)
    assert find_node_folder(tmp_path / "kit") == tmp_path / "kit" / "state"
    assert find_node_folder(tmp_path / "kit" / "state") == tmp_path / "kit" / "state"
    assert find_node_folder(tmp_path) is None
