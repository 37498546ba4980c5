"""The reference: every key that a file can have, and every part that it can name, from what decides them.

A key's type and default are those of its dataclass field; what it means is the text below the field, and its range the
hint of the `require` that checks it. A part says itself what it is, and what its settings mean: below the field, or in
the docstring of its class or function, as "mu: strength of the pull, 0 or more. low, high: ..."; `_COMMON` has those
that mean the same in many parts. `equipoise keys --markdown` and `equipoise list --markdown` print the pages
docs/reference/config.md and docs/reference/parts.md; a test compares them.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from equipoise import config as configs
from equipoise import registry
from equipoise.audit import plan as plans
from equipoise.audit import sweep as sweeps
from equipoise.config.parts import plain, write
from equipoise.registry import SINGULAR, Entry, Kind
from equipoise.reproduce import tables
from equipoise.threat import Attack


@dataclass(frozen=True)
class Key:
    """One key of a file."""

    section: str
    name: str
    takes: str
    """Its type and its range, in words."""
    default: str
    """As TOML; "required" or "left out" where there is none."""
    meaning: str

    @property
    def full(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def has_default(self) -> bool:
        return self.default not in ("required", "left out")

    def told(self, quote: str = "") -> str:
        """Type and default in one phrase."""
        default = f"default {quote}{self.default}{quote}" if self.has_default else self.default
        return f"{self.takes}; {default.replace('left out', 'left out by default')}"


@dataclass(frozen=True)
class Section:
    """One table of a file."""

    name: str
    about: str
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class File:
    """One kind of file: what it is for, its tables, an example."""

    name: str
    about: str
    sections: tuple[Section, ...]
    example: str


# -------------------------------------------------------------------------------------------------------- keys


def files() -> tuple[File, ...]:
    """Every kind of TOML file that a command takes."""
    run = tuple(_of_run(name, hint) for name, hint in typing.get_type_hints(configs.Config).items())
    audit, sweep = (_of_class(n, c) for n, c in (("audit", plans.Audit), ("sweep", sweeps.Sweep)))
    table = {"": tables.Head, "columns.NAME": tables.Column, "rows.NAME": tables.Row, "choose": tables.Choose}
    parts = [_of_class(name, kind) for name, kind in {**table, "claims": tables.Claim}.items()]
    return (
        File("A run", _RUN, run, _EXAMPLE),
        File("An audit", _AUDIT, (audit,), _example(plans)),
        File("A sweep", _SWEEP, (sweep,), _example(sweeps)),
        File("A published table", _TABLE, tuple(parts), _example(tables)),
    )


def _example(module: types.ModuleType) -> str:
    """The first indented part of a module's docstring."""
    blocks = inspect.cleandoc(module.__doc__ or "").split("\n\n")
    found = itertools.takewhile(_indented, itertools.dropwhile(lambda block: not _indented(block), blocks))
    return textwrap.dedent("\n\n".join(found))


def _indented(block: str) -> bool:
    return block.startswith(" ")


def _of_run(name: str, hint: Any) -> Section:
    named = {"model": ("kind", "models"), "method": ("name", "methods"), "attack": ("name", "attacks")}
    if name not in named:
        return _of_class(name, hint)
    first, kind = named[name]
    keys = [Key(name, first, "text", "required", f"A name that `equipoise list {kind}` prints.")]
    if kind == "methods":
        keys.append(Key(name, "filters", "a list, each a table", "left out", _FILTERS))
    if kind == "attacks":
        keys += _of_class(name, Attack).keys
    return Section(name, _PARTS[name], tuple(keys))


def _of_class(section: str, kind: type[Any]) -> Section:
    hints, said, ranges = typing.get_type_hints(kind), _said(kind), _ranges(kind, section)
    keys = [
        Key(section, f.name, _takes(hints[f.name], ranges.get(f.name)), _default(f), said.get(f.name, ""))
        for f in fields(kind)
    ]
    return Section(section, inspect.getdoc(kind) or "", tuple(keys))


def _takes(hint: Any, span: str | None = None) -> str:
    """A type and a range in words."""
    arms = [registry.describe(a) for a in registry.arms(hint) if a is not types.NoneType]
    return ": ".join(filter(None, (" or ".join(arms), span)))


def _default(f: Field[Any]) -> str:
    value = f.default_factory() if f.default_factory is not MISSING else f.default
    return _written(None if is_dataclass(value) else value, value is MISSING)


