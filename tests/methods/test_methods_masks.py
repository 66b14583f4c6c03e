"""LotteryFL and FedMask, which keep weights, with the conformance numbers of METHODS.md; and what all masks share."""

import json
import re
from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data
from masked_rounds import OFF, ON, TRAINING, bits, memory, people, played, zoo
from tiny_runs import killed_after
from torch import nn

from potluck.core import Local, Model, Reply, digest, on_client
from potluck.learn import CrossEntropy
from potluck.ledger import Memories
from potluck.methods import METHODS, FedMask, FedSkel, Hermes, LotteryFL, TailorFL
from potluck.methods.fedmask import averaged, believed
from potluck.methods.frames.held import packed, spread, unpacked
from potluck.methods.frames.through import Only, Through, straight
from potluck.methods.lotteryfl import pruned
from potluck.parts import Mask, OverlapMean, Part, Place
from potluck.run import experiment, resume, run

MASKED = ["lotteryfl", "hermes", "tailorfl", "fedmask", "fedskel"]


# LotteryFL


def test_lo1_weights_are_averaged_over_those_who_kept_them():
    mean = OverlapMean({"w": torch.full((4,), 9.0)})
    for mask, values in ((bits(1, 1, 0, 0), [2.0, 4.0]), (bits(1, 0, 1, 0), [6.0, 8.0])):
        mean.add(unpacked({"w": torch.tensor(values)}, {"w": mask}), Mask({"w": mask}))
    assert mean.value()["w"].tolist() == [4, 4, 8, 9]


def test_lo1_in_a_round_a_weight_that_nobody_kept_stays_and_biases_are_plain_means():
    """Two clients answer with what they were told to; their masks are theirs."""
    masks = {"c0": bits(1, 1, 0, 0), "c1": bits(1, 0, 1, 0)}

    @dataclass(frozen=True)
    class Told(LotteryFL):
        @on_client
        def train(self, task, device):
            said = float(device.data.column("x")[0, 0])
            sent = task.models["model"]
            arrays = {name: torch.full_like(tensor, said) for name, tensor in sent.arrays.items()}
            left = {name: torch.ones(len(sent.arrays[name]), dtype=torch.bool) for name in self.held(device)}
            return Reply({"model": Model(sent.spec, arrays)}, left)

    networks = zoo(hidden=2, depth=1)
    play = Play(Told(), networks, {"c0": ("all", data(4, (2.0, 0.0))), "c1": ("all", data(4, (6.0, 0.0)))})
    state = play.init()
    state = replace(
        state, model=Model(state.model.spec, {n: torch.full_like(t, 9.0) for n, t in state.model.arrays.items()})
    )
    for client, mask in masks.items():
        held = {name: mask.reshape(2, 2) for name in state.model.arrays if name.endswith("weight")}
        play.memories[client] = (0, {"held": held, "remaining": 0.5, "ticket": state.ticket})
    new = play.round(state, 1).model.arrays
    assert new["stem.linear.weight"].flatten().tolist() == [4, 2, 6, 9]
    assert new["head.bias"].tolist() == [4, 4]


def test_lo2_a_fifth_of_the_smallest_weights_goes_by_numpys_percentile():
    left = pruned(torch.tensor([3.0, -1.0, 5.0, 2.0, -4.0, 0.5]), bits(1, 1, 1, 1, 1, 0), 0.2)
    assert left.tolist() == [ON, OFF, ON, ON, ON, OFF]


def test_weights_of_equal_size_are_not_pruned():
    assert pruned(torch.ones(5), bits(1, 1, 1, 1, 1), 0.2).all()


def test_lotteryfl_prunes_rewinds_and_freezes():
    play, state, _ = played(LotteryFL(TRAINING, threshold=0.0), 1)
    mine = memory(play, "c0")
    first = {name: int(mask.sum()) / mask.numel() for name, mask in mine["held"].items()}
    assert first == {"stem.linear.weight": 0.75, "body.0.linear.weight": 13 / 16, "head.weight": 0.75}
    assert mine["remaining"] == 0.8
    own = play.method.own(Remembering(mine)).arrays
    assert all((own[name][~mask] == 0).all() for name, mask in mine["held"].items())
    still, _, _ = played(LotteryFL(Local(lr=0.0, steps=1), threshold=0.0), 3)
    kept = still.method.own(Remembering(memory(still, "c0"))).arrays
    masks = memory(still, "c0")["held"]
    assert all(torch.equal(kept[name], Mask(masks).take(state.ticket)[name]) for name in masks)


@dataclass
class Remembering:
    memory: dict


@dataclass(frozen=True)
class Quoted(LotteryFL):
    """Clients remember what they said."""

    @on_client
    def train(self, task, device):
        reply = super().train(task, device)
        device.memory["said"], device.memory["left"] = dict(reply.models["model"].arrays), dict(reply.arrays)
        return reply


