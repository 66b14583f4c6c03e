"""Local training as settings: the learning rate of a round, the steps of a client, what is refused."""

import pytest

from potluck.core import Local


def test_a_constant_rate_never_changes():
    assert [Local(lr=0.5).rate(index) for index in (0, 7, 1000)] == [0.5, 0.5, 0.5]


def test_a_milestone_takes_effect_in_its_own_round():
    local = Local(lr=1.0, schedule="steps", milestones=(2, 4), factor=0.5)
    assert [local.rate(index) for index in range(6)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_a_cosine_falls_from_the_rate_to_zero_and_stays_there():
    local = Local(lr=2.0, schedule="cosine", horizon=4)
    assert [round(local.rate(index), 12) for index in range(6)] == [2.0, 1.707106781187, 1.0, 0.292893218813, 0.0, 0.0]


@pytest.mark.parametrize(
    ("local", "samples", "steps"),
    [
        (Local(epochs=2, batch=4), 8, 4),
        (Local(epochs=2, batch=4), 9, 6),
        (Local(epochs=2, batch=4), 1, 2),
        (Local(epochs=2, batch=4), 0, 0),
        (Local(epochs=0), 9, 0),
        (Local(steps=7, batch=4), 9, 7),
        (Local(steps=7, batch=4), 0, 0),
        (Local(steps=0), 9, 0),
    ],
)
def test_steps_are_counted_by_epochs_or_given(local, samples, steps):
    assert local.count(samples) == steps


def test_lists_become_tuples_so_that_equal_settings_are_equal():
    assert Local(milestones=[1, 2], betas=[0.5, 0.6]) == Local(milestones=(1, 2), betas=(0.5, 0.6))
    assert hash(Local(milestones=[1, 2])) == hash(Local(milestones=(1, 2)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", -0.1), ("epochs", -1), ("steps", -1), ("batch", 0), ("momentum", -0.5), ("weight_decay", -1.0),
        ("clip", 0.0), ("clip", -1.0), ("horizon", 0),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=rf"local\.{name} = {value}"):
        Local(**{name: value})
