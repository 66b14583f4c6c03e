"""One round of a method, as a secure sum and as a plain one over the same replies."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import pytest
import torch

from potluck.core import Model, stream
from potluck.engines import Dispatcher, Serial, TaskEnvelope, secure_fold
from potluck.engines.worker import Worker
from potluck.parts import Sums
from potluck.run import config
from potluck.run.assemble import assemble

NUMBERS = count()
WIDTHS = [{"name": name, "width": width} for name, width in (("small", 0.25), ("medium", 0.5), ("large", 1.0))]
PLAIN = {"name": "replace"}
"""A server rule that takes the mean as it is: Adam would magnify what was rounded."""
DEPTHS = [{"name": name, "depth": depth} for name, depth in (("small", 1), ("medium", 2), ("large", 3))]
METHODS = {
    "fedavg": {"method": {"name": "fedavg"}, "tier": WIDTHS},
    "layer by layer": {"method": {"name": "fedavg", "share": "layerwise"}, "tier": DEPTHS},
    "heterofl": {"method": {"name": "heterofl", "label_mask": False}, "tier": WIDTHS},
    "fedrolex": {"method": {"name": "fedrolex", "label_mask": False}, "tier": WIDTHS},
    "fjord": {"method": {"name": "fjord", "widths": [0.25, 0.5, 1.0]}, "tier": WIDTHS},
    "feddropout": {"method": {"name": "feddropout", "shared_per_round": True, "label_mask": False}, "tier": WIDTHS},
    "inclusivefl": {"method": {"name": "inclusivefl", "weighting": "samples", "server": PLAIN}, "tier": DEPTHS},
    "moss": {"method": {"name": "moss", "wire": {"epochs": 1}}, "tier": DEPTHS, "public": 20},
}


def made(name, clients=9, **secure):
    """The setup of a method with [secure]."""
    told = METHODS[name]
    plain = {
        "rounds": 2,
        "cohort": clients,
        "seed": 3,
        "data": {"clients": clients, "partition": "dirichlet", "alpha": 1.0, "public": told.get("public", 0)},
        "model": {"name": "mlp", "hidden": 8, "depth": 3},
        "tier": told["tier"],
        "method": told["method"],
        "local": {"lr": 0.1, "epochs": 1, "batch": 16},
        "run": {"engine": "serial"},
        "secure": {"enabled": True, **secure},
    }
    return assemble(config.experiment(plain))


def rounding(total, decoded):
    """By how much entries of a mean may be off: half a step of every contributor, for values and for weights, after the
    division by the weights."""
    fine, coarse, by_weight = total.scales()
    found = 0.0
    for block, each in decoded.items():
        count = len(total.contributors(block))
        for name, sums in each.sums.items():
            step = 0.5 * count * total.heaviest / (coarse if name in total.buffers else fine)
            mean = float(abs(sums).max()) / each.weight
            found = max(found, (step + mean * 0.5 * count / by_weight) / each.weight)
    return found


def secure_round(setup, index=0, lost=None, engine=None, state=None, quorum=0):
    """A round with secure sums: the state after it and the session. `lost`: in which phase clients are lost. The
    session's `rounding` says by how much it may differ from the plain round."""
    lost, context, seen = lost or {}, setup.context, []
    dispatcher = Dispatcher(
        engine or Serial(context),
        context.method,
        context.zoo,
        setup.experiment.gate,
        lost=lambda client, index, attempt: client in lost,
        samples=context.samples,
        secure=context.secure,
        session_label=f"test {next(NUMBERS)}",
        lost_phase=lambda client, index, attempt: lost[client],
    )
    session = dispatcher.open(index)
    session.quorum = quorum
    state = state or context.method.init(context.zoo, stream(context.seed, "init"))
    told = secure_fold._told
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            secure_fold, "_told", lambda total, decoded: seen.append((total, decoded)) or told(total, decoded)
        )
        after = context.method.round(state, setup.view(index, session))
    session.close()
    # The server's numbers are in float32: one rounding of each of the two results.
    exact = max(float(tensor.abs().max()) for tensor in after.model.arrays.values()) * 2.0**-23
    session.rounding = max((rounding(*each) for each in seen), default=0.0) + exact
    return after, session


def clipped(task, arrays, clip):
    """A model whose distance from the one that was sent is at most the clip."""
    sent = task.models["model"].arrays
    changes = {name: tensor.double() - sent[name].double() for name, tensor in arrays.items()}
    length = sum(float(change.square().sum()) for change in changes.values()) ** 0.5
    factor = min(1.0, clip / length) if length else 1.0
    return {name: sent[name].double() + change * factor for name, change in changes.items()}


def plain_round(setup, uploaded, index=0, state=None, clip=math.inf):
    """The same round without masks, over the clients that uploaded; entries of too few holders keep their value."""
    context = replace(setup.context, secure=None)
    worker, least = Worker(context), setup.experiment.secure.min_holders

    def fold(tasks, mean, held, weigh=None):
        tasks = [task for task in tasks if task.to in uploaded]
        found, sums, counts = [], Sums(), {}
        for task in tasks:
            reply = worker.run(TaskEnvelope(replace(task, round=index))).reply
            assert reply is not None
            part, weight = held[task.to], context.method.weigh(reply, context.zoo)
            for name, tensor in clipped(task, reply.models["model"].arrays, clip).items():
                place = part.place(name)
                each = weight.get(name, weight.get("")) if isinstance(weight, dict) else weight
                start = mean.start[place.name]
                total = sums.totals.setdefault(place.name, torch.zeros(start.shape, dtype=torch.float64))
                weights = sums.weights.setdefault(place.name, torch.zeros(start.shape, dtype=torch.float64))
                count = counts.setdefault(place.name, torch.zeros(start.shape))
                spread = torch.as_tensor(each, dtype=torch.float64).expand(tensor.shape)
                for there, here in place.blocks(tensor.shape):
                    at = _grid(there, start.shape)
                    total[at] += tensor[here].double() * spread[here]
                    weights[at] += spread[here]
                    count[at] += 1
            found.append(replace(reply, models={"model": Model(reply.models["model"].spec, {})}))
        for name, count in counts.items():
            sums.weights[name] = torch.where(count >= least, sums.weights[name], 0.0)
        mean.add_block(sums, 0)
        # A client of whom nothing counts has sent nothing.
        seen = {name: bool((count >= least).any()) for name, count in counts.items()}
        places = {task.to: [held[task.to].place(name).name for name in task.models["model"].arrays] for task in tasks}
        return [reply for reply in found if any(seen[name] for name in places[reply.task.to])]

    dispatcher = Dispatcher(Serial(context), context.method, context.zoo, setup.experiment.gate)
    session = dispatcher.open(index)
    now = replace(setup.view(index, session), fold=fold)
    state = state or context.method.init(context.zoo, stream(context.seed, "init"))
    return context.method.round(state, now)


def _grid(there, shape):
    """The same entries as index lists for all dimensions."""
    lists = [torch.arange(length) for length in shape]
    for dim, index in enumerate(there):
        lists[dim] = lists[dim][index]
    return torch.meshgrid(*lists, indexing="ij") if lists else ()


def largest_difference(one, other):
    """The largest difference of two states' models, entry by entry."""
    assert one.model.arrays.keys() == other.model.arrays.keys()
    return max(float((one.model.arrays[name] - other.model.arrays[name]).abs().max()) for name in one.model.arrays)