def test_in_the_round_of_pruning_what_goes_is_zero_and_does_not_count():
    """A server that has moved on from its first values; one client, which prunes and rewinds."""
    play = Play(Quoted(TRAINING, threshold=0.0), zoo(), people(1))
    state = play.init()
    moved = {name: tensor + 1.0 for name, tensor in state.model.arrays.items()}
    new = play.round(replace(state, model=Model(state.model.spec, moved)), 1).model.arrays
    mine = memory(play, "c0")
    for name, mask in mine["held"].items():
        assert torch.equal(mask, pruned(moved[name], torch.ones_like(mask), 0.2))
        assert (mine["said"][name][~mine["left"][name]] == 0).all()
        assert torch.equal(new[name][~mask], moved[name][~mask])
        assert torch.equal(new[name][mask], mine["said"][name][mine["left"][name]])


def test_what_stays_is_rewound_to_the_first_values():
    play = Play(LotteryFL(Local(lr=0.0, steps=1), threshold=0.0), zoo(), people(1))
    state = play.init()
    moved = {name: tensor + 1.0 for name, tensor in state.model.arrays.items()}
    play.round(replace(state, model=Model(state.model.spec, moved)), 1)
    mine = memory(play, "c0")
    own = play.method.own(Remembering(mine)).arrays
    assert digest(own) == digest(Mask(mine["held"]).take(state.ticket))


def test_lotteryfl_does_not_prune_what_is_not_good_enough():
    play, _, costs = played(LotteryFL(TRAINING, threshold=1.0), 2)
    assert all(mask.all() for mask in memory(play, "c0")["held"].values())
    assert costs[0]["train", "c0"] == costs[1]["train", "c0"]


