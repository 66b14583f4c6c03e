"""InclusiveFL in whole rounds: tiers of one to twelve layers, by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from made_round import Play, data, learning, people, zoo

from potluck.core import SERVER, Client, Local, Model, Reply, SettingsError, Tier, digest, on_client
from potluck.methods import FedAdam, FedAdamW, InclusiveFL
from potluck.methods.inclusivefl.depth_tiers import depth_tiers
from potluck.models import ModelZoo, make_spec, tier_spec
from potluck.parts import Adam, AdamW, Replace

SENT = {}
"""What each client adds to, or puts in the place of, what it was sent: a number for the stem, each block, the head."""


@dataclass(frozen=True)
class Replying(InclusiveFL):
    """Clients that do not train but send what they are told to: new values or, if they are `steps`, how much more."""

    steps: bool = False

    @on_client
    def train(self, task, device):
        sent = task.models["model"]
        arrays = {
            name: torch.full_like(tensor, reply_value(device, sent.spec, name)) + (tensor if self.steps else 0)
            for name, tensor in sent.arrays.items()
        }
        return Reply({"model": Model(sent.spec, arrays)}, weight=float(len(device.data)))


def reply_value(device, spec, name):
    block = device.zoo.block(spec, name)
    stem, layers, head = SENT[device.client]
    return head if name.startswith("head.") else stem if block is None else layers[block]


def replying(zoo, *, counts=None, steps=False, **settings):
    """A federation in which a client of each tier (or so many) sends the tier's values."""
    tiers = [tier.name for tier in zoo.tiers]
    counts = counts or [1] * len(tiers)
    clients = {f"{tier}{n}": (tier, data(1)) for tier, count in zip(tiers, counts, strict=True) for n in range(count)}
    return Play(Replying(steps=steps, **{"server": Replace(), **settings}), zoo, clients)


def reply_with(play, *, layers, stem=(0, 0, 0), head=(0, 0, 0)):
    SENT.clear()
    tiers = [tier.name for tier in play.zoo.tiers]
    for client in play.everyone:
        at = tiers.index(client.tier.name)
        SENT[client.id] = (float(stem[at]), [float(value) for value in layers[at]], float(head[at]))


def served(play, state):
    """Every tier's network."""
    found = (play.method.serve(state, Client("someone", tier), play.zoo) for tier in play.zoo.tiers)
    return [model.arrays for model in found]


def layers(play, state, kind="weight"):
    """The blocks of every tier's network, which are scalars."""
    return [
        [round(tensor.item(), 5) for name, tensor in arrays.items() if name.startswith("body.") and kind in name]
        for arrays in served(play, state)
    ]


def zeroed(state):
    arrays = {name: torch.zeros_like(tensor) for name, tensor in state.model.arrays.items()}
    return replace(state, model=replace(state.model, arrays=arrays))


def moved(state):
    return state.model.arrays


AFTER = ([1, 5], [2, 4, 6], [3, 6, 9, 12])
"""The tiers' layers after their optimisers' steps."""


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((1, 1, 2), [[2.25, 5], [2.25, 5.33333, 6], [2.25, 5.33333, 9, 12]]),
        ((1, 0, 2), [[2.33333, 5], [2.33333, 6, 0], [2.33333, 6, 9, 12]]),
        ((1, 1, 0), [[1.5, 5], [1.5, 4, 6], [1.5, 4, 0, 0]]),
    ],
    ids=["all tiers", "without the medium tier", "without the large tier"],
)
def test_layers_are_averaged_over_tiers_except_each_tier_s_last(counts, expected):
    """An absent tier still receives what is shared; what is its own stays as it was, zero here."""
    play = replying(zoo(2, 3, 4), counts=counts, borrow=0.0)
    reply_with(play, layers=AFTER)
    state = play.round(zeroed(play.init()))
    assert layers(play, state) == expected
    assert layers(play, state, "bias") == expected


def test_absent_tiers_keep_what_they_had():
    play = replying(zoo(2, 3, 4), borrow=0.0, share_layers=False)
    reply_with(play, layers=AFTER)
    before = play.round(play.init())
    assert layers(play, before) == [list(map(float, values)) for values in AFTER]
    shared = replace(play.method, share_layers=True)
    for counts, expected in (
        ((1, 0, 2), [[2.33333, 5], [2.33333, 6, 6], [2.33333, 6, 9, 12]]),
        ((1, 1, 0), [[1.5, 5], [1.5, 4, 6], [1.5, 4, 9, 12]]),
    ):
        again = replying(play.zoo, counts=counts, borrow=0.0)
        reply_with(again, layers=AFTER)
        assert again.method == shared
        assert layers(again, again.round(before, 1)) == expected


