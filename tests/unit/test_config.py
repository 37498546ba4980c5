"""A config is read strictly, and what is written is read back as the same."""

import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import registry
from equipoise.config import SECTIONS, Config, dump, load
from equipoise.config.parts import write_pairs
from equipoise.core import SGD, Chain, Method, WeightedMean
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.errors import EquipoiseError

EXAMPLE = """
[data]
dataset = "digits"
clients = 20
partition = { kind = "pathological", classes = 2 }
[model]
kind = "mlp"
hidden = [32, 16]
[train]
rounds = 3
epochs = 1
batch = 50
lr = 0.05
lr_decay = 0.999
[participation]
per_round = 10
[method]
name = "fedprox"
mu = 0.1
[attack]
name = "label-noise"
fraction = 0.2
[run]
seed = 0
eval_every = 10
"""


def _told(*overrides: str, text: str = EXAMPLE) -> EquipoiseError:
    with pytest.raises(EquipoiseError) as caught:
        load(text, overrides)
    assert caught.value.hint
    return caught.value


# ------------------------------------------------------------------------------------------------------------ reading


def test_the_example_becomes_the_settings_it_names() -> None:
    config = load(EXAMPLE)
    assert config.train == Train(rounds=3, epochs=1, batch=50, lr=0.05, lr_decay=0.999)
    assert config.participation == Participation(per_round=10)
    assert config.admission == Admission()
    assert config.run == Run(seed=0, eval_every=10)
    assert config.model.params["hidden"] == [32, 16]
    assert config.data.partition == {"kind": "pathological", "classes": 2, "deal": "shards", "min_size": 1}


def test_a_config_makes_its_method_and_its_attack() -> None:
    config = load(EXAMPLE)
    method, attack = config.make_method(), config.make_attack()
    assert isinstance(method, Method)
    assert method.client.mu == 0.1  # type: ignore[attr-defined]
    assert attack is not None
    assert attack.fraction == 0.2
    assert load(EXAMPLE.replace('[attack]\nname = "label-noise"\nfraction = 0.2\n', "")).make_attack() is None


def test_a_server_rule_is_a_table_in_the_method() -> None:
    made = load(EXAMPLE, ['method.server={ name = "weighted-mean", weights = "uniform" }']).make_method()
    assert made.server.weights == "uniform"  # type: ignore[attr-defined]
    assert load(EXAMPLE, ["method.server=weighted-mean"]).make_method().server.weights == "size"  # type: ignore[attr-defined]


def test_a_method_serves_as_its_server_rule() -> None:
    made = load(EXAMPLE, ['method.server={ name = "local" }']).make_method()
    assert type(made.server).__name__ == "Nothing"
    assert type(made.client).__name__ == "FedProx"


@pytest.mark.parametrize("name", ["fedprox", "finetuning", "apfl", "l2sgd"])
def test_a_method_without_a_server_rule_of_its_own_does_not(name: str) -> None:
    assert f'method.server.name is "{name}", a method of clients' in _told(f"method.server={name}").message


@pytest.mark.parametrize("name", ["fedavg", "fedlf", "qffl", "fedtilt"])
def test_nor_does_it_take_more_than_that_to_serve(name: str) -> None:
    made = load(EXAMPLE, [f"method.server={name}"]).make_method().server
    assert (type(made) is WeightedMean) == (name == "fedavg")


def test_steps_take_the_place_of_epochs_and_stand_beside_no_other_number_of_them() -> None:
    text = dump(load(EXAMPLE, ["train.steps=3"]))
    assert "epochs = 1" in text and load(text).train.steps == 3
    told = _told("train.steps=3", "train.epochs=2")
    assert told.message == "config: train.steps with epochs = 2 is 3"


def test_a_quorum_counts_the_clients_that_an_attack_adds() -> None:
    text = EXAMPLE.replace("fraction = 0.2", "added = 0.5")
    assert load(text, ["admission.quorum=15"]).admission.quorum == 15
    assert "a round asks for 15 clients" in _told("admission.quorum=16", text=text).message


