"""FedMD: clients agree on scores for public rows, learn these, and go back to their own data.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019, https://arxiv.org/abs/1910.03581.
Before its first round a client trains on the public rows with their labels, then on its own. In each round clients
upload raw scores of public rows; the server takes the plain mean; clients *digest* it (mean absolute error) and
*revisit* their own data. Networks need nothing in common but the classes. The server has no model.

The warm-up is a number of epochs instead of training until it stops helping, and it and the digest use the clients' own
optimiser (the authors: Adam at 0.001 throughout). A client that is first drawn in a later round warms up then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from potluck.core import Device, Facts, Reply, Round, Skip, Task, on_client
from potluck.learn import Mimic, mean_scores, with_columns
from potluck.methods.frames.exchange import Exchange, refuse_below, spoken_of
from potluck.methods.local import Alone


@dataclass(frozen=True)
class FedMD(Exchange):
    """Agree on public scores, digest, revisit."""

    warm_public: int = 5
    """Epochs on the public rows before a client's first round ..."""
    warm_private: int = 5
    """... and then on its own."""
    digests: int = 1
    """Epochs on the consensus in each round."""
    batch: int = 256
    """Rows of a batch of the digest."""

    facts = Facts(networks="any", public="labels", memory=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_below(self, warm_public=0, warm_private=0, digests=0, batch=1)

    def round(self, state: Alone, now: Round) -> Alone:
        about = self.about(now)
        answers = self.heard("answer", now, about)
        if answers:
            consensus = mean_scores(torch.stack(list(answers.values())))
            self.tell("digest", now, answers, {**about, "scores": consensus})
        return state

    @on_client
    def answer(self, task: Task, device: Device) -> Reply:
        """What the client's model says about public rows; a client that is new to this warms up first."""
        if not len(device.data):
            raise Skip("no samples")
        start = self.start(task, device)
        net = device.build(start)
        if start.arrays is None:
            device.fit(net, device.public, replace(self.local, epochs=self.warm_public, steps=None))
            fit = device.fit(net, device.data, replace(self.local, epochs=self.warm_private, steps=None))
            return self.report(task, device, net, fit)
        return Reply(arrays={"scores": self.says(net, task, device)})

    @on_client
    def digest(self, task: Task, device: Device) -> Reply:
        """Learn the consensus, then go back to the client's own data."""
        net = device.build(self.start(task, device))
        examples = with_columns(spoken_of(task, device), scores=task.arrays["scores"])
        lesson = replace(self.local, epochs=self.digests, steps=None, batch=self.batch)
        device.fit(net, examples, lesson, Mimic())
        return self.kept(task, device, net, device.fit(net, device.data, self.local))