def test_a_layer_whose_owners_are_all_absent_stays_what_it_was_to_each():
    apart = replying(zoo(2, 3, 4), borrow=0.0, share_layers=False)
    reply_with(apart, layers=AFTER)
    before = apart.round(apart.init())
    play = replying(apart.zoo, counts=(1, 0, 0), borrow=0.0)
    reply_with(play, layers=([8, 8], AFTER[1], AFTER[2]))
    assert layers(play, play.round(before, 1)) == [[8, 8], [8, 4, 6], [8, 6, 9, 12]]


@pytest.mark.parametrize("source", ["post", "pre"])
def test_clients_that_do_not_move_leave_every_bit_as_it_was(source):
    play = replying(zoo(2, 3, 4), steps=True, source=source)
    start = play.init()
    negative = replace(
        start, model=Model(start.model.spec, {n: torch.full_like(t, -0.0) for n, t in moved(start).items()})
    )
    SENT.clear()
    SENT.update({client.id: (-0.0, [-0.0] * 4, -0.0) for client in play.everyone})
    after = play.round(play.round(negative), 1)
    assert digest(moved(after)) == digest(moved(negative))
    assert digest(after.momentum) == digest(start.momentum)


GIVEN = ([9, 1], [9, 2, 4], [9, 9, 6, 10])
"""Steps; those of the layers that no momentum is made of are 9."""


@pytest.mark.parametrize(("source", "later"), [("post", 3.4), ("pre", 3.0)])
def test_the_last_layer_borrows_the_larger_tier_s_momentum_of_the_round_before(source, later):
    play = replying(zoo(2, 3, 4), steps=True, share_layers=False, source=source)
    reply_with(play, layers=GIVEN)
    start = zeroed(play.init())
    first = play.round(start)
    steps = layers(play, first)
    assert [values[-1] for values in steps] == [0.8, 3.2, 10]  # nothing to borrow yet: scaled by 1 - 0.2
    assert [values[:-1] for values in steps] == [[9], [9, 2], [9, 9, 6]]
    # The stored means are here of steps that borrowed nothing: 3 and 8.
    plain = replace(first, momentum=momentum(play, b=3.0, c=8.0))
    second = play.round(plain, 1)
    gone = [[b - a for a, b in zip(*pair, strict=True)] for pair in zip(steps, layers(play, second), strict=True)]
    assert gone[0] == pytest.approx([9, 1.4])
    assert gone[1] == pytest.approx([9, 2, 4.8])
    assert gone[2] == pytest.approx([9, 9, 6, 10])
    assert momenta(play, second) == pytest.approx([later, 8.0])


def momentum(play, b, c):
    """What the medium tier lends the small one, and the large one the medium one."""
    tiers = depth_tiers(play.zoo)
    return {
        name: torch.full_like(moved(play.init())[name], v)
        for r, v in zip(tiers, (b, c), strict=False)
        for name in r.teachers
    }


def momenta(play, state):
    """The momentum of the medium tier and of the large one."""
    *taught, _ = depth_tiers(play.zoo)
    return [state.momentum[next(iter(tier.teachers))].item() for tier in taught]


def test_momentum_is_a_mean_over_layers_of_the_last_round_alone():
    play = replying(zoo(2, 3, 4), steps=True, share_layers=False, source="pre")
    assert momenta(play, play.init()) == [0, 0]
    reply_with(play, layers=GIVEN)
    first = play.round(play.init())
    assert momenta(play, first) == pytest.approx([3, 8], abs=1e-5)
    reply_with(play, layers=([0, 0], [0, 1, 1], [0, 0, 1, 1]))
    assert momenta(play, play.round(first, 1)) == pytest.approx([1, 1], abs=1e-5)