def test_a_path_as_text_is_told_to_be_none() -> None:
    told = _told(text="some/audit.toml")
    assert told.message == 'config: "some/audit.toml" holds no key = value'
    assert "Path('some/audit.toml')" in told.hint


FILTER = """from dataclasses import dataclass
from equipoise.core import Filter
from equipoise.errors import EquipoiseError


@dataclass(frozen=True)
class Halve(Filter):
    times: int = 1

    def __post_init__(self):
        if self.times < 1:
            raise EquipoiseError(f"Halve: times is {self.times}", "1 or more")

    def __call__(self, cohort):
        return cohort.with_updates(cohort.updates / 2**self.times), {}


@dataclass(frozen=True)
class Mix(Halve):
    keeps_rows = False
"""
PARTS = """from dataclasses import dataclass
from equipoise.core import SGD, ClientRule, Mean, Method, Objective, ServerRule, WeightedMean


@dataclass(frozen=True)
class Picky(WeightedMean):
    per_client = True


def whole(base: Method, objective: Objective = Mean(), client: ClientRule | None = None, picky: bool = False) -> Method:
    return Method("whole", client or base.client, Picky() if picky else base.server)
"""


@pytest.fixture
def own_parts(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "halve.py").write_text(FILTER)
    (tmp_path / "mix.py").write_text(FILTER)
    (tmp_path / "whole.py").write_text(PARTS)
    registry.load_file(tmp_path / "halve.py", "filters")
    registry.load_file(tmp_path / "mix.py", "filters")
    registry.load_file(tmp_path / "whole.py", "methods")
    yield
    registry._OWN.clear()


@pytest.mark.usefixtures("own_parts")
def test_filters_stand_before_whatever_server_rule_a_method_has() -> None:
    config = load(EXAMPLE, ['method.filters=["halve", { name = "halve", times = 3 }]'])
    server = config.make_method().server
    assert isinstance(server, Chain)
    assert [f.times for f in server.filters] == [1, 3]  # type: ignore[attr-defined]
    assert isinstance(server.rule, WeightedMean)
    assert load(dump(config)) == config
    told = _told('method.filters=["halve", { name = "halve", times = 0 }]')
    assert told.message == "config: method.filters[1].times: Halve: times is 0"


@pytest.mark.usefixtures("own_parts")
def test_filters_that_cannot_stand_before_a_rule_are_refused() -> None:
    method = '[method]\nname = "whole"\nbase = "fedavg"\npicky = true\nfilters = ["mix"]\n'
    text = EXAMPLE.replace('[method]\nname = "fedprox"\nmu = 0.1\n', method)
    assert "method.filters: chain: Mix mixes clients" in _told(text=text).message


@pytest.mark.usefixtures("own_parts")
def test_a_base_is_a_method_or_the_client_of_one() -> None:
    method = '[method]\nname = "whole"\nbase = { name = "fedprox", mu = 3, server = "local" }\n'
    text = EXAMPLE.replace('[method]\nname = "fedprox"\nmu = 0.1\n', method)
    config = load(text)
    made = config.make_method()
    assert made.client.mu == 3.0  # type: ignore[attr-defined]
    assert type(made.server).__name__ == "Nothing"
    assert config.method.params["objective"] == {"name": "mean"}
    assert load(dump(config)) == config
    other = load(text, ["method.client=fedavg"])
    assert other.make_method().client == SGD()
    assert "method.client.name is" in _told("method.client=fedlf", text=text).message
    assert "method.base.mu" in _told("method.base.mu=-1", text=text).message
    assert "method.objective.name" in _told("method.objective=median", text=text).message
    assert "method.base is missing" in _told(text=text.replace("base =", "# base =")).message


def test_whole_numbers_are_accepted_where_fractions_are_wanted() -> None:
    config = load(EXAMPLE, ["train.lr=1", "method.mu=2"])
    assert type(config.train.lr) is float
    assert type(config.method.params["mu"]) is float