def _written(value: Any, required: bool) -> str:
    return "required" if required else "left out" if value is None else write(value)


def _tree(kind: type[Any]) -> ast.ClassDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _said(kind: type[Any]) -> dict[str, str]:
    """What stands below each field of a class, by the field's name."""
    found = {}
    for a, b in itertools.pairwise(_tree(kind).body):
        if isinstance(a, ast.AnnAssign) and isinstance(a.target, ast.Name) and isinstance(b, ast.Expr):
            found[a.target.id] = " ".join(str(ast.literal_eval(b.value)).split())
    return found


def _ranges(kind: type[Any], section: str) -> dict[str, str]:
    """The hint of every `require(ok, "section.key", value, hint)` in a class, by the key."""
    found: dict[str, str] = {}
    for call in (n for n in ast.walk(_tree(kind)) if isinstance(n, ast.Call) and len(n.args) == 4):
        match call.args:
            case [_, ast.Constant(value=str(what)), _, ast.Constant(value=str(hint))]:
                found.setdefault(what.removeprefix(f"{section}."), hint)
    return found


# ------------------------------------------------------------------------------------------------------- parts


def settings(entry: Entry) -> list[Key]:
    """What can be set of a part."""
    said = _of_settings(entry)
    meanings = [said.get(p.name) or _common(entry, p.name) for p in entry.parameters]
    return [
        Key(entry.name, p.name, _takes(p.type), _written(plain(p.default), p.required), meaning)
        for p, meaning in zip(entry.parameters, meanings, strict=True)
    ]


def lines(keys: Sequence[Key], mark: str = "", quote: str = "") -> list[str]:
    """A key in a line or more: its type, its default, what it means."""
    told = [f"{mark}{quote}{key.name}{quote}: {key.told(quote)}. {key.meaning}".rstrip() for key in keys]
    return [_wrapped(text, "  ") for text in told]


def _docstrings(entry: Entry) -> list[str]:
    """What the classes of a part's module, and a method's recipe, say of themselves."""
    module = inspect.getmodule(entry.make)
    if entry.kind not in registry.OWN or module is None:
        return []
    classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    told = {c.__name__: inspect.getdoc(c) for c in classes if "__doc__" in vars(c)}
    if not isinstance(entry.make, type):
        told[entry.make.__name__] = inspect.getdoc(entry.make)
    return [f"{n}: {d}" for n, d in told.items() if d and not d.startswith(f"{n}(")]


def _of_settings(entry: Entry) -> dict[str, str]:
    """What each setting of a part means, as far as the part says it."""
    classes = inspect.getmro(entry.make) if isinstance(entry.make, type) else ()
    ours = [c for c in classes if c.__module__.startswith("equipoise")]
    below = {name: text for c in reversed(ours) for name, text in _said(c).items()}
    inherited = [vars(c).get("__doc__") or "" for c in ours]
    return _explained(entry, [*_docstrings(entry), *inherited, inspect.getdoc(entry.make) or ""]) | below


def _explained(entry: Entry, texts: Sequence[str]) -> dict[str, str]:
    """What texts say of a part's settings: "mu: strength of the pull, 0 or more. low, high: ..."."""
    found: dict[str, str] = {}
    for paragraph in (p for text in texts for p in text.split("\n\n")):
        _, *pairs = _named(entry).split(" ".join(paragraph.split()))
        for names, told in zip(pairs[::2], pairs[1::2], strict=True):
            alone = f"{told[:1].upper()}{told[1:].rstrip('.; ')}."
            for one in names.partition(" (")[0].split(", "):
                found.setdefault(one, alone if one == names else f"{names}: {told.rstrip('.; ')}.")
    return found


def _named(entry: Entry) -> re.Pattern[str]:
    """Settings of a part and a colon, where a sentence starts or a part of one, behind the name of a class or not."""
    name = "|".join(re.escape(p.name) for p in entry.parameters) or "$"
    return re.compile(rf"(?:^(?:\w+: )?|(?<=[.;] ))((?:{name})(?:, (?:{name}))*(?: \([^)]*\))?): ")


def _common(entry: Entry, name: str) -> str:
    """What a setting means that means the same in many parts; but in a file of the user's own only the user knows."""
    known = {} if entry.make.__module__.startswith("equipoise_own_") else _COMMON.get(entry.kind, {})
    return known.get(f"{entry.name}.{name}", known.get(name, ""))


# ------------------------------------------------------------------------------------------------------- pages


