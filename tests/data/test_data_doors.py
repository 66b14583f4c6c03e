"""Data comes in by the doors people have: pictures in folders, tables, torch data sets, Hugging Face's, arrays."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from potluck.core import InputError, ResourceError
from potluck.data import (
    Data,
    Federation,
    from_arrays,
    from_dataset,
    from_frame,
    from_hub,
    load,
)
from potluck.data import stored as stored_rows
from potluck.run import export, resume, run

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (24, 6, 5, 3), dtype=np.uint8)
LABELS = ["cat", "dog", "owl"] * 8
PEOPLE = ["ann", "ben"] * 12


def settings(**data):
    return {
        "name": "door",
        "rounds": 2,
        "cohort": 2,
        "data": {"clients": 3, "test": 0.25, "validation": 0.0, **data},
        "model": {"name": "mlp", "hidden": 4, "depth": 1},
        "local": {"epochs": 1, "batch": 4},
        "score": {"clients": 2},
        "run": {"engine": "serial"},
    }


def inputs(source):
    return source.train.column("x")


@pytest.fixture
def folder(tmp_path):
    """Pictures by user and class; the number of each is its row, so that order by name is order by row in a class."""
    for row, (pixels, label, person) in enumerate(zip(PIXELS, LABELS, PEOPLE, strict=True)):
        path = tmp_path / "pictures" / person / label
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path / f"{row:02}.png")
    return tmp_path / "pictures"


def test_pictures_are_read_with_their_classes_and_users(folder):
    found = load(Data("pictures", str(folder), folders="user/class"))
    order = sorted(range(24), key=lambda row: (PEOPLE[row], LABELS[row], row))
    assert found.names == ("cat", "dog", "owl")
    assert found.shape == (3, 6, 5)
    assert torch.equal(inputs(found), torch.from_numpy(PIXELS[order].transpose(0, 3, 1, 2)))
    assert found.train.column("y").tolist() == [found.names.index(LABELS[row]) for row in order]
    assert found.users.tolist() == [int(PEOPLE[row] == "ben") for row in order]
    assert found.train[slice(0, 1)]["x"].max() <= 1


def test_pictures_by_class_have_no_users_and_may_have_test_pictures(folder):
    found = load(Data("pictures", str(folder / "ann")))
    assert (len(found.train), found.users, found.test) == (12, None, None)
    (folder / "ann").rename(folder / "train")
    (folder / "ben").rename(folder / "test")
    split = load(Data("pictures", str(folder)))
    assert (len(split.train), len(split.test)) == (12, 12)


def test_pictures_larger_than_the_memory_are_read_when_a_batch_needs_them(folder, monkeypatch):
    whole = load(Data("pictures", str(folder), folders="user/class"))
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 100)
    stored = load(Data("pictures", str(folder), folders="user/class"))
    assert not isinstance(stored.train.columns["x"], torch.Tensor)
    rows = torch.tensor([5, 0, 23])
    assert torch.equal(stored.train[rows]["x"], whole.train[rows]["x"])


def test_pictures_of_several_sizes_need_a_size(folder):
    Image.fromarray(PIXELS[0][:4]).convert("L").save(folder / "ann" / "cat" / "zz.png")
    with pytest.raises(InputError, match=r"zz\.png: 4 x 5 pixels, and .* has 6 x 5; set data\.size"):
        load(Data("pictures", str(folder), folders="user/class"))
    found = load(Data("pictures", str(folder), folders="user/class", size=(3, 8, 8)))
    assert found.shape == (3, 8, 8)
    assert len(found.train) == 25


def test_grey_pictures_have_one_channel(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.fromarray(PIXELS[0]).convert("L").save(tmp_path / label / "1.png")
    assert load(Data("pictures", str(tmp_path))).shape == (1, 6, 5)


def test_what_is_no_picture_or_lies_elsewhere_is_told(folder, tmp_path):
    (folder / "ann" / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    with pytest.raises(InputError, match=r"broken\.png: not a picture that can be read"):
        load(Data("pictures", str(folder), folders="user/class"))
    with pytest.raises(InputError, match=r'other folders than data\.folders says; set data\.folders = "user/class"'):
        load(Data("pictures", str(folder)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no pictures"):
        load(Data("pictures", str(tmp_path / "empty")))


TABLE = pd.DataFrame(
    {
        "age": np.arange(24) / 24,
        "pulse": RNG.normal(size=24),
        "diagnosis": LABELS,
        "patient": PEOPLE,
    }
)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_table_is_read_by_the_names_of_its_columns(tmp_path, ending):
    TABLE.to_csv(tmp_path / f"t{ending}", index=False, sep="\t" if ending == ".tsv" else ",")
    told = Data("table", str(tmp_path / f"t{ending}"), label_column="diagnosis", user_column="patient")
    found = load(told)
    assert found.names == ("cat", "dog", "owl")
    assert found.shape == (2,)
    assert np.array_equal(inputs(found).numpy(), TABLE[["age", "pulse"]].to_numpy(np.float32))
    assert found.users.tolist() == [int(name == "ben") for name in PEOPLE]


def test_a_frame_gives_what_its_file_gives(tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    path = str(tmp_path / "t.csv")
    read = load(Data("table", path, label_column="diagnosis", user_column="patient"))
    made = from_frame(pd.read_csv(path), "diagnosis", "patient")
    assert made.fingerprint == read.fingerprint


def test_numbers_with_fractions_are_regressed_on_and_columns_can_be_chosen():
    found = from_frame(TABLE, "pulse", features=["age"])
    assert (found.classes, found.shape, found.users) == (0, (1,), None)


def test_texts_of_a_table_are_tokenised_as_those_of_jsonl_files(tmp_path):
    texts = [f"the {label} sat" for label in LABELS]
    frame = pd.DataFrame({"note": texts, "label": LABELS, "user": PEOPLE})
    found = from_frame(frame, text="note", length=6)
    lines = [json.dumps({"s1": t, "label": y, "user": u}) for t, y, u in zip(texts, LABELS, PEOPLE, strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    other = load(Data("sentences", str(tmp_path / "t.jsonl"), length=6))
    assert found.fingerprint == other.fingerprint
    assert found.names == other.names == ("cat", "dog", "owl")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label": "diagnosi"}, r"there is no column 'diagnosi' \(data\.label_column\); did you mean 'diagnosis'"),
        ({"label": "diagnosis"}, r"column 'patient' holds texts, and inputs are numbers"),
        ({"label": "diagnosis", "features": ["age", "wait"]}, r"there is no column 'wait'"),
        ({"label": "diagnosis", "user": "nobody"}, r"there is no column 'nobody' \(data\.user_column\)"),
    ],
)
def test_columns_that_do_not_fit_are_named(changes, said):
    with pytest.raises(InputError, match=said):
        from_frame(TABLE, **changes)


@pytest.mark.parametrize(("ending", "reader"), [("csv", "from_csv"), ("tsv", "from_csv"), ("parquet", "from_parquet")])
def test_a_table_larger_than_the_memory_is_refused_with_what_to_do(ending, reader, tmp_path, monkeypatch):
    path = tmp_path / f"t.{ending}"
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="needs the package pyarrow")
        pd.DataFrame({"a": np.zeros(5000), "label": np.zeros(5000, int)}).to_parquet(path)
        assert path.stat().st_size < 10_000, "small on disk, large in memory"
    else:
        rows = "a,label\n" + "0.0,0\n" * 5000
        path.write_text(rows.replace(",", "\t") if ending == "tsv" else rows)
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 29_999)
    with pytest.raises(ResourceError, match=rf"{reader}\(.*\)\.save_to_disk.*name = .huggingface.") as caught:
        load(Data("table", str(path)))
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 100_000)
    assert len(load(Data("table", str(path))).train) == 5000


@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
def test_numbers_of_a_large_data_set_are_read_when_a_batch_needs_them(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    frame = TABLE.assign(smokes=[True, False] * 12)
    datasets.Dataset.from_pandas(frame).save_to_disk(tmp_path / "hf")
    columns = {"label_column": "diagnosis", "user_column": "patient", "scale": "standard"}
    asked = Data("huggingface", str(tmp_path / "hf"), **columns)
    whole = load(asked)
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 10)
    found = load(asked)
    assert not isinstance(found.train.columns["x"], torch.Tensor)
    rows = torch.tensor([5, 0, 23])
    assert torch.equal(found.train[rows]["x"], whole.train[rows]["x"])
    assert (found.form, found.names, found.users.tolist()) == (whole.form, whole.names, whole.users.tolist())
    assert found.train.prepare == whole.train.prepare
    assert found.fingerprint == load(asked).fingerprint
    few = load(replace(asked, feature_columns=("smokes", "age")))
    assert few.train[rows]["x"].shape == (3, 2)
    with pytest.raises(InputError, match="column 'patient' holds texts, and inputs are numbers"):
        load(replace(asked, feature_columns=("patient",)))
    with pytest.raises(InputError, match=r"there is no column 'ages'.*did you mean 'age'"):
        load(replace(asked, feature_columns=("ages",)))


@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
def test_a_gap_in_a_large_data_set_is_told_when_its_row_is_read(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 10)
    made = datasets.Dataset.from_dict({"age": [1, 2, None, 4], "label": [0, 1, 0, 1]})
    found = from_hub(made, name="ages")
    assert found.train[torch.tensor([0, 3])]["x"].tolist() == [[1.0], [4.0]]
    with pytest.raises(InputError, match="ages holds NaN or infinity, first in row 2"):
        found.train[torch.tensor([3, 2])]


def test_a_gap_in_a_column_is_named_with_its_row():
    frame = TABLE.copy()
    frame.loc[7, "age"] = np.nan
    with pytest.raises(InputError, match="column 'age' has no value in row 7"):
        from_frame(frame, "diagnosis", "patient")


class Walks(Dataset):
    classes = ("cat", "dog", "owl")

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_a_torch_data_set_is_read_by_its_items(monkeypatch):
    x, y = torch.randn(24, 3), torch.arange(24) % 3
    found = from_dataset(TensorDataset(x, y), name="walks")
    assert torch.equal(inputs(found), x)
    assert found.train.column("y").tolist() == y.tolist()
    named = from_dataset(Walks([{"x": row, "y": LABELS[n], "user": PEOPLE[n]} for n, row in enumerate(x.numpy())]))
    assert (named.names, named.users.tolist()[:3]) == (("cat", "dog", "owl"), [0, 1, 0])
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 10)
    stored = from_dataset(TensorDataset(x, y))
    assert not isinstance(stored.train.columns["x"], torch.Tensor)
    assert torch.equal(inputs(stored), x)


def test_a_data_set_without_a_length_is_refused_and_not_read_for_ever():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.zeros(3), 0

    with pytest.raises(InputError, match="Endless has no length"):
        from_dataset(Endless())
    with pytest.raises(InputError, match="item 1 is float32 of"):
        from_dataset(Walks([(np.zeros(3, np.float32), 0), (np.zeros(4, np.float32), 1)]))
    with pytest.raises(InputError, match=r"item 0 is 5; give \(x, y\)"):
        from_dataset(Walks([5, 6]))


def test_channels_last_is_refused_or_turned_round():
    y = [0, 1] * 12
    with pytest.raises(InputError, match=r"like pictures with their channels last; set data\.layout"):
        from_arrays(PIXELS, y)
    found = from_arrays(PIXELS, y, layout="channels_last")
    assert found.shape == (3, 6, 5)
    assert torch.equal(inputs(found), torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()))
    assert from_arrays(PIXELS, y, layout="channels_first").shape == (6, 5, 3)


def test_labels_and_users_of_arrays_may_be_texts():
    found = from_arrays(PIXELS, LABELS, np.array(PEOPLE, object), layout="channels_last")
    assert found.names == ("cat", "dog", "owl")
    assert found.train.column("y").tolist() == [0, 1, 2] * 8
    frame = from_arrays(TABLE[["age", "pulse"]].to_numpy(), TABLE["diagnosis"], TABLE["patient"])
    assert frame.users.tolist() == [0, 1] * 12


@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
def test_a_folder_of_hugging_face_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
            "user": datasets.Value("string"),
        }
    )
    rows = {"image": [Image.fromarray(each) for each in PIXELS], "label": LABELS, "user": PEOPLE}
    made = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": made, "test": made.select(range(6))}).save_to_disk(tmp_path / "hf")
    found = load(Data("huggingface", str(tmp_path / "hf")))
    assert (found.names, found.shape, len(found.test)) == (("cat", "dog", "owl"), (3, 6, 5), 6)
    assert torch.equal(inputs(found), torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()))
    assert found.users.tolist() == [0, 1] * 12
    texts = datasets.Dataset.from_dict({"text": [f"a {label}" for label in LABELS], "label": LABELS})
    assert from_hub(texts, text="text", length=5).names == ("cat", "dog", "owl")
    numbers = from_hub(datasets.Dataset.from_pandas(TABLE), "diagnosis", "patient")
    assert numbers.fingerprint == from_frame(TABLE, "diagnosis", "patient").fingerprint


def test_a_missing_library_is_named_with_its_extra(monkeypatch, tmp_path, folder):
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[hub\]'"):
        load(Data("huggingface", str(tmp_path)))
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[pictures\]'"):
        load(Data("pictures", str(folder), folders="user/class"))
    (tmp_path / "t.csv").write_text("a,label\n1,0\n")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[frames\]'"):
        load(Data("table", str(tmp_path / "t.csv")))


def test_a_run_on_pictures_is_resumed_and_exported_by_its_settings_alone(folder, tmp_path):
    told = settings(name="pictures", path=str(folder), folders="user/class", partition="user")
    whole = run(told, tmp_path / "whole")
    run({**told, "rounds": 1}, tmp_path / "part")
    again = resume(tmp_path / "part", rounds=2)
    assert again.weights_sha256 == whole.weights_sha256
    model = export(tmp_path / "whole", tmp_path / "model")
    assert model.spec.options["classes"] == 3
    assert tuple(model.spec.options["input"]) == (3, 6, 5)


def test_a_run_on_a_frame_asks_for_the_same_frame_when_it_goes_on(tmp_path):
    source = from_frame(TABLE, "diagnosis", "patient", name="clinic")
    whole = run(settings(), tmp_path / "whole", source=source)
    run({**settings(), "rounds": 1}, tmp_path / "part", source=source)
    with pytest.raises(InputError, match="ran on data of your own"):
        resume(tmp_path / "part", rounds=2)
    other = from_frame(TABLE.iloc[::-1], "diagnosis", "patient", name="clinic")
    with pytest.raises(InputError, match="is not the data of this run"):
        resume(tmp_path / "part", rounds=2, source=other)
    assert resume(tmp_path / "part", rounds=2, source=source).weights_sha256 == whole.weights_sha256
    manifest = json.loads((tmp_path / "whole" / "manifest.json").read_text())
    assert manifest["data"]["name"] == "clinic"
    assert "digits" not in (tmp_path / "whole" / "settings.toml").read_text().split("[data]")[1].split("[")[0]


def test_every_door_divides_its_rows_among_clients():
    source = from_frame(TABLE, "diagnosis", "patient")
    federation = Federation(source, Data(clients=2, partition="user", test=0.25, validation=0.0), 0)
    held = [len(federation.shard(index).train) for index in range(federation.clients)]
    assert sum(held) == 18


def hub_rows(**columns):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    kinds = {"label": datasets.ClassLabel(names=["no", "yes"]), "image": datasets.Image()}
    made = datasets.Dataset.from_dict(columns)
    features = {name: kinds.get(name, kind) for name, kind in made.features.items()}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.mark.parametrize(
    ("labels", "said"),
    [([0, 1, -1, 1], r"holds -1, which is no class"), ([0, 1, None, 1], "holds no value")],
)
def test_a_row_of_a_data_set_without_a_label_is_named(labels, said):
    rows = hub_rows(age=[1.0, 2.0, 3.0, 4.0], label=labels)
    with pytest.raises(InputError, match=rf"^quiz: row 2 has no label \(column 'label' {said}") as caught:
        from_hub(rows, name="quiz")
    assert "\n" not in str(caught.value)


def test_validation_rows_are_the_test_rows_if_labels_of_the_test_split_are_secret():
    train, secret = hub_rows(age=[1.0, 2.0], label=[0, 1]), hub_rows(age=[3.0, 4.0, 5.0], label=[-1, -1, -1])
    known = hub_rows(age=[6.0], label=[1])
    found = from_hub({"train": train, "test": secret, "validation": known})
    assert (found.test.column("x").tolist(), found.test.column("y").tolist()) == ([[6.0]], [1])
    assert from_hub({"train": train, "test": secret}).test is None
    half = hub_rows(age=[3.0, 4.0], label=[1, -1])
    with pytest.raises(InputError, match="test rows: row 1 has no label"):
        from_hub({"train": train, "test": half, "validation": known})


@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
def test_pictures_of_a_data_set_have_the_size_and_channels_of_all_rows():
    grey, colour = Image.fromarray(PIXELS[0]).convert("L"), Image.fromarray(PIXELS[1])
    found = from_hub(hub_rows(image=[grey, colour], label=[0, 1]))
    assert found.shape == (3, 6, 5)
    assert np.array_equal(inputs(found)[1], PIXELS[1].transpose(2, 0, 1))
    small = Image.fromarray(PIXELS[0][:4])
    with pytest.raises(InputError, match=r"picture 1: 4 x 5 pixels, and photos: picture 0 has 6 x 5; set data\.size"):
        from_hub(hub_rows(image=[colour, small], label=[0, 1]), name="photos")
    with pytest.raises(InputError, match=r"^photos: row 1 has no picture \(column 'image'\)"):
        from_hub(hub_rows(image=[colour, None], label=[0, 1]), name="photos")
    with pytest.raises(InputError, match=r"^photos: column 'user' has no value in row 1"):
        from_hub(hub_rows(image=[colour, colour], label=[0, 1], user=["ann", None]), name="photos")


def test_pictures_of_16_bits_keep_their_upper_eight(tmp_path):
    deep = np.array([[0, 255, 256], [32768, 65535, 12345]], np.uint16)
    for label in "ab":
        (tmp_path / label).mkdir()
        Image.fromarray(deep).save(tmp_path / label / "1.png")
    found = load(Data("pictures", str(tmp_path)))
    assert inputs(found)[0].tolist() == [[[0, 0, 1], [128, 255, 48]]]
    coloured = load(Data("pictures", str(tmp_path), size=(3, 2, 3)))
    assert inputs(coloured)[0].tolist() == [[[0, 0, 1], [128, 255, 48]]] * 3


@pytest.mark.parametrize(("dtype", "said"), [(np.float32, "floats .*mode F"), (np.int32, "32 bits .*mode I")])
@pytest.mark.parametrize("size", [(), (1, 2, 2)])
def test_pictures_whose_range_is_not_known_are_refused(dtype, said, size, tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.array([[0, 300], [7, 70000]], dtype)).save(tmp_path / "a" / "1.tif")
    with pytest.raises(InputError, match=rf"1\.tif: a picture of .*{said}"):
        load(Data("pictures", str(tmp_path), size=size))


def test_validation_pictures_are_the_test_pictures_if_there_are_no_others(folder):
    (folder / "ann").rename(folder / "train")
    (folder / "ben").rename(folder / "val")
    (folder / ".cache").mkdir()
    (folder / "train" / "cat" / "._00.png").write_bytes(b"not a picture")
    (folder / "train" / ".trash").mkdir()
    Image.fromarray(PIXELS[0]).save(folder / "train" / ".trash" / "1.png")
    found = load(Data("pictures", str(folder)))
    assert (len(found.train), len(found.test), found.names) == (12, 12, ("cat", "dog", "owl"))
    (folder / "test" / "owl").mkdir(parents=True)
    Image.fromarray(PIXELS[0]).save(folder / "test" / "owl" / "1.png")
    assert len(load(Data("pictures", str(folder))).test) == 1


@pytest.mark.parametrize("other", ["extra", None])
def test_a_folder_called_train_is_never_taken_for_a_user(folder, other):
    (folder / "ann").rename(folder / "train")
    if other:
        (folder / "ben").rename(folder / other)
    else:
        (folder / "ben").rename(folder.parent / "away")
    with pytest.raises(InputError, match=r"there is a folder 'train' of classes.*keep only 'train' and one of") as said:
        load(Data("pictures", str(folder)))
    assert "user" not in str(said.value)


def table_file(place, text, **settings):
    (place / "t.csv").write_text(text)
    return load(Data("table", str(place / "t.csv"), **settings))


def test_users_of_a_table_are_texts(tmp_path):
    found = table_file(tmp_path, "age,label,who\n1.5,a,007\n2.5,b,7\n3.5,a,007\n", user_column="who")
    assert found.users.tolist() == [0, 1, 0]
    assert table_file(tmp_path, "age,label,user\n1.5,a,01\n2.5,b,1\n").users.tolist() == [0, 1]


def test_a_column_without_a_name_is_refused_until_columns_are_chosen(tmp_path):
    text = ",age,label\n0,1.5,a\n1,2.5,b\n"
    with pytest.raises(InputError, match=r"column 0 has no name \('Unnamed: 0'\).*index=False.*data\.feature_columns"):
        table_file(tmp_path, text)
    assert table_file(tmp_path, text, feature_columns=("age",)).shape == (1,)
    rows = hub_rows(__index_level_0__=[0, 1], age=[1.5, 2.5], label=[0, 1])
    with pytest.raises(InputError, match=r"column 0 has no name \('__index_level_0__'\)"):
        from_hub(rows)


def test_whole_numbers_are_classes_however_they_are_written():
    x = [0.5, 1.5, 2.5, 3.5]
    whole = from_frame(pd.DataFrame({"x": x, "label": [0.0, 1.0, 2.0, 1.0]}))
    assert (whole.classes, whole.names, whole.train.column("y").tolist()) == (3, (), [0, 1, 2, 1])
    gap = from_frame(pd.DataFrame({"x": x, "label": [7, 3, 7, 10]}))
    assert (gap.classes, gap.names, gap.train.column("y").tolist()) == (3, ("3", "7", "10"), [1, 0, 1, 2])
    test = pd.DataFrame({"x": [1.0], "label": [2]})
    both = from_frame(pd.DataFrame({"x": x, "label": [0, 1, 3, 1]}), test=test)
    assert (both.classes, both.names, both.test.column("y").tolist()) == (4, (), [2])
    for numbers in ([0.5, 1.0, 2.0, 3.0], [-1.0, 1.0, 2.0, 3.0], [0.0, 1e12, 1.0, 2.0]):
        assert from_frame(pd.DataFrame({"x": x, "label": numbers})).classes == 0
    texts = from_frame(pd.DataFrame({"note": ["a", "b", "a b"], "label": [3.0, 7.0, 3.0]}), text="note")
    assert (texts.names, texts.train.column("y").tolist()) == (("3", "7"), [0, 1, 0])
    with pytest.raises(InputError, match="label -1 is out of range, first in row 2"):
        from_frame(pd.DataFrame({"x": x, "label": [0, 1, -1, 1]}))


def test_whole_numbers_that_are_many_are_quantities():
    prices = np.arange(1001) * 500 + 90_000
    frame = pd.DataFrame({"x": np.linspace(0, 1, 1001), "label": prices})
    with pytest.raises(InputError, match=r"^houses: the label has 1001 different whole numbers with gaps, from 90000 "):
        from_frame(frame, name="houses")
    assert from_frame(frame.astype({"label": float})).classes == 0
    assert from_frame(frame.assign(label=np.arange(1001.0) % 100)).classes == 100
    assert from_frame(frame.assign(label=np.arange(1001.0) % 101)).classes == 0


@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
def test_whole_numbers_with_a_gap_are_classes_of_a_large_data_set_too(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    monkeypatch.setattr(stored_rows, "IN_MEMORY", 1)
    found = from_hub(datasets.Dataset.from_dict({"age": [1.0, 2.0, 3.0], "label": [3, 7, 3]}))
    assert (found.names, found.train.column("y").tolist()) == (("3", "7"), [0, 1, 0])


@pytest.mark.parametrize("setting", [{"features": ["age", "label"]}, {"text": "label"}])
def test_a_label_is_not_learned_from_itself(setting):
    frame = pd.DataFrame({"age": [1.0, 2.0], "label": ["a", "b"]})
    with pytest.raises(InputError, match=r"column 'label' is the label \(data\.label_column\) and also in data\."):
        from_frame(frame, **setting)
    with pytest.raises(InputError, match=r"column 'label' is the label"):
        from_hub(hub_rows(age=[1.0, 2.0], label=[0, 1]), **setting)


def test_columns_may_have_numbers_for_names():
    found = from_frame(pd.DataFrame([[0.5, 1.5, "a"], [2.5, 3.5, "b"]]), label=2)
    assert (inputs(found).tolist(), found.form.columns) == ([[0.5, 1.5], [2.5, 3.5]], ("0", "1"))
    assert from_frame(pd.DataFrame([[0.5, 1.5, "a"], [2.5, 3.5, "b"]]), label=2, features=[1]).shape == (1,)


@pytest.mark.parametrize("shape", [(16, 16, 2), (16, 16, 5), (4, 4, 3), (28, 28, 1), (5, 32, 3)])
def test_few_channels_behind_the_sides_are_refused(shape):
    with pytest.raises(InputError, match="like pictures with their channels last"):
        from_arrays(np.zeros((4, *shape), np.float32), [0, 1, 0, 1])


@pytest.mark.parametrize("shape", [(3, 128, 1), (1, 16, 16), (2, 16, 5), (3, 4, 4), (9, 6, 6)])
def test_few_channels_before_the_sides_are_not(shape):
    assert from_arrays(np.zeros((4, *shape), np.float32), [0, 1, 0, 1]).shape == shape


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_a_memory_map_stays_in_its_file(dtype, tmp_path):
    x = RNG.integers(0, 256, (24, 6, 5, 3)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with pytest.raises(InputError, match="channels last"):
        from_arrays(mapped, [0, 1] * 12)
    found, whole = (from_arrays(each, [0, 1] * 12, layout="channels_last") for each in (mapped, x))
    assert not isinstance(found.train.columns["x"], torch.Tensor)
    rows = torch.tensor([5, 0, 23])
    assert torch.equal(found.train[rows]["x"], whole.train[rows]["x"])
    assert found.shape == (3, 6, 5)


def test_a_data_set_says_the_users_of_all_its_items_or_of_none():
    items = [(np.zeros(3, np.float32), 0, "ann"), (np.zeros(3, np.float32), 1, None)]
    with pytest.raises(InputError, match="Walks: item 1 has no user, and others have one"):
        from_dataset(Walks(items))


def test_a_length_that_fails_is_told_in_one_line():
    class Unsure(Walks):
        def __len__(self):
            raise RuntimeError("not\nknown")

    with pytest.raises(InputError, match=r"^Unsure: its __len__ fails \(RuntimeError: not.*known\)") as caught:
        from_dataset(Unsure([]))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Cannot (locate|pickle)")
def test_the_split_with_the_test_rows_and_a_subset_of_the_hub_can_be_named(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    splits = {
        name: hub_rows(age=[float(n), 9.0], label=[0, 1]) for n, name in enumerate(("train", "test", "mismatched"))
    }
    made = datasets.DatasetDict(splits)
    made.save_to_disk(tmp_path / "hf")
    path = str(tmp_path / "hf")
    found = load(Data("huggingface", path, test_split="mismatched"))
    assert found.test.column("x").tolist() == [[2.0], [9.0]]
    with pytest.raises(InputError, match=r"no split 'matched' \(data\.test_split\); there are train, test, mismatched"):
        load(Data("huggingface", path, test_split="matched"))
    with pytest.raises(InputError, match=r"a folder; data\.subset = 'sst2' is for data sets on the hub"):
        load(Data("huggingface", path, subset="sst2"))
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *names: asked.append(names) or made)
    load(Data("huggingface", "nyu/glue", subset="sst2"))
    load(Data("huggingface", "nyu/glue"))
    assert asked == [("nyu/glue", "sst2"), ("nyu/glue", None)]