def test_the_split_has_the_seed_of_the_run_unless_it_has_its_own() -> None:
    assert load(EXAMPLE, ["run.seed=7"]).data.seed == 7
    assert load(EXAMPLE, ["run.seed=7", "data.seed=3"]).data.seed == 3


def test_a_partition_may_be_a_name_alone() -> None:
    assert load(EXAMPLE, ["data.partition=iid"]).data.partition == {"kind": "iid", "min_size": 1}


def test_a_drawn_dataset_brings_its_clients_along() -> None:
    text = EXAMPLE[EXAMPLE.index("[model]") :]
    config = load('[data]\ndataset = "ditto-point"\noptions = { clients = 12, sigma = 2 }\n' + text)
    assert config.data.options["sigma"] == 2.0
    assert "partition" not in tomllib.loads(dump(config))["data"]
    assert "data.clients" in _told(text=f'[data]\ndataset = "ditto-point"\nclients = 3\n{text}').message
    told = _told(text=f'[data]\ndataset = "ditto-point"\noptions = {{ clients = 4 }}\n{text}')
    assert told.message == "config: participation.per_round is 10, but the federation has 4 clients"


def test_clients_may_be_left_out_only_where_the_data_tell() -> None:
    text = EXAMPLE.replace("clients = 20\n", "")
    assert "data.clients is missing" in _told(text=text).message
    assert load(text, ['data.partition={ kind = "attribute" }', 'data.dataset="femnist"']).data.clients is None


def test_another_method_takes_the_place_of_the_whole_section() -> None:
    assert load(EXAMPLE, method="fedavg").method.name == "fedavg"
    assert load(EXAMPLE, method="fedprox").method.params["mu"] == 0.1
    assert load(EXAMPLE, ["method.mu=0.3"], method="fedprox").method.params["mu"] == 0.3


# --------------------------------------------------------------------------------------------------------- overriding


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.lr=0.1", "train", "lr", 0.1),
        ("train.lr = 1e-3", "train", "lr", 1e-3),
        ("train.rounds=7", "train", "rounds", 7),
        ("run.device=cpu", "run", "device", "cpu"),
        ("run.device=cuda:0", "run", "device", "cuda:0"),
        ('run.device="cpu"', "run", "device", "cpu"),
        ("run.device='cpu'", "run", "device", "cpu"),
        ("participation.trace=a/b.csv", "participation", "trace", "a/b.csv"),
        ('participation.trace="a = b.csv"', "participation", "trace", "a = b.csv"),
        ("data.download=true", "data", "download", True),
        ("admission.quorum=2", "admission", "quorum", 2),
    ],
)
def test_an_override_is_toml_or_a_bare_word(override: str, section: str, key: str, value: object) -> None:
    found = getattr(getattr(load(EXAMPLE, [override]), section), key)
    assert found == value
    assert type(found) is type(value)


def test_overrides_reach_into_tables_and_the_last_one_wins() -> None:
    config = load(EXAMPLE, ["data.partition.classes=3", "model.hidden=[8]", "train.lr=0.1", "train.lr=0.2"])
    assert config.data.partition["classes"] == 3
    assert config.model.params["hidden"] == [8]
    assert config.train.lr == 0.2