def test_momentum_taken_after_borrowing_reaches_the_smallest_tier_and_before_does_not():
    """Only the large tier moves; the small one feels it two rounds later, or never."""
    found = {}
    for source in ("post", "pre"):
        play = replying(zoo(1, 2, 3), steps=True, share_layers=False, source=source, borrow=0.5)
        reply_with(play, layers=([0], [0, 0], [0, 0, 8]))
        state = zeroed(play.init())
        reached = []
        for index in range(3):
            state = play.round(state, index)
            reached.append([values[-1] for values in layers(play, state)])
        found[source] = reached
    # Momentum of the large tier: (0 + 8) / 2 = 4; the medium one's last layer goes 2 a round, its momentum is 1.
    assert found["post"] == [[0, 0, 8], [0, 2, 16], [0.5, 4, 24]]
    assert found["pre"] == [[0, 0, 8], [0, 2, 16], [0, 4, 24]]


def test_momentum_is_made_of_both_ends_and_all_between():
    """4/8/12 layers: five layers of a tier teach the next smaller one."""
    tiers = depth_tiers(zoo(4, 8, 12))
    (weight,) = {tuple(sources) for name, sources in tiers[1].teachers.items() if "weight" in name}
    assert weight == tuple(f"body.{layer}.linear.weight" for layer in range(7, 12))
    taught = next(sources for name, sources in tiers[0].teachers.items() if "bias" in name)
    assert [source.split(" ")[0] for source in taught] == [f"body.{layer}.linear.bias" for layer in range(3, 8)]
    assert {name.split(" ")[0] for name in tiers[0].teachers} == {"body.3.linear.weight", "body.3.linear.bias"}
    assert tiers[2].teachers == {}


@pytest.mark.parametrize("absent", [{"d20"}, {"d30"}, {"d40"}, {"d30", "d40"}, {"d20", "d40"}])
def test_momentum_of_an_absent_tier_stays_and_is_borrowed_again(absent):
    play = replying(zoo(2, 3, 4), steps=True, share_layers=False, source="pre")
    reply_with(play, layers=GIVEN)
    first = play.round(zeroed(play.init()))
    present = {client.id for client in play.everyone} - absent
    reply_with(play, layers=([0, 0], [0, 0, 0], [0, 0, 0, 0]))
    second = play.round(first, 1, only=present)
    for tier, before, after in zip(("d20", "d30", "d40"), layers(play, first), layers(play, second), strict=True):
        assert tier not in absent or before == after
    assert momenta(play, second) == pytest.approx([3.0 if "d30" in absent else 0, 8.0 if "d40" in absent else 0])
    third = play.round(second, 2, only={"d20", "d30"})
    lasts = [[values[-1] for values in layers(play, state)] for state in (second, third)]
    assert lasts[1][0] - lasts[0][0] == pytest.approx(0.6 if "d30" in absent else 0, abs=1e-5)
    assert lasts[1][1] - lasts[0][1] == pytest.approx(1.6 if "d40" in absent else 0, abs=1e-5)


def test_tiers_of_four_eight_and_twelve_layers_are_averaged_where_they_have_the_layer():
    play = replying(zoo(4, 8, 12), borrow=0.0)
    reply_with(play, layers=([1] * 4, [2] * 8, [3] * 12))
    a, b, c = layers(play, play.round(play.init()))
    assert c == [2] * 3 + [2.5] * 4 + [3] * 5
    assert b == [2] * 3 + [2.5] * 4 + [2]
    assert a == [2, 2, 2, 1]


def test_the_stem_is_everybody_s_and_heads_are_each_tier_s_own():
    play = replying(zoo(2, 3, 4), counts=(1, 1, 2))
    reply_with(play, layers=AFTER, stem=(1, 2, 4), head=(5, 6, 7))
    found = served(play, play.round(play.init()))
    assert [arrays["stem.linear.weight"].tolist() for arrays in found] == [[[2.75, 2.75]]] * 3
    assert [arrays["head.bias"].tolist() for arrays in found] == [[5, 5], [6, 6], [7, 7]]


@pytest.mark.parametrize(("weighting", "expected"), [("uniform", 2.0), ("samples", 2.5)])
def test_tiers_count_by_their_clients_or_by_their_samples(weighting, expected):
    both = zoo(1, 2)
    clients = {"a": ("d1", data(10)), "b": ("d2", data(30))}
    play = Play(Replying(server=Replace(), weighting=weighting), both, clients)
    SENT.clear()
    SENT.update(a=(1.0, [0.0], 0.0), b=(3.0, [0.0, 0.0], 0.0))
    assert served(play, play.round(play.init()))[0]["stem.linear.bias"].item() == expected


