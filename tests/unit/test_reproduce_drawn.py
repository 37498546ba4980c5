"""Numbers over the clients that were drawn at least once leave out those whose personal model is the initial one."""

import pytest

from equipoise import config as configs
from equipoise import experiment
from equipoise.audit.runner import built
from equipoise.reproduce.measures import Finished, measure

RUN = """
[data]
dataset = "digits"
clients = 8
partition = { kind = "pathological", classes = 2 }
[model]
kind = "linear"
[train]
rounds = 3
epochs = 10
batch = 50
lr = 0.5
[participation]
per_round = PER_ROUND
[method]
name = "ditto"
lam = 0.01
[run]
eval_every = 0
"""
NAMES = ("accuracy_mean", "accuracy_std", "class_std_mean", "class_std_std")


def finished(per_round: int) -> Finished:
    made = built(configs.dump(configs.load(RUN.replace("PER_ROUND", str(per_round)))))
    return Finished(made, experiment.execute(made, models=False))


def test_clients_that_were_never_drawn_do_not_count() -> None:
    run = finished(1)
    drawn = sorted({k for info in run.infos for k in info["drawn"]})
    assert 0 < len(drawn) < 8
    ours = run.last["accuracy"][drawn]
    got = measure(run, ["drawn_accuracy_mean", "drawn_accuracy_std", "accuracy_mean"])
    assert got["drawn_accuracy_mean"] == pytest.approx(ours.mean())
    assert got["drawn_accuracy_std"] == pytest.approx(ours.std())
    assert got["drawn_accuracy_mean"] > got["accuracy_mean"] + 0.2


def test_when_everyone_was_drawn_it_is_the_summary() -> None:
    got = measure(finished(8), [*NAMES, *(f"drawn_{name}" for name in NAMES)])
    assert [got[f"drawn_{name}"] for name in NAMES] == [got[name] for name in NAMES]