@pytest.mark.parametrize(
    "override",
    [
        *(
            "",
            "=",
            "train.lr",
            "lr=0.1",
            "train.=1",
            ".lr=1",
            "train.lr=",
            "train.lr=[1",
            "train.lr=a b",
            "train..lr=1",
        ),
        *("train.lr=1\nseed = 2", "train.lr=1\n[run]\nseed = 2", "train.lr.deep=1", "tr ain.lr=1", 'train."lr"=1'),
    ],
)
def test_an_override_that_is_none_is_told_as_such(override: str) -> None:
    assert f"--set {override}" in _told(override).message


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("method.mu=-1", "method.mu: fedprox: mu is -1.0", "0 or more"),
        ("method.nu=1", "method.nu: unknown key", "did you mean 'mu'?"),
        ("train.lr=fast", 'train.lr is "fast"', "a number"),
        ("train.lr=true", "train.lr is true", "a number"),
        ("train.lr='0.1'", 'train.lr is "0.1"', "a number"),
        ("train.rounds=1.5", "train.rounds is 1.5", "a whole number"),
        ("train.loss=mse", 'train.loss is "mse"', "'squared'"),
        ("participation.per_round=21", "participation.per_round is 21, but the federation has 20 clients", "lower it"),
        ("admission.quorum=11", "admission.quorum is 11, but a round asks for 10 clients", "lower it"),
        ("run.device=gpu", "run.device is 'gpu'", '"cuda"'),
        ("attack.fraction=2", "attack.fraction: LabelNoise: fraction is 2.0", "from 0 to 1"),
        ("attack.count=2", "attack: LabelNoise: 2 of fraction, count, clients and added given", "exactly one"),
        ("data.dataset=digit", 'data.dataset is "digit"', "did you mean 'digits'?"),
        ("data.partition.kind=dirichlet", "data.partition.classes: unknown key", "alpha"),
        (
            'data.partition={ kind = "dirichlet", alpha = 0 }',
            "data.partition.alpha: dirichlet: alpha is 0.0",
            "above 0",
        ),
        ('method.server={ name = "krumm" }', 'method.server.name is "krumm"', "mean"),
        ("method.server=finetuning", 'method.server.name is "finetuning", a method of clients', '"weighted-mean"'),
        ("method.server={ name = 'ditto', lam = 1 }", 'method.server.name is "ditto", a method of clients', "a base"),
        ('method.server={ name = "weighted-mean", weights = 3 }', "method.server.weights is 3", "'uniform', 'size' or"),
        (
            'method.server={ name = "weighted-mean", weights = "x" }',
            'method.server.weights is "x"',
            "'uniform', 'size'",
        ),
        (
            'method.server={ name = "qffl", weights = "" }',
            'method.server.weights is ""',
            "'uniform', 'size' or 'capped'",
        ),
        ("method.filters=[3]", "method.filters[0] is 3", "a table"),
        ('method.filters=[{ name = "nope" }]', 'method.filters[0].name is "nope"', ""),
        ("model.hidden=[8, 'a']", 'model.hidden[1] is "a"', "a whole number"),
        ("attack.clients=3", "attack.clients is 3", "a list"),
        ("attack.clients=[1, true]", "attack.clients[1] is true", "a whole number"),
        ("method.filter=[]", "method.filter: unknown key", "did you mean 'filters'?"),
        ("rounds.x=1", "rounds: unknown section", "did you mean train.rounds?"),
        ("data.options.size=3", "data.options.size: unknown key", "nothing to set"),
        ("train.lr=nan", "train.lr is nan", "finite"),
        ("train.lr=inf", "train.lr is inf", "finite"),
        ("train.rounds=9223372036854775808", "train.rounds is 9223372036854775808", "64 bits"),
        ("train.lr=2020-01-01", "train.lr is 2020-01-01", "quotes"),
        ('data.dataset="a\\u0000b"', "data.dataset is 'a\\x00b'", "NUL"),
    ],
)
def test_an_error_names_the_key_the_value_and_a_way_out(override: str, message: str, hint: str) -> None:
    told = _told(override)
    assert message in told.message
    assert hint in told.hint


def test_a_value_of_several_types_is_one_problem() -> None:
    told = _told('model.kind="cnn"', "model.kernel=a", text=EXAMPLE.replace("hidden = [32, 16]\n", ""))
    assert told.message == 'config: model.kernel is "a"'
    assert told.hint == "a whole number or a list, each a whole number"


def test_an_attack_needs_malicious_clients() -> None:
    text = EXAMPLE.replace("fraction = 0.2\n", "")
    assert "attack: LabelNoise: 0 of fraction, count, clients and added given" in _told(text=text).message
    assert "attack.count" in _told("attack.count=21", text=text).message
    assert "attack.clients" in _told("attack.clients=[3, 20]", text=text).message


