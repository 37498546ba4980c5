"""A deployed run leaves the simulator's run folder, also when its server is killed on the way."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from equipoise import config, experiment
from equipoise.engine.messages import Parcel
from equipoise.engine.node import Node, own_part
from equipoise.engine.post import InMemory, Post, in_bytes
from equipoise.errors import EquipoiseError
from equipoise.flower import local
from equipoise.flower.serving import carry_out

CONFIG = """
[method]
name = "{method}"
[data]
dataset = "digits"
clients = 4
validation = 0.1
[model]
kind = "linear"
[train]
rounds = 3
batch = 50
[run]
executor = "loop"
replay = "off"
device = "cpu"
eval_every = 2
{more}
"""


class Killed(Exception):
    pass


class DiesAt:
    """A post that fails once, when clients have answered for the n-th time and nobody has heard them yet."""

    def __init__(self, post: Post, n: int) -> None:
        self.post, self.left = post, n

    def __call__(self, letters: Mapping[int, Parcel]) -> Mapping[int, Parcel | str]:
        back, self.left = self.post(letters), self.left - 1
        if self.left == 0:
            raise Killed
        return back


def made(method: str, more: str = "") -> experiment.Experiment:
    return experiment.build(config.load(CONFIG.format(method=method, more=more)))


def nodes(run: experiment.Experiment, folder: Path) -> InMemory:
    s, n = run.scenario, run.scenario.federation.n_clients
    here = {
        k: Node(k, own_part(s.federation, k), run.method, s.model, s.train, run.run, folder / str(k)) for k in range(n)
    }
    return InMemory({k: in_bytes(node) for k, node in here.items()}, 1 << 20)


@pytest.mark.parametrize("method", ["fedavg", "ditto", "rffl"])
def test_the_run_folder_is_the_simulators(method: str, tmp_path: Path) -> None:
    run = made(method)
    near = experiment.execute(run, tmp_path / "near")
    far = carry_out(run, nodes(run, tmp_path / "state"), tmp_path / "far")
    for name in ("model.safetensors", "config.toml", "rounds.parquet"):
        assert (tmp_path / "near" / name).read_bytes() == (tmp_path / "far" / name).read_bytes(), name
    assert far.summary().keys() == near.summary().keys()
    assert far.summary()["accuracy_mean"] == near.summary()["accuracy_mean"]


@pytest.mark.parametrize("method", ["ditto", "rffl"])
@pytest.mark.parametrize("when", [1, 2, 3, 4, 5])
def test_killed_anywhere_and_started_again_it_ends_with_the_same_bytes(method: str, when: int, tmp_path: Path) -> None:
    run = made(method)
    carry_out(run, nodes(run, tmp_path / "a"), tmp_path / "whole")
    post = DiesAt(nodes(run, tmp_path / "b"), when)
    with pytest.raises(Killed):
        carry_out(run, post, tmp_path / "killed")
    carry_out(run, post, tmp_path / "killed")
    for name in ("model.safetensors", "clients.parquet", "summary.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


def test_a_simulated_attack_cannot_be_deployed(tmp_path: Path) -> None:
    run = made("fedavg", '[attack]\nname = "sign-flip"\nfraction = 0.5')
    with pytest.raises(EquipoiseError, match="no simulated attackers"):
        carry_out(run, nodes(run, tmp_path), tmp_path / "out")


def test_another_config_never_goes_on_in_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_require_flower", lambda: None)
    run = made("fedavg")
    done = carry_out(run, nodes(run, tmp_path / "state"), tmp_path / "out")
    again = local.run(config.load(CONFIG.format(method="fedavg", more="")), tmp_path / "out")
    assert again.summary() == done.summary()
    with pytest.raises(EquipoiseError, match="another run"):
        local.run(config.load(CONFIG.format(method="ditto", more="")), tmp_path / "out")


def test_the_app_that_is_written_reads_as_toml_and_python(tmp_path: Path) -> None:
    wanted = config.load(CONFIG.format(method="ditto", more=""))
    folder = local.new(tmp_path / "app", wanted, tmp_path / 'a "quoted" place', 60)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == {"out": str(tmp_path / 'a "quoted" place'), "timeout": 60.0}
    assert config.load(folder / "federation" / "run.toml") == wanted
    for side in ("server", "client"):
        compile((folder / "federation" / f"{side}_app.py").read_text(), side, "exec")
