"""Local: clients that train alone, and models that stay with them."""

from made_round import Play, people, zoo

from potluck.core import Local, digest
from potluck.methods import LocalOnly


def test_models_stay_on_the_clients_and_no_tensors_are_sent():
    play = Play(LocalOnly(Local(epochs=1, batch=4)), zoo(1, 2), people("d1", "d2"))
    state = play.round(play.init())
    assert vars(state) == {}
    for entry in play.session.entries:
        assert (entry.verdict, entry.cost.bytes_down, entry.cost.bytes_up) == ("accepted", 0, 0)
    assert [play.memories[client][1]["model"].spec.depth for client in ("c0", "c1")] == [1, 2]
    assert play.served(state, "c0") is None


def test_a_client_goes_on_from_its_own_model():
    play = Play(LocalOnly(Local(epochs=1, batch=4)), zoo(1), people("d1", "d1"))
    state = play.round(play.init())
    first = play.memories["c0"][1]["model"].arrays
    play.round(state, 1, only={"c0"})
    second = play.memories["c0"][1]["model"].arrays
    assert digest(first) != digest(second)
    assert play.memories["c0"][0] == 1
    assert play.memories["c1"][0] == 0
    alone = Play(LocalOnly(Local(epochs=1, batch=4)), zoo(1), {"c0": people("d1")["c0"]})
    alone.round(alone.round(alone.init()), 1)
    assert digest(alone.memories["c0"][1]["model"].arrays) == digest(second)


def test_a_client_without_steps_keeps_exactly_what_it_had():
    play = Play(LocalOnly(Local(epochs=1, batch=4)), zoo(1), people("d1"))
    play.round(play.init())
    trained = digest(play.memories["c0"][1]["model"].arrays)
    idle = Play(LocalOnly(Local(steps=0)), zoo(1), people("d1"))
    idle.memories |= play.memories
    idle.round(idle.init(), 1)
    assert idle.memories["c0"][0] == 1
    assert digest(idle.memories["c0"][1]["model"].arrays) == trained


def test_each_clients_model_is_initialised_differently_and_reproducibly():
    initial = []
    for _ in range(2):
        play = Play(LocalOnly(Local(steps=0)), zoo(1), people("d1", "d1"))
        play.round(play.init())
        initial.append([digest(play.memories[client][1]["model"].arrays) for client in ("c0", "c1")])
    assert initial[0] == initial[1]
    assert initial[0][0] != initial[0][1]


def test_a_client_starts_anew_when_its_tier_has_changed():
    play = Play(LocalOnly(Local(epochs=1)), zoo(1, 2), people("d1"))
    state = play.round(play.init())
    later = Play(play.method, play.zoo, people("d2"))
    later.memories |= play.memories
    later.round(state, 1)
    grown = later.memories["c0"][1]["model"]
    assert grown.spec.depth == 2
    assert {name: tensor.shape for name, tensor in grown.arrays.items()} == {
        name: shape for name, (shape, _) in play.zoo.shapes(grown.spec).items()
    }
