"""The engine `ray`: workers that die, hang or are not alike, what is sent, and who can reach it."""

import dataclasses
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import ray_token  # noqa: F401
import torch
from ray_methods import Deadly, Hanging

from potluck.core import Model, Newborn, ResourceError, SettingsError, Spec, Task, digest, stream
from potluck.data import from_arrays
from potluck.engines import Graphs, Ray, Serial, TaskEnvelope
from potluck.engines.batch_messages import read_results
from potluck.engines.batches import _batches
from potluck.engines.cluster import disconnect, engine, guardian
from potluck.engines.cluster.messages import APART, Parcels, pack_tasks, unpack_message, unpack_tasks
from potluck.engines.cluster.worker import ClusterWorker
from potluck.ledger import read_journal
from potluck.methods import FedAvg
from potluck.run import experiment, run
from potluck.run.assemble import assemble
from potluck.run.watch import Silent
from potluck.run.world import plan_cluster

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.xdist_group("ray")

PLAIN = {
    "rounds": 4,
    "cohort": 6,
    "data": {"clients": 6, "partition": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": 8},
    "local": {"lr": 0.1, "epochs": 1, "batch": 16},
    "score": {"every": 2, "clients": 2},
}
RAY = {"run": {"engine": "ray", "workers": 2}}


@pytest.fixture(scope="module", autouse=True)
def _one_cluster():
    yield
    disconnect()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """FedAvg in one process."""
    return run({**PLAIN, "run": {"engine": "serial"}}, tmp_path_factory.mktemp("serial") / "run")


class Notes(Silent):
    """Keeps warnings; calls a function after a round."""

    def __init__(self, after=lambda done: None):
        self.heard, self.after = [], after

    def warn(self, text):
        self.heard.append(text)

    def round(self, done, scores, totals):
        self.after(done)


def ledger(result):
    return [line for line in read_journal(result.folder / "ledger.jsonl") if line["event"] == "task"]


def same(result, other):
    assert result.weights_sha256 == other.weights_sha256
    assert result.scores == other.scores
    assert [line["outcome"] for line in ledger(result)] == [line["outcome"] for line in ledger(other)]
    return True


def test_a_worker_that_dies_in_the_middle_of_a_reply_costs_nothing(tmp_path, undisturbed):
    method = Deadly(undisturbed_local(), mark=str(tmp_path / "mark"))
    assert same(run({**PLAIN, **RAY}, tmp_path / "run", method=method), undisturbed)
    assert (tmp_path / "mark").exists()


def undisturbed_local():
    return experiment(PLAIN).local


def test_a_client_that_kills_every_worker_is_absent_and_the_others_are_there(tmp_path):
    found = run({**PLAIN, **RAY, "rounds": 1}, tmp_path / "run", method=Deadly(undisturbed_local()))
    told = {line["client"]: (line["outcome"], line["reason"]) for line in ledger(found) if line["verb"] == "train"}
    assert told.pop("c0") == ("absent", "failed: unreachable (its worker process died)")
    assert set(told.values()) == {("accepted", "")}
    assert len(told) == 5


def test_a_worker_that_hangs_is_replaced_after_the_deadline(tmp_path, undisturbed):
    method = Hanging(undisturbed_local(), mark=str(tmp_path / "mark"))
    settings = {**PLAIN, "run": {**RAY["run"], "deadline": 3.0}}
    assert same(run(settings, tmp_path / "run", method=method), undisturbed)
    assert (tmp_path / "mark").exists()


def test_idle_workers_that_are_killed_between_rounds_are_replaced(tmp_path, undisturbed):
    def kill_all(done):
        if done == 2:
            for pid in workers_here():
                os.kill(pid, signal.SIGKILL)

    assert same(run({**PLAIN, **RAY}, tmp_path / "run", watch=Notes(kill_all)), undisturbed)


def workers_here():
    """The processes of our actors."""
    return [pid for pid in family_here() if b"ray::ClusterWorker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
def test_secure_sums_on_a_cluster_are_those_of_one_process(tmp_path):
    """Also where clients are lost in any phase."""
    tiers = [{"name": name, "width": width} for name, width in (("small", 0.5), ("large", 1.0))]
    wide = {"tier": tiers, "method": {"name": "heterofl", "label_mask": False}, "fleet": {"dropout": 0.2}}
    settings = {**PLAIN, **wide, "rounds": 2, "secure": {"enabled": True}}
    found, other = (
        run({**settings, "run": how}, tmp_path / how["engine"]) for how in ({"engine": "serial"}, RAY["run"])
    )
    assert same(found, other)
    told = [line for line in read_journal(other.folder / "ledger.jsonl") if line["event"] == "secure"]
    assert any(line["opened"] for line in told)


def test_own_arrays_are_sent_to_the_workers(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 6)).astype(np.float32), rng.integers(0, 3, 120)
    found = [
        run({**PLAIN, "run": how}, tmp_path / how["engine"], source=from_arrays(x, y, np.arange(120) % 6))
        for how in ({"engine": "serial"}, RAY["run"])
    ]
    assert found[0].weights_sha256 == found[1].weights_sha256


def test_data_of_the_settings_is_sent_if_asked_for(tmp_path, undisturbed):
    settings = {**PLAIN, "run": {**RAY["run"], "send_data": True}}
    assert same(run(settings, tmp_path / "run"), undisturbed)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("checksum of the data", "its checksum of the data is "),
        ("checksum of potluck's code", "its checksum of potluck's code is "),
        ("version of torch", "its version of torch is "),
    ],
)
def test_a_worker_with_other_data_or_code_is_refused(name, said):
    setup = assemble(experiment({**PLAIN, **RAY}))
    plan = plan_cluster(setup)
    other = dataclasses.replace(plan, fingerprint={**plan.fingerprint, name: "another"})
    with pytest.raises(ResourceError, match=said) as caught:
        Ray(dataclasses.replace(setup.context, cluster=other), 1)
    assert "here it is another" in str(caught.value)


