"""pandas frames of runs: scores, costs and tasks with the numbers of scores.jsonl and ledger.jsonl, and no others."""

import json

import pytest
from made_runs import made_run, manifest, task, write_folder

from potluck.ledger import read_journal
from potluck.report.frames import Frames, make_frames

pd = pytest.importorskip("pandas")

LINE = {
    "round": 2,
    "metric": "accuracy",
    "global": {"validation": {"accuracy": 0.5, "loss": 1.5, "count": 4}, "test": {"accuracy": 0.75, "loss": 0.1 + 0.2}},
    "tiers": {"watch": {"test": {"accuracy": 0.25}, "clients": {"mean": 0.3, "sd": 0.1, "values": [0.2, 0.4]}}},
    "clients": {"mean": 0.35, "worst": 0.2, "count": 2},
}


def frames(folder, lines=(LINE,), events=(), **facts) -> Frames:
    return make_frames([write_folder(folder, manifest(**facts), events, lines)])


def test_a_scored_round_has_a_row_for_the_whole_run_and_one_for_each_tier(tmp_path):
    found = frames(tmp_path / "run", variant="narrow", seed=3).scores
    assert found["tier"].tolist() == ["all", "watch"]
    assert found["score"].tolist() == [0.75, 0.25]
    assert found["test.loss"].tolist()[0] == 0.30000000000000004
    assert found["clients.mean"].tolist() == [0.35, 0.3]
    assert found["round"].tolist() == [2, 2]
    for name, value in {"method": "fedavg", "label": "FedAvg", "variant": "narrow", "seed": 3}.items():
        assert found[name].tolist() == [value, value], name


def test_the_score_of_a_model_that_only_clients_have_is_their_mean(tmp_path):
    found = frames(tmp_path / "run", [{"round": 1, "global": None, "tiers": {}, "clients": {"mean": 0.4}}]).scores
    assert found["score"].tolist() == [0.4]


def leaves(value, name=""):
    for key, item in value.items():
        if isinstance(item, dict):
            yield from leaves(item, f"{name}{key}.")
        elif type(item) in (int, float):
            yield f"{name}{key}", item


def test_every_number_of_scores_jsonl_is_in_the_frame_exactly(tmp_path):
    folder = made_run(tmp_path / "run", rounds=3)
    found = make_frames([folder]).scores
    for line in read_journal(folder / "scores.jsonl"):
        whole = {**line["global"], "clients": line["clients"]}
        for tier, scores in {"all": whole, **line["tiers"]}.items():
            row = found[(found["round"] == line["round"]) & (found["tier"] == tier)].iloc[0]
            for name, value in leaves(scores):
                assert row[name] == value, (tier, name)


def test_costs_have_a_row_for_each_round_with_the_sums_of_its_tasks(tmp_path):
    events = [
        task(1, "c0", "watch", bytes_down=100, bytes_up=40, modelled_seconds=2.0, modelled_joules=3.0),
        task(1, "c1", "phone", bytes_down=10, bytes_up=4, modelled_seconds=5.0, modelled_joules=1.0),
        {"event": "round", "round": 1, "seconds": 0.5, "sent": 2, "accepted": 2, "loss": 0.7, "device_seconds": 5.0},
    ]
    row = frames(tmp_path / "run", events=events).costs.iloc[0]
    assert (row["bytes_down"], row["bytes_up"], row["joules"], row["device_seconds"]) == (110, 44, 4.0, 5.0)
    assert (row["seconds"], row["sent"], row["accepted"], row["loss"]) == (0.5, 2, 2, 0.7)


def test_tasks_have_a_row_for_each_task_of_the_ledger_with_its_numbers_exactly(tmp_path):
    folder = made_run(tmp_path / "run", rounds=2)
    lines = [event for event in read_journal(folder / "ledger.jsonl") if event["event"] == "task"]
    found = make_frames([folder]).tasks
    assert found["client"].tolist() == [line["client"] for line in lines]
    assert found["outcome"].tolist() == [line["outcome"] for line in lines]
    for name in ("bytes_down", "bytes_up", "seconds"):
        assert found[name].tolist() == [line["measured"][name] for line in lines]
    for name, column in (
        ("flops", "flops"),
        ("memory", "memory"),
        ("seconds", "modelled_seconds"),
        ("joules", "joules"),
    ):
        assert found[column].tolist() == [line["modelled"][name] for line in lines]


def test_frames_of_several_runs_group_by_method(tmp_path):
    folders = [made_run(tmp_path / f"{label}{seed}", label, seed, rounds=2) for label in "AB" for seed in (0, 1)]
    found = make_frames(folders)
    last = found.scores[(found.scores["tier"] == "all") & (found.scores["round"] == 2)]
    assert last.groupby("method")["score"].count().to_dict() == {"a": 2, "b": 2}
    assert sorted(found.costs.groupby(["method", "seed"]).size()) == [2, 2, 2, 2]


def test_odd_values_of_a_folder_become_gaps_or_text_and_never_an_error(tmp_path):
    line = {"round": 1, "global": {"test": {"accuracy": 10**400, "loss": "nan"}}, "tiers": 7, "clients": None}
    odd = {"event": "task", "round": 1, "client": "\x1b[31m<b>", "measured": [], "modelled": {"flops": 10**400}}
    found = frames(tmp_path / "run", [line], [odd, {"event": "task"}], seed="x")
    assert found.scores["tier"].tolist() == ["all"]
    assert pd.isna(found.scores["score"]).all()
    assert found.tasks["client"].tolist()[0] == "\x1b[31m<b>"
    assert len(found.costs) == 0


def test_a_run_without_scores_gives_frames_with_columns_and_no_rows(tmp_path):
    found = frames(tmp_path / "run", [])
    assert len(found.scores) == len(found.costs) == len(found.tasks) == 0
    assert "method" in found.scores.columns
    assert "joules" in found.costs.columns
    assert "client" in found.tasks.columns


def test_frames_say_what_they_hold(tmp_path):
    found = frames(tmp_path / "run")
    assert str(found).splitlines()[0] == "frames of 1 run"
    assert found["scores"] is found.scores
    with pytest.raises(KeyError, match="scores, costs, tasks"):
        found["prices"]
    assert json.loads(found.scores.to_json(orient="records"))[0]["score"] == 0.75