@pytest.mark.parametrize("borrow", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rule", [Adam(lr=0.03), AdamW(lr=0.01), Replace()])
def test_with_a_single_tier_it_is_the_server_optimiser_bit_for_bit(rule, borrow):
    local, states = Local(lr=0.2, epochs=2, batch=4), []
    for method in (
        InclusiveFL(local, server=rule, borrow=borrow),
        FedAdam(local, weighting="uniform", server=rule),
    ):
        play = Play(method, zoo(2, norm="running"), people("d2", "d2", "d2"))
        state = play.init()
        for index in range(4):
            state = play.round(state, index)
        states.append(digest(moved(state)))
    assert states[0] == states[1]


def test_without_shared_layers_and_momentum_tiers_are_alone():
    """Each tier is then FedAdam among its own; the others might as well not be there."""
    quiet = InclusiveFL(Local(epochs=1, batch=4), share_layers=False, borrow=0.0)
    play = Play(quiet, zoo(1, 2), people("d1", "d2", "d1", "d2"))
    start = play.init()
    together = play.round(play.round(start), 1)
    for tier, own in (("d1", {"c0", "c2"}), ("d2", {"c1", "c3"})):
        alone = play.round(play.round(start, only=own), 1, only=own)
        at = [each.name for each in play.zoo.tiers].index(tier)
        assert digest(served(play, alone)[at]) == digest(served(play, together)[at])
        assert digest(served(play, alone)[1 - at]) == digest(served(play, start)[1 - at])


def test_without_shared_layers_tiers_still_learn_through_momentum():
    play = replying(zoo(1, 2), steps=True, share_layers=False)
    reply_with(play, layers=([0], [2, 4]), stem=(1, 3))
    state = play.round(play.round(zeroed(play.init())), 1)
    assert layers(play, state) == [[0.6], [4, 8]]
    assert [arrays["stem.linear.bias"].item() for arrays in served(play, state)] == [2, 6]


def every_subset(clients):
    return [{c for n, c in enumerate(clients) if mask >> n & 1} for mask in range(1 << len(clients))]


@pytest.mark.parametrize("profile", ["paper", "code"])
def test_any_tier_may_be_empty_for_any_number_of_rounds(profile):
    play = Play(
        InclusiveFL(Local(epochs=1, batch=4), profile=profile), zoo(1, 2, 3, norm="running"), people("d1", "d2", "d3")
    )
    state, index = play.init(), 0
    for present in every_subset(["c0", "c1", "c2"]):
        for _ in range(4):
            before = state
            state = play.round(state, index, only=present)
            index += 1
        assert all(tensor.isfinite().all() for tensor in moved(state).values())
        assert all(tensor.isfinite().all() for slot in state.slots.values() for tensor in slot.values())
        assert (digest(moved(before)) == digest(moved(state))) == (not present)


def test_an_absent_tier_s_optimiser_stands_still():
    play = Play(InclusiveFL(server=AdamW(lr=0.01)), zoo(1, 2), people("d1", "d2"))
    state = play.round(play.round(play.round(play.init()), 1, only={"c0"}), 2, only={"c0"})
    small, large = depth_tiers(play.zoo)
    steps = [{int(state.slots["steps"][name]) for name in tier.names} for tier in (small, large)]
    assert steps == [{3}, {1}]


def test_optimiser_states_of_shared_tensors_are_the_tiers_own():
    play = Play(InclusiveFL(), zoo(1, 2), people("d1", "d2"))
    state = play.round(play.init())
    small, large = depth_tiers(play.zoo)
    stem = [tier.part.place("stem.linear.weight").name for tier in (small, large)]
    assert moved(state)[stem[0]].equal(moved(state)[stem[1]])
    assert not state.slots["m"][stem[0]].equal(state.slots["m"][stem[1]])


def test_each_tier_may_have_a_server_rate_of_its_own():
    both = with_rates(zoo(1, 2), 0.5, 0.25)
    play = replying(both, steps=True, server=AdamW(lr=9.0, eps=0.0), share_layers=False, borrow=0.0)
    reply_with(play, layers=([3], [3, 3]), stem=(3, 3), head=(3, 3))
    assert layers(play, play.round(zeroed(play.init()))) == [[0.5], [0.25, 0.25]]


def test_a_tier_without_a_rate_takes_the_rule_s():
    both = with_rates(zoo(1, 2), None, 0.25)
    play = replying(both, steps=True, server=AdamW(lr=0.125, eps=0.0), share_layers=False, borrow=0.0)
    reply_with(play, layers=([3], [3, 3]), stem=(3, 3), head=(3, 3))
    assert layers(play, play.round(zeroed(play.init()))) == [[0.125], [0.25, 0.25]]


def with_rates(networks, *rates):
    tiers = [replace(tier, server_lr=rate) for tier, rate in zip(networks.tiers, rates, strict=True)]
    return ModelZoo(networks.full, tiers)


# Profile "code"


def test_profile_code_takes_adamw_and_samples_unless_told_otherwise():
    code = InclusiveFL(profile="code")
    assert (code.server, code.weighting) == (AdamW(lr=5e-5), "samples")
    assert InclusiveFL(profile="code", server=AdamW(lr=0.1)).server == AdamW(lr=0.1)
    assert InclusiveFL().server == Adam(lr=0.03)


def test_profile_code_is_one_step_of_adamw_on_the_pooled_gradient():
    """Two clients of 12 and 15 samples, or one that has them all: the same gradient, and no local step however many."""
    (_, (tier, first)), (_, (_, second)) = people("d2", "d2").items()
    pooled = data(27)
    pooled.columns.update({name: torch.cat([first.columns[name], second.columns[name]]) for name in ("x", "y")})
    found = []
    for clients, epochs in (({"a": (tier, first), "b": (tier, second)}, 5), ({"c": (tier, pooled)}, 1)):
        method = InclusiveFL(Local(lr=1.0, epochs=epochs, batch=100), profile="code", server=Replace())
        play = Play(method, zoo(2), clients)
        found.append(moved(play.round(play.init())))
        assert {entry.metrics["steps"] for entry in play.session.entries} == {1}
    plain = Play(FedAdamW(Local(lr=1.0, steps=1, batch=100), server=Replace()), zoo(2), {"c": (tier, pooled)})
    expected = moved(plain.round(plain.init()))
    for arrays in found:
        assert all(torch.allclose(arrays[name], tensor, atol=1e-6) for name, tensor in expected.items())


def test_profile_code_averages_batches_at_the_weights_that_were_sent():
    """Three batches of one client: the mean of their gradients, none of them after another's step."""
    rows = learning(12)
    play = Play(InclusiveFL(Local(lr=0.5, batch=4), profile="code", server=Replace()), zoo(1), {"c": ("d1", rows)})
    whole = Play(FedAdam(Local(lr=0.5, steps=1, batch=12), server=Replace()), zoo(1), {"c": ("d1", rows)})
    one, other = moved(play.round(play.init())), moved(whole.round(whole.init()))
    assert all(torch.allclose(one[name], tensor, atol=1e-6) for name, tensor in other.items())


# What is served, and the start


def test_the_server_is_scored_with_the_largest_tier_there_is():
    """Where [model] is deeper than any tier, the deepest tier is scored, after averaging."""
    both = zoo(1, 2, 3)
    dropped = replace(both, tiers=both.tiers[:2])
    play = Play(InclusiveFL(Local(batch=4)), dropped, people("d1", "d2"))
    state = play.round(play.init())
    shown = play.method.serve(state, Client(SERVER, Tier("server", spec=both.full)), dropped)
    assert shown.spec == both.tiers[1].spec
    assert digest(shown.arrays) == digest(served(play, state)[1])


def test_tiers_start_from_the_bottom_of_the_largest_with_heads_of_their_own():
    play = Play(InclusiveFL(), zoo(1, 3), people("d1", "d3"))
    small, large = served(play, play.init())
    assert all(tensor.equal(large[name]) for name, tensor in small.items() if not name.startswith("head."))
    assert not small["head.weight"].equal(large["head.weight"])


def test_tiers_of_one_network_are_one_tier():
    play = Play(InclusiveFL(Local(batch=4)), zoo(weak=2, strong=2), people("weak", "strong"))
    same = Play(InclusiveFL(Local(batch=4)), zoo(2), people("d2", "d2"))
    assert digest(moved(play.round(play.init()))) == digest(moved(same.round(same.init())))


@pytest.mark.parametrize("wrong", [{"borrow": 1.5}, {"borrow": -0.1}])
def test_settings_out_of_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match=f"method.{next(iter(wrong))} = "):
        InclusiveFL(**wrong)


