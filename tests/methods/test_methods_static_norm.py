"""Static batch norm: the statistics that clients gather before scoring."""

import pytest
import torch
from made_round import ClientDatasets, Shard, zeros
from width_rounds import client, zoo

from potluck.core import Client, Examples, Local, Model, Reply, Round, Tier, stream
from potluck.engines import Dispatcher, Serial, SimulationContext
from potluck.learn import Classify
from potluck.methods import METHODS, FedAvg
from potluck.models import ModelZoo, make_spec
from potluck.run.contract import NARROW, MethodCase, read_ledger, read_lines


def test_every_batch_counts_alike_in_the_statistics_whoever_had_it():
    networks = zoo(1.0, norm="static", hidden=2)
    spec = networks.full
    model = networks.fresh(spec, stream(0, "init"))
    counted = networks.buffers(networks.counting(spec))
    said = {"c0": (0.0, 1.0), "c1": (4.0, 3.0)}  # c1 had three batches, c0 one

    def send(tasks):
        for task in tasks:
            value, batches = said[task.to]
            shapes = task.expects.arrays
            yield Reply(arrays={n: torch.full(s, value).to(d) for n, (s, d) in shapes.items()}, weight=batches)

    clients = [client(networks, id=name) for name in said]
    now = Round(0, clients, 2, networks, 0, send, None, None)
    found = FedAvg().statistics(spec, model.arrays, now)
    assert found.keys() == counted
    means = [tensor for name, tensor in found.items() if name.endswith("running_mean")]
    assert means
    assert all(tensor.tolist() == [3.0] * len(tensor) for tensor in means)


def rows(*values):
    """Examples whose first input is given; the second is zero."""
    return Examples({"x": torch.tensor([[value, 0.0] for value in values]), "y": torch.zeros(len(values)).long()})


@pytest.mark.parametrize(("asked", "mean", "var"), [("posthoc", 2.0, 2.0), ("everyone", 4.0, 5.0)])
def test_everyone_is_asked_for_statistics_although_one_client_was_in_the_cohort(asked, mean, var):
    spec = make_spec("mlp", input=(2,), classes=2, hidden=1, depth=1, norm="static")
    networks, method = ModelZoo(spec, [Tier("t", spec=spec)]), FedAvg(bn_eval=asked, local=Local(batch=2))
    clients = [Client(id, networks.tiers[0]) for id in ("c0", "c1")]
    datasets = ClientDatasets({"c0": Shard(rows(1.0, 3.0)), "c1": Shard(rows(4.0, 8.0))})
    context = SimulationContext(method, networks, datasets, Classify(2), 0)
    session = Dispatcher(Serial(context), method, networks).open(0)
    now = Round(0, clients[:1], 2, networks, 0, session.send, session.fold, None, lambda: iter(clients))
    state = zeros(method.init(networks, stream(0, "init")))
    arrays = {**state.model.arrays, "stem.linear.weight": torch.tensor([[1.0, 0.0]])}  # the norm sees the first input
    (found,) = method.ready(type(state)(Model(spec, arrays)), now).statistics.values()
    assert found["stem.norm.running_mean"].tolist() == [mean]
    assert found["stem.norm.running_var"].tolist() == [var]
    assert [entry.task.to for entry in session.entries] == ["c0", "c1"][: 1 + (asked == "everyone")]


STATIC = {"model": {"name": "mlp", "hidden": 8, "depth": 1, "norm": "static"}, "rounds": 2, "cohort": 2}


@pytest.fixture(scope="module")
def asked_by(tmp_path_factory):
    """A run in which everyone is asked, on this engine and with these changes."""

    def made(engine="serial", own="everyone", **changes):
        case = MethodCase(METHODS["heterofl"], {"bn_eval": own})
        run = {"engine": engine, "workers": 2} if engine == "pool" else {"engine": engine}
        return case.run(tmp_path_factory.mktemp("asked") / "run", **STATIC, **changes, run=run)

    return made


@pytest.mark.parametrize("engine", ["wire", "pool"])
def test_everyone_s_statistics_are_the_same_on_every_engine(engine, asked_by):
    one, other = asked_by(), asked_by(engine)
    assert read_lines(one, "scores.jsonl") == read_lines(other, "scores.jsonl")
    assert read_ledger(one) == read_ledger(other)


def test_asking_everyone_is_priced_like_any_task_of_the_client_s_own_tier(asked_by):
    counts = [line for line in read_ledger(asked_by()) if line.get("verb") == "count"]
    assert len(counts) == 9 * len(NARROW)  # nine clients, a network for each tier; the largest tier's is the server's
    tiers = {line["client"]: line["tier"] for line in counts}
    assert tiers == {f"c{n}": ("small", "medium", "large")[n // 3] for n in range(9)}
    assert all(line["measured"]["bytes_down"] > 0 and line["modelled"]["joules"] > 0 for line in counts)


def test_clients_that_are_offline_or_drop_out_are_missing_from_everyone_s_statistics(asked_by):
    counts = read_ledger(asked_by(fleet={"availability": 0.6, "dropout": 0.4}))
    counts = [line for line in counts if line.get("verb") == "count"]
    assert 0 < len({line["client"] for line in counts}) < 9
    assert {line["outcome"] for line in counts} == {"accepted", "absent"}
