"""LotteryFL: pruning, rewinding and averaging of what clients kept, by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data, learning
from masked_rounds import OFF, ON, TRAINING, Remembering, bits, memory, people, played, zoo

from potluck.core import Local, Model, Reply, digest, on_client
from potluck.methods import LotteryFL
from potluck.methods.bases.personal_models import scatter
from potluck.methods.lotteryfl import pack_masked, prune_mask, unpack_masked
from potluck.parts import Mask, OverlapMean


def test_weights_are_averaged_over_those_who_kept_them():
    mean = OverlapMean({"w": torch.full((4,), 9.0)})
    for mask, values in ((bits(1, 1, 0, 0), [2.0, 4.0]), (bits(1, 0, 1, 0), [6.0, 8.0])):
        mean.add(unpack_masked({"w": torch.tensor(values)}, {"w": mask}), Mask({"w": mask}))
    assert mean.value()["w"].tolist() == [4, 4, 8, 9]


def test_in_a_round_a_weight_that_nobody_kept_stays_and_biases_are_plain_means():
    """Two clients answer with what they were told to; their masks are theirs."""
    masks = {"c0": bits(1, 1, 0, 0), "c1": bits(1, 0, 1, 0)}

    @dataclass(frozen=True)
    class Told(LotteryFL):
        @on_client
        def train(self, task, device):
            value = float(device.data.column("x")[0, 0])
            sent = task.models["model"]
            arrays = {name: torch.full_like(tensor, value) for name, tensor in sent.arrays.items()}
            left = {name: torch.ones(len(sent.arrays[name]), dtype=torch.bool) for name in self.own_masks(device)}
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


def test_the_smallest_fifth_of_the_weights_is_pruned_by_numpys_percentile():
    left = prune_mask(torch.tensor([3.0, -1.0, 5.0, 2.0, -4.0, 0.5]), bits(1, 1, 1, 1, 1, 0), 0.2)
    assert left.tolist() == [ON, OFF, ON, ON, ON, OFF]


def test_weights_of_equal_size_are_not_pruned():
    assert prune_mask(torch.ones(5), bits(1, 1, 1, 1, 1), 0.2).all()


def test_clients_prune_rewind_and_freeze():
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


def test_a_tiers_width_may_say_how_much_its_clients_keep():
    """The narrow network has 9 of the full one's 42 parameters, 0.214: after seven prunings 0.21 remains."""
    networks = zoo(narrow=0.25, whole=1.0)
    clients = {"c0": ("narrow", learning(24)), "c1": ("whole", learning(28, 1))}
    for by_tier, left in ((True, {"c0": 0.8**7, "c1": 1.0}), (False, {"c0": 0.8**4, "c1": 0.8**4})):
        play, _, _ = played(LotteryFL(TRAINING, threshold=0.0, keep_by_tier=by_tier), 9, networks, clients)
        assert {id: memory(play, id)["remaining"] for id in clients} == pytest.approx(left)


@dataclass(frozen=True)
class Recording(LotteryFL):
    """Clients remember what they replied."""

    @on_client
    def train(self, task, device):
        reply = yield from super().train(task, device)
        device.memory["sent"], device.memory["left"] = dict(reply.models["model"].arrays), dict(reply.arrays)
        return reply


def test_in_the_round_of_pruning_pruned_weights_are_zero_and_do_not_count():
    """A server that has moved on from its first values; one client, which prunes and rewinds."""
    play = Play(Recording(TRAINING, threshold=0.0), zoo(), people(1))
    state = play.init()
    moved = {name: tensor + 1.0 for name, tensor in state.model.arrays.items()}
    new = play.round(replace(state, model=Model(state.model.spec, moved)), 1).model.arrays
    mine = memory(play, "c0")
    for name, mask in mine["held"].items():
        assert torch.equal(mask, prune_mask(moved[name], torch.ones_like(mask), 0.2))
        assert (mine["sent"][name][~mine["left"][name]] == 0).all()
        assert torch.equal(new[name][~mask], moved[name][~mask])
        assert torch.equal(new[name][mask], mine["sent"][name][mine["left"][name]])


def test_weights_that_stay_are_rewound_to_their_first_values():
    play = Play(LotteryFL(Local(lr=0.0, steps=1), threshold=0.0), zoo(), people(1))
    state = play.init()
    moved = {name: tensor + 1.0 for name, tensor in state.model.arrays.items()}
    play.round(replace(state, model=Model(state.model.spec, moved)), 1)
    mine = memory(play, "c0")
    own = play.method.own(Remembering(mine)).arrays
    assert digest(own) == digest(Mask(mine["held"]).take(state.ticket))


def test_a_network_below_the_threshold_is_not_pruned():
    play, _, costs = played(LotteryFL(TRAINING, threshold=1.0), 2)
    assert all(mask.all() for mask in memory(play, "c0")["held"].values())
    assert costs[0]["train", "c0"] == costs[1]["train", "c0"]


def test_pruning_stops_at_its_target_and_bytes_fall_with_what_is_left():
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


def test_a_newcomer_is_also_sent_the_first_values():
    networks = zoo()
    play = Play(LotteryFL(TRAINING, threshold=0.0), networks, people(2))
    state = play.round(play.init(), 0, only={"c0"})
    play.round(state, 1, only={"c1"})
    assert digest(memory(play, "c1")["ticket"]) == digest(state.ticket) != digest(state.model.arrays)
    (first,) = [e.cost.bytes_down for e in play.session.entries if e.task.verb == "train"]
    assert first == 2 * 4 * sum(tensor.numel() for tensor in state.ticket.values())


def test_packed_tensors_come_back_with_zeros_outside_the_masks():
    mask, w = torch.rand(3, 4) > 0.5, torch.randn(3, 4)
    back = unpack_masked(pack_masked({"w": w, "b": w[0]}, {"w": mask}), {"w": mask})
    assert torch.equal(back["w"], torch.where(mask, w, 0.0))
    assert torch.equal(back["b"], w[0])
    assert scatter(bits(1, 0), bits(0, 1, 1)).tolist() == [OFF, ON, OFF]