def config_page() -> str:
    """docs/reference/config.md"""
    blocks = ["# Every key of every file", _made_by("keys"), _wrapped(_INTRODUCTION)]
    for file in files():
        blocks += [f"## {file.name}", _wrapped(file.about), f"```toml\n{file.example.strip()}\n```"]
        for section in file.sections:
            blocks += [f"### {_title(section.name)}", _wrapped(section.about), _table(section.keys)]
    return "\n\n".join(blocks) + "\n"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(" ".join(text.split()), 120, subsequent_indent=indent, break_on_hyphens=False)


def _title(name: str) -> str:
    return {"": "At the top", "claims": "`[[claims]]`"}.get(name, f"`[{name}]`")


def _table(keys: Sequence[Key]) -> str:
    rows = [("key", "takes", "default", "what it means"), ("---",) * 4]
    for key in keys:
        default = f"`{key.default}`" if key.has_default else key.default
        rows.append((f"`{key.name}`", key.takes, default, key.meaning))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def parts_page(kinds: Sequence[Kind] = registry.KINDS) -> str:
    """docs/reference/parts.md, or the part of it about some kinds."""
    blocks = ["# Every part that a file can name", _made_by("list"), _SHOW]
    for kind in kinds:
        common = _of_class("attack", Attack).keys if kind == "attacks" else ()
        blocks += [f"## {SINGULAR[kind].capitalize()}s", _wrapped(_KINDS[kind]), *_listed(common)]
        for entry in registry.entries(kind).values():
            blocks += _part(entry, {key.name for key in common})
    return "\n\n".join(blocks) + "\n"


def _part(entry: Entry, beside: Collection[str]) -> Iterator[str]:
    """What a part is; its settings but for those that all of its kind have."""
    doc, whole = entry.doc, entry.kind not in registry.OWN
    yield f"### {entry.name}"
    yield from (_wrapped(text) for text in (doc.summary, doc.reference) if text)
    yield from ([f"```\n{doc.equation}\n```"] if whole and doc.equation else [])
    notes = " ".join(text for text in doc.notes.split("\n\n") if not _named(entry).match(text))
    yield from ([_wrapped(notes)] if whole and notes else [])
    yield from _listed([key for key in settings(entry) if key.name not in beside])


def _listed(keys: Sequence[Key]) -> list[str]:
    return ["\n".join(lines(keys, "- ", "`"))] if keys else []


def _made_by(command: str) -> str:
    return f"Made by `equipoise {command} --markdown` from the code: change that, not this page."


# ---------------------------------------------------------------------------------------------- words around them

