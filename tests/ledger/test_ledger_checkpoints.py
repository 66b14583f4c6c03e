import json
from hashlib import sha256

import pytest

from potluck.ledger import CheckpointError, Checkpoints


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", mark="mine", keep=2)


def never(warning):
    pytest.fail(warning)


def path_of(checkpoints, round):
    return checkpoints.folder / f"round-{round:06d}.ckpt"


def test_before_the_first_checkpoint_there_is_none(checkpoints):
    assert checkpoints.latest(never) is None
    assert checkpoints.rounds() == []


def test_the_newest_checkpoint_comes_back_byte_for_byte(checkpoints):
    checkpoints.write(0, b"zero")
    path = checkpoints.write(12, b"\x00\n twelve")
    assert path == path_of(checkpoints, 12)
    assert checkpoints.latest(never) == (12, b"\x00\n twelve")


def test_an_empty_payload_is_a_payload(checkpoints):
    checkpoints.write(3, b"")
    assert checkpoints.latest(never) == (3, b"")


def test_the_file_is_one_line_of_json_and_the_payload(checkpoints):
    head, payload = checkpoints.write(7, b"abc").read_bytes().split(b"\n", 1)
    assert payload == b"abc"
    assert json.loads(head) == {
        "schema": 2,
        "kind": "checkpoint",
        "round": 7,
        "mark": "mine",
        "needs": {},
        "bytes": 3,
        "sha256": sha256(head.rpartition(b',"sha256"')[0] + b"}\nabc").hexdigest(),
    }


def test_the_newest_two_are_kept_by_number_not_by_name(checkpoints):
    for round in (9, 10, 999_999, 1_000_000):
        checkpoints.write(round, b"x")
    assert checkpoints.rounds() == [999_999, 1_000_000]
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["round-1000000.ckpt", "round-999999.ckpt"]


def test_what_has_just_been_written_stays_even_if_others_are_newer(checkpoints):
    for round in (8, 9, 2):
        checkpoints.write(round, b"x")
    assert checkpoints.rounds() == [2, 8, 9]


def test_a_broken_checkpoint_does_not_count_as_one_that_is_kept(checkpoints):
    checkpoints.write(1, b"one")
    path_of(checkpoints, 2).write_bytes(b"broken")
    fresh = Checkpoints(checkpoints.folder, "mine", keep=2)
    fresh.write(3, b"three")
    assert fresh.rounds() == [1, 3]
    fresh.write(4, b"four")
    assert sorted(p.name for p in fresh.folder.iterdir()) == ["round-000003.ckpt", "round-000004.ckpt"]


def test_another_runs_checkpoint_is_neither_loaded_nor_removed(checkpoints):
    Checkpoints(checkpoints.folder, mark="other").write(0, b"theirs")
    for round in (1, 2, 3):
        checkpoints.write(round, b"mine")
    assert path_of(checkpoints, 0).exists()
    assert checkpoints.rounds() == [2, 3]


def test_keeping_no_checkpoint_and_negative_rounds_are_refused(tmp_path, checkpoints):
    with pytest.raises(ValueError, match="at least 1 checkpoint, not 0"):
        Checkpoints(tmp_path, "mine", keep=0)
    with pytest.raises(ValueError, match="no round -1"):
        checkpoints.write(-1, b"")


def truncated(data):
    return data[:-1]


def grown(data):
    return data + b"x"


def without_payload(data):
    return data.split(b"\n")[0] + b"\n"


def bit_flipped(data):
    return data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]


def empty(_):
    return b""


def of_another_model(data):
    return data.replace(b'"mark":"mine"', b'"mark":"other"')


def of_a_newer_schema(data):
    return data.replace(b'"schema":2', b'"schema":3')


def of_an_older_schema(data):
    return data.replace(b'"schema":2', b'"schema":1')


def with_other_needs(data):
    return data.replace(b'"needs":{}', b'"needs":{"a":1}')


def of_another_round(data):
    return data.replace(b'"round":2', b'"round":1')


def not_json(data):
    return b"\x80\x04" + data


def promising_terabytes(data):
    return data.replace(b'"bytes":9', b'"bytes":9000000000000')


DAMAGE = [
    (truncated, "holds 8 bytes where 9 should be"),
    (grown, "holds 10 bytes where 9 should be"),
    (without_payload, "holds 0 bytes where 9 should be"),
    (bit_flipped, "checksum does not match"),
    (empty, "it is empty"),
    (of_another_model, "another model or other settings (mark 'other', this run's is 'mine')"),
    (of_a_newer_schema, "a newer Potluck wrote it (schema 3; this one reads 2)"),
    (of_an_older_schema, "an older Potluck wrote it (schema 1; this one reads 2)"),
    (with_other_needs, "checksum does not match"),
    (of_another_round, "it says round 1 where 2 should be"),
    (not_json, "its header is damaged"),
    (promising_terabytes, "holds 9 bytes where 9000000000000 should be"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE, ids=lambda value: getattr(value, "__name__", ""))
def test_a_checkpoint_is_skipped_with_a_warning_if(damage, reason, checkpoints, warnings_heard):
    checkpoints.write(1, b"older one")
    path = checkpoints.write(2, b"newer one")
    path.write_bytes(damage(path.read_bytes()))
    assert checkpoints.latest(warnings_heard.append) == (1, b"older one")
    (warning,) = warnings_heard
    assert str(path) in warning
    assert reason in warning
    assert "\n" not in warning


def test_a_folder_in_place_of_a_checkpoint_is_skipped(checkpoints, warnings_heard):
    checkpoints.write(1, b"one")
    path_of(checkpoints, 2).mkdir()
    assert checkpoints.latest(warnings_heard.append) == (1, b"one")
    assert "it is a folder, not a file" in warnings_heard[0]


def test_no_flip_of_any_bit_goes_unnoticed(checkpoints, warnings_heard):
    path = checkpoints.write(2, b"payload")
    sound = path.read_bytes()
    for bit in range(8 * len(sound)):
        flipped = bytearray(sound)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            checkpoints.latest(warnings_heard.append)
    assert len(warnings_heard) == 8 * len(sound)


def test_if_no_checkpoint_is_valid_that_is_an_error_not_a_new_start(checkpoints, warnings_heard):
    for round in (1, 2):
        checkpoints.write(round, b"x").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of 2 checkpoints can be used") as caught:
        checkpoints.latest(warnings_heard.append)
    assert caught.value.exit_code == 4
    assert len(warnings_heard) == 2


def test_files_that_are_not_checkpoints_are_left_alone(checkpoints):
    checkpoints.write(1, b"one")
    for name in ("notes.txt", "round-2.ckpt", "round-0000003.ckpt", "round-٠٠٠٠٠٤.ckpt"):
        (checkpoints.folder / name).write_bytes(b"")
    assert checkpoints.latest(never) == (1, b"one")
