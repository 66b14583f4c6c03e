"""Work that is captured and replayed; without a GPU a graph is its work, remembered."""

import pytest
import torch

from potluck.learn import CapturePolicy, GraphCache
from potluck.learn.capture import CapturedStep, CapturePool


@pytest.mark.parametrize("wanted", [True, False])
def test_a_captured_step_gives_what_each_batch_makes(wanted):
    """Of two sizes, in one place each: what is given stays, though the next batch is worked on in the same place."""
    place, seen = torch.zeros(()), []

    def work(batch):
        seen.append(batch["x"])
        return place.copy_(batch["x"].sum())

    step = CapturedStep(work, CapturePool(torch.device("cpu")))
    step.policy.wanted = wanted
    batches = [torch.full((size,), float(at)) for at, size in enumerate([3, 3, 2, 3, 2, 2, 3])]
    given = [step({"x": x}) for x in batches]
    assert [value.item() for value in given] == [x.sum().item() for x in batches]
    assert len({x.data_ptr() for x in seen}) == 2
    assert sorted(step.graphs.made) == ([2, 3] if wanted else [])


def test_work_is_captured_once_it_was_done_often_enough(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr("potluck.learn.capture.CudaGraph.replay", lambda graph: told.append("replayed"))
    graphs = GraphCache(None, None, CapturePolicy(pytest.fail))
    for _ in range(5):
        graphs.run("a", lambda: told.append("done"), 3)
    assert told == ["done"] * 3 + ["replayed"] * 2


def test_after_a_refusal_nothing_more_is_tried(monkeypatch):
    tries, done, told = [], [], []

    def refuses(*args):
        tries.append(args)
        raise RuntimeError("no")

    monkeypatch.setattr("potluck.learn.capture.CudaGraph", refuses)
    graphs = GraphCache(None, None, CapturePolicy(told.append))
    for kind in ("a", "b"):
        for _ in range(4):
            graphs.run(kind, lambda: done.append(1))
    assert (len(tries), len(done), told) == (1, 8, ["no"])
