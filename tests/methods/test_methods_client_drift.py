"""What FedProx, SCAFFOLD, FedNova and MOON have in common: methods against client drift."""

import pytest
from drift_rounds import TRAINING, after, near, people
from made_round import Play, zoo
from tiny_runs import killed_after

from potluck.core import Local
from potluck.ledger import Memories
from potluck.methods import MOON, SCAFFOLD, FedAvg, FedNova, FedProx
from potluck.parts import Adam
from potluck.run import experiment, resume, run

DRIFT = {"fedprox": FedProx, "scaffold": SCAFFOLD, "fednova": FedNova, "moon": MOON}


@pytest.mark.parametrize("kind", DRIFT.values())
def test_label_masks_work_with_every_method_against_client_drift(kind):
    ours, theirs = (after(method(TRAINING, label_mask=True), 2, "d2", "d2") for method in (kind, FedAvg))
    assert all(bool(tensor.isfinite().all()) for tensor in ours.values())
    assert not near(ours, theirs, 1e-6) or kind is MOON, "of a single unit's features none points another way"


def test_training_memory_counts_what_a_method_holds_beside_the_model():
    """A copy of the weights for an anchor or a variate; two for MOON's networks, each asked in each of two steps."""
    costs = {}
    for kind in (FedAvg, *DRIFT.values()):
        play = Play(kind(Local(steps=2, batch=4)), zoo(2), people("d2"))
        play.round(play.init())
        costs[kind] = play.session.entries[0].cost
    work, base = play.zoo.cost(play.zoo.full, 4), costs[FedAvg]
    weights = work.parameter_bytes
    extra = {kind: cost.memory - base.memory for kind, cost in costs.items()}
    assert extra.pop(MOON) > 2 * weights  # and what the contrastive loss keeps for its backward pass
    assert extra == {FedAvg: 0, FedProx: weights, SCAFFOLD: weights, FedNova: 0}
    assert costs[MOON].flops == base.flops + 2 * 2 * work.forward_flops
    assert costs[SCAFFOLD].flops == base.flops
    assert costs[SCAFFOLD].bytes_down == costs[SCAFFOLD].bytes_up == 2 * base.bytes_up


@pytest.mark.parametrize("name", DRIFT)
def test_the_tensors_of_an_absent_tier_stay_bit_for_bit_under_every_method(name):
    play = Play(DRIFT[name](TRAINING, share="layerwise", server=Adam(lr=0.03)), zoo(1, 2), people("d1", "d2"))
    state = play.round(play.init())
    later = play.round(state, 1, only={"c0"})
    own = [tensor for tensor in state.model.arrays if tensor.startswith("body.1")]
    assert own
    assert all(later.model.arrays[tensor].equal(state.model.arrays[tensor]) for tensor in own)
    assert not later.model.arrays["body.0.linear.weight"].equal(state.model.arrays["body.0.linear.weight"])


def remembered(folder, clients=6):
    found = Memories(folder / "memory")
    return {f"c{n}": found.read(f"c{n}") for n in range(clients)}


@pytest.mark.parametrize("name", ["scaffold", "moon"])
def test_client_memories_survive_a_kill_bit_for_bit(name, tmp_path):
    settings = {
        "rounds": 4,
        "cohort": 3,
        "data": {"clients": 6},
        "model": {"name": "mlp", "hidden": 4},
        "method": {"name": name},
        "local": {"steps": 3},
        "run": {"engine": "serial"},
    }
    whole = run(experiment(settings), tmp_path / "whole")
    killed_after(2, experiment(settings), tmp_path / "killed")
    before = remembered(tmp_path / "killed")
    assert resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256
    assert remembered(tmp_path / "killed") == remembered(tmp_path / "whole") != before
