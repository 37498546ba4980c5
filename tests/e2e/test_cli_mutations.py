"""Configs with one thing wrong, made from a good one: each is refused, by key, with a way out."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from equipoise.cli import app
from equipoise.config.parts import write_pairs

EXAMPLE = """
[data]
dataset = "digits"
clients = 10
partition = { kind = "pathological", classes = 2 }
[model]
kind = "mlp"
hidden = [8]
[train]
rounds = 2
epochs = 1
batch = 50
lr = 0.05
lr_decay = 0.999
[participation]
per_round = 4
[method]
name = "fedprox"
mu = 0.1
[attack]
name = "label-noise"
fraction = 0.2
[run]
seed = 0
eval_every = 1
executor = "loop"
"""

RAW = tomllib.loads(EXAMPLE)
KEYS = [(s, k) for s, table in RAW.items() for k in table]


def _text(raw: dict[str, Any]) -> str:
    return "\n".join(f"[{n}]\n{write_pairs(t)}\n" if isinstance(t, dict) else f"{n} = {t}" for n, t in raw.items())


def _with(section: str, key: str, value: Any, drop: str | None = None) -> str:
    table = {k: v for k, v in RAW.get(section, {}).items() if k != drop}
    return _text({**RAW, section: {**table, key: value}})


def _misspelt(name: str) -> list[str]:
    return [name[:-1] + "_x", name + name[-1], "x" + name[1:], name.upper()]


def _mutations() -> Iterator[tuple[str, str, str]]:
    """(what was done, the text, what the message must name)"""
    for section, key in KEYS:
        for wrong in _misspelt(key):
            named = f"{section}\\.({re.escape(key)}|{re.escape(wrong)})"
            yield f"{section}.{key} misspelt {wrong}", _with(section, wrong, RAW[section][key], key), named
        for value in _wrong_types(RAW[section][key]):
            yield f"{section}.{key} = {value!r}", _with(section, key, value), f"{section}.{key}"
    for section in RAW:
        table = RAW[section]
        for wrong in _misspelt(section):
            yield (
                f"[{section}] misspelt {wrong}",
                _text({**{k: v for k, v in RAW.items() if k != section}, wrong: table}),
                wrong,
            )
        for value in ("3", '"text"', "[1]", "true"):
            yield (
                f"{section} = {value}",
                _text({section: value, **{k: v for k, v in RAW.items() if k != section}}),
                section,
            )
    for section in ("data", "model", "method"):
        yield f"no [{section}]", _text({k: v for k, v in RAW.items() if k != section}), section
    for section, key in (
        ("data", "dataset"),
        ("data", "clients"),
        ("model", "kind"),
        ("method", "name"),
        ("attack", "name"),
    ):
        text = _text({**RAW, section: {k: v for k, v in RAW[section].items() if k != key}})
        yield f"no {section}.{key}", text, f"{section}.{key}"
    for key, values in _BAD.items():
        section, _, name = key.partition(".")
        for value in values:
            yield f"{key} = {value!r}", _with(section, name, value), f"{section}.*{name}"
    for value in (0, 1.5, True):
        yield (
            f"participation.fraction = {value}",
            _with("participation", "fraction", value, "per_round"),
            "participation.fraction",
        )
    for i, (old, new) in enumerate(_BROKEN):
        yield f"syntax {i}", EXAMPLE.replace(old, new, 1), "line"


def _wrong_types(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [3, True, [value], {"a": 1}]
    if isinstance(value, list | dict):
        return [3, 0.5, True, [[1]]]
    return [str(value), True, [value], {"a": value}, *([0.5] if isinstance(value, int) else [])]


_BAD: dict[str, list[Any]] = {
    "data.dataset": ["digit", "fashion", "", "Digits"],
    "data.clients": [0, -1],
    "data.test": [-0.1, 1.0, 2],
    "data.validation": [-0.1, 1.0, 0.9],
    "data.test_set": ["global", ""],
    "data.seed": [-1],
    "data.options": [{"size": 3}],
    "data.partition": [
        *({"kind": "pathologic"}, {"kind": "dirichlet", "alpha": 0}, {"kind": "dirichlet", "alpha": "a"}, {}),
        *(
            {"classes": 2},
            {"kind": "iid", "classes": 2},
            {"kind": "pathological", "classes": 0},
            {"kind": {"kind": "iid"}},
        ),
    ],
    "model.kind": ["ml", "MLP", ""],
    "model.hidden": [[0], [-3], [8, 0.5], [True], [[8]], ["8"]],
    "train.rounds": [-1],
    "train.epochs": [0, -2],
    "train.steps": [0],
    "train.batch": [-1],
    "train.lr": [0, -0.1],
    "train.lr_decay": [0, 1.1, -1],
    "train.loss": ["mse", "hinge!"],
    "participation.per_round": [0, -1, 11, 10**9],
    "participation.dropout": [1, -0.5],
    "participation.sampling": ["random"],
    "admission.norm_cap": [0, -1],
    "admission.size_cap": [0.5],
    "admission.quorum": [0],
    "method.name": ["fedpro", "avg", "ditto!", ""],
    "method.mu": [-1, "a"],
    "method.server": [
        *(
            {"name": "wighted-mean"},
            {"name": "weighted-mean", "weights": 3},
            {"name": "weighted-mean", "weight": "size"},
        ),
        *({}, [], [1], 3, {"name": 3}, {"name": ["weighted-mean"]}, {"name": {"name": "weighted-mean"}}, True),
        *({"name": "fedprox", "mu": -1}, {"name": "fedprox", "server": {"name": "fedprox", "server": {"name": 1}}}),
    ],
    "method.filters": [3, [3], ["nope"], [{"name": "nope"}], [{}], {"name": "nope"}],
    "attack.name": ["label", "noise", "label_noise", ""],
    "attack.fraction": [-0.1, 1.1],
    "attack.count": [1],
    "run.seed": [-1, 2**63],
    "run.eval_every": [-1],
    "run.workers": [0],
    "run.checkpoint_every": [0],
    "run.executor": ["fast"],
    "run.dtype": ["float16"],
}

_BROKEN = [
    *(("[data]", "[data"), ("[model]", "model]"), ('"digits"', '"digits'), ('"digits"', "digits"), ("= 10\n", "=\n")),
    *(("lr = 0.05", "lr 0.05"), ("lr = 0.05", "lr = .05"), ("lr = 0.05", "lr = 0.05."), ("lr = 0.05", "lr = 0,05")),
    *(("hidden = [8]", "hidden = [8"), ("hidden = [8]", "hidden = 8]"), ("classes = 2 }", "classes = 2")),
    *(
        ("batch = 50", "batch = 50\nbatch = 50"),
        ("[run]", "[train]"),
        ("seed = 0", "seed = 00"),
        ("seed = 0", "seed = +"),
    ),
    *(("mu = 0.1", "mu = True"), ("mu = 0.1", "mu: 0.1"), ("mu = 0.1", "mu == 0.1"), ("[method]", "[[method]")),
]
MUTATIONS = list(_mutations())


def test_there_are_more_than_300_mutations_and_no_two_are_the_same() -> None:
    assert len(MUTATIONS) > 300
    assert len({text for _, text, _ in MUTATIONS}) == len(MUTATIONS)


def test_every_mutated_config_is_refused_with_a_message_that_names_the_key_and_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, command = tmp_path / "mutated.toml", typer.main.get_command(app)
    for what, text, named in MUTATIONS:
        path.write_text(text)
        with pytest.raises(SystemExit) as caught:
            command.main(["run", str(path), "--dry-run", "-q"])
        out, err = capsys.readouterr()
        assert (caught.value.code, out) == (2, ""), f"{what}\n{err}"
        assert re.search(named, err), f"{what}\n{err}"
        assert "hint: " in err, f"{what}\n{err}"
        assert "Traceback" not in err, what
    assert not (tmp_path / "runs").exists()


def _really(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from equipoise.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def test_a_real_process_says_the_same_with_the_same_exit_code(tmp_path: Path) -> None:
    for what, text, named in (MUTATIONS[0], MUTATIONS[-1]):
        (tmp_path / "mutated.toml").write_text(text)
        result = _really("run", str(tmp_path / "mutated.toml"), "--dry-run")
        assert (result.returncode, result.stdout) == (2, ""), what
        assert re.search(named, result.stderr), what
        assert "Traceback" not in result.stderr
