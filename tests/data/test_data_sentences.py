"""Texts with labels and words with tags: tiny files whose every token is known, and GLUE's and medical ones."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from real_data import real

from potluck.core import InputError, ResourceError, SettingsError
from potluck.data import Data, Federation, Source, load
from potluck.data.source import IGNORED
from potluck.data.subwords import subword_tokenizer
from potluck.data.tokenizer import TrimPadding, WordTokenizer, encode_row

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "want", "##ed", "##want", "run", "runn", "##ing"]
PIECES += [",", "!", "cafe", "\u4e2d", "\u56fd", "'", "s"]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return path


def sentences(path: Path, **settings: object) -> Source:
    return load(Data("sentences", str(path), **settings))  # type: ignore[arg-type]


def tags(path: Path, **settings: object) -> Source:
    return load(Data("tags", str(path), **settings))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with BERT's kind of tokenizer."""
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    return tmp_path / "bert"


def cut(folder: Path, text: str) -> list[str]:
    return [PIECES[token] for token in subword_tokenizer(folder)(text)]


def test_words_are_cut_into_the_longest_pieces_from_their_start(folder: Path) -> None:
    assert cut(folder, "unaffable") == ["un", "##aff", "##able"]  # the paper's example
    assert cut(folder, "unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]  # runn, not run
    assert cut(folder, "unwantedX running") == ["[UNK]", "runn", "##ing"]  # a word is known whole or not at all
    assert cut(folder, f"un{'want' * 24}") == ["un", *["##want"] * 24]
    assert cut(folder, f"un{'want' * 25} run") == ["[UNK]", "run"]  # of more than a hundred letters


def test_words_are_made_plain_as_bert_does(folder: Path) -> None:
    assert cut(folder, " \tRUN\u00a0CAF\u00c9\n") == ["run", "cafe"]  # case and accents go, any blank parts words
    assert cut(folder, "run,want's!!") == ["run", ",", "want", "'", "s", "!", "!"]
    assert cut(folder, "\u4e2d\u56fd") == ["\u4e2d", "\u56fd"]  # Chinese characters stand alone
    assert cut(folder, "ru\u200dn\x00\ufffd") == ["run"]  # what cannot be seen is dropped
    assert cut(folder, "r\ud800un") == ["run"]  # half of a surrogate pair, as JSON can hold it
    assert cut(folder, "[SEP]") == ["[UNK]"] * 3  # a text cannot speak of special tokens: a bracket, a word, a bracket
    assert cut(folder, "") == []


def test_a_vocabulary_with_case_keeps_case_and_accents(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert cut(folder, "Run caf\u00e9 run") == ["[UNK]", "[UNK]", "run"]


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n", "has no token [SEP]"),
        ("vocab.txt", b"\xff\xfe", "is not UTF-8"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nrun\n\n\nrun\n", "lines 5 and 8 are the same token"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n" + b"x" * (64 << 20), "is larger than 67,108,864 bytes"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("vocab.json", b"[]", "holds no numbered tokens"),
        ("vocab.json", b'{"<s>": 0}', "has no token <pad>"),
        ("vocab.json", b'{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}', "but no merges.txt"),
        ("vocab.json", b'{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 2}', "two tokens have the same number"),
        ("vocab.json", b'{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 16777216}', "a token has the number 16777216"),
    ],
)
def test_a_folder_that_holds_no_tokenizer_is_refused_in_one_line(
    folder: Path, name: str, body: bytes, said: str
) -> None:
    path = write(folder.parent / "a.jsonl", {"s1": "run", "label": 0})
    (folder / name).write_bytes(body)
    with pytest.raises(InputError) as caught:
        sentences(path, tokenizer=str(folder))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pairs_that_the_vocabulary_lacks_are_refused_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"s1": "run", "label": 0})
    (tmp_path / "vocab.json").write_text('{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4}')
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(InputError, match=r"tokenizers refuses it \(.*`b` out of vocabulary\); download it again"):
        sentences(path, tokenizer=str(tmp_path))


def test_a_tokenizer_without_the_library_is_refused_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder.parent / "a.jsonl", {"s1": "run", "label": 0})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ResourceError, match=r"^data\.tokenizer needs .*: pip install 'potluck\[text\]'\.$"):
        sentences(path, tokenizer=str(folder))
    assert sentences(path, length=3).tokens == 4  # words of the texts themselves need no library


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"s1": "run", "label": 0})
    with pytest.raises(InputError, match="'nowhere' is not a folder"):
        sentences(path, tokenizer="nowhere")
    with pytest.raises(InputError, match=r"holds no vocab\.txt"):
        sentences(path, tokenizer=str(tmp_path))


