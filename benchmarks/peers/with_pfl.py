"""pfl: its simulated backend and federated averaging, users' data held as tensors and batches cached by pfl."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from task import LR, Work, asked, data, mark, network, shard
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.net = network(work)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.net.train()
        return functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(0.0, len(y))}


class Marks(TrainingProcessCallback[Any]):
    """A callback that says when a round is over."""

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        mark()
        return False, Metrics()


def main() -> None:
    work, rounds, _ = asked()
    np.random.seed(0)
    data(work)
    users = get_user_sampler("random", range(work.clients))
    clients = FederatedDataset(lambda user: Dataset(shard(work, user), user_id=str(user)), users)
    net = Classifier(work)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(rounds, 10**6, work.cohort, 0),
        backend=SimulatedBackend(clients, clients),
        model=model,
        model_train_params=NNTrainHyperParams(local_batch_size=work.batch, local_num_epochs=1, local_learning_rate=LR),
        model_eval_params=NNEvalHyperParams(local_batch_size=work.samples),
        callbacks=[Marks()],
    )


if __name__ == "__main__":
    main()
