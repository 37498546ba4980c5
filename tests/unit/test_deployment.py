"""A deployed run leaves the simulator's run folder, also when its server is killed on the way."""

import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from equipoise import config, course, experiment, registry
from equipoise.audit.single import of_run
from equipoise.cli import deploy
from equipoise.data.federation import SPLITS, Dataset, Federation, Split
from equipoise.engine.messages import Parcel
from equipoise.engine.node import Node, own_part
from equipoise.engine.post import InMemory, Post, in_bytes
from equipoise.errors import EquipoiseError
from equipoise.flower import local, parts, proxy, roster, writing
from equipoise.flower.serving import carry_out
from equipoise.flower.sites import Own
from equipoise.report import write_report
from equipoise.results import load_result

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
steps = 2
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
@pytest.mark.parametrize("when", [1, 2, 3, 4])
@pytest.mark.parametrize("slow", [False, True])
def test_killed_anywhere_and_started_again_it_ends_with_the_same_bytes(
    method: str, when: int, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slow:  # every checkpoint takes long, as with a large model
        monkeypatch.setattr(course, "_LONG", 0.0)
        monkeypatch.setattr(course.Course, "pause", 10**6)
    run = made(method)
    carry_out(run, nodes(run, tmp_path / "a"), tmp_path / "whole")
    post = DiesAt(nodes(run, tmp_path / "b"), when)
    with pytest.raises(Killed):
        carry_out(run, post, tmp_path / "killed")
    carry_out(run, post, tmp_path / "killed")
    for name in ("model.safetensors", "clients.parquet", "summary.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


class Counted:
    """A post that notes to whom it went, and can be told who is out of reach when."""

    def __init__(self, post: Post, away: Callable[[int, int], bool] = lambda n, client: False) -> None:
        self.post, self.away, self.sent = post, away, list[list[int]]()

    def __call__(self, letters: Mapping[int, Parcel]) -> Mapping[int, Parcel | str]:
        self.sent.append(sorted(letters))
        n = len(self.sent)
        back = self.post({k: p for k, p in letters.items() if not self.away(n, k)})
        return {**back, **{k: "absent" for k in letters if self.away(n, k)}}


EVERY = CONFIG.replace("eval_every = 2", "eval_every = 1")


def test_a_round_is_one_exchange_though_everyone_is_evaluated_after_it(tmp_path: Path) -> None:
    run = experiment.build(config.load(EVERY.format(method="ditto", more="")))
    post = Counted(nodes(run, tmp_path / "state"))
    far = carry_out(run, post, tmp_path / "far")
    assert post.sent == [[0, 1, 2, 3]] * 4  # three rounds, and the last evaluation
    near = experiment.execute(run, tmp_path / "near")
    exact = ("round", "client", "split", "model", "accuracy", "n")
    for name in exact:
        assert (near.clients[name] == far.clients[name]).all(), name


def test_who_does_not_train_is_not_evaluated_until_the_end(tmp_path: Path) -> None:
    run = experiment.build(config.load(EVERY.format(method="fedavg", more="[participation]\nper_round = 2")))
    post = Counted(nodes(run, tmp_path / "state"))
    far = carry_out(run, post, tmp_path / "far")
    assert [len(s) for s in post.sent] == [2, 2, 2, 4]
    rounds, ids, n = (far.clients[name] for name in ("round", "client", "n"))
    for round, cohort in ((1, post.sent[1]), (2, post.sent[2]), (3, [0, 1, 2, 3])):
        assert sorted(set(ids[(rounds == round) & (n > 0)])) == cohort


def test_the_log_says_who_was_missing_and_the_run_goes_on(tmp_path: Path) -> None:
    run = made("fedavg")
    post = Counted(nodes(run, tmp_path / "state"), away=lambda n, client: n == 2 and client == 3)
    carry_out(run, post, tmp_path / "out")
    log = (tmp_path / "out" / "log.txt").read_text()
    assert "round 1: client 3 does not count (absent): it cannot be reached" in log


def test_a_simulated_attack_cannot_be_deployed(tmp_path: Path) -> None:
    run = made("fedavg", '[attack]\nname = "sign-flip"\nfraction = 0.5')
    with pytest.raises(EquipoiseError, match="no simulated attackers"):
        carry_out(run, nodes(run, tmp_path), tmp_path / "out")


@pytest.mark.parametrize("more", ['[attack]\nname = "sign-flip"\nfraction = 0.5', "[participation]\ndropout = 0.1"])
def test_what_only_a_simulation_has_is_refused_before_anything_is_written(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(CONFIG.format(method="fedavg", more=more))
    for asked in (["new", "app"], ["local", "--out", "app"]):
        refused = CliRunner().invoke(deploy.app, [*asked, "--config", "run.toml"])
        assert refused.exit_code == 2, refused.output
        assert "no simulated attackers and no simulated drop-outs" in refused.stderr
        assert "leave out [attack] and participation.dropout" in refused.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.toml"]


def test_another_config_never_goes_on_in_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_require_flower", lambda: None)
    run = made("fedavg")
    done = carry_out(run, nodes(run, tmp_path / "state"), tmp_path / "out")
    again = local.run(config.load(CONFIG.format(method="fedavg", more="")), tmp_path / "out")
    assert again.summary() == done.summary()
    with pytest.raises(EquipoiseError, match="another run"):
        local.run(config.load(CONFIG.format(method="ditto", more="")), tmp_path / "out")


def test_a_deployed_run_has_a_report_and_still_is_the_run_it_was(tmp_path: Path) -> None:
    run, out = made("fedavg"), tmp_path / "out"
    before = carry_out(run, nodes(run, tmp_path / "state"), out).summary()
    for _ in range(2):  # also when it is there already
        page = write_report(of_run(out, tmp_path / "work"), out / "report.html")
    assert page == out / "report.html" and "The run out" in page.read_text()
    assert load_result(out).summary() == before


def test_there_is_no_report_with_data_that_the_run_never_saw(tmp_path: Path) -> None:
    run = made("fedavg")
    own = Own(lambda node: (node["x"], node["y"]), shape=(1, 8, 8), classes=10).experiment(config.load(run.config))
    done = carry_out(own, nodes(run, tmp_path / "state"), tmp_path / "out")
    assert done.summary()["dataset"] == "own"
    with pytest.raises(EquipoiseError, match="the data"):
        of_run(tmp_path / "out", tmp_path / "work")


def test_every_round_is_told(tmp_path: Path) -> None:
    run, told = made("fedavg"), list[experiment.Progress]()
    carry_out(run, nodes(run, tmp_path / "state"), tmp_path / "out", told.append)
    assert [p.round for p in told] == [1, 2, 3]


def test_an_app_that_somebody_filled_in_is_never_written_over(tmp_path: Path) -> None:
    wanted = tmp_path / "run.toml"
    wanted.write_text(CONFIG.format(method="fedavg", more=""))
    asked = ["new", str(tmp_path / "app"), "--config", str(wanted)]
    assert CliRunner().invoke(deploy.app, asked).exit_code == 0
    filled = tmp_path / "app" / "federation" / "nodes.toml"
    filled.write_text("claims = true\n")
    assert CliRunner().invoke(deploy.app, asked).exit_code != 0
    assert filled.read_text() == "claims = true\n"


def test_what_is_run_without_a_config_can_be_built() -> None:
    assert experiment.build(config.load(deploy._SAMPLE, ["data.clients=3"])).scenario.federation.n_clients == 3


def test_the_app_that_is_written_reads_as_toml_and_python(tmp_path: Path) -> None:
    wanted = config.load(CONFIG.format(method="ditto", more=""))
    folder = writing.new(tmp_path / "app", wanted, tmp_path / 'a "quoted" place', 60)
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"] == {"out": str(tmp_path / 'a "quoted" place'), "timeout": 60.0}
    assert config.load(folder / "federation" / "run.toml") == wanted
    for name in ("server_app", "client_app", "data"):
        compile((folder / "federation" / f"{name}.py").read_text(), name, "exec")
    with pytest.raises(EquipoiseError, match=r"nodes\.toml"):  # to be filled in first
        roster.read(folder / "federation" / "nodes.toml", 4)


# -------------------------------------------------------------------------------------------------- parts of one's own

HALF = """from dataclasses import dataclass

from equipoise.core import Aggregator


@dataclass(frozen=True)
class Half(Aggregator):
    def combine(self, cohort):
        return cohort.updates.mean(0) / 2
"""
LAZY = """from equipoise.core import SGD, Method, ServerRule, WeightedMean


def lazy(*, server: ServerRule = WeightedMean()) -> Method:
    return Method("lazy", SGD(), server)
"""
MUTE = """from equipoise.threat import Attack


class Mute(Attack):
    pass
"""
THIN = """from torch import nn


def thin(shape, classes, width: int = 3):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))
"""
WITH_PARTS = CONFIG.format(method='lazy"\nserver = "half', more="").replace('"linear"', '"thin"\nwidth = 4')


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run.toml of an app with parts of one's own, which nobody knows in this process any more."""
    for name, text in {"lazy.py": LAZY, "half.py": HALF, "thin.py": THIN, "run.toml": WITH_PARTS}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    asked = ["new", "app", "--config", "run.toml", "--own", "lazy.py", "--own", "half.py", "--own", "thin.py"]
    done = CliRunner().invoke(deploy.app, asked)
    assert done.exit_code == 0, done.output
    registry._OWN.clear()
    return tmp_path / "app" / "federation" / "run.toml"


def edit(app: Path, old: str, new: str) -> None:
    """Change the run.toml of an app."""
    text = (app / "run.toml").read_text()
    assert old in text
    (app / "run.toml").write_text(text.replace(old, new))


def at_nodes(app: Path, folder: Path, elsewhere: Mapping[int, Path]) -> tuple[experiment.Experiment, Post]:
    """The app's run, and nodes that have the app, or another one, and compare it with the server's."""
    parts.load(app)
    run = experiment.build(config.load(app))

    def comparing(k: int, node: Node) -> Callable[[Parcel], Parcel]:
        def answer(parcel: Parcel) -> Parcel:
            parts.compare(elsewhere.get(k, app), parcel)
            return node(parcel)

        return answer

    s = run.scenario
    here = {
        k: Node(k, own_part(s.federation, k), run.method, s.model, s.train, run.run, folder / str(k)) for k in range(4)
    }
    inside = InMemory({k: in_bytes(comparing(k, node)) for k, node in here.items()}, 1 << 20)
    return run, parts.announced(inside, app)


def test_parts_of_ones_own_travel_with_the_app_and_give_the_simulators_bits(written: Path, tmp_path: Path) -> None:
    with pytest.raises(EquipoiseError, match="which is not known"):
        config.load(written)  # a config makes no code run
    run, post = at_nodes(written, tmp_path / "state", {})
    near = experiment.execute(run, tmp_path / "near")
    far = carry_out(run, post, tmp_path / "far")
    assert far.summary()["method"] == "lazy" and far.rounds["round"].tolist() == near.rounds["round"].tolist()
    model = "model.safetensors"
    assert (tmp_path / "near" / model).read_bytes() == (tmp_path / "far" / model).read_bytes()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda app: (app / "own/half.py").unlink(), "own/half.py is at the server, and not at this node$"),
        (lambda app: (app / "own/more.py").write_text(HALF), "own/more.py is at this node, and not at the server$"),
        (lambda app: (app / "own/half.py").write_text(HALF + "#"), r"own/half.py is not the server's: sha256 \w{12}"),
        (lambda app: edit(app, "steps = 2", "steps = 3"), r"^\[train\] in run.toml is not the server's: sha256 \w{12}"),
        (lambda app: edit(app, "width = 4", "width = 5"), r"^\[model\] in run.toml is not the server's: [^;]*$"),
        (lambda app: edit(app, 'name = "half"', 'name = "krum"'), r"^\[method\] in run.toml is not the server's"),
        (lambda app: edit(app, "clients = 4", "clients = 5"), r"^\[data\] in run.toml is not the server's"),
        (lambda app: edit(app, 'dtype = "float32"', 'dtype = "float64"'), r"^\[run\] in run.toml is not the server's"),
        (
            lambda app: edit(app, "[model]", "[modal]"),
            r"^\[model\] in run.toml is at the server, and not at this node$",
        ),
        (lambda app: edit(app, "[train]", "[train"), r"other/federation/run.toml: not valid TOML"),
        (lambda app: (app / "run.toml").unlink(), r"other/federation/run.toml: no such file"),
    ],
)
def test_a_node_with_other_files_or_settings_than_the_server_is_told_which(
    change: Callable[[Path], object], told: str, written: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "federation"
    shutil.copytree(written.parent, other)
    change(other)
    run, post = at_nodes(written, tmp_path / "state", {1: other / "run.toml"})
    with pytest.raises(EquipoiseError) as refused:
        carry_out(run, post, tmp_path / "out")
    assert re.search(told, refused.value.message), refused.value.message
    assert "run.toml:" in refused.value.message or str(tmp_path / "other") in refused.value.hint


def test_data_py_and_settings_that_nodes_do_not_use_are_the_sites_own_matter(written: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "federation"
    shutil.copytree(written.parent, other)
    (other / "data.py").write_text("own = None  # here we have another way\n")
    edit(other, 'device = "cpu"', 'device = "cuda"')
    edit(other, "quorum = 1", "quorum = 2")
    edit(other, "[train]", "# ours\n[train]")
    run, post = at_nodes(written, tmp_path / "state", {1: other / "run.toml"})
    assert not carry_out(run, post, tmp_path / "out").rounds["quarantined"].any()


@pytest.mark.parametrize("said", ["[1]", "noise", '"half.py"', "null", "[" * 100_000])
def test_a_server_that_talks_nonsense_of_its_app_is_not_followed(said: str, written: Path) -> None:
    with pytest.raises(EquipoiseError, match="the server's message"):
        parts.compare(written, Parcel(facts={"app": said}))


def test_a_server_that_says_nothing_of_its_app_is_not_followed(written: Path) -> None:
    with pytest.raises(EquipoiseError, match=r"\[train\] in run.toml is at this node, and not at the server"):
        parts.compare(written, Parcel())


def test_a_deployed_run_never_goes_on_with_another_file(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, post = at_nodes(written, tmp_path / "state", {})
    with pytest.raises(Killed):
        carry_out(run, DiesAt(post, 2), tmp_path / "out")
    half = written.parent / "own" / "half.py"
    half.write_text(HALF.replace("/ 2", "/ 3"))
    other, post = at_nodes(written, tmp_path / "state", {})
    told = f"the file of server rule half is not the one that {tmp_path / 'out'} was made with: sha256 "
    with pytest.raises(EquipoiseError, match=re.escape(told)):
        carry_out(other, post, tmp_path / "out")
    half.write_text(HALF)
    again, post = at_nodes(written, tmp_path / "state", {})
    done = carry_out(again, post, tmp_path / "out")
    monkeypatch.setattr(local, "_require_flower", lambda: None)
    chosen = config.load(written)
    assert local.run(chosen, tmp_path / "out").summary() == done.summary()
    half.write_text(HALF.replace("/ 2", "/ 3"))
    parts.load(written)
    with pytest.raises(EquipoiseError, match=re.escape(told)):
        local.run(chosen, tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["mute.py"], "'mute' is an attack, and deployed runs have none"),
        (["test_half.py"], "cannot have a file called 'test_half.py'"),  # Flower would leave it behind
        (["half.py", "more/half.py"], "'half' is also in half.py"),
        (["none.py"], "none.py: not a Python file"),
    ],
)
def test_what_cannot_be_deployed_is_refused_before_anything_is_written(
    names: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more").mkdir()
    texts = {"half.py": HALF, "more/half.py": HALF, "mute.py": MUTE, "test_half.py": HALF.replace("Half", "TestHalf")}
    for name, text in {**texts, "run.toml": CONFIG.format(method="fedavg", more="")}.items():
        Path(name).write_text(text)
    own = [word for name in names for word in ("--own", name)]
    for asked in (["new", "app", "--config", "run.toml"], ["local", "--out", "app"]):
        done = CliRunner().invoke(deploy.app, [*asked, *own])
        assert done.exit_code == 2 and told in done.stderr, done.output
    assert not Path("app").exists()


# ------------------------------------------------------------------------------------------------------- who is who

A, B = "SHA256:" + "a" * 43, "SHA256:" + "b" * 43


def test_a_roster_comes_back_as_it_was_written(tmp_path: Path) -> None:
    for told in (roster.Roster({A: 1, B: 0}), roster.Roster(claims=True)):
        (tmp_path / "nodes.toml").write_text(told.text())
        assert roster.read(tmp_path / "nodes.toml", 2) == told


@pytest.mark.parametrize(
    "text",
    [
        f'[nodes]\n"{A}" = 0\n"{B}" = 0',  # two keys for one client
        f'[nodes]\n"{A}" = 2',
        f'[nodes]\n"{A}" = -1',
        f'[nodes]\n"{A}" = true',
        '[nodes]\n"12345" = 0',
        f'claims = true\n[nodes]\n"{A}" = 0',  # then nobody would know which of the two counts
        'claims = "yes"',
        "claims = false",
        f'[node]\n"{A}" = 0',
        "not toml",
    ],
)
def test_a_roster_that_leaves_a_doubt_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(text)
    with pytest.raises(EquipoiseError, match=r"nodes\.toml"):
        roster.read(tmp_path / "nodes.toml", 2)


# ------------------------------------------------------------------------------------------------- a site's own data


def site(node: Mapping[str, Any]) -> tuple[Any, Any]:
    rng = np.random.default_rng(node["partition-id"])
    x = rng.normal(size=(node["n"], 5))
    return x, (x[:, 0] > 0).astype(int)


OWN = Own(site, shape=(5,), classes=2)
SITES = CONFIG.format(method="ditto", more="").replace("clients = 4", "clients = 3")


def joined(parts: list[Federation]) -> Federation:
    """What no one has in a real federation: everybody's samples in one place."""
    firsts = np.cumsum([0, *(len(p.data) for p in parts)])
    data = Dataset("own", torch.cat([p.data.x for p in parts]), torch.cat([p.data.y for p in parts]), 2)

    def split(name: str) -> Split:
        return Split.of([p.splits[name].of_client(k) + int(firsts[k]) for k, p in enumerate(parts)])

    return Federation(data, {name: split(name) for name in SPLITS})


def test_sites_train_on_data_that_the_server_never_has(tmp_path: Path) -> None:
    chosen = config.load(SITES)
    run = experiment.build(chosen, OWN.seen_by_server(chosen))
    assert not run.scenario.federation.data.x.any()
    held = [OWN.held_by(k, {"partition-id": k, "n": n}, chosen) for k, n in enumerate((40, 60, 10))]
    models = [experiment.build(chosen, own).scenario.model for own in held]
    here = [Node(k, held[k], run.method, models[k], chosen.train, chosen.run, tmp_path / str(k)) for k in range(3)]
    far = carry_out(run, InMemory({k: in_bytes(node) for k, node in enumerate(here)}, 1 << 20), tmp_path / "far")
    near = experiment.execute(experiment.build(chosen, joined(held)), tmp_path / "near")
    assert far.summary()["accuracy_mean"] == near.summary()["accuracy_mean"]
    assert (tmp_path / "far" / "model.safetensors").read_bytes() == (
        tmp_path / "near" / "model.safetensors"
    ).read_bytes()
    assert far.clients.filter(round=3, split="test", model="personal")["n"].tolist() == [8, 12, 2]


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (Own(site, shape=(6,), classes=2), "shape of a sample"),
        (Own(site, shape=(5,), classes=0), "classes"),
        (Own(lambda node: None, shape=(5,), classes=2), "load gave"),  # type: ignore[arg-type,return-value]
    ],
)
def test_data_of_another_form_than_was_agreed_is_refused(own: Own, why: str) -> None:
    with pytest.raises(EquipoiseError, match=why):
        own.held_by(0, {"partition-id": 0, "n": 20}, config.load(SITES))


def test_a_server_that_has_no_data_cannot_draw_by_size() -> None:
    chosen = config.load(SITES + '\n[participation]\nsampling = "size"\nper_round = 2')
    with pytest.raises(EquipoiseError, match="sampling"):
        OWN.seen_by_server(chosen)


def test_the_proxy_lets_through_what_nodes_ask_and_nothing_that_manages() -> None:
    text = proxy.nginx(cap=7)
    (pattern,) = re.findall(r"location ~ (\S+) \{", text)
    assert all(re.search(pattern, f"/v1/fleet/{call}") for call in proxy.CALLS)
    for path in ("/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/register-node", "/v1/fleet/"):
        assert not re.search(pattern, path)
    assert "client_max_body_size 7m;" in text and text.count("{") == text.count("}")
