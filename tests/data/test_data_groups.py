"""Rows of groups of users, and users who are held out whole: numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_data import real

from potluck.core import Examples, SettingsError, numpy_stream
from potluck.data import Data, Federation, Source, from_arrays, load
from potluck.data.partition import group_users, partition_by_groups, put_users_first


def people(sizes: list[int], nobody: int = 0) -> Source:
    """Rows that hold their user's number (-1: nobody's) and their own; two classes in turn."""
    who = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), np.full(nobody, -1)])
    names = np.array([f"p{user:03}" if user >= 0 else "" for user in who])
    x = np.stack([who, np.arange(len(who))], 1).astype(np.float32)
    return from_arrays(x, np.arange(len(who)) % 2, names)


def users(examples: Examples) -> set[int]:
    return {int(value) for value in examples.all()["x"][:, 0].tolist()}


def rows(examples: Examples) -> set[int]:
    return {int(value) for value in examples.all()["x"][:, 1].tolist()}


def test_whole_users_go_to_groups_of_nearly_equal_rows() -> None:
    # Users of 5, 4, 3, 2 and 2 rows: 5 + 2 + (2) and 4 + 3, whichever of the two equal ones comes first.
    whose = np.repeat(np.arange(6), [5, 0, 4, 3, 2, 2])
    found = group_users(whose, 6, 2, numpy_stream(0, "x"))
    assert found[1] == -1
    assert found[2] == found[3] != found[0] == found[4] == found[5]


def test_a_groups_rows_are_divided_among_its_clients_in_order() -> None:
    whose = np.repeat(np.arange(3), [4, 6, 2])
    deal = partition_by_groups(whose, np.array([0, 1, -1]), 4, None, numpy_stream(0, "x"))
    held = [sorted(deal[client].tolist()) for client in range(4)]
    assert [len(each) for each in held] == [2, 2, 3, 3]
    assert sorted(held[0] + held[1]) == [0, 1, 2, 3]
    assert sorted(held[2] + held[3]) == [4, 5, 6, 7, 8, 9]


def test_a_client_of_the_partition_groups_shares_no_user_with_another() -> None:
    data = Data(clients=4, partition="groups", test=0.2, validation=0.1)
    federation = Federation(people([10] * 12), data, 0)
    theirs = [users(federation.shard(client).train) for client in range(4)]
    assert [len(each) for each in theirs] == [3, 3, 3, 3]
    assert set.union(*theirs) == set(range(12))
    for client, own in enumerate(theirs):
        assert users(federation.shard(client).test) <= own
        assert users(federation.shard(client).validation) <= own
        assert len(federation.shard(client).test) > 0


def test_as_many_groups_as_tiers_give_clients_of_a_tier_the_same_users() -> None:
    data = Data(clients=6, partition="groups", groups=3, held_out="users", samples=5, test=0.25, validation=0.0)
    federation = Federation(people([10] * 8), data, 1)
    theirs = [users(federation.shard(client).train) for client in range(6)]
    pairs = [theirs[first] | theirs[first + 1] for first in (0, 2, 4)]
    assert [len(pair) for pair in pairs] == [2, 2, 2]
    assert len(set.union(*pairs)) == 6
    held = [rows(federation.shard(client).train) for client in range(6)]
    assert [len(each) for each in held] == [5] * 6
    assert len(set.union(*held)) == 30


@pytest.mark.parametrize("partition", ["iid", "labels", "dirichlet", "user", "groups"])
def test_held_out_users_are_strangers_to_every_client(partition: str) -> None:
    data = Data(clients=4, partition=partition, held_out="users", test=0.2, validation=0.1, public=7)  # type: ignore[arg-type]
    federation = Federation(people([10] * 20), data, 3)
    seen = set.union(*(users(federation.shard(client).train) for client in range(federation.clients)))
    tested, validated = users(federation.test), users(federation.validation)
    assert (len(tested), len(validated), len(federation.test), len(federation.validation)) == (4, 2, 40, 20)
    assert not tested & validated
    assert not seen & (tested | validated)
    assert not users(federation.public) & (tested | validated)
    assert len(federation.public) == 7
    assert len(federation.shard(0).test) > 0  # in its label mix, as none of its own users' rows are held out


def test_ends_move_to_where_a_user_ends_and_no_wish_gets_nothing() -> None:
    whose, order = np.repeat(np.arange(3), 10), np.arange(30)
    for wanted, ends in (([9, 12], [10, 20]), ([1, 2], [10, 20]), ([0, 3], [0, 10]), ([14, 14], [10, 10])):
        found, moved = put_users_first(whose, order, np.array(wanted), numpy_stream(0, "x"))
        assert moved.tolist() == ends
        assert sorted(found.tolist()) == list(range(30))
        assert len({int(user) for user in whose[found[: ends[0]]]}) == ends[0] // 10


def test_nobodys_rows_are_spread_and_no_client_of_their_own() -> None:
    source = people([10] * 4, nobody=40)
    assert Federation(source, Data(partition="user"), 0).clients == 4
    federation = Federation(source, Data(clients=4, partition="groups", test=0.1, validation=0.0), 0)
    shards = [federation.shard(client).train for client in range(4)]
    assert [len(shard) for shard in shards] == [18] * 4
    assert all(-1 in users(shard) and len(users(shard)) == 2 for shard in shards)
    strangers = Federation(source, Data(clients=4, held_out="users", test=0.5), 0)
    assert -1 in users(strangers.test) & users(strangers.shard(0).train)


def test_users_who_are_all_held_out_leave_no_client() -> None:
    data = Data(partition="user", held_out="users", test=0.75, validation=0.0)
    with pytest.raises(SettingsError, match="finds no user with rows left to train on"):
        [Federation(people([1], nobody=3), data, seed) for seed in range(50)]  # by lot: soon the one user is among them


def test_rows_of_nobody_alone_are_no_user_column() -> None:
    assert from_arrays(np.zeros((2, 1)), np.arange(2), np.array(["", ""])).users is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Data(clients=9, partition="groups"), "has 8 users for 9 groups; set data.groups lower"),
        (Data(held_out="users", test=0.95, validation=0.04), "leave none to train on"),
    ],
)
def test_what_users_do_not_suffice_for_is_refused(data: Data, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        Federation(people([10] * 8), data, 0)


@pytest.mark.parametrize("data", [Data(partition="groups"), Data(held_out="users")])
def test_groups_and_strangers_need_a_user_column(data: Data) -> None:
    with pytest.raises(SettingsError, match=r"data\.\w+ = '\w+' needs a user column, and arrays has none"):
        Federation(from_arrays(np.zeros((10, 1)), np.arange(10) % 2), data, 0)


def spoken(name: str, folder: Path) -> Data:
    return Data("npz", str(folder), size=(1, 32, 32), scale="standard", clients=24, samples=100, held_out="users",
                partition="groups", public=200)  # fmt: skip


def test_speech_commands_are_4890_clips_of_239_speakers_and_silence() -> None:
    data = spoken("speech_commands", real("speech_commands.npz"))
    source = load(data)
    assert source.users is not None
    assert (len(source.train), source.shape, source.classes) == (4890, (1, 32, 32), 12)
    assert (int(source.users.max()), int((source.users < 0).sum())) == (238, 408)
    federation = Federation(source, data, 0)
    assert [len(federation.shard(client).train) for client in range(24)] == [100] * 24
    assert len(federation.public) == 200


def test_activities_are_2947_windows_of_9_people() -> None:
    path = real("uci_har.npz")
    data = Data("npz", str(path), shape=(9, 8, 16), clients=30, samples=50, partition="groups", groups=3,
                held_out="users", public=50)  # fmt: skip
    source = load(data)
    assert (len(source.train), source.shape, source.classes) == (2947, (9, 8, 16), 6)
    federation = Federation(source, data, 0)
    assert [len(federation.shard(client).train) for client in range(30)] == [50] * 30