def test_bytes_are_joined_in_the_order_in_which_pairs_were_learned(tmp_path: Path) -> None:
    """A blank is written as \u0120; of "lo" and "ow" the pair that was learned first is joined."""
    tokens = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        "l",
        "o",
        "w",
        "\u0120",
        "lo",
        "\u0120lo",
        "\u0120low",
        "ow",
        "'",
        "s",
        "'s",
        "\u00c3",
        "\u00a9",
        "1",
    ]
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\n\u0120 lo\no w\n\u0120lo w\n' s\n", "utf-8")
    pairs = subword_tokenizer(tmp_path)

    def said(text: str) -> list[str]:
        return [tokens[token] for token in pairs(text)]

    assert said("low low") == ["lo", "w", "\u0120low"]
    assert said("ow's") == ["ow", "'s"]
    assert said("\u00e9") == ["\u00c3", "\u00a9"]  # two bytes in UTF-8
    assert said("l1l") == ["l", "1", "l"]  # digits and letters are words apart
    assert said("x") == ["<unk>"]  # only where the folder lacks a byte
    assert pairs("l\ud800") == pairs("l?")
    assert (pairs.pad, pairs.start, pairs.separator) == (1, (0,), (2, 2))
    assert encode_row(pairs, 9, [4], [5]) == [0, 4, 2, 2, 5, 2]


def test_one_text_and_pairs_are_framed_and_padded(tmp_path: Path, folder: Path) -> None:
    one = write(tmp_path / "one.jsonl", {"s1": "unaffable", "label": 1}, {"s1": "run!", "label": 0})
    source = sentences(one, tokenizer=str(folder), length=7)
    rows = [[PIECES[token] for token in row] for row in source.train.column("x").tolist()]
    assert rows[0] == ["[CLS]", "un", "##aff", "##able", "[SEP]", "[PAD]", "[PAD]"]
    assert source.train.column("y").tolist() == [1, 0]
    assert (source.classes, source.shape, source.tokens, source.pad) == (2, (7,), len(PIECES), 0)
    two = write(tmp_path / "two.jsonl", {"s1": "run", "s2": "want", "label": 0})
    row = sentences(two, tokenizer=str(folder), length=6).train.column("x").tolist()[0]
    assert [PIECES[token] for token in row] == ["[CLS]", "run", "[SEP]", "want", "[SEP]", "[PAD]"]
    found = [sentences(path, tokenizer=str(folder), length=6).sep for path in (one, two)]
    assert found == [-1, PIECES.index("[SEP]")]


@pytest.mark.parametrize(
    ("one", "two", "kept"),
    [(9, 9, (3, 2)), (1, 9, (1, 4)), (9, 1, (4, 1)), (3, 3, (3, 2)), (2, 3, (2, 3)), (0, 9, (0, 5))],
)
def test_of_two_texts_the_longer_one_is_cut(one: int, two: int, kept: tuple[int, int]) -> None:
    row = encode_row(WordTokenizer({}, "words"), 8, [7] * one, [8] * two)
    assert row == [2, *[7] * kept[0], 2, *[8] * kept[1], 2]


def test_a_length_without_room_for_a_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"s1": "a", "s2": "b", "label": 0})
    with pytest.raises(SettingsError, match=r"data\.length = 4 leaves no room"):
        sentences(path, length=4)


def test_without_a_folder_tokens_are_the_training_rows_most_frequent_words(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", {"s1": "b a b.", "label": 0}, {"s1": "C", "s2": "a", "label": 1})
    test = write(tmp_path / "test.jsonl", {"s1": "new b", "label": 1})
    source = sentences(train, test_path=str(test), vocabulary=2, length=8)
    assert source.tokens == 5  # padding, unknown, end, and the two commonest: a and b, in this order
    assert source.train.column("x").tolist() == [[2, 4, 3, 4, 1, 2, 0, 0], [2, 1, 2, 3, 2, 0, 0, 0]]
    assert source.test is not None
    assert source.test.column("x").tolist() == [[2, 1, 4, 2, 0, 0, 0, 0]]
    assert source.test.column("y").tolist() == [1]


def test_labels_with_a_fraction_are_numbers_and_names_are_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"s1": "a", "label": 5}, {"s1": "b", "label": 0.5})
    source = sentences(path)
    assert (source.classes, source.train.column("y").tolist()) == (0, [5.0, 0.5])
    path = write(tmp_path / "a.jsonl", {"s1": "a", "label": "yes"}, {"s1": "b", "label": "no"})
    source = sentences(path)
    assert (source.names, source.train.column("y").tolist()) == (("no", "yes"), [1, 0])


