"""On a GPU: captured steps against the serial engine on the same GPU. Skipped where there is none."""

import pytest
import torch
from engines.test_engines_cuda import job, noisy, numbers, rows, same
from test_contract import CASES

from potluck.core import Examples, Newborn, stream
from potluck.engines import ENGINES, Graphs
from potluck.engines.cuda.engine import NetworkTrainers
from potluck.engines.cuda.trainer import replay
from potluck.learn import CapturePolicy, run_fit
from potluck.methods.moss.feature_matching import MetaNetworks
from potluck.methods.moss.wire import TransferLoop, WireSettings
from potluck.models import ModelZoo, make_spec
from potluck.run import experiment, resume, run
from potluck.run.contract import read_lines

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(case, **changes):
    engine = changes.pop("engine", "graphs")
    return experiment(case.plain(**{"run": {"engine": engine, "hardware": "cuda"}, **changes}))


def weights(result):
    return result.weights_sha256


def scores(result):
    """Round by round."""
    return read_lines(result, "scores.jsonl")


def warned(result):
    return [line["text"] for line in read_lines(result, "ledger.jsonl") if line["event"] == "warning"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_captured_steps_give_the_bits_of_the_serial_engine(case, tmp_path):
    captured = run(on_gpu(case), tmp_path / "graphs")
    alone = run(on_gpu(case, engine="serial"), tmp_path / "serial")
    assert not [line for line in warned(captured) if "not captured" in line]
    assert weights(captured) == weights(alone)
    assert scores(captured) == scores(alone)


LOCALS = {
    "momentum": {"lr": 0.1, "epochs": 2, "batch": 16, "momentum": 0.9, "weight_decay": 1e-3},
    "adam": {"lr": 1e-3, "epochs": 2, "batch": 16, "optimiser": "adam", "weight_decay": 1e-3},
    "clip": {"lr": 0.1, "epochs": 2, "batch": 16, "clip": 0.5},
    "cosine": {"lr": 0.1, "steps": 9, "batch": 16, "schedule": "cosine", "horizon": 4},
}


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize("case", CASES[:1], ids=str)
def test_every_way_to_train_is_captured(case, local, tmp_path):
    networks = {"model": {"name": "cnn", "norm": "static"}, "tier": [{"name": "all"}], "local": LOCALS[local]}
    captured = run(on_gpu(case, **networks), tmp_path / "graphs")
    alone = run(on_gpu(case, engine="serial", **networks), tmp_path / "serial")
    assert not [line for line in warned(captured) if "not captured" in line]
    assert weights(captured) == weights(alone)


def test_a_resumed_run_on_a_gpu_equals_one_that_never_stopped(tmp_path):
    case = next(case for case in CASES if case.name == "scaffold")
    whole = run(on_gpu(case), tmp_path / "whole")
    run(on_gpu(case, rounds=2), tmp_path / "parts")
    resumed = resume(tmp_path / "parts", rounds=4)
    assert weights(resumed) == weights(whole)
    assert scores(resumed) == scores(whole)


def test_steps_are_captured_and_replayed_on_a_gpu(tmp_path, monkeypatch):
    made = []

    class Watched(Graphs):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def close(self):
            trainers = [trainer for found in self._trainers.values() for trainer in found._trainers.values()]
            self.graphs = [graph for trainer in trainers for graph in trainer.graphs.made]
            super().close()

    monkeypatch.setitem(ENGINES, "graphs", Watched)
    run(on_gpu(CASES[0], rounds=6), tmp_path / "run")
    assert made[0].graphs


def test_noise_that_is_captured_is_drawn_as_in_a_fit():
    """Dropout: each client's own random numbers, replayed as they would have been drawn."""
    home = torch.device("cuda")
    data = Examples({name: column.to(home) for name, column in rows(40).columns.items()})
    lane = torch.cuda.Stream()
    places = [NetworkTrainers(lane, CapturePolicy(pytest.fail)) for _ in range(2)]
    nets, others = ([noisy(seed).to(home) for seed in range(2)] for _ in range(2))
    trainers = []
    for seed, (place, net) in enumerate(zip(places, nets, strict=True)):
        asked = job(net, seed=seed, examples=data, noise=seed)
        trainers.append(place.find(asked, True))
        trainers[-1].load(asked)
    assert replay(trainers) == {}
    assert all(trainer.graphs.made for trainer in trainers)
    for seed, (net, other) in enumerate(zip(nets, others, strict=True)):
        run_fit(job(other, seed=seed, examples=data, noise=seed))
        assert same(numbers(net), numbers(other))


WIRES = {
    "bilevel": {},
    "statistics as they come": {"recalibrate": False},
    "two layers": {"meta_layers": 2, "clip": 1.0},
    "joint": {"train": "joint", "loc_norm": "softmax"},
    "labels": {"loss": "ce"},
    "alike": {"loss": "mse", "target": "soft"},
    "location": {"loss": "location", "optimiser": "adam"},
}


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("way", WIRES)
def test_a_captured_transfer_gives_the_bits_of_one_that_is_not(way, gather, monkeypatch):
    """Two calls of three epochs, the last batch smaller; networks with batch norms and depthwise convolutions."""
    home, wire = torch.device("cuda"), WireSettings(lr=0.05, batch=8, epochs=3, **WIRES[way])
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    ends = [make_spec(name, input=(3, 16, 16), classes=3) for name in ("resnet18", "mobilenet_v2")]
    zoo, drawn = ModelZoo(ends[0]), stream(1)
    x, y = torch.randn(20, 3, 16, 16, generator=drawn), torch.randint(3, (20,), generator=drawn)
    data, found = Examples({"x": x.to(home), "y": y.to(home)}), []
    for captured in (True, False):
        nets = [zoo.build(Newborn(spec), stream(2)).to(home) for spec in ends]
        matching = wire.matching(*ends, zoo)
        meta = MetaNetworks.from_arrays(MetaNetworks.initial(matching, stream(3)).snapshot(), home)
        transfer = TransferLoop(*nets, matching, meta, wire, gather)
        for step in transfer.captured_steps:
            step.policy.wanted = captured
        losses = [transfer.run(data, lr, stream(4)).loss for lr in (0.05, 0.02)]
        assert set(transfer.captured_steps[transfer.bilevel].graphs.made) == ({8, 4} if captured else set())
        found.append(({**nets[1].state_dict(), **meta.snapshot()}, losses))
    (mine, told), (other, said) = found
    assert told == said
    assert [name for name, tensor in mine.items() if not torch.equal(tensor, other[name])] == []
