"""A node's own data: what is compared with the charter, and how it is split."""

import numpy as np
import pytest
from small_nodes import settings, write_digits

from potluck.core import InputError
from potluck.federation.charter import CharterError
from potluck.federation.node_data import compare_source, public_checksum, read_node_data, read_source, split
from potluck.federation.server import prepare
from potluck.run.settings import Nodes

IMAGES = Nodes(shape=(1, 8, 8), classes=10)
TEXTS = Nodes(shape=(6,), classes=3, tokens=50)


def source(tmp_path, x, y, **more):
    np.savez(tmp_path / "own.npz", x=x, y=y, **more)
    return read_source(tmp_path / "own.npz", settings().data)


def images(rows=20, side=8, dtype=np.float32):
    return np.zeros((rows, 1, side, side), dtype)


def compare(found, nodes):
    compare_source(found, nodes, "own.npz")


@pytest.mark.parametrize(
    ("x", "y", "nodes", "fault"),
    [
        (images(side=9), np.arange(20) % 10, IMAGES, "inputs of 1x9x9; the charter says 1x8x8"),
        (images(), np.arange(20) % 12, IMAGES, "a label 11; the charter has the classes 0 to 9"),
        (images(), np.linspace(0, 1, 20), IMAGES, "its labels are numbers to regress on; the charter says 10 classes"),
        (images(), np.arange(20) % 10, Nodes(shape=(1, 8, 8), classes=0), "labels are 10 classes; the charter says"),
        (images(dtype=np.int64), np.arange(20) % 10, IMAGES, "whole numbers, which count as tokens"),
        (np.zeros((9, 6), np.float32), np.arange(9) % 3, TEXTS, "inputs that are no tokens"),
        (np.full((9, 6), 50), np.arange(9) % 3, TEXTS, "a token 50; the charter has the tokens 0 to 49"),
        (np.full((9, 6), -1), np.arange(9) % 3, TEXTS, "a token -1"),
        (np.zeros((9, 6), np.int64), np.zeros((9, 6), np.int64), TEXTS, "a label for each token"),
        (np.zeros((9, 6), int), np.arange(9) % 3, Nodes(shape=(6,), classes=9, labels="tokens"), "label for each row"),
    ],
)  # fmt: skip
def test_data_that_is_not_what_the_charter_says_is_refused_by_name(tmp_path, x, y, nodes, fault):
    with pytest.raises(CharterError, match=fault):
        compare(source(tmp_path, x, y), nodes)


@pytest.mark.parametrize(
    ("x", "y", "nodes"),
    [
        (images(), np.arange(20) % 10, IMAGES),
        (images(), np.arange(20) % 4, IMAGES),  # it has not all classes
        (images(dtype=np.uint8), np.arange(20) % 10, IMAGES),
        (images(), np.linspace(0, 1, 20), Nodes(shape=(1, 8, 8), classes=0)),
        (np.arange(54).reshape(9, 6) % 50, np.arange(9) % 3, TEXTS),
        (np.zeros((9, 6), np.int64), np.full((9, 6), 7), Nodes(shape=(6,), classes=9, labels="tokens")),
        (np.zeros((9, 6), np.int64), np.full((9, 6), 2), Nodes(shape=(6,), classes=3, labels="tags", tokens=50)),
    ],
)
def test_data_that_is_what_the_charter_says_is_taken(tmp_path, x, y, nodes):
    compare(source(tmp_path, x, y), nodes)


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("cat", "dig"), "a class is called 'dig' where the charter has 'dog'"),
        (("cat",), "a class is called None where the charter has 'dog'"),
        (("cat", "dog", ""), "a class is called '' where the charter has None"),
    ],
)
def test_other_class_names_are_refused_and_equal_ones_taken(tmp_path, names, fault):
    told = Nodes(shape=(1, 8, 8), classes=3, names=("cat", "dog"))
    compare(source(tmp_path, images(), np.zeros(20, int), classes=np.array(["cat", "dog"])), told)
    with pytest.raises(CharterError, match=fault):
        compare(source(tmp_path, images(), np.zeros(20, int), classes=np.array(names)), told)


def test_rows_are_split_by_the_settings_and_small_splits_are_not_scored(tmp_path):
    found = source(tmp_path, images(100), np.arange(100) % 10)
    parts = split(found, settings(data={"test": 0.2, "validation": 0.1}, nodes={"floor": 15}))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (70, 0, 20)
    parts = split(found, settings(data={"test": 0.2, "validation": 0.1, "lean": 0.5}, nodes={"floor": 10}))
    assert len(parts.validation) == 10
    assert parts.labels == tuple(range(10))
    shared = {"partition": "flwr:PathologicalPartitioner", "flwr": {"num_classes_per_partition": 2}}
    for divided in (shared, {"quantity_skew": "power", "least": 80}):  # for simulated clients; a node has what it has
        parts = split(found, settings(data={"test": 0.2, "validation": 0.1, **divided}, nodes={"floor": 10}))
        assert len(parts.train) == 70


def test_a_files_own_test_rows_are_the_test_split(tmp_path):
    found = source(
        tmp_path, images(40), np.arange(40) % 10, x_test=np.ones((30, 1, 8, 8), np.float32), y_test=np.zeros(30, int)
    )
    parts = split(found, settings(data={"test": 0.2, "validation": 0.1}, nodes={"floor": 1}))
    assert len(parts.test) == 30
    assert parts.test[slice(0, 30)]["x"].min() == 1


def test_more_rows_than_the_charter_allows_are_refused(tmp_path):
    found = source(tmp_path, images(100), np.arange(100) % 10)
    with pytest.raises(CharterError, match="70 rows to train on; the charter allows 60"):
        split(found, settings(nodes={"most_samples": 60}))


def test_the_only_row_of_a_node_is_for_training(tmp_path):
    parts = split(source(tmp_path, images(1), np.zeros(1, int)), settings(data={"test": 0.5, "validation": 0.4}))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (1, 0, 0)


def test_names_of_classes_that_the_charter_does_not_have_are_refused(tmp_path):
    found = source(tmp_path, images(), np.zeros(20, int), classes=np.array(["dog", "cat"]))
    with pytest.raises(CharterError, match=r"its classes have names \(dog, \.\.\.\); the charter needs nodes\.names"):
        compare(found, IMAGES)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.npz: no such file"):
        read_source(tmp_path / "gone.npz", settings().data)


def test_public_rows_must_be_the_same_rows_at_every_node(tmp_path):
    files = write_digits(tmp_path, 1)
    told = {"shape": [1, 8, 8], "classes": 10, "public": str(tmp_path / "public.npz")}
    charter = prepare(settings(nodes=told), "test").charter
    found = read_node_data("a", files[0], tmp_path / "public.npz", charter)
    assert len(found.public) == 60
    with pytest.raises(CharterError, match="give this node's copy of them with --public"):
        read_node_data("a", files[0], None, charter)
    with pytest.raises(CharterError, match=f"checksum .*, not {charter.plain['public']}"):
        read_node_data("a", files[0], files[0], charter)
    assert charter.plain["public"] == public_checksum(read_source(tmp_path / "public.npz", settings().data))


def test_a_node_reads_no_public_rows_if_the_charter_has_none(tmp_path):
    files = write_digits(tmp_path, 1)
    charter = prepare(settings(), "test").charter
    assert len(read_node_data("a", files[0], tmp_path / "gone", charter).public) == 0
