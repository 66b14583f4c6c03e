"""Noise of the server between machines: from the operating system, on the sum of what nodes clipped."""

from typing import ClassVar

import pytest
import torch
from secure_nodes import Kits, experiment_of, run_secure
from small_nodes import identity, make_nodes, run_in_process, settings

from potluck.core import SecretNoise
from potluck.federation.explaining import describe_charter
from potluck.federation.server import prepare
from potluck.ledger import RunFolder, read_journal
from potluck.run.central_epsilon import epsilon_of_sums, epsilon_of_tree, tree_sensitivity
from potluck.run.restoring import read_checkpoint

HETEROFL = {"name": "heterofl", "label_mask": False}


def central(noise=1e-6, rounds=1, **more):
    told = {"where": "server", "clip": 0.5, "noise": noise, **more}
    return settings(HETEROFL, privacy=told, score={"clients": 0}, rounds=rounds)


def final(folder):
    with RunFolder.open(folder) as opened:
        saved = read_checkpoint(folder, *opened.checkpoints.latest(lambda text: None))
    return saved.state["model"].arrays, saved.progress


def events(folder, kind):
    return [event for event in read_journal(folder / "ledger.jsonl") if event["event"] == kind]


def pair(folder, **more):
    """Two federations with the same settings, of one round."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        run_in_process(central(**more), make_nodes(folder / name), folder / name / "run")
    return [final(folder / name / "run")[0] for name in ("a", "b")]


def test_nodes_only_clip_and_without_noise_two_federations_agree(tmp_path):
    one, other = pair(tmp_path)
    assert all(torch.allclose(tensor, other[name], atol=1e-4) for name, tensor in one.items())
    tasks = events(tmp_path / "a" / "run", "task")
    assert {(task["samples"], task["loss"]) for task in tasks if task["verb"] == "train"} == {(1.0, None)}
    (noted,) = events(tmp_path / "a" / "run", "privacy")
    assert (noted["neighbours"], noted["rate"], noted["releases"]) == ("replace-one", 1.0, 1)


def test_the_noise_of_two_federations_with_one_seed_differs(tmp_path):
    one, other = pair(tmp_path, noise=1.0)
    assert not any(torch.equal(tensor, other[name]) for name, tensor in one.items())


class Recorded(SecretNoise):
    """Remembers all keys."""

    keys: ClassVar[list[bytes]] = []

    def __init__(self, key=None):
        super().__init__(key)
        self.keys.append(self.key)


def test_noise_of_nodes_and_of_the_server_has_a_new_key_of_32_bytes_for_every_upload_or_sum(tmp_path, monkeypatch):
    monkeypatch.setattr(Recorded, "keys", [])
    monkeypatch.setattr("potluck.engines.worker.SecretNoise", Recorded)
    monkeypatch.setattr("potluck.run.central_privacy.SecretNoise", Recorded)
    (tmp_path / "device").mkdir()
    nodes = make_nodes(tmp_path / "device")
    device = settings(HETEROFL, privacy={"clip": 0.5, "noise": 1.0}, score={"clients": 0}, rounds=2)
    run_in_process(device, nodes, tmp_path / "device" / "run")
    assert len(set(Recorded.keys)) == len(Recorded.keys) == 2 * len(nodes)
    Recorded.keys.clear()
    monkeypatch.setattr("potluck.engines.worker.SecretNoise", SecretNoise)
    (tmp_path / "server").mkdir()
    run_in_process(central(noise=1.0), make_nodes(tmp_path / "server"), tmp_path / "server" / "run")
    assert len(set(Recorded.keys)) == 1
    assert len(Recorded.keys[0]) == 32


def test_a_target_for_nodes_that_are_not_there_yet_counts_on_all_of_them_in_every_round(tmp_path):
    made = prepare(settings(HETEROFL, privacy={"where": "server", "epsilon": 3.0}), "test")
    noise = made.setup.context.mechanism.noise
    assert epsilon_of_sums("uniform", noise, 1e-5, (((1.0, 1), 2),)) == pytest.approx(3.0, rel=2e-3)


def test_noise_on_prefix_sums_goes_on_after_the_server_was_started_again(tmp_path):
    """Its keys are in the checkpoint, and the rounds of every node too."""
    nodes, tree = make_nodes(tmp_path), {"noise": 2.0, "mechanism": "tree"}
    run_in_process(central(rounds=2, **tree), nodes, tmp_path / "run")
    before = final(tmp_path / "run")[1].central
    assert list(before["nodes"]) == ["2"]
    assert len(bytes.fromhex(before["nodes"]["2"])) == 32
    assert before["took"] == {identity(name): [1, 2] for name in nodes}
    found = run_in_process(central(rounds=3, **tree), nodes, tmp_path / "run")
    after = final(tmp_path / "run")[1].central
    assert (list(after["nodes"]), after["nodes"]["2"]) == (["2", "3"], before["nodes"]["2"])
    assert found.privacy["epsilon"] == epsilon_of_tree(2.0, 1e-5, tree_sensitivity([1, 2, 3], 3))


def test_nodes_add_noise_together_and_the_server_sees_no_sum_without_it(tmp_path):
    """Six nodes, three of which would be enough, so a sum has twice the variance that is stated. Two federations with
    one seed differ by their noise alone."""
    kits, found = Kits(tmp_path), []
    for out in ("one", "two"):
        told = experiment_of(
            privacy={"where": "server", "clip": 0.5, "noise": 2.0}, method=HETEROFL, score={"clients": 0}
        )
        made = run_secure(kits, told, out)
        assert {line["outcome"] for line in events(tmp_path / out, "task")} == {"accepted"}
        found.append(final(tmp_path / out)[0]["stem.linear.weight"].double())
    assert made is not None
    apart = (found[0] - found[1])[:4] * 6 / 0.5  # rows that all six hold, in clips
    assert float(apart.var()) == pytest.approx(2 * 2 * 2.0**2, rel=0.35)
    (noted,) = events(tmp_path / "one", "privacy")
    assert (noted["where"], noted["uploads"]) == ("clients", 1)
    lines = " ".join(describe_charter(kits.prepare(told).charter, "small"))
    assert "gets a share of noise before it is masked" in lines
    assert "is trusted to" not in lines


def test_a_node_is_told_that_the_server_is_trusted_with_its_update():
    lines = " ".join(describe_charter(prepare(central(clip="adaptive"), "test").charter, "small"))
    assert "The server sees it, and is trusted to add noise to the sum." in lines
    assert "whether the update was clipped is told" in lines
