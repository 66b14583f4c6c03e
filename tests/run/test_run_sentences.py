"""Runs on labelled texts, numbers and tags: learned, judged by their own score, told by it in tables and reports."""

import json
import random

import numpy as np
import pytest
from tiny_runs import scores, tiny

from potluck.cli.display import progress_text
from potluck.core import SettingsError
from potluck.data import from_arrays
from potluck.report import compare_table, read_record, run_table, write_report
from potluck.report.sentences import verdict
from potluck.report.summary import compare_rows
from potluck.run import assemble, run

GOOD, BAD, OTHER = ["fine", "lovely", "bright"], ["poor", "dull", "bleak"], ["the", "day", "is", "quite", "so"]


def moody(count, label):
    """Short texts of which one word tells the label, when asked how many good words there are."""
    dice = random.Random(count)
    for _ in range(count):
        good = dice.random() < 0.7
        words = [dice.choice(GOOD if good else BAD), *dice.choices(OTHER, k=dice.randint(0, 4))]
        dice.shuffle(words)
        yield {"s1": " ".join(words), **({"s2": dice.choice(OTHER)} if label is float else {}), "label": label(good)}


def written(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


BERT = {"name": "bert", "depth": 2, "hidden": 16, "ffn": 16, "heads": 2, "dropout": 0.0}


def texts(data, **changes):
    base = {
        "data": {"name": "sentences", "length": 8, "clients": 6, **data},
        "model": BERT,
        "method": {"name": "inclusivefl", "server": {"name": "replace"}},
        "local": {"optimiser": "adam", "lr": 0.01, "batch": 16, "epochs": 2},
        "cohort": 6,
        "rounds": 6,
    }
    return tiny(**{**base, **changes})


def test_a_task_is_learned_and_judged_by_matthews(tmp_path):
    path, test = (written(tmp_path / f"{count}.jsonl", moody(count, int)) for count in (300, 100))
    found = run(texts({"path": path, "test_path": test, "metric": "matthews"}), tmp_path / "run")
    last = scores(tmp_path / "run")[-1]
    assert last["metric"] == found.metric == found.plain()["metric"] == "matthews"
    assert last["global"]["test"]["count"] == 100
    assert found.score == last["global"]["test"]["matthews"] > 0.8
    assert found.accuracy == last["global"]["test"]["accuracy"] > 0.9
    clients = last["tiers"]["large"]["clients"]
    assert clients["mean"] > 0.5


def test_pool_and_serial_give_the_same_scores(tmp_path):
    path = written(tmp_path / "a.jsonl", moody(120, int))
    data = {"path": path, "metric": "f1"}
    one = run(texts(data, rounds=2), tmp_path / "serial")
    other = run(texts(data, rounds=2, run={"engine": "pool", "workers": 2}), tmp_path / "pool")
    assert one.weights_sha256 == other.weights_sha256
    assert scores(tmp_path / "serial") == scores(tmp_path / "pool")


def test_a_number_is_learned_from_pairs_judged_by_pearson_and_stopped_at(tmp_path):
    path = written(tmp_path / "a.jsonl", moody(300, float))
    wanted = texts({"path": path}, rounds=20, run={"engine": "serial", "stop_at": {"pearson": 0.7}})
    found = run(wanted, tmp_path / "run")
    assert 0 < found.rounds < 20
    last = scores(tmp_path / "run")[-1]
    assert last["global"]["validation"]["pearson"] >= 0.7
    assert set(last["global"]["test"]) == {"pearson", "loss", "count"}
    assert found.accuracy is None
    assert found.score == last["global"]["test"]["pearson"]


def entities(count, word, kind):
    """Sentences in which this word, and what follows it, is an entity."""
    dice = random.Random(count)
    for _ in range(count):
        before, after = (dice.choices(OTHER, k=dice.randint(1, 2)) for _ in range(2))
        tags = ["O"] * len(before) + [f"B-{kind}", f"I-{kind}"] + ["O"] * len(after)
        yield {"tokens": [*before, word, "pill", *after], "tags": tags}


@pytest.fixture
def hospitals(tmp_path):
    """A folder of three corpora with three kinds of entity."""
    home = tmp_path / "hospitals"
    home.mkdir()
    for place, (word, kind) in enumerate((("red", "drug"), ("green", "harm"), ("blue", "dose"))):
        written(home / f"{kind}.jsonl", entities(60 + place, word, kind))
    return home


def hospital(home, **changes):
    tiers = [{"name": name, "depth": depth} for name, depth in (("s", 1), ("m", 2), ("l", 3))]
    data = {"name": "tags", "path": str(home), "partition": "user", "test": 0.2, "client_test": 50}
    model = {**BERT, "depth": 3, "output": "tokens"}
    return texts(data, **{"model": model, "tier": tiers, "cohort": 3, "score": {"clients": 3}, **changes})


def test_three_hospitals_with_a_corpus_and_a_tier_each_are_scored_on_their_own_entities(hospitals, tmp_path):
    found = run(hospital(hospitals), tmp_path / "run")
    last = scores(tmp_path / "run")[-1]
    assert found.metric == "f1"
    assert [last["tiers"][tier]["clients"]["count"] for tier in "sml"] == [1, 1, 1]
    assert min(last["tiers"][tier]["clients"]["mean"] for tier in "sml") > 0.9
    owned = [set(last["tiers"][tier]["own"]["per_entity"]) for tier in "sml"]
    assert sorted(map(sorted, owned)) == [["dose"], ["drug"], ["harm"]]
    assert [last["tiers"][tier]["own"]["f1"] for tier in "sml"] == [
        last["tiers"][tier]["clients"]["mean"] for tier in "sml"
    ]
    # The strong tier's own head learned one hospital's entities: those of the two others it cannot name.
    kinds = last["global"]["test"]["per_entity"]
    assert sorted(kinds) == ["dose", "drug", "harm"]
    assert sorted(kind["recall"] > 0.5 for kind in kinds.values()) == [False, False, True]


def test_reports_and_tables_name_the_score(tmp_path, hospitals):
    run(hospital(hospitals, rounds=2), tmp_path / "tags")
    path = written(tmp_path / "a.jsonl", moody(60, int))
    for seed in (0, 1):
        run(texts({"path": path, "metric": "matthews"}, rounds=1, seed=seed), tmp_path / f"{seed}")
    page = write_report([tmp_path / "tags"], tmp_path / "one.html").read_text("utf-8")
    assert "Test F1" in page
    assert "F1 of drug" in page
    assert "m, its clients" in page
    assert "precision" in page
    assert "accuracy over" not in page.lower()
    runs = [read_record(tmp_path / name) for name in ("0", "1")]
    assert {run.metric for run in runs} == {"matthews"}
    end, shown = scores(tmp_path / "0")[-1]["global"]["test"], runs[0].curve.final
    assert shown is not None
    assert (shown.score, shown.test.others["accuracy"]) == (end["matthews"], end["accuracy"])
    assert shown.score != end["accuracy"]
    assert compare_rows(runs)[0]["metric"] == "Matthews correlation"
    assert str(compare_table(runs).title).startswith("Final test Matthews correlation, mean ± sd")
    assert "Matthews" in [str(column.header) for column in run_table(runs[0]).columns]
    page = write_report([tmp_path / "0", tmp_path / "1"], tmp_path / "two.html").read_text("utf-8")
    assert "Matthews correlation against traffic" in page
    mixed = [read_record(tmp_path / "tags"), runs[0]]
    assert verdict(mixed) == []
    assert str(compare_table(mixed, 160).title).startswith("Final test score, and cost")


def test_the_progress_line_names_the_score():
    line = {"metric": "pearson", "global": {"test": {"pearson": 0.5}}, "tiers": {"s": {"test": {"pearson": 0.25}}}}
    assert progress_text(line, {}) == "pearson 0.500  s 0.250  0 B"


@pytest.mark.parametrize(
    ("data", "changes", "said"),
    [
        ({"metric": "accuracy"}, {"label": float}, "data.metric = 'accuracy', but data"),
        ({}, {"run": {"stop_at": {"f1": 0.5}}}, "run.stop_at names f1, but this data is scored by accuracy; use that."),
        ({}, {"model": {**BERT, "vocab": 5}}, "the network knows 5 tokens, of which 0 is padding"),
        ({}, {"model": {**BERT, "vocab": 99, "pad": 1}}, "of which 1 is padding"),
        ({}, {"model": {**BERT, "output": "tokens"}}, "has rows of tokens, and the model 'bert' does not read them"),
        ({}, {"model": {"name": "mlp"}}, "has rows of tokens, and the model 'mlp' does not read them"),
        ({}, {"model": {"name": "transformer", "heads": 2}}, "and the model 'transformer' does not read them"),
        ({}, {"label": float, "method": {"name": "fedavg", "label_mask": True}}, "method.label_mask needs classes"),
    ],
)
def test_what_texts_cannot_go_with_is_refused_before_round_0(data, changes, said, tmp_path):
    label = changes.pop("label", int)
    path = written(tmp_path / "a.jsonl", moody(60, label))
    with pytest.raises(SettingsError) as caught:
        assemble(texts({"path": path, **data}, **{"tier": [{"name": "all"}], **changes}))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tags_need_scores_of_every_token_and_have_no_matthews(hospitals):
    with pytest.raises(SettingsError, match='such as name = "bert" with output = "tokens"'):
        assemble(hospital(hospitals, model={**BERT, "depth": 3}))
    with pytest.raises(SettingsError, match="is scored by f1 or accuracy"):
        assemble(
            texts({"name": "tags", "path": str(hospitals), "metric": "matthews"}, model={**BERT, "output": "tokens"})
        )


def test_the_network_learns_as_many_tokens_as_the_texts_have(tmp_path):
    path = written(tmp_path / "a.jsonl", moody(60, int))
    setup = assemble(texts({"path": path}))
    # Padding, unknown and end; three good words, three bad ones, five others.
    assert setup.context.zoo.full.options["vocab"] == 3 + 3 + 3 + 5


def test_the_network_is_told_what_separates_two_texts(tmp_path):
    alone = written(tmp_path / "alone.jsonl", moody(60, int))
    pairs = written(tmp_path / "pairs.jsonl", ({**row, "s2": "a word"} for row in moody(60, int)))
    found = {path: assemble(texts({"path": path})).context.zoo.full.options["sep"] for path in (alone, pairs)}
    assert found == {alone: -1, pairs: 2}  # the end of a text, where words are tokens
    assert assemble(texts({"path": pairs}, model={**BERT, "sep": 5})).context.zoo.full.options["sep"] == 5
    assert assemble(texts({"path": pairs}, model={**BERT, "types": 1})).context.zoo.full.options["sep"] == -1


def test_numbers_of_ones_own_are_learned_too(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 4)).astype("f4")
    line = from_arrays(x, x.sum(1), name="line")
    found = run(tiny(rounds=8, cohort=8, local={"epochs": 5, "lr": 0.05}), tmp_path / "run", source=line)
    assert found.score > 0.9
