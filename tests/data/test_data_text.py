"""Text by user: tiny files whose every token is known, files that are not what they should be, and real plays."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from real_data import real

from potluck.core import InputError, SettingsError
from potluck.data import Data, Federation, Source, load
from potluck.data.jsonl import LONGEST
from potluck.data.source import IGNORED
from potluck.data.text import RESERVED
from potluck.learn import losses


def write(folder: Path, *records: object) -> Path:
    path = folder / "text.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return path


def text(path: Path, **settings: object) -> Source:
    return load(Data("text", str(path), **settings))  # type: ignore[arg-type]


def rows(source: Source, column: str) -> list[list[str]]:
    """A column's rows as tokens; a blank where nothing counts."""
    names = (*source.names, *[""] * -IGNORED)
    return [[names[token] for token in row] for row in source.train.column(column).tolist()]


def test_every_token_is_in_x_before_it_is_in_y_and_the_last_row_is_padded(tmp_path: Path) -> None:
    source = text(write(tmp_path, {"user": "Ann", "lines": ["To be, or not", "to be."]}), length=5)
    assert rows(source, "x") == [["<end>", "to", "be", ",", "or"], ["not", "<end>", "to", "be", "."]]
    assert rows(source, "y") == [["to", "be", ",", "or", "not"], ["<end>", "to", "be", ".", "<end>"]]
    source = text(write(tmp_path, {"user": "Ann", "lines": ["be"]}), length=5)
    assert rows(source, "x") == [["<end>", "be", "<pad>", "<pad>", "<pad>"]]
    assert rows(source, "y") == [["be", "<end>", "", "", ""]]
    assert source.train.column("y").tolist()[0][2:] == [-100] * 3
    assert (source.train.column("x").dtype, source.train.column("y").dtype) == (torch.int64, torch.int64)
    assert source.shape == (5,)


def test_what_is_ignored_means_the_same_to_reader_and_loss() -> None:
    assert IGNORED == losses.IGNORED


def test_the_vocabulary_is_the_most_frequent_tokens_ties_by_the_token_itself(tmp_path: Path) -> None:
    lines = ["c b a", "b c", "z a"]  # a, b and c twice, z once
    source = text(write(tmp_path, {"user": "Ann", "lines": lines}), vocabulary=2, length=10)
    assert source.names == (*RESERVED, "a", "b") == ("<pad>", "<unknown>", "<end>", "a", "b")
    assert source.classes == 5
    assert rows(source, "y")[0] == [
        "<unknown>", "b", "a", "<end>", "b", "<unknown>", "<end>", "<unknown>", "a", "<end>",
    ]  # fmt: skip
    again = text(write(tmp_path, {"user": "Ann", "lines": lines[::-1]}), vocabulary=2, length=10)
    assert again.names == source.names


def test_words_are_lower_case_with_their_apostrophes_and_punctuation_stands_alone(tmp_path: Path) -> None:
    source = text(write(tmp_path, {"user": "Ann", "lines": ["'Tis O'er--\nStraße, don\u2019t!"]}), length=12)
    assert rows(source, "y")[0] == ["'", "tis", "o'er", "-", "-", "straße", ",", "don\u2019t", "!", "<end>", "", ""]


def test_characters_are_taken_as_they_are(tmp_path: Path) -> None:
    source = text(write(tmp_path, {"user": "Ann", "lines": ["Ab\n", "b "]}), tokens="characters", length=7)
    assert rows(source, "y") == [["A", "b", "\n", "<end>", "b", " ", "<end>"]]


def test_the_literal_name_of_a_reserved_token_is_ordinary_text(tmp_path: Path) -> None:
    source = text(write(tmp_path, {"user": "Ann", "lines": ["<end>"]}), length=4)
    assert rows(source, "y") == [["<", "end", ">", "<end>"]]