def test_users_are_told_by_the_record_or_by_the_file_in_a_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", *({"s1": "a", "label": 0, "user": user} for user in "zxz"))
    users = sentences(path).users
    assert users is not None
    assert users.tolist() == [1, 0, 1]
    home = tmp_path / "homes"
    home.mkdir()
    write(home / "b.train.jsonl", {"s1": "a", "label": 0})
    write(home / "b.test.jsonl", {"s1": "a", "label": 0})
    write(home / "a.jsonl", {"s1": "a", "label": 1})
    source = sentences(home)
    assert source.users is not None
    assert source.users.tolist() == [0, 1, 1]
    assert source.train.column("y").tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"s2": "a", "label": 0}, "line 2 has no text s1 in quotes"),
        ({"s1": "a", "s2": 3, "label": 0}, "line 2 has no text s1 in quotes, or an s2 that is not a text"),
        ({"s1": "a"}, "line 2 has no label"),
        ({"s1": "a", "label": True}, "line 2 has no label"),
        ({"s1": "a", "label": "yes"}, "some labels are names and some are numbers"),
        ({"s1": "a", "label": -1}, "label -1 is out of range"),
        ({"s1": "a", "label": 10**30}, "a label is too large for 64 bits"),
        ([1], "line 2 does not hold a record"),
    ],
)
def test_a_record_that_is_no_labelled_text_is_refused_in_one_line(tmp_path: Path, record: object, said: str) -> None:
    path = write(tmp_path / "a.jsonl", {"s1": "a", "label": 0}, record)
    with pytest.raises(InputError) as caught:
        sentences(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_test_rows_must_have_the_training_rows_labels(tmp_path: Path) -> None:
    named = write(tmp_path / "named.jsonl", {"s1": "a", "label": "no"}, {"s1": "a", "label": "yes"})
    whole = write(tmp_path / "whole.jsonl", {"s1": "a", "label": 0}, {"s1": "a", "label": 1})
    other = write(tmp_path / "other.jsonl", {"s1": "a", "label": 0.5})
    for train in (named, whole):
        with pytest.raises(InputError, match=r"label 0\.5 is not a class of the training rows"):
            sentences(train, test_path=str(other))
    empty = write(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="no records in it"):
        sentences(whole, test_path=str(empty))


def test_texts_are_cut_once_and_again_when_a_file_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"s1": "a", "label": 0}, {"s1": "b", "label": 1})
    first = sentences(path)
    assert sentences(path, clients=3) is first
    assert sentences(path, length=9) is not first
    write(path, {"s1": "a b c", "label": 0}, {"s1": "b", "label": 1})
    assert sentences(path).tokens == first.tokens + 1
    write(path, {"s1": "a b d", "label": 1}, {"s1": "b", "label": 0})  # as long as before
    os.utime(path, (1, 1))
    assert sentences(path).train.column("y").tolist() == [1, 0]


def test_a_batch_is_as_long_as_its_longest_row() -> None:
    x = torch.tensor([[2, 5, 0, 0], [2, 5, 5, 0]])
    batch = TrimPadding(0)({"x": x, "y": torch.tensor([[1, 1, -100, -100], [1, 1, 1, -100]])})
    assert batch["x"].tolist() == [[2, 5, 0], [2, 5, 5]]
    assert batch["y"].tolist() == [[1, 1, -100], [1, 1, 1]]
    assert TrimPadding(0)({"x": x[:1], "y": torch.tensor([1])})["x"].tolist() == [[2, 5]]
    assert TrimPadding(0)({"x": x[:0], "y": torch.tensor([])})["x"].shape == (0, 4)


