"""Flower's simulation (Ray): FedAvg of its own, told whom to draw."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import version

import torch
from common import begin
from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch_model import model

GIVEN, COURSE = begin()
SERVER = ServerApp()


class Told(FedAvg):
    """FedAvg with the clients of every round given."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        drawn = GIVEN.drawn[server_round - 1].tolist()
        for node, client in zip(sorted(grid.get_node_ids()), drawn, strict=False):
            asked = ConfigRecord({"server-round": server_round, "client": client})
            content = RecordDict({"arrays": arrays, "config": asked})
            yield Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node)


@SERVER.main()
def serve(grid: Grid, context: Context) -> None:
    strategy = Told(fraction_evaluate=0.0)
    start = ArrayRecord(model(GIVEN).state_dict())

    def ended(round: int, arrays: ArrayRecord) -> None:
        if round:
            COURSE.ended(round)

    result = strategy.start(grid, start, num_rounds=GIVEN.rounds, evaluate_fn=ended)
    end = result.arrays.to_torch_state_dict().values()
    named = {n: w.numpy() for n, w in zip(GIVEN.weights, end, strict=True)}
    COURSE.finish(named, flwr=version("flwr"), ray=version("ray"), torch=torch.__version__)


def main() -> None:
    torch.set_num_threads(1)
    resources = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}, "init_args": {"num_cpus": os.cpu_count()}}
    run_simulation(SERVER, app, num_supernodes=len(GIVEN.sizes), backend_config=resources)


if __name__ == "__main__":
    main()
