"""A run as a TOML file: read strictly, checked before anything runs, and written back with every default spelled out.

The sections [train], [participation], [admission] and [run] are the classes of `engine.settings`; [method], [attack],
[model] and the partition are a name and the parameters of the part that bears it. A parameter that is itself a part is
a table: `server = { name = "krum", f = 2 }`, `base = { name = "fedprox", mu = 0.1 }`. `filters = [{ name = "clip" }]`
in [method] puts filters before whatever server rule the method has. Paths are taken from the current folder.

Whatever is wrong with a config, `load` raises one EquipoiseError that names the key, the value found and the file.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from equipoise import core
from equipoise.config.checks import cross_check
from equipoise.config.parts import Collector, Table, arguments, named, part, section, shown, write_pairs
from equipoise.data.partitioners import Attribute
from equipoise.data.synthetic import SYNTHETIC
from equipoise.engine.settings import Admission, Participation, Run, Train
from equipoise.errors import EquipoiseError, nearest, require
from equipoise.threat import Attack

_STRICT = {"extra": "forbid", "strict": True}
_LONGEST = 1 << 20  # bytes; a config is a page of text
_BARE = re.compile(r"[^\s\[\]{}\"',=#]+")


@dataclass(frozen=True)
class Part:
    """A part by name, with its parameters as they stand in a config."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any], name_key: str = "name") -> Part:
        return cls(table[name_key], {k: v for k, v in table.items() if k != name_key})

    def table(self, name_key: str = "name") -> Table:
        return {name_key: self.name, **self.params}


@dataclass(frozen=True)
class Data:
    """Which samples there are and who holds them."""

    dataset: str
    """A name that `equipoise list datasets` prints, or "folder:PATH" for data of one's own."""
    clients: int | None = None
    """Left out: as many as there are by themselves."""
    partition: Mapping[str, Any] = field(default_factory=lambda: {"kind": "iid"})
    """How samples are dealt: a kind that `equipoise list partitions` prints, and its settings. A kind alone may stand
    for its table."""
    test: float = 0.2
    """The share of every client's samples that it is tested on."""
    validation: float = 0.0
    """The share of every client's samples that choices are made on (Ditto's lam, sweeps)."""
    test_set: Literal["local", "common", "official"] = "local"
    """Each client's own samples, the same for everyone, or the dataset's test part dealt like its training part."""
    root: int = 0
    """How many samples the server itself holds, drawn at random and dealt to nobody (for rules that need them)."""
    seed: int | None = None
    """Of the split alone; left out: the run's."""
    download: bool = False
    """Whether to fetch the dataset where this machine does not have it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The dataset's own parameters."""
    __pydantic_config__ = _STRICT

    def __post_init__(self) -> None:
        require(self.clients is None or self.clients >= 1, "data.clients", self.clients, "1 or more")
        require(0 <= self.test < 1, "data.test", self.test, "a share from 0 up to (not including) 1")
        require(0 <= self.validation < 1, "data.validation", self.validation, "from 0 up to (not including) 1")
        require(self.root >= 0, "data.root", self.root, "0 or more")
        both = self.test + self.validation
        require(both < 1, "data.test + data.validation", both, "below 1: the rest is for training")
        require(self.seed is None or 0 <= self.seed < 2**63, "data.seed", self.seed, "0 or more, below 2^63")


@dataclass(frozen=True)
class Config:
    """One run, fully resolved."""

    data: Data
    model: Part
    train: Train
    participation: Participation
    admission: Admission
    method: Part
    attack: Part | None
    run: Run

    def make_method(self) -> core.Method:
        return typing.cast(core.Method, part("methods", self.method.table(), "method")[1])

    def make_attack(self) -> Attack | None:
        if self.attack is None:
            return None
        return typing.cast(Attack, part("attacks", self.attack.table(), "attack")[1])


SECTIONS = tuple(f.name for f in dataclasses.fields(Config))
_SETTINGS = {"train": Train, "participation": Participation, "admission": Admission, "run": Run}
_NEEDED = {
    "data": '[data] with dataset = "..." says what to train on',
    "model": '[model] with kind = "mlp" says what to train',
    "method": '[method] with name = "fedavg" says how',
}