def test_a_words_tag_stands_at_its_first_piece(tmp_path: Path, folder: Path) -> None:
    record = {"tokens": ["unaffable", "run", "\u200d", ","], "tags": ["B-x", "I-x", "O", "O"]}
    path = write(tmp_path / "a.jsonl", record, {"tokens": [], "tags": []})
    source = tags(path, tokenizer=str(folder), length=9)
    row = [PIECES[token] for token in source.train.column("x").tolist()[0]]
    assert row == ["[CLS]", "un", "##aff", "##able", "run", "[UNK]", ",", "[SEP]", "[PAD]"]
    no = IGNORED
    assert source.train.column("y").tolist() == [[no, 1, no, no, 2, 0, 0, no, no]]
    assert (source.names, source.classes, source.tagged) == (("O", "B-x", "I-x"), 3, True)
    short = tags(path, tokenizer=str(folder), length=6)  # two words are left out
    assert [PIECES[token] for token in short.train.column("x").tolist()[0]] == [*row[:5], "[SEP]"]
    assert short.train.column("y").tolist() == [[no, 1, no, no, 2, no]]


def test_tags_of_several_files_are_numbered_together_and_each_client_owns_its_own(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", *[{"tokens": ["a", "b"], "tags": ["B-y", "O"]}] * 20)
    write(tmp_path / "two.jsonl", *[{"tokens": ["a", "b"], "tags": ["B-x", "I-x"]}] * 20)
    source = tags(tmp_path, length=5)
    assert source.names == ("O", "B-x", "I-x", "B-y", "I-y")
    federation = Federation(source, Data("tags", partition="user", test=0.2), 0)
    owned = {federation.shard(index).labels for index in range(federation.clients)}
    assert owned == {(0, 3), (1, 2)}
    assert all(len(federation.shard(index).test) == 4 for index in range(2))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"tokens": ["a"]}, "has no list of tags in quotes"),
        ({"tokens": "a", "tags": ["O"]}, "has no list of tokens in quotes"),
        ({"tokens": ["a", "b"], "tags": ["O"]}, "has 2 tokens and 1 tags"),
        ({"tokens": ["a"], "tags": ["E-x"]}, "has the tag 'E-x'; give O, or B- or I-"),
        ({"tokens": ["a"], "tags": ["B-"]}, "has the tag 'B-'"),
    ],
)
def test_a_record_that_is_no_tagged_sentence_is_refused_in_one_line(tmp_path: Path, record: object, said: str) -> None:
    path = write(tmp_path / "a.jsonl", record)
    with pytest.raises(InputError) as caught:
        tags(path)
    assert f"{path}: line 1 {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_tag_that_only_the_test_rows_have_is_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "a.jsonl", {"tokens": ["a"], "tags": ["B-x"]})
    test = write(tmp_path / "b.jsonl", {"tokens": ["a"], "tags": ["B-y"]})
    with pytest.raises(InputError, match="the tag 'B-y' is not a tag of the training rows: O, B-x, I-x"):
        tags(train, test_path=str(test))


@pytest.mark.parametrize(
    ("task", "rows", "test", "classes"),
    [("cola", 8551, 1043, 2), ("mrpc", 3668, 408, 2), ("rte", 2490, 277, 2), ("stsb", 5749, 1500, 0)],
)
def test_tasks_of_glue_have_their_rows_and_labels(task: str, rows: int, test: int, classes: int) -> None:
    home = real("glue")
    source = sentences(home / f"{task}.train.jsonl", test_path=str(home / f"{task}.dev.jsonl"), length=64)
    assert source.test is not None
    assert (len(source.train), len(source.test), source.classes) == (rows, test, classes)
    batch = source.train[slice(0, 8)]
    assert batch["x"].shape[0] == 8
    assert 1 < batch["x"].shape[1] <= 64


def test_a_real_corpus_of_drugs_and_harms_has_its_entities() -> None:
    home = real("ner")
    source = tags(home / "ade.train.jsonl", test_path=str(home / "ade.test.jsonl"), length=128)
    assert source.names == ("O", "B-AE", "I-AE", "B-DOSE", "I-DOSE", "B-DRUG", "I-DRUG")
    lines = (home / "ade.train.jsonl").read_text("utf-8").splitlines()
    begun = sum(tag == "B-DRUG" for line in lines for tag in json.loads(line)["tags"])
    assert int((source.train.column("y") == source.names.index("B-DRUG")).sum()) == begun > 1000
