"""An exported folder's program reads files as the training data was read."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from potluck.core import InputError
from potluck.data import Data, load
from potluck.data.source import resize_images
from potluck.data.subwords import subword_tokenizer
from potluck.data.tokenizer import plain_tokenizer
from potluck.models import load as load_net
from potluck.run import export, run
from potluck.shipping import predict
from potluck.shipping.bundle import ModelCard, requirements
from potluck.shipping.standalone import ModelError, Reader, ShippedModel, TextEncoder, pieces_of, resized

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("sides", [[9, 7], [4, 3], [12, 20], [6, 5]])
def test_pictures_are_resized_as_in_training_but_for_ties(sides):
    """A mean that lies between two bytes may be rounded the other way; in random pictures one in some hundred is."""
    planes = RNG.integers(0, 256, (3, 6, 5), dtype=np.uint8)
    found, wanted = resized(planes, sides), resize_images(planes[None], (3, *sides), "it")[0]
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert np.mean(found != wanted) < 0.03


def reader(source, place):
    """The reader of a folder whose model was trained on this source."""
    card = ModelCard("", "", 1, "", "classify", source.classes, source.shape, kind=source.form.kind, dtype="int64")
    card = replace(card, columns=source.form.columns, tokenizer=source.form.tokenizer)
    (place / "tokenizer.json").write_text(json.dumps(source.form.tokenizer))
    return Reader(card.plain()["input"], place)


def lines(path, *records):
    path.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
    return path


def test_texts_and_pairs_become_the_rows_that_training_saw(tmp_path):
    one = lines(tmp_path / "a.jsonl", *({"s1": f"Don't feed {n} owls, ever", "label": n % 2} for n in range(5)))
    source = load(Data("sentences", str(one), length=7))
    assert np.array_equal(reader(source, tmp_path).read(one).x, source.train.column("x"))
    (tmp_path / "a.txt").write_text("Don't feed 0 owls, ever\n")
    assert np.array_equal(reader(source, tmp_path).read(tmp_path / "a.txt").x, source.train.column("x")[:1])
    two = [{"s1": "a b c d e f g", "s2": "h", "label": 0}, {"s1": "a", "s2": "b c d e f g h", "label": 1}]
    pairs = lines(tmp_path / "b.jsonl", *two)
    source = load(Data("sentences", str(pairs), length=8))
    assert np.array_equal(reader(source, tmp_path).read(pairs).x, source.train.column("x"))


def test_texts_of_a_table_are_found_by_the_name_of_their_column(tmp_path):
    frame = pd.DataFrame({"note": ['a "quoted"\nnote, long', "b", "c c"], "label": ["x", "y", "x"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    source = load(Data("table", str(tmp_path / "t.csv"), text_column="note", length=9))
    assert np.array_equal(reader(source, tmp_path).read(tmp_path / "t.csv").x, source.train.column("x"))


def parquet(place, **columns):
    pytest.importorskip("pyarrow", reason="needs the package pyarrow")
    pd.DataFrame(columns).to_parquet(place / "t.parquet")
    return place / "t.parquet"


def test_texts_of_a_parquet_file_become_the_rows_that_training_saw(tmp_path):
    path = parquet(tmp_path, note=["a b", "b", "c c"], label=["x", "y", "x"])
    source = load(Data("table", str(path), text_column="note", length=9))
    assert np.array_equal(reader(source, tmp_path).read(path).x, source.train.column("x"))


def table_reader(place):
    return Reader({"kind": "table", "columns": ["age", "smokes"], "dtype": "float32", "shape": [2]}, place)


def test_a_parquet_file_gives_the_rows_of_the_same_table_as_csv(tmp_path):
    path = parquet(tmp_path, smokes=[True, False], other=["x", "y"], age=[41, 7.5])
    pd.read_parquet(path).to_csv(tmp_path / "t.csv", index=False)
    found = table_reader(tmp_path).read(path).x
    assert found.tolist() == [[41.0, 1.0], [7.5, 0.0]]
    assert np.array_equal(found, table_reader(tmp_path).read(tmp_path / "t.csv").x)


def test_a_parquet_file_that_does_not_fit_is_refused_in_one_line(tmp_path, monkeypatch):
    with pytest.raises(ModelError, match=r"row 1 holds None, which is not a number"):
        table_reader(tmp_path).read(parquet(tmp_path, age=pd.array([1, None], "Int64"), smokes=[True, True]))
    with pytest.raises(ModelError, match=r"there is no column 'smokes'; this model reads age, smokes"):
        table_reader(tmp_path).read(parquet(tmp_path, age=[1.0]))
    (tmp_path / "t.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(ModelError, match=r"t\.parquet cannot be read as Parquet \("):
        table_reader(tmp_path).read(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModelError, match=r"Parquet files are read by pyarrow: pip install pyarrow$"):
        table_reader(tmp_path).read(tmp_path / "t.parquet")


def test_the_requirements_name_pyarrow_where_a_table_may_be_parquet():
    card = ModelCard("", "", 1, "", "classify", 2, (2,), kind="table")
    assert requirements(card, "pt2")[-1] == "# pyarrow, for .parquet files"
    assert not any("pyarrow" in line for line in requirements(replace(card, kind="picture"), "pt2"))


def test_words_to_tag_become_the_rows_that_training_saw_with_the_place_of_each(tmp_path):
    tagged = lines(
        tmp_path / "a.jsonl",
        {"tokens": ["Anna", "lives-in", "York"], "tags": ["B-P", "O", "B-L"]},
        {"tokens": list("abcdefgh"), "tags": ["O"] * 8},
    )
    source = load(Data("tags", str(tagged), length=7))
    found = reader(source, tmp_path).read(tagged)
    assert np.array_equal(found.x, source.train.column("x"))
    assert found.words[0] == [("Anna", 1), ("lives-in", 2), ("York", 5)]
    assert found.words[1] == list(zip("abcde", range(1, 6), strict=True))


def test_a_text_to_go_on_with_ends_at_its_last_token(tmp_path):
    read = lines(tmp_path / "a.jsonl", {"user": "Ann", "lines": ["To be, or not", "to be."]})
    source = load(Data("text", str(read), length=5))
    ask = lines(tmp_path / "b.jsonl", {"lines": ["to be"]}, {"lines": ["to be , or", "not zebra"]})
    found = reader(source, tmp_path).read(ask)
    names = source.names
    assert [[names[token] for token in row] for row in found.x.tolist()] == [
        ["<end>", "to", "be", "<pad>", "<pad>"],
        [",", "or", "<end>", "not", "<unknown>"],
    ]
    assert found.ends == [2, 4]


PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "run",
    "##n",
    "cafe",
    ",",
    "!",
    "'",
    "s",
    "\u4e2d",
]
TEXTS = [
    "Unaffable runn, CAF\u00c9!",
    "run's\t\u4e2d run\u00a0unaffableX",
    "",
    "un" * 60,
    "\ufffdru\x00n",
    "run \ud800, [SEP]",
]


def test_word_pieces_are_cut_as_in_training(tmp_path):
    pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    ours = subword_tokenizer(tmp_path)
    theirs = pieces_of(json.loads(json.dumps(plain_tokenizer(ours))))
    assert [theirs(text) for text in TEXTS] == [ours(text) for text in TEXTS]


def test_byte_pairs_are_cut_as_in_training(tmp_path):
    pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *"low1", "\u0120", "lo", "\u0120lo", "\u0120low", "ow", "'", "s", "'s"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: place for place, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nl o\n\u0120 lo\no w\n\u0120lo w\n' s\n", "utf-8")
    ours = subword_tokenizer(tmp_path)
    told = json.loads(json.dumps(plain_tokenizer(ours)))
    for text in ("low low", "ow's", "l1l  low", "lo\nlow", "lo\ud800"):
        assert TextEncoder(told, 12).cut(text) == ours(text)


@pytest.mark.slow
def test_a_model_of_texts_answers_about_texts_after_its_data_is_gone(tmp_path):
    records = [{"s1": f"the {kind} sat", "label": kind} for kind in ("cat", "dog") * 10]
    data = lines(tmp_path / "t.jsonl", *records)
    told = {
        "rounds": 1,
        "cohort": 2,
        "data": {"name": "sentences", "path": str(data), "clients": 2, "length": 6},
        "model": {"name": "bert", "hidden": 8, "ffn": 8, "heads": 2, "depth": 1, "positions": 6},
        "run": {"engine": "serial"},
    }
    run(told, tmp_path / "run")
    with_data = export(tmp_path / "run", tmp_path / "a", format="pt2")
    said = predict(tmp_path / "a", data)
    data.unlink()
    export(tmp_path / "run", tmp_path / "b", format="pt2")
    ask = lines(tmp_path / "ask.jsonl", *({"s1": each["s1"]} for each in records))
    assert predict(tmp_path / "b", ask) == said
    assert set(said[0]["probabilities"]) == {"cat", "dog"}
    assert (tmp_path / "a" / "model.json").read_bytes() == (tmp_path / "b" / "model.json").read_bytes()
    (tmp_path / "run" / "vocabulary.json").write_text("{}")
    assert export(tmp_path / "run", tmp_path / "c").arrays.keys() == with_data.arrays.keys()
    assert "vocabulary is not in the run folder" in (tmp_path / "c" / "README.md").read_text()
    with pytest.raises(InputError, match="vocabulary is not known; give rows of token ids"):
        predict(tmp_path / "c", ask)


def test_numbers_to_regress_on_are_predicted_from_a_table_without_a_heading(tmp_path):
    x = RNG.normal(size=(30, 3)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=x.sum(1))
    told = {"rounds": 1, "cohort": 2, "data": {"name": "npz", "path": str(tmp_path / "d.npz"), "clients": 2}}
    told |= {"model": {"name": "mlp", "hidden": 4, "depth": 1}, "run": {"engine": "serial"}}
    run(told, tmp_path / "run")
    export(tmp_path / "run", tmp_path / "model")
    net = load_net(tmp_path / "model")
    wanted = net(torch.from_numpy(x[:2])).detach().reshape(-1).tolist()
    np.savetxt(tmp_path / "x.csv", x[:2], delimiter=",")
    assert [each["value"] for each in predict(tmp_path / "model", tmp_path / "x.csv")] == pytest.approx(wanted)
    (tmp_path / "x.csv").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(InputError, match="give numbers alone"):
        predict(tmp_path / "model", tmp_path / "x.csv")


@pytest.mark.slow
def test_tags_and_next_tokens_are_told_by_name(tmp_path):
    tagged = lines(tmp_path / "t.jsonl", *({"tokens": ["Ann", "ran"], "tags": ["B-P", "O"]} for _ in range(12)))
    bert = {"name": "bert", "hidden": 8, "ffn": 8, "heads": 2, "depth": 1, "positions": 5, "output": "tokens"}
    plain = {"rounds": 1, "cohort": 2, "run": {"engine": "serial"}}
    data = {"name": "tags", "path": str(tagged), "clients": 2, "length": 5}
    run({**plain, "data": data, "model": bert}, tmp_path / "tags")
    export(tmp_path / "tags", tmp_path / "tagger", format="pt2")
    (said,) = predict(tmp_path / "tagger", lines(tmp_path / "ask.jsonl", {"tokens": ["Ben", "ran"]}))
    assert [word for word, _ in said["tags"]] == ["Ben", "ran"]
    assert {tag for _, tag in said["tags"]} <= {"O", "B-P", "I-P"}
    spoken = lines(tmp_path / "s.jsonl", *({"user": f"u{n}", "lines": ["to be or not"]} for n in range(12)))
    small = {"name": "transformer", "hidden": 8, "ffn": 8, "heads": 2, "depth": 1}
    data = {"name": "text", "path": str(spoken), "clients": 2, "length": 5}
    run({**plain, "data": data, "model": small}, tmp_path / "stream")
    export(tmp_path / "stream", tmp_path / "writer", format="pt2")
    (tmp_path / "ask.txt").write_text("to be\n")
    (said,) = predict(tmp_path / "writer", tmp_path / "ask.txt")
    assert set(said["probabilities"]) == {"<pad>", "<unknown>", "<end>", "to", "be", "or", "not"}
    net, known = load_exported_net(tmp_path), {"to": 6, "be": 3}
    ids = torch.tensor([[2, known["to"], known["be"], 0, 0]])
    assert max(said["probabilities"].values()) == pytest.approx(
        float(net(ids)[0, 2].detach().softmax(0).max()), abs=1e-5
    )


def load_exported_net(place):
    """The network of the run under ``stream``, through the other format."""
    export(place / "stream", place / "writer weights")
    return load_net(place / "writer weights")


@pytest.fixture(scope="module")
def bytes_model(tmp_path_factory):
    """A folder whose model reads grey pictures of 6 x 5."""
    place = tmp_path_factory.mktemp("bytes")
    np.savez(place / "d.npz", x=RNG.integers(0, 256, (40, 1, 6, 5), dtype=np.uint8), y=np.arange(40) % 2)
    told = {"rounds": 1, "cohort": 2, "data": {"name": "npz", "path": str(place / "d.npz"), "clients": 2}}
    told |= {"model": {"name": "mlp", "hidden": 4, "depth": 1}, "run": {"engine": "serial"}}
    run(told, place / "run")
    export(place / "run", place / "model", format="pt2")
    return place / "model"


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.zeros((2, 1, 5, 6), np.uint8), r"rows have the shape \[1, 5, 6\], and this model reads \[1, 6, 5\]"),
        (np.zeros((2, 1, 6, 5), np.float32), "rows hold float32, and this model reads bytes from 0 to 255"),
        (np.full((2, 1, 6, 5), 300), "rows hold int64, and this model reads bytes"),
        (np.full((2, 1, 6, 5), "a"), "rows hold <U1; give numbers"),
    ],
)
def test_rows_that_are_not_the_models_are_refused(x, said, bytes_model):
    with pytest.raises(InputError, match=said):
        predict(bytes_model, x)


def test_rows_may_be_flat_or_have_their_channels_last_and_pictures_any_size(bytes_model, tmp_path):
    x = RNG.integers(0, 256, (3, 1, 6, 5), dtype=np.uint8)
    wanted = predict(bytes_model, x)
    assert predict(bytes_model, x.reshape(3, 30)) == wanted
    assert predict(bytes_model, x.transpose(0, 2, 3, 1)) == wanted
    Image.fromarray(x[0, 0]).save(tmp_path / "1.png")
    (alone,) = predict(bytes_model, tmp_path / "1.png")
    assert alone["class"] == wanted[0]["class"]
    # One row is summed in another order than three.
    assert alone["probabilities"] == pytest.approx(wanted[0]["probabilities"], abs=1e-6)
    Image.fromarray(np.full((20, 20), 7, np.uint8)).save(tmp_path / "2.png")
    assert predict(bytes_model, tmp_path / "2.png") == predict(bytes_model, np.full((1, 1, 6, 5), 7, np.uint8))


def test_pictures_of_other_depths_are_read_or_refused_as_in_training(bytes_model, tmp_path):
    deep = RNG.integers(0, 1 << 16, (6, 5), dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / "1.png")
    assert predict(bytes_model, tmp_path / "1.png") == predict(bytes_model, (deep >> 8).astype(np.uint8)[None, None])
    for name, dtype in (("I", np.int32), ("F", np.float32)):
        Image.fromarray(deep.astype(dtype)).save(tmp_path / f"{name}.tif")
        with pytest.raises(ModelError, match=f"a picture of mode {name}; save it with 8 or 16 bits"):
            list(ShippedModel(bytes_model).predict(tmp_path / f"{name}.tif"))


def test_files_that_cannot_be_read_are_named(bytes_model, tmp_path):
    (tmp_path / "a.png").write_bytes(b"nothing")
    (tmp_path / "a.doc").write_text("nothing")
    (tmp_path / "a.npy").write_bytes(b"nothing")
    for name, said in (
        ("a.png", "not a picture that can be read"),
        ("a.doc", "this model reads rows of numbers, .npy and .npz"),
        ("a.npy", "no array x can be read"),
        ("b.npy", "does not exist"),
    ):
        with pytest.raises(ModelError, match=said):
            list(ShippedModel(bytes_model).predict(tmp_path / name))


def test_a_missing_library_is_told_in_one_line(bytes_model, tmp_path, monkeypatch):
    Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / "1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"this needs pillow: pip install -r requirements\.txt"):
        predict(bytes_model, tmp_path / "1.png")
    assert "pillow" in (bytes_model / "requirements.txt").read_text().split()


@pytest.mark.slow
def test_the_program_prints_lines_or_json_and_one_line_for_a_mistake(bytes_model, tmp_path):
    def ran(*arguments):
        command = [sys.executable, "-I", str(bytes_model / "predict.py"), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        return done.returncode, done.stdout, done.stderr

    np.save(tmp_path / "x.npy", np.zeros((1, 1, 6, 5), np.uint8))
    (wanted,) = predict(bytes_model, np.zeros((1, 1, 6, 5), np.uint8))
    (name, value), *_ = wanted["probabilities"].items()
    assert ran("x.npy", "--top", 1) == (0, f"0: {name} {value:.4f}\n", "")
    assert json.loads(ran("x.npy", "--json")[1]) == {"row": "0", **wanted}
    assert ran("y.npy") == (3, "", "error: y.npy does not exist.\n")
