"""FedSGD's client: it sends the gradient at the weights it received, and takes no step of its own.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
https://arxiv.org/abs/1602.05629.
"""

from __future__ import annotations

from dataclasses import replace

from potluck.core import Device, Model, Reply, Skip, Task
from potluck.learn import LocalTraining


def gradient(method: LocalTraining, task: Task, device: Device) -> Reply:
    """The received model less its gradient over one pass of the client's data (or ``local.steps`` batches).

    The gradient, the mean of the batches', is multiplied by the local learning rate. Under a server's Adam that rate
    changes nothing, but a larger one saves digits: a model that hardly moved tells little of where it was going.
    """
    if not len(device.data):
        raise Skip("no samples")
    net = device.build(method.start(task, device))
    still = replace(method.local, lr=0.0, epochs=1, optimiser="sgd")
    fit = device.fit(net, device.data, still, method.loss(task, device), method.edits(task, device), want_gradient=True)
    reply = method.report(task, device, net, fit)
    model, rate = reply.models["model"], method.local.rate(device.round)
    arrays = dict(model.arrays or {})
    for name, slope in (fit.gradient or {}).items():
        arrays[name] = arrays[name] - rate * slope
    return replace(reply, models={"model": Model(model.spec, arrays)})