def load(source: Path | str, overrides: Sequence[str] = (), method: str | None = None) -> Config:
    """A config from a file (a Path) or from TOML text (a str).

    An override is "section.key=value" with a TOML value; a bare word that is not TOML is taken as a string. `method`
    takes the place of the whole [method] section, unless that is its name already.
    """
    where = str(source) if isinstance(source, Path) else "config"
    try:
        raw = parse(read_text(source))
        if method is not None and _name(raw.get("method")) != method:
            raw["method"] = {"name": method}
        for change in overrides:
            override(raw, change)
        return resolve(raw)
    except RecursionError:
        raise EquipoiseError(f"{where}: nested too deeply", "a config is a few levels deep") from None
    except EquipoiseError as error:
        more = getattr(error, "count", 1) - 1
        told = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
        hint = error.hint or "`equipoise show NAME` tells what a part takes"
        raise EquipoiseError(f"{where}: {error.message}{told}", hint) from error


def _name(table: Any) -> object:
    return table.get("name") if isinstance(table, dict) else None


# --------------------------------------------------------------------------------------------------- text and tables


def read_text(source: Path | str) -> str:
    if isinstance(source, str):
        if not set("=\n") & set(source):
            hint = f"text is taken as TOML; a file is given as Path({source!r})"
            raise EquipoiseError(f"{shown(source)} holds no key = value", hint)
        return source
    try:
        if source.is_dir():
            raise EquipoiseError("this is a folder", "give the path of a TOML file")
        with source.open("rb") as file:
            data = file.read(_LONGEST + 1)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        beside = [p.name for p in source.parent.glob("*.toml")] if source.parent.is_dir() else []
        raise EquipoiseError("no such file", nearest(source.name, beside) if beside else "check the path") from None
    except UnicodeDecodeError as error:
        raise EquipoiseError(f"not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except (OSError, ValueError) as error:  # a NUL in a path is a ValueError
        raise EquipoiseError(f"cannot be read: {error}", "give the path of a TOML file") from None
    if len(data) > _LONGEST:
        raise EquipoiseError("longer than 1 MiB", "give the path of a TOML file")
    if not text.strip():
        raise EquipoiseError("the file is empty", f"it needs the sections {', '.join(_NEEDED)}")
    return text


def parse(text: str) -> Table:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # a number of 5,000 digits is a plain ValueError
        last = max(1, len(text.rstrip().splitlines()))
        told = str(error).replace("at end of document", f"at line {last}, the end")
        raise EquipoiseError(f"not valid TOML: {told}", "strings need quotes, lists [ ], tables { }") from None


def override(raw: Table, change: str) -> None:
    """Put one "section.key=value" into the tables."""
    key, equals, text = change.partition("=")
    path = [p.strip() for p in key.split(".")]
    if not equals or len(path) < 2 or not all(re.fullmatch(r"[A-Za-z0-9_-]+", p) for p in path):
        raise EquipoiseError(f"--set {change}: not section.key=value", "such as --set train.lr=0.1")
    put(raw, path, _override_value(change, text.strip()), f"--set {change}")


def put(table: Table, path: Sequence[str], value: Any, who: str) -> None:
    """Set a value in tables within tables; `who` wants that, for a complaint."""
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise EquipoiseError(f"{who}: {name} is {shown(table)}, not a table", "give the whole value")
    table[path[-1]] = value


def _override_value(override: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
        if list(parsed) == ["value"]:
            return parsed["value"]
    except ValueError:
        if _BARE.fullmatch(text):
            return text
    raise EquipoiseError(f"--set {override}: the value is not TOML", "quote text with spaces: 'section.key=\"a b\"'")


def _oddities(value: Any, key: str) -> Iterator[EquipoiseError]:
    """Values that no key accepts; only parts may take infinity."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield from _oddities(v, f"{key}.{k}" if key else k)
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from _oddities(v, f"{key}[{i}]")
    elif isinstance(value, float):
        if math.isnan(value) or (math.isinf(value) and not key.startswith(("method.", "attack."))):
            yield EquipoiseError(f"{key} is {value}", "a finite number")
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            yield EquipoiseError(f"{key} is {shown(value)}", "a number of at most 64 bits")
    elif not isinstance(value, str):
        yield EquipoiseError(f"{key} is {value}, a date or time", "no key takes one; put text in quotes")
    elif "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        yield EquipoiseError(f"{key} is {value!a}", "text without NUL, in UTF-8")


# ------------------------------------------------------------------------------------------------------- resolving


def resolve(raw: Table) -> Config:
    """A config from its tables."""
    problems = Collector()
    for key in raw:
        if key not in SECTIONS:
            problems.add(f"{key}: unknown section", _home(key))
    for name, hint in _NEEDED.items():
        if name not in raw:
            problems.add(f"{name} is missing", hint)
    problems.problems.extend(_oddities(raw, ""))

    def read(name: str, f: Callable[..., Any], *args: Any) -> Any:
        return problems.attempt(f, *args) if name in raw else None

    settings = {name: problems.attempt(section, kind, raw.get(name, {}), name) for name, kind in _SETTINGS.items()}
    data = read("data", _data, raw.get("data"))
    model = read("model", _model, raw.get("model"))
    method = read("method", part, "methods", raw.get("method"), "method")
    attack = read("attack", part, "attacks", raw.get("attack"), "attack")
    problems.done()

    sections: Any = {**settings, "model": model, "method": Part.of(method[0])}
    config = Config(data=_seeded(data, settings["run"]), attack=attack and Part.of(attack[0]), **sections)
    cross_check(config, method[1], attack and attack[1])
    return config


def _seeded(data: Any, run: Any) -> Data:
    return replace(data, seed=run.seed) if data.seed is None else data  # type: ignore[no-any-return]


def _home(key: str) -> str:
    """A hint for an unknown section: the nearest one, or the section that has a key of this name."""
    kinds = {"data": Data, **_SETTINGS}
    home = next((s for s, kind in kinds.items() if key in {f.name for f in dataclasses.fields(kind)}), None)
    return f"did you mean {home}.{key}?" if home else nearest(key, SECTIONS)


def _data(raw: Any) -> Data:
    if isinstance(raw, dict) and isinstance(raw.get("partition"), str):
        raw = {**raw, "partition": {"kind": raw["partition"]}}
    data = section(Data, raw, "data")
    takes = _taken(data.dataset)
    for key in raw:
        if key not in takes:
            hint = f"its clients come with it; it takes only {', '.join(takes)}"
            raise EquipoiseError(f"data.{key}: not for dataset {shown(data.dataset)}", hint)
    if "options" in takes:
        entry, _ = named("datasets", data.dataset, "data", "dataset")
        data = replace(data, options=arguments(entry.parameters, data.options, "data.options")[0])
    return _dealt(data) if "partition" in takes else replace(data, partition={})


def _taken(dataset: str) -> tuple[str, ...]:
    """The keys of [data] that mean something for a dataset: some come with their clients."""
    if dataset.startswith("folder:"):
        return ("dataset", "test", "validation", "seed")
    return ("dataset", "seed", "options") if dataset in SYNTHETIC else tuple(f.name for f in dataclasses.fields(Data))


def _dealt(data: Data) -> Data:
    split, partitioner = part("partitions", data.partition, "data.partition", "kind")
    if data.clients is None and not isinstance(partitioner, Attribute):
        raise EquipoiseError("data.clients is missing", f'partition "{split["kind"]}" deals to any number: give one')
    return replace(data, partition=split)


def _model(raw: Any) -> Part:
    entry, given = named("models", raw, "model", "kind")
    return Part(entry.name, arguments(entry.parameters, given, "model")[0])


# ---------------------------------------------------------------------------------------------------------- writing


def dump(config: Config) -> str:
    """The config as TOML with every default written out; `load` reads the same config from it."""
    tables: dict[str, Mapping[str, Any]] = {}
    for name in SECTIONS:
        value = getattr(config, name)
        if isinstance(value, Part):
            tables[name] = value.table("kind" if name == "model" else "name")
        elif value is not None:
            tables[name] = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    tables["data"] = {k: tables["data"][k] for k in _taken(config.data.dataset)}
    return "\n\n".join(f"[{name}]\n{write_pairs(table)}".rstrip() for name, table in tables.items()) + "\n"