def test_a_federation_without_depths_is_refused():
    full = make_spec("mlp", input=(2,), classes=2, hidden=4, depth=2)
    tiers = [Tier(name, spec=tier_spec(full, width)) for name, width in (("narrow", 0.5), ("wide", 1.0))]
    with pytest.raises(SettingsError, match=r"'narrow' is not the bottom of 'wide'\. Give each \[\[tier\]\] a depth"):
        InclusiveFL().check(ModelZoo(full, tiers))
    with pytest.raises(SettingsError, match=r"tier 'd2' has server_lr = 0\.1, which needs a server rule with"):
        InclusiveFL(server=Replace()).check(with_rates(zoo(1, 2), None, 0.1))
    InclusiveFL().check(with_rates(zoo(1, 2), None, 0.1))


# Encoders and residual networks


def deep(name, depths, **options):
    full = make_spec(name, depth=depths[-1], **options)
    tiers = [Tier(str(depth), spec=tier_spec(full, depth=depth)) for depth in depths]
    return ModelZoo(full, tiers)


ENCODER = {"input": (6,), "classes": 2, "hidden": 4, "heads": 2, "ffn": 6, "vocab": 9, "positions": 8, "dropout": 0}


def bare(tier):
    """What a tier shares, by the modules that it belongs to."""
    return {".".join(name.split(".")[:2]) for name, _ in tier.shared}


