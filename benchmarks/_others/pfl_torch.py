"""pfl-research: FederatedAveraging with its PyTorch model, in one process, told whom to draw and in which order."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from common import begin
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch_model import model, named, samples


class Learner(nn.Module):
    """What pfl asks of a model: a loss, and metrics, which nobody looks at here."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    def __init__(self, ended: Any) -> None:
        self.ended = ended

    def after_central_iteration(self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int) -> Any:
        self.ended(central_iteration + 1)
        return False, Metrics()


def main() -> None:
    torch.set_num_threads(1)
    given, course = begin()
    x, y = samples(given)
    index = torch.from_numpy(given.index)
    turns = iter((t, k) for t in range(given.rounds) for k in range(index.shape[1]))

    def shard(turn: tuple[int, int]) -> PyTorchTensorDataset:
        """A user's samples in the order in which it is to see them."""
        mine = index[turn].reshape(-1)
        return PyTorchTensorDataset((x[mine], y[mine]), user_id=str(given.drawn[turn]))

    users = FederatedDataset(shard, lambda: next(turns))
    net = Learner(model(given))
    wrapped = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    backend = SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()])
    params = NNAlgorithmParams(
        central_num_iterations=given.rounds,
        evaluation_frequency=given.rounds + 1,
        train_cohort_size=index.shape[1],
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=given.lr, local_batch_size=index.shape[3])
    FederatedAveraging().run(params, backend, wrapped, local, callbacks=[Clock(course.ended)])
    course.finish(named(given, net), pfl=version("pfl"), torch=torch.__version__)


if __name__ == "__main__":
    main()