def test_a_worker_that_lacks_the_data_says_so(tmp_path):
    path = tmp_path / "here.npz"
    np.savez(path, x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2)
    setup = assemble(experiment({**PLAIN, **RAY, "data": {"name": "npz", "path": str(path), "clients": 6}}))
    path.unlink()
    with pytest.raises(ResourceError, match=r"a worker on .* cannot be used: .*here\.npz"):
        Ray(dataclasses.replace(setup.context, cluster=plan_cluster(setup)), 1)


def test_another_kind_of_processor_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "machine", lambda: {"cpu": "ABACUS", "build": "torch 0"})
    notes = Notes()
    run({**PLAIN, **RAY, "rounds": 1}, tmp_path / "run", watch=notes)
    assert sum("ABACUS: last bits may differ" in text for text in notes.heard) == 1


def test_a_method_that_workers_cannot_import_is_refused(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Inner(FedAvg):
        pass

    with pytest.raises(SettingsError, match="put it into a module of its own"):
        run({**PLAIN, **RAY}, tmp_path / "run", method=Inner())


def test_without_the_package_one_line_names_the_extra(tmp_path, monkeypatch):
    disconnect()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ResourceError, match=r"pip install 'potluck\[ray\]'"):
        run({**PLAIN, **RAY}, tmp_path / "run")


def test_a_cluster_that_starts_here_listens_on_loopback_alone(tmp_path):
    run({**PLAIN, **RAY, "rounds": 1}, tmp_path / "run")
    family = family_here()
    assert len(family) >= 4  # raylet, gcs_server, two workers
    assert {host for pid in family for host in listening(pid)} <= {"0100007F", "0000000000000000FFFF00000100007F"}


def family_here():
    """Ray's processes that this one has started."""
    keeper = engine._connection.guardian
    return guardian.family(keeper.mark, keeper.folder, but=os.getpid())


def listening(pid):
    """The addresses on which a process listens, as the kernel writes them."""
    inodes = set()
    for handle in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{handle}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    yield fields[1].split(":")[0]