def test_a_text_is_its_lines_and_a_users_records_are_one_stream(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"user": "Ann", "text": "a b\n\nc"},
        {"user": "Bob", "text": "x"},
        {"user": "Ann", "lines": ["d"]},
        {"user": "Mute", "lines": ["", " \n"]},
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n\r\n"))  # a BOM and blank lines
    source = text(path, length=4)
    assert rows(source, "y") == [["a", "b", "<end>", "c"], ["<end>", "d", "<end>", ""], ["x", "<end>", "", ""]]
    assert source.users is not None
    assert source.users.tolist() == [0, 0, 1]  # who says nothing is nobody


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"user": "a", "lines": ["b"]}\n{"user": "a"', "line 2 is not JSON"),
        (b"To be, or not to be\n", "line 1 is not JSON (Expecting value)"),
        (b"[" * 200_000 + b"\n", "line 1 is not JSON (RecursionError)"),
        (b'{"user": ' + b"9" * 5000 + b"}", "line 1 is not JSON (ValueError)"),
        (b'\n\n["a"]\n', "line 3 does not hold a record"),
        (b'{"lines": ["b"]}', "line 1 has no user in quotes"),
        (b'{"user": 7, "lines": ["b"]}', "line 1 has no user in quotes"),
        (b'{"user": "a", "lines": "b"}', "line 1 has no list of lines in quotes, nor a text"),
        (b'{"user": "a", "lines": ["b", 3]}', "line 1 has no list of lines"),
        (b'{"user": "a", "text": ["b"]}', "line 1 has no list of lines"),
        (b'{"user": "a"}', "line 1 has no list of lines"),
        (b'{"user": "a", "text": "b"}\n{"user": "\xff", "text": "b"}', "line 2 is not UTF-8 (byte 11)"),
        ('{"user": "a", "text": "b"}'.encode("utf-16"), "line 1 is not UTF-8"),
        (b'{"user": "a", "text": "' + b"b" * LONGEST + b'"}', "line 1 is longer than 16,777,216 bytes"),
        (b"\x1f\x8b\x08\x00", "compressed; unpack it first"),
        (b"", "no text in it"),
        (b'{"user": "a", "lines": []}', "no text in it"),
        (pickle.dumps({"user": "a"}), "refused: pickle"),
        (pickle.dumps({"user": "a"}, 0), "refused: pickle"),
        (bytes(257) + b"ustar" + bytes(250), "archives are not unpacked here"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_text_by_user_is_refused_in_one_line_that_names_it(
    tmp_path: Path, body: bytes, line: str
) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(body)
    with pytest.raises(InputError) as caught:
        text(path)
    assert line in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a folder; set data\.path to the \.jsonl file"):
        text(tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        text(tmp_path / "nowhere.jsonl")


def test_rows_so_long_that_they_are_all_padding_are_refused_before_memory_rises(tmp_path: Path) -> None:
    path = write(tmp_path, *({"user": str(number), "text": "a"} for number in range(100)))
    with pytest.raises(SettingsError, match=r"data\.length = 1000000 pads .* to 1,600,000,000 bytes; lower it"):
        text(path, length=1_000_000)


def test_a_file_damaged_at_random_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, *({"user": f"u{number % 3}", "lines": ["a b", "c"]} for number in range(6)))
    whole, rng = path.read_bytes(), random.Random(1)
    refused: list[str] = []
    for _ in range(300):
        body = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        path.write_bytes(bytes(body))
        try:
            text(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in line for line in refused)


@pytest.mark.parametrize(
    ("setting", "value"), [("vocabulary", 0), ("vocabulary", 100_000), ("length", 1), ("length", -3)]
)
def test_a_setting_of_texts_out_of_range_is_named(setting: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"data\.{setting} = "):
        Data(**{setting: value})  # type: ignore[arg-type]


def plays(folder: Path) -> Source:
    """Ten users who say a word of their own and one that all share, 1 to 10 rows each, and one with a single row."""
    said = [{"user": str(n), "lines": [f"own{n} shared"] * (n + 1)} for n in range(10)]
    return text(write(folder, *said, {"user": "brief", "lines": ["hm"]}), length=3)


def test_users_are_clients_and_own_the_tokens_that_they_say(tmp_path: Path) -> None:
    source = plays(tmp_path)
    federation = Federation(source, Data("text", partition="user", test=0.3), 0)
    names, clients = source.names, [federation.shard(index) for index in range(federation.clients)]
    assert federation.clients <= 11
    for shard in clients:
        assert len(shard.train) > 0  # who has no row left to train on is no client
        assert shard.train.column("y").shape == (len(shard.train), 3)
        said = {names[label] for label in shard.labels}
        assert len(said) == len(shard.labels)
        assert said in ({"<end>", "hm"}, *({"<end>", "shared", f"own{n}"} for n in range(10)))
    held = sum(map(len, (federation.test, federation.validation, *(shard.train for shard in clients))))
    assert held == len(source.train)
    assert Federation(source, Data("text", partition="user", clients=4), 0).clients == 4


def test_text_is_dealt_evenly_too_and_refuses_partitions_by_class(tmp_path: Path) -> None:
    source = plays(tmp_path)
    federation = Federation(source, Data("text", partition="iid", clients=5), 0)
    assert {len(federation.shard(index).train) for index in range(5)} <= {7, 8}
    assert len(federation.shard(0).test) > 0
    for partition in ("labels", "dirichlet"):
        with pytest.raises(SettingsError, match="needs one class per row"):
            Federation(source, Data("text", partition=partition), 0)  # type: ignore[arg-type]


def test_real_plays_have_their_roles_and_words() -> None:
    path = real("shakespeare") / "plays_by_role.jsonl"
    source = text(path)
    assert source.users is not None
    assert (source.classes, int(source.users.max()) + 1) == (10_003, 1074)
    assert source.names[3:8] == (",", ".", "the", "and", "i")
    y = source.train.column("y").numpy()
    said = sum(len(json.loads(line)["lines"]) for line in path.read_text("utf-8").splitlines())
    assert np.count_nonzero(y == 2) == said == 29_478
    assert np.count_nonzero(y == 1) / np.count_nonzero(y >= 0) < 0.03
    assert not np.any(y == 0)
