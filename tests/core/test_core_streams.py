"""Randomness as a function of its key."""

import pytest
import torch

from potluck.core import Client, Round, Tier, numpy_stream, stream


def numbers(*key):
    return torch.rand(4, generator=stream(*key)).tolist()


KEYS = [
    (0, "task", 1, "c1"),
    (1, "task", 1, "c1"),
    (0, "birth", 1, "c1"),
    (0, "task", 2, "c1"),
    (0, "task", 1, "c2"),
    (0, "task", 1, "1c"),
    (0, "task", "1", "c1"),
    (0, "task", 1),
    (0, "task", 1, "c1", ""),
    (0, 1, "task", "c1"),
    (0,),
    (0, ""),
    (0, 0),
]


def test_the_same_key_gives_the_same_numbers():
    assert all(numbers(*key) == numbers(*key) for key in KEYS)


def test_keys_that_differ_anywhere_give_other_numbers():
    assert len({tuple(numbers(*key)) for key in KEYS}) == len(KEYS)
    assert len({numpy_stream(*key).random() for key in KEYS}) == len(KEYS)


def test_numbers_do_not_depend_on_what_was_drawn_before():
    forward = {key: numbers(*key) for key in KEYS}
    torch.manual_seed(123)
    torch.rand(100)
    assert {key: numbers(*key) for key in reversed(KEYS)} == forward


def test_drawing_leaves_torchs_own_generator_alone():
    before = torch.get_rng_state()
    numbers(0, "task")
    assert torch.equal(torch.get_rng_state(), before)


def test_the_numbers_are_these_on_every_machine():
    """A change here changes every result: it belongs under Numbers in the changelog."""
    assert torch.randint(0, 1000, (5,), generator=stream(0, "task", 3, "c7", "train", "")).tolist() == [
        150,
        20,
        402,
        816,
        5,
    ]
    assert numpy_stream(0, "cohort", 3).integers(0, 1000, 5).tolist() == [432, 355, 181, 175, 939]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**63])
def test_large_seeds_are_seeds_too(seed):
    assert numbers(seed, "a") == numbers(seed, "a")
    assert numbers(seed, "a") != numbers(seed + 1, "a")


def test_a_rounds_streams_are_named_by_seed_round_and_purpose():
    def at(index, seed):
        return Round(index, [Client("c1", Tier("t"))], 1, None, seed, None, None, None)

    def drawn(now, *key):
        return torch.rand(3, generator=now.rng(*key)).tolist()

    assert drawn(at(1, 0), "units") == drawn(at(1, 0), "units")
    assert len({tuple(drawn(at(*where), *key)) for where in ((1, 0), (2, 0), (1, 1)) for key in (("a",), ("b",))}) == 6