def test_the_actor_is_pickled_by_its_name():
    data = ray.cloudpickle.dumps(ClusterWorker)
    assert b"potluck.engines.cluster.worker" in data
    assert len(data) < 200


def test_equal_models_are_put_once_whatever_objects_they_are():
    put = []
    parcels = Parcels(lambda data: put.append(data) or len(put) - 1)
    spec = Spec("mlp")
    big = {"w": torch.arange(APART, dtype=torch.float32)}
    small = {"b": torch.ones(3)}
    tasks = [
        Task("train", "a", models={"model": Model(spec, big)}, arrays=small, config={"n": 1}),
        Task("train", "b", models={"model": Model(spec, {"w": big["w"].clone()})}),
        Task("train", "c", models={"model": Model(spec, {"w": big["w"] + 1}), "own": Newborn(spec)}),
    ]
    message, refs = pack_tasks([TaskEnvelope(task, {"kept": torch.ones(2)}, 1) for task in tasks], parcels)
    assert refs == [0, 1]
    assert len(message) < APART
    found = unpack_tasks(message, [put[ref] for ref in refs], FedAvg(), {})
    assert [(each.task.to, each.attempt) for each in found] == [("a", 1), ("b", 1), ("c", 1)]
    assert torch.equal(found[1].task.models["model"].arrays["w"], big["w"])
    assert torch.equal(found[2].task.models["model"].arrays["w"], big["w"] + 1)
    assert found[0].task.models["model"] is found[1].task.models["model"]
    assert isinstance(found[2].task.models["own"], Newborn)
    assert torch.equal(found[0].task.arrays["b"], small["b"])
    assert torch.equal(found[0].memory["kept"], torch.ones(2))
    big["w"][0] = 5.0  # a tensor that was changed in place is another one
    pack_tasks([TaskEnvelope(tasks[0])], parcels)
    assert parcels.puts == 3


def test_whole_blocks_of_small_clients_are_added_up_by_the_workers(tmp_path, monkeypatch):
    many = {**PLAIN, "rounds": 2, "cohort": 70, "data": {"clients": 80, "samples": 10}}
    summed = []

    def read(message, tensors, envelopes):
        results = read_results(message, tensors, envelopes)
        summed.extend(result.task.to for result in results if result.block is not None)
        return results

    monkeypatch.setattr(engine, "read_results", read)
    serial = run({**many, "run": {"engine": "serial"}}, tmp_path / "serial")
    assert same(run({**many, **RAY}, tmp_path / "ray"), serial)
    assert len(summed) == 2 * 70


def test_workers_with_gpus_share_a_cohort_out_equally():
    envelopes = [TaskEnvelope(Task("train", f"c{number}")) for number in range(23)]
    sizes = [len(batch.envelopes) for batch in _batches(envelopes, workers=2, stack=0, together=5)]
    assert sizes == [5, 5, 5, 5, 2, 1]
    assert [len(batch.envelopes) for batch in _batches(envelopes[:8], 4, 0, together=10)] == [2, 2, 2, 2]


def test_a_worker_that_captures_its_steps_answers_like_one_that_does_not():
    """What a worker with a GPU does, here without one."""
    setup = assemble(experiment({**PLAIN, **RAY}))
    context, found = setup.context, []
    model = context.method.init(context.zoo, stream(0, "init")).model
    tasks = [TaskEnvelope(Task("train", f"c{number}", models={"model": model})) for number in range(3)]
    message, _ = pack_tasks(tasks, Parcels(lambda data: data))
    for kind in (Serial, Graphs):
        worker = ClusterWorker()
        worker._engine = kind(context)
        results = read_results(*unpack_message(worker.run(message)), tasks)
        found.append([digest(result.reply.models["model"].arrays) for result in results])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "pool", "address": "auto"}, 'run.address needs run.engine = "ray"'),
        ({"engine": "ray", "cpus": 0.0}, "a worker needs a core or a GPU"),
        ({"engine": "ray", "hardware": "cuda"}, "run.gpus = 1 gives each worker a GPU"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, said):
    with pytest.raises(SettingsError, match=said):
        experiment({**PLAIN, "run": changes})