def test_several_problems_are_counted() -> None:
    told = _told("train.lr=true", "train.epoch=2", "method.nu=1", "trian.x=1").message
    assert told.endswith("(and 3 more problems)")
    assert _told("train.lr=true", "method.nu=1").message.endswith("(and 1 more problem)")
    assert "more" not in _told("train.lr=true").message


@pytest.mark.parametrize("section", ["data", "model", "method"])
def test_a_missing_section_is_named(section: str) -> None:
    raw = {k: v for k, v in tomllib.loads(EXAMPLE).items() if k != section}
    assert f"{section} is missing" in _told(text=_text(raw)).message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[data\n", "line 1"),
        ("[data]\ndataset = digits\n", "line 2"),
        ("[data]\ndataset = 'digits\n\n", "line 2"),
        ('[data]\ndataset = """a\n\nb', "line 4"),
        ("[data]\n[data]\n", "line 2"),
        ("a = " + "1" * 5000, "not valid TOML"),
        ("a = " + "[" * 10_000 + "]" * 10_000, "deep"),
    ],
)
def test_bad_toml_is_told_with_its_line(text: str, told: str) -> None:
    assert told in _told(text=text).message


def test_files_that_cannot_be_read_are_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text(EXAMPLE)
    (tmp_path / "empty.toml").write_text(" \n")
    (tmp_path / "latin.toml").write_bytes("# d\u00e9j\u00e0".encode("latin-1"))
    (tmp_path / "long.toml").write_text("#" * (1 << 20) + "\n")
    cases = {"her.toml": "no such file", "empty.toml": "empty", "latin.toml": "UTF-8", "long.toml": "1 MiB"}
    cases |= {".": "folder", "no/such.toml": "no such file", "a\0b.toml": "cannot be read"}
    for name, message in cases.items():
        with pytest.raises(EquipoiseError, match=message) as caught:
            load(tmp_path / name)
        assert str(tmp_path) in caught.value.message
        assert caught.value.hint
    with pytest.raises(EquipoiseError, match=r"did you mean 'here\.toml'"):
        load(tmp_path / "her.toml")


def test_an_error_names_the_file_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_text(EXAMPLE.replace("mu", "nu"))
    with pytest.raises(EquipoiseError, match=r"here\.toml: method\.nu"):
        load(tmp_path / "here.toml")


def test_a_file_from_windows_is_read(tmp_path: Path) -> None:
    (tmp_path / "here.toml").write_bytes(b"\xef\xbb\xbf" + EXAMPLE.replace("\n", "\r\n").encode())
    assert load(tmp_path / "here.toml") == load(EXAMPLE)


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150)
@given(
    st.sampled_from(SECTIONS),
    st.sampled_from([*tomllib.loads(EXAMPLE)["train"], "name", "kind", "x"]),
    json_like,
)
def test_whatever_stands_in_a_config_only_our_error_comes_out(section: str, key: str, value: Any) -> None:
    raw = tomllib.loads(EXAMPLE)
    raw.setdefault(section, {})[key] = value
    with suppress(EquipoiseError):
        assert isinstance(load(_text(raw)), Config)


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_whatever_the_text_only_our_error_comes_out(text: str) -> None:
    with pytest.raises(EquipoiseError):
        load(text)


def test_every_default_is_written_out() -> None:
    raw = tomllib.loads(dump(load(EXAMPLE)))
    assert list(raw) == list(SECTIONS)
    assert raw["method"]["server"] == {"name": "weighted-mean", "weights": "size"}
    assert raw["run"]["checkpoint_every"] == Run().checkpoint_every
    assert raw["train"].keys() == {"rounds", "epochs", "batch", "lr", "lr_decay", "loss"}


def _text(raw: dict[str, Any]) -> str:
    return "\n".join(f"[{name}]\n{write_pairs(table)}\n" for name, table in raw.items())
