"""FedLab: its serial trainer and synchronous server, told whom to draw and in which order."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any
from unittest.mock import MagicMock

import torch
from common import Problem, begin
from torch import Tensor
from torch_model import model, named, samples

for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):
    sys.modules[name] = MagicMock()  # imported at the top for data sets that nobody uses here

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Told(SyncServerHandler):
    """The clients of every round are given. All have the same size, so its plain mean is the weighted one."""

    drawn: Any = None

    def sample_clients(self) -> list[int]:
        return self.drawn[self.round].tolist()


class Shards:
    """A client's batches in the round that the server is in."""

    def __init__(self, given: Problem, server: Told) -> None:
        self.given, self.server, (self.x, self.y) = given, server, samples(given)

    def get_dataloader(self, client: int, batch_size: int) -> list[tuple[Tensor, Tensor]]:
        mine = torch.from_numpy(self.given.steps(self.server.round, client))
        return list(zip(self.x[mine], self.y[mine], strict=True))


def main() -> None:
    torch.set_num_threads(1)
    given, course = begin()
    assert len(set(given.sizes.tolist())) == 1
    k, batch = given.index.shape[1], given.index.shape[3]
    server = Told(model(given), given.rounds, k / len(given.sizes))
    server.drawn = given.drawn
    trainer = SGDSerialClientTrainer(model(given), len(given.sizes))
    trainer.setup_dataset(Shards(given, server))
    trainer.setup_optim(1, batch, given.lr)
    pipeline = StandalonePipeline(server, trainer)
    pipeline.evaluate = lambda: course.ended(server.round)  # what it calls at the end of a round
    pipeline.main()
    course.finish(named(given, server.model), fedlab=version("fedlab"), torch=torch.__version__)


if __name__ == "__main__":
    main()