def test_encoders_share_embeddings_and_layers_below_the_last_and_keep_their_poolers():
    encoders = deep("bert", (1, 2, 4), **ENCODER)
    InclusiveFL().check(encoders)
    small, medium, large = depth_tiers(encoders)
    stem = {f"stem.{part}" for part in ("word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm")}
    assert bare(small) == stem
    assert bare(medium) == stem | {"body.0"}
    assert bare(large) == stem | {"body.0", "body.1", "body.2"}
    query = next(sources for name, sources in medium.teachers.items() if "self.query.weight" in name)
    assert query == tuple(f"body.{layer}.attention.self.query.weight" for layer in (1, 2, 3))
    assert len(medium.teachers) == 16


def test_residual_networks_share_blocks_and_momentum_passes_between_tensors_of_one_shape():
    """[1,1,1,1] and [2,2,2,2]: of the large network's blocks 3 to 7 in forward order, those of the last stage have the
    shapes of the small one's last block; its first convolution, from 4 to 8 channels, has one like it."""
    nets = deep("resnet", ((1, 1, 1, 1), (2, 2, 2, 2)), input=(1, 8, 8), classes=2, width=1)
    InclusiveFL().check(nets)
    small, large = depth_tiers(nets)
    shared = {name for name, _ in small.shared}
    assert {name.rpartition(".0.")[0] for name in shared if name.startswith("body.")} == {"body.0", "body.1", "body.2"}
    assert {name for name, _ in large.shared} >= shared
    assert not any(name.startswith("body.3.1") for name, _ in large.shared)
    taught = {name.split(" ")[0]: sources for name, sources in small.teachers.items()}
    assert taught["body.3.0.second.conv.weight"] == ("body.3.0.second.conv.weight", "body.3.1.second.conv.weight")
    assert taught["body.3.0.first.conv.weight"] == ("body.3.0.first.conv.weight",)
    assert taught["body.3.0.shortcut.conv.weight"] == ("body.3.0.shortcut.conv.weight",)
    assert not any("running" in name for name in taught)


@pytest.mark.parametrize("kind", ["resnet", "preresnet"])
def test_residual_networks_train_round_by_round(kind):
    nets = deep(kind, ((1, 1, 1, 1), (1, 1, 2, 2)), input=(2, 1, 1), classes=2, width=1)
    clients = {}
    for number, tier in enumerate(nets.tiers):
        rows = learning(8, number)
        rows.columns.update(x=rows.columns["x"].reshape(8, 2, 1, 1))
        clients[f"c{number}"] = (tier.name, rows)
    play = Play(InclusiveFL(Local(lr=0.1, batch=4)), nets, clients)
    start = play.init()
    state = play.round(play.round(start), 1, only={"c1"})
    assert play.session.accepted == 1
    assert all(tensor.isfinite().all() for tensor in moved(state).values())
    small, large = served(play, state)
    assert small["body.0.0.first.conv.weight" if kind == "resnet" else "stem.weight"].equal(
        large["body.0.0.first.conv.weight" if kind == "resnet" else "stem.weight"]
    )
    assert not small["head.weight"].equal(large["head.weight"])