def test_lotteryfl_stops_at_its_target_and_its_bytes_fall_with_what_is_left():
    networks = zoo(hidden=20, depth=2)
    play, _, costs = played(LotteryFL(TRAINING, threshold=0.0), 8, networks)
    weights = 40 + 400 + 400 + 40
    rest = 20 + 20 + 20 + 2
    mine = memory(play, "c0")
    left = sum(int(mask.sum()) for mask in mine["held"].values())
    assert mine["remaining"] == pytest.approx(0.8**4)
    assert 0.40 < left / weights < 0.42
    assert costs[0]["show", "c0"] == (0, weights // 8)
    assert costs[0]["train", "c0"] == (4 * (weights + rest), 4 * (weights + rest) + weights // 8)
    bits_up = sum(-(-int(mask.sum()) // 8) for mask in mine["held"].values())
    assert costs[-1]["train", "c0"] == (4 * (left + rest), 4 * (left + rest) + bits_up)


def test_a_newcomer_to_lotteryfl_is_also_sent_the_first_values():
    networks = zoo()
    play = Play(LotteryFL(TRAINING, threshold=0.0), networks, people(2))
    state = play.round(play.init(), 0, only={"c0"})
    play.round(state, 1, only={"c1"})
    assert digest(memory(play, "c1")["ticket"]) == digest(state.ticket) != digest(state.model.arrays)
    (first,) = [e.cost.bytes_down for e in play.session.entries if e.task.verb == "train"]
    assert first == 2 * 4 * sum(tensor.numel() for tensor in state.ticket.values())


def test_what_is_packed_comes_back():
    mask, w = torch.rand(3, 4) > 0.5, torch.randn(3, 4)
    back = unpacked(packed({"w": w, "b": w[0]}, {"w": mask}), {"w": mask})
    assert torch.equal(back["w"], torch.where(mask, w, 0.0))
    assert torch.equal(back["b"], w[0])
    assert spread(bits(1, 0), bits(0, 1, 1)).tolist() == [OFF, ON, OFF]


def test_gradients_reach_only_what_the_masks_hold():
    edited = Only({"w": bits(1, 0)})({"w": torch.ones(2), "b": torch.ones(1)}, {})
    assert (edited["w"].tolist(), edited["b"].tolist()) == ([1, 0], [1])


# FedMask


def test_fm1_a_weight_is_used_where_its_score_is_not_negative():
    scores = torch.tensor([0.3, -0.2], requires_grad=True)
    used = straight(scores)
    assert used.tolist() == [1, 0]
    used.sum().backward()
    soft = torch.sigmoid(scores.detach())
    assert torch.allclose(scores.grad, soft * (1 - soft))


def test_fm2_what_three_hold_is_averaged_and_what_one_holds_stays():
    """Masks [1,1,0], [1,0,0], [1,0,1] of structures {0,1}, {0}, {0,2}."""
    mean = OverlapMean({"w": torch.zeros(3)})
    for at, mask in (([0, 1], [1.0, 1.0]), ([0], [1.0]), ([0, 2], [1.0, 1.0])):
        mean.add({"w": torch.tensor(mask)}, Part({"w": Place("w", (torch.tensor(at),))}))
    agreed = averaged(mean)["w"]
    assert agreed.tolist() == [254, 255, 255]
    assert torch.sigmoid(believed(torch.tensor([-3.0, 0.2, -0.7]), agreed)).tolist() == pytest.approx(
        [0.99, torch.sigmoid(torch.tensor(0.2)).item(), torch.sigmoid(torch.tensor(-0.7)).item()]
    )


def test_two_of_three_is_two_thirds_within_a_byte():
    mean = OverlapMean({"w": torch.zeros(1)})
    for bit in (1.0, 1.0, 0.0):
        mean.add({"w": torch.tensor([bit])}, Part({"w": Place("w")}))
    assert torch.sigmoid(believed(torch.zeros(1), averaged(mean)["w"])).item() == pytest.approx(2 / 3, abs=1 / 508)


def test_the_loss_sees_weights_times_bits_and_only_scores_feel_it():
    net = nn.Sequential(nn.Linear(2, 2))
    frozen = {"0.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "0.bias": torch.tensor([0.5, -0.5])}
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 2.0]]))
    batch = {"x": torch.tensor([[1.0, 1.0]]), "y": torch.tensor([0])}
    value = Through(CrossEntropy(), frozen, ("0.weight",))(net, batch)
    assert value.item() == pytest.approx(CrossEntropy()(lambda x: torch.tensor([[1.5, 6.5]]), batch).item())
    scores, bias = torch.autograd.grad(value, list(net.parameters()), materialize_grads=True)
    assert (scores != 0).all()
    assert (bias == 0).all()


def test_fedmask_learns_bits_and_sends_bits():
    networks = zoo(hidden=8, depth=2)
    training = Local(lr=0.3, epochs=5, batch=4, optimiser="adam")
    play, state, costs = played(FedMask(training), 3, networks)
    assert digest(state.model.arrays) == digest(play.init().model.arrays)
    mine = memory(play, "c0")
    assert {group: int(units.sum()) for group, units in mine["held"].items()} == dict.fromkeys(mine["held"], 4)
    whole = 4 * (24 + 72 + 72 + 18)
    assert costs[0]["tailor", "c0"] == (whole, 3)
    assert costs[2]["train", "c0"] == (0, 2 + 2 + 1)
    assert costs[2]["merge", "c0"] == (16 + 16 + 8, 0)
    own, frozen = play.method.own(Remembering(mine)).arrays, mine["weights"].arrays
    used = {name: own[name] != 0 for name in mine["scores"]}
    assert all(torch.equal(own[name][kept], frozen[name][kept]) for name, kept in used.items())
    assert any(not kept.all() for kept in used.values())
    assert torch.equal(own["stem.linear.weight"], frozen["stem.linear.weight"])


# All of them


@pytest.mark.parametrize(
    ("method", "setting", "said"),
    [
        (LotteryFL, {"prune": 0.0}, "method.prune = 0.0 must be above 0 and at most 1"),
        (LotteryFL, {"keep": 1.5}, "method.keep = 1.5 must be above 0 and at most 1"),
        (Hermes, {"keep": 0.0}, "method.keep = 0.0 must be above 0 and at most 1"),
        (TailorFL, {"tuning": -1}, "method.tuning = -1 is below 0"),
        (FedMask, {"last": 0}, "method.last = 0 is below 1"),
        (FedSkel, {"cut": 1.0}, "method.cut = 1.0 must be at least 0 and below 1"),
        (FedSkel, {"period": 0}, "method.period = 0 is below 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(method, setting, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        method(**setting)


def plain(name, **changes):
    base = {
        "rounds": 6,
        "cohort": 4,
        "data": {"clients": 6, "partition": "labels", "labels": 2},
        "model": {"name": "cnn", "width": 8, "depth": 1},
        "tier": [{"name": "half", "width": 0.5}, {"name": "whole", "width": 1.0}],
        "method": {"name": name},
        "local": {"lr": 0.1, "epochs": 3, "batch": 8},
        "score": {"every": 3, "clients": 6},
        "run": {"engine": "serial"},
    }
    return {**base, **changes}


@pytest.mark.parametrize("name", MASKED)
def test_clients_score_their_own_models_and_batch_norms_come_along(name, tmp_path):
    result = run(experiment(plain(name)), tmp_path / "run")
    tasks = [json.loads(line) for line in (result.folder / "ledger.jsonl").read_text().splitlines()]
    assert {line["outcome"] for line in tasks if line["event"] == "task"} == {"accepted"}
    last = json.loads((result.folder / "scores.jsonl").read_text().splitlines()[-1])
    assert last["global"] is None
    assert last["clients"]["count"] == 6
    if name != "fedmask":  # which needs more than six rounds to choose among random weights
        assert last["clients"]["mean"] > 0.7


def remembered(folder):
    found = Memories(folder / "memory")
    return {f"c{n}": found.read(f"c{n}") for n in range(6)}


@pytest.mark.parametrize("name", MASKED)
def test_memories_survive_a_kill_bit_for_bit(name, tmp_path):
    settings = plain(name, rounds=4, model={"name": "mlp", "hidden": 4}, local={"steps": 3})
    whole = run(experiment(settings), tmp_path / "whole")
    killed_after(2, experiment(settings), tmp_path / "killed")
    before = remembered(tmp_path / "killed")
    assert resume(tmp_path / "killed").weights_sha256 == whole.weights_sha256
    assert remembered(tmp_path / "killed") == remembered(tmp_path / "whole") != before


def test_every_method_here_is_listed():
    assert [METHODS[name].__name__.lower() for name in MASKED] == MASKED
