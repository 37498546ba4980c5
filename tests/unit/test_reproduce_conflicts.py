"""Conflicts are told in the model's order, not in the alphabet's, in which files have them."""

import json

import numpy as np

from equipoise import config as configs
from equipoise import experiment
from equipoise.audit.runner import built
from equipoise.reproduce.measures import Finished, measure

RUN = """
[data]
dataset = "digits"
clients = 8
partition = { kind = "pathological", classes = 1 }
[model]
kind = "mlp"
hidden = [8, 8]
[train]
rounds = 4
batch = 50
lr = 0.5
[method]
name = "fedmdfg"
[run]
eval_every = 0
"""


def test_the_first_count_is_the_models_and_the_others_follow_the_layers() -> None:
    made = built(configs.dump(configs.load(RUN)))
    run = Finished(made, experiment.execute(made, models=False))
    counts = [json.loads(text)["conflicts"] for text in run.result.rounds["info"]]
    got = measure(run, ["conflicts", "conflicts_1", "conflicts_2", "conflicts_3"])
    want = [np.mean([c[name] for c in counts]) for name in ("model", "dense1", "dense2", "output")]
    assert list(got.values()) == want
    assert next(iter(counts[0])) != "model"  # else this test shows nothing
    assert got["conflicts"] == np.mean(run.result.rounds["conflicts"])
