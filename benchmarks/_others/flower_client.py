"""Flower's client side, in a module of its own: Ray's workers import it once and keep the data."""

from __future__ import annotations

import torch
from common import problem
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_model import network, samples, train

app = ClientApp()


@app.train()
def local(message: Message, context: Context) -> Message:
    """The server says which client's data to use: any node can stand for any client, since none keeps anything."""
    torch.set_num_threads(1)
    given, config = problem(), message.content["config"]
    client, round = int(config["client"]), int(config["server-round"]) - 1
    net = network(given.model)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(net, *samples(given), given.steps(round, client), given.lr)
    metrics = MetricRecord({"num-examples": int(given.sizes[client])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