_INTRODUCTION = """\
A file is read strictly: an unknown key, a value of the wrong type or out of its range is an error that names the key,
before anything runs. `--set section.key=value` changes one key on the command line. TOML has no word for "nothing": a
key that is left out by default is left out. `equipoise run FILE --dry-run` prints a file with every default filled in,
`equipoise keys train` the keys of one section."""
_RUN = "For `equipoise run`; [data], [model] and [method] are required. Paths are taken from the current folder."
_AUDIT = """\
For `equipoise audit`: a run's sections without [method] and [attack], and [audit], which lists them. Every method
meets every attack with every seed; [guides/audit.md](../guides/audit.md) has a whole one."""
_SWEEP = """\
For `equipoise sweep`: a run's sections, in which a list in [method], [train], [participation] or [attack] stands for
values to choose from on validation data (`data.validation` above 0), and [sweep], which may be left out."""
_TABLE = """\
For `equipoise reproduce`: `PAPER/TABLE.toml` in a folder of experiments, see
[guides/reproduce.md](../guides/reproduce.md). The sections of the run that all cells share stand below `run`:
`[run.data]`, `[run.train]`, `[run.run]` and so on. The published numbers stand in `published.toml` beside it:
`[TABLE.COLUMN]`, then `ROW = [0.9, 0.2]` in the order of `measures`."""
_FILTERS = 'Filters in front of whatever server rule the method has, in order: `[{ name = "clip" }]`.'
_PARTS = {
    "model": "A model, and its settings beside `kind` ([parts.md](parts.md#models)).",
    "method": """A method, and its settings beside `name` ([parts.md](parts.md#methods)). One that is itself a part is a
    table, or a name alone: `server = { name = "krum", f = 2 }`, `server = "krum"`, `base = "fedprox"`.""",
    "attack": """An attack, and its settings beside `name` ([parts.md](parts.md#attacks)); left out: nobody attacks. Who
    is malicious is said by exactly one of `fraction`, `count`, `clients` and `added`.""",
}
_SHOW = "`equipoise show NAME` also has the equation, and where a part departs from its paper."
_KINDS: Mapping[Kind, str] = {
    "methods": '`[method] name = "..."`, with the settings beside it. A method is a client rule and a server rule.',
    "rules": """For the setting `server` of a method: `server = { name = "krum", f = 2 }`. A method's name stands for
    its own rule.""",
    "filters": '`[method] filters = [{ name = "clip" }]`: they change updates before the server rule sees them.',
    "attacks": '`[attack] name = "..."`, with the settings beside it. All take exactly one of:',
    "objectives": "What a client minimises, of its samples' losses: a field of client rules, for methods of your own.",
    "datasets": '`[data] dataset = "..."`; settings stand in `options = { ... }`. `"folder:PATH"` is data of your own.',
    "models": '`[model] kind = "..."`, with the settings beside it.',
    "partitions": '`[data] partition = { kind = "..." }`, with the settings beside it.',
}
_WEIGHTS = (
    'How much clients count to begin with: "uniform", all the same; "size", by their number of samples; "capped", '
    "likewise, but none for more than the median one."
)
_COMMON: Mapping[str, Mapping[str, str]] = {
    "methods": {
        "base": "The method that trains the global model, client and server rule; left out: FedAvg.",
        "server": "The rule that turns updates into a step; if given, in place of the method's own or its base's.",
        "weights": _WEIGHTS,
    },
    "rules": {"weights": _WEIGHTS},
    "attacks": {"label_noise": "Whether malicious clients train on wrong labels as well, as with label-noise."},
    "datasets": {
        "clients": "How many clients there are, 1 or more.",
        "malicious": "How many clients, the last ones, are malicious.",
        "tau": "How far the clients' true models lie apart, as a standard deviation, 0 or more.",
        "tau_a": "The same of the malicious clients.",
        "theta": "What the true models lie around.",
        "sigma": "Standard deviation of the noise, 0 or more.",
        "features": "How many numbers an input has, 1 or more.",
        "test": "The share of a client's samples that it is tested on, from 0 up to (not including) 1.",
        "validation": "The share of a client's samples that is kept for validation, from 0 up to (not including) 1.",
        "vocabulary": "How many word numbers there are: padding, the unknown word and the most frequent words.",
        "length": "How many words of a sentence count; shorter ones are padded at the end.",
    },
    "models": {
        "outputs": "How many numbers it puts out; left out: one for each class, 1 for a regression.",
        "bias": "Whether the layer adds a constant to each output.",
        "hidden": "The sizes of the hidden linear layers; [] is none.",
        "dropout": "The chance that an input of the i-th linear layer is dropped, each from 0 to below 1; [] is none.",
        "channels": "How many channels each convolution puts out, and so how many convolutions there are.",
        "kernel": 'The side of filters: one for all convolutions, or one for each; odd with padding "same".',
        "padding": '"same": zeros around what a convolution sees, so that it keeps its size; "valid": none.',
        "pool": "The side of the max-pool behind a convolution: one for all, or one for each; 1 is none.",
        "activation": "What every layer but the last has behind it.",
        "margin": "How many zeros are put around the image first, on every side.",
        "standardise": "A mean and a deviation, by which the image is shifted and divided; [] leaves it as it is.",
        "resnet.widths": "How many channels each stage has; all but the first halve the image.",
        "blocks": "How many residual blocks each stage has.",
        "vocabulary": "How many word numbers there are, the dataset's `vocabulary`.",
        "dim": "How many numbers stand for a word.",
        "filters": "How many filters there are of each width.",
        "text-cnn.widths": "How many words a filter spans, one number for each kind of filter.",
    },
}
_EXAMPLE = """
[data]
dataset = "digits"
clients = 20
partition = { kind = "dirichlet", alpha = 0.3 }
test = 0.2
[model]
kind = "mlp"
hidden = [64]
[train]
rounds = 30
epochs = 2
batch = 20
lr = 0.1
[participation]
per_round = 10
[admission]
guard = "redescend"
[method]
name = "ditto"
lam = 1.0
server = { name = "multi-krum", f = 2 }
[attack]
name = "sign-flip"
fraction = 0.2
scale = 3.0
[run]
seed = 0
device = "cpu"
"""
