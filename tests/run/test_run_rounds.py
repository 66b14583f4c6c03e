import os
from dataclasses import dataclass

import pytest
import torch
from tiny_runs import Liar, Listener, Moody, cohorts, events, kept, scores, tiny
from torch.nn import functional

from potluck.core import QuorumError, digest
from potluck.engines import ENGINES, Graphs
from potluck.methods import FedAvg
from potluck.run import assemble, experiment, resume, run

WHOLE = {"name": "fedavg"}


@pytest.fixture
def watch():
    return Listener()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Two rounds in which nobody fails."""
    return run(tiny(rounds=2, method=WHOLE), tmp_path_factory.mktemp("healthy") / "run")


def moods(tmp_path, forever=False):
    folder = tmp_path / "moods"
    folder.mkdir()
    if forever:
        (folder / "forever").touch()
    return Moody(local=tiny().local, folder=str(folder))


def test_a_result_says_what_is_promised_and_can_be_written_as_json(healthy):
    plain = healthy.plain()
    wanted = ["run", "method", "rounds", "seed", "scores", "bytes_down", "bytes_up", "seconds", "weights_sha256"]
    assert set(wanted) <= set(plain)
    assert set(plain) - set(wanted) == {"device_seconds", "round_seconds", "joules", "metric"}
    assert set(plain["scores"]) == {"global", "tiers"}
    assert (plain["run"], plain["method"], plain["rounds"], plain["seed"]) == (str(healthy.folder), "fedavg", 2, 0)
    assert len(plain["weights_sha256"]) == 64
    assert healthy.accuracy == plain["scores"]["global"]["test"]["accuracy"]
    # 64 * 8 + 8, twice 8 * 8 + 8, 8 * 10 + 10 numbers of four bytes, to and from three clients in two rounds.
    assert plain["bytes_down"] == plain["bytes_up"] == 754 * 4 * 3 * 2


def test_the_run_folder_tells_what_happened(healthy):
    rounds = events(healthy.folder, "round")
    assert [(event["round"], event["sent"], event["accepted"], event["coverage"]) for event in rounds] == [
        (1, 3, 3, 1.0),
        (2, 3, 3, 1.0),
    ]
    tasks = events(healthy.folder, "task")
    assert [event["outcome"] for event in tasks] == ["accepted"] * 6
    assert {event["measured"]["bytes_up"] for event in tasks} == {754 * 4}
    assert sorted(path.name for path in (healthy.folder / "checkpoints").iterdir()) == [
        "round-000001.ckpt",
        "round-000002.ckpt",
    ]


def test_clients_that_fail_once_are_asked_again_and_the_round_counts_once(tmp_path, watch, healthy):
    found = run(tiny(rounds=2, method=WHOLE), tmp_path / "run", method=moods(tmp_path), watch=watch)
    assert found.weights_sha256 == healthy.weights_sha256
    assert found.rounds == 2
    assert [event["round"] for event in events(found.folder, "round")] == [1, 2]
    assert cohorts(found.folder) == cohorts(healthy.folder)
    assert found.totals["bytes_up"] == healthy.totals["bytes_up"]
    assert watch.rounds == [1, 2]
    assert watch.warnings == [
        f"round {index}: 0 of 3 clients answered; run.quorum is 1 (try 1 of 4); "
        "3 of them: failed: OSError: the battery is flat"
        for index in (1, 2)
    ]


def test_clients_that_fail_forever_end_the_run_and_leave_the_model_as_it_was(tmp_path, watch, healthy):
    method = moods(tmp_path, forever=True)
    with pytest.raises(QuorumError) as caught:
        run(tiny(rounds=2, method=WHOLE), tmp_path / "run", method=method, watch=watch)
    assert str(caught.value) == (
        "round 1: 0 of 3 clients answered; run.quorum is 1; 3 of them: failed: OSError: the battery is flat. "
        "The model is as it was after round 0; resume when clients are back."
    )
    assert caught.value.exit_code == 5
    assert len(watch.warnings) == 4
    round, held = kept(tmp_path / "run")
    fresh = run(tiny(rounds=0, method=WHOLE), tmp_path / "fresh")
    assert round == held["progress"]["done"] == 0
    assert digest(held["state"]["model"].arrays) == digest(kept(fresh.folder)[1]["state"]["model"].arrays)
    assert events(tmp_path / "run", "round") == []

    os.unlink(tmp_path / "moods" / "forever")
    found = resume(tmp_path / "run", method=method)
    assert found.weights_sha256 == healthy.weights_sha256
    assert [event["round"] for event in events(found.folder, "round")] == [1, 2]


def test_a_quorum_larger_than_those_who_answer_is_missed(tmp_path, watch):
    wanted = tiny(run={"quorum": 3, "retries": 0}, fleet={"dropout": 0.999999})
    with pytest.raises(QuorumError, match=r"round 1: 0 of 3 clients answered; run.quorum is 3; 3 of them: dropped out"):
        run(wanted, tmp_path / "run", watch=watch)


def test_a_quorum_larger_than_the_cohort_means_the_whole_cohort(tmp_path):
    assert run(tiny(rounds=1, run={"quorum": 99}), tmp_path / "run").rounds == 1


def idle(folder):
    """The rounds of which the ledger says that the model stays as it is."""
    said = "nobody could take part; the model stays as it is"
    return [event["round"] for event in events(folder, "warning") if said in event["text"]]


def test_a_round_that_no_client_can_take_part_in_is_noted(tmp_path):
    wanted = tiny(cohort=1, rounds=8, method={"name": "exclusivefl"}, score={"every": 99})
    found = run(wanted, tmp_path / "run")
    asked = cohorts(found.folder)
    empty = [index for index in range(1, 9) if index not in asked]
    assert 0 < len(empty) < 8
    assert idle(found.folder) == empty
    assert {event["round"]: event["sent"] for event in events(found.folder, "round")} == {
        index: int(index in asked) for index in range(1, 9)
    }


def eager(**changes):
    return tiny(rounds=5, cohort=8, method=WHOLE, local={"epochs": 2, "batch": 8}, **changes)


def test_the_run_stops_after_the_first_round_that_reaches_the_accuracy(tmp_path):
    history = [row["global"]["validation"]["accuracy"] for row in scores(run(eager(), tmp_path / "whole").folder)]
    aim = history[3]
    first = next(index for index, accuracy in enumerate(history) if accuracy >= aim)
    assert 0 < first < 5
    found = run(eager(run={"stop_at": {"accuracy": aim}}), tmp_path / "stopped")
    assert found.rounds == first
    assert found.scores["round"] == first
    assert resume(found.folder).plain() == found.plain()


def test_without_validation_rows_the_test_rows_decide_when_to_stop(tmp_path):
    wanted = tiny(data={"validation": 0}, run={"stop_at": {"accuracy": 0.001}})
    assert run(wanted, tmp_path / "run").rounds == 0


def test_without_a_global_model_the_clients_mean_decides_when_to_stop(tmp_path):
    wanted = tiny(method={"name": "local"}, score={"clients": 8}, run={"stop_at": {"accuracy": 0.001}})
    assert run(wanted, tmp_path / "run").rounds == 1


def test_nothing_stops_a_run_whose_accuracy_is_unknown(tmp_path):
    wanted = tiny(data={"validation": 0, "test": 0}, run={"stop_at": {"accuracy": 0.0}})
    found = run(wanted, tmp_path / "run")
    assert found.rounds == 3
    assert found.accuracy is None


def test_clients_without_samples_are_skipped_with_a_note(tmp_path, watch):
    wanted = tiny(
        data={"partition": "dirichlet", "alpha": 0.01, "clients": 30}, cohort=20, method=WHOLE, score={"clients": 30}
    )
    setup = assemble(wanted)
    sizes = {f"c{index}": len(setup.context.datasets.shard(f"c{index}").train) for index in range(30)}
    assert 0 in sizes.values()
    found = run(wanted, tmp_path / "run", watch=watch)
    for event in events(found.folder, "task"):
        empty = sizes[event["client"]] == 0
        assert (event["outcome"], event["reason"]) == (("absent", "no samples") if empty else ("accepted", ""))
        assert event["samples"] == sizes[event["client"]]
    assert {event["outcome"] for event in events(found.folder, "task")} == {"accepted", "absent"}
    assert all_finite(found)


def test_a_cohort_without_any_samples_leaves_the_model_and_the_run_goes_on(tmp_path):
    wanted = tiny(data={"partition": "dirichlet", "alpha": 0.01, "clients": 30}, cohort=1, rounds=6, method=WHOLE)
    found = run(wanted, tmp_path / "run")
    empty = [event["round"] for event in events(found.folder, "task") if event["reason"] == "no samples"]
    assert 0 < len(empty) < 6
    assert idle(found.folder) == empty


@pytest.mark.parametrize("norm", ["running", "static", "group", "none"])
def test_clients_with_one_sample_train_under_every_norm(tmp_path, norm):
    found = run(tiny(data={"samples": 1}, model={"norm": norm}), tmp_path / "run")
    assert {event["samples"] for event in events(found.folder, "task")} == {1.0}
    assert {event["outcome"] for event in events(found.folder, "task")} == {"accepted"}
    assert all_finite(found)


def test_clients_with_one_class_train(tmp_path):
    wanted = tiny(data={"partition": "labels", "labels": 1})
    labels = {assemble(wanted).context.datasets.shard(f"c{index}").labels for index in range(8)}
    assert {len(own) for own in labels} == {1}
    found = run(wanted, tmp_path / "run")
    assert {event["outcome"] for event in events(found.folder, "task")} == {"accepted"}
    assert all_finite(found)


def all_finite(found):
    arrays = kept(found.folder)[1]["state"]["model"].arrays
    return all(bool(torch.isfinite(tensor).all()) for tensor in arrays.values())


def test_three_rounds_without_the_largest_tier_warn_and_leave_its_own_entries_as_they_were(tmp_path, watch):
    def wanted(seed, rounds):
        tiers = [{"name": "small", "share": 7, "depth": 1}, {"name": "large", "share": 1}]
        return tiny(seed=seed, rounds=rounds, cohort=2, tier=tiers)

    def weak(seed):
        population = assemble(wanted(seed, 3)).population
        return all(client.tier.name == "small" for index in range(3) for client in population.cohort(index, 2))

    seed = next(seed for seed in range(20) if weak(seed))
    before = kept(run(wanted(seed, 0), tmp_path / "fresh").folder)[1]["state"]["model"].arrays
    found = run(wanted(seed, 3), tmp_path / "run", watch=watch)
    after = kept(found.folder)[1]["state"]["model"].arrays
    own = {"body.1.linear.weight", "body.1.linear.bias"}
    assert {name for name in before if torch.equal(before[name], after[name])} == own
    # 64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10 of the server's 754 numbers
    assert watch.warnings == ["round 3: nothing from tier 'large' for 3 rounds; 90% of the model was trained"]
    assert [round(event["coverage"], 4) for event in events(found.folder, "round")] == [round(682 / 754, 4)] * 3
    assert [event["text"] for event in events(found.folder, "warning")] == watch.warnings


def test_a_tier_that_only_answers_for_statistics_is_missed_too(tmp_path, watch):
    tiers = [{"name": "small", "share": 7, "width": 0.5}, {"name": "large", "share": 1, "width": 1.0}]
    method, model = {"name": "heterofl", "bn_eval": "everyone"}, {"name": "mlp", "hidden": 8, "norm": "static"}
    wanted = [tiny(seed=seed, cohort=1, tier=tiers, method=method, model=model) for seed in range(20)]
    weak = next(one for one in wanted if all(assemble(one).cohort(index)[0].id != "c7" for index in range(3)))
    run(weak, tmp_path / "run", watch=watch)
    assert [text[:39] for text in watch.warnings] == ["round 3: nothing from tier 'large' for "]


def test_a_client_that_the_method_recruits_is_priced_as_what_it_is(tmp_path):
    tiers = [{"name": "small", "share": 7, "depth": 1}, {"name": "large", "share": 1, "profile": "tv"}]
    method = {"name": "exclusivefl", "sampling": "eligible"}
    found = run(tiny(rounds=1, cohort=1, tier=tiers, method=method), tmp_path / "run")
    (task,) = [event for event in events(found.folder, "task") if event["verb"] == "train"]
    assert "c7" not in [client.id for client in assemble(tiny(cohort=1, tier=tiers)).cohort(0)]
    assert (task["client"], task["tier"]) == ("c7", "large")


def test_no_warning_where_the_absent_tier_would_add_nothing(tmp_path, watch):
    tiers = [{"name": "small", "share": 7, "depth": 1}, {"name": "large", "share": 1}]
    run(tiny(rounds=6, cohort=1, tier=tiers, method=WHOLE), tmp_path / "run", watch=watch)
    assert watch.warnings == []


def test_a_method_object_from_python_is_the_one_that_trains(tmp_path, healthy):
    same = run(tiny(rounds=2, method=WHOLE), tmp_path / "same", method=FedAvg(local=tiny().local))
    assert same.weights_sha256 == healthy.weights_sha256
    other = run(tiny(rounds=2, method=WHOLE), tmp_path / "other", method=FedAvg(tiny().local, weighting="uniform"))
    assert other.weights_sha256 != healthy.weights_sha256


@pytest.mark.slow
def test_fedavg_passes_95_percent_on_digits_with_the_defaults(tmp_path):
    result = run(experiment({"method": {"name": "fedavg"}}), tmp_path / "run")
    assert result.accuracy > 0.95


def test_what_the_server_asks_of_itself_crosses_no_wire_and_is_nobodys_bill(tmp_path):
    data = {"clients": 8, "public": 60}
    found = run(tiny(method={"name": "feddf"}, data=data, rounds=1), tmp_path / "run")
    tasks = events(tmp_path / "run", "task")
    own = [task["measured"] for task in tasks if task["client"] == "server"]
    assert own
    assert {(cost["bytes_down"], cost["bytes_up"]) for cost in own} == {(0, 0)}
    theirs = [task for task in tasks if task["client"] != "server"]
    assert found.totals["bytes_up"] == sum(task["measured"]["bytes_up"] for task in theirs) > 0
    assert found.totals["flops"] == sum(task["modelled"]["flops"] for task in theirs) > 0
    assert found.totals["server_flops"] > 0
    (line,) = events(tmp_path / "run", "round")
    assert line["device_seconds"] == max(task["modelled"]["seconds"] for task in theirs)
    waits = sum(task["modelled"]["seconds"] for task in tasks if task["client"] == "server")
    assert found.plain()["round_seconds"] == line["round_seconds"] == line["device_seconds"] + waits > 0 < waits
    assert line["loss"] == pytest.approx(sum(task["loss"] for task in theirs) / len(theirs))
    assert all("metrics" not in task for task in theirs)
    assert any("steps" in task.get("metrics", {}) for task in tasks if task["client"] == "server")


@dataclass(frozen=True)
class Hidden(FedAvg):
    """FedAvg whose clients' loss is a function, into which nobody can look."""

    def loss(self, task, device):
        return lambda net, batch: functional.cross_entropy(net(batch["x"]), batch["y"])


def test_training_that_cannot_be_captured_is_told_once_and_runs_all_the_same(tmp_path, monkeypatch):
    alone = run(tiny(method=WHOLE), tmp_path / "serial", method=Hidden(local=tiny().local))
    monkeypatch.setitem(ENGINES, "serial", Graphs)
    listener = Listener()
    made = run(tiny(method=WHOLE), tmp_path / "graphs", method=Hidden(local=tiny().local), watch=listener)
    said = "some local training is not captured as a CUDA graph and runs step by step: a function in a loss or edit"
    assert [text.startswith(said) for text in listener.warnings] == [True]
    assert [event["text"] for event in events(tmp_path / "graphs", "warning")] == listener.warnings
    assert made.weights_sha256 == alone.weights_sha256


def test_a_client_that_is_refused_is_not_taken_for_the_server(tmp_path):
    heard, liar = Listener(), Liar(local=tiny().local)
    found = run(tiny(cohort=8), tmp_path / "run", method=liar, watch=heard)
    assert [event["client"] for event in events(found.folder, "task") if event["outcome"] == "quarantined"] == [
        "c3"
    ] * 3
    assert heard.warnings == []
