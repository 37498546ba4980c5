"""The reference: every key that a file can have, and every part that it can name, from what decides them.

A key's type and default are those of its dataclass field; what it means is the text below the field, and its range the
hint of the `require` that checks it. A part says itself what it is. `equipoise keys --markdown` and `equipoise list
--markdown` print the pages docs/reference/config.md and docs/reference/parts.md; a test compares them.
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
    return [
        Key(entry.name, p.name, _takes(p.type), _written(plain(p.default), p.required), said.get(p.name, ""))
        for p in entry.parameters
    ]


def words(entry: Entry) -> list[str]:
    """What the classes of a part's module say of their parameters."""
    module = inspect.getmodule(entry.make)
    if entry.kind not in registry.OWN or module is None:
        return []
    classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == module.__name__]
    told = {c.__name__: inspect.getdoc(c) for c in classes if "__doc__" in vars(c)}
    return [f"{n}: {d}" for n, d in told.items() if d and not d.startswith(f"{n}(")]


def _of_settings(entry: Entry) -> dict[str, str]:
    """What the classes of a part say of each setting: "mu: strength of the pull, 0 or more. low, high: ..."."""
    found: dict[str, str] = {}
    name = "|".join(re.escape(p.name) for p in entry.parameters) or "$"
    several = re.compile(rf"(?:^|(?<=[.;] ))((?:{name})(?:, (?:{name}))*(?: \([^)]*\))?): ")
    for text in (*(told.partition(": ")[2] for told in words(entry)), *_inherited(entry)):
        _, *pairs = several.split(" ".join(text.split()))
        for names, told in zip(pairs[::2], pairs[1::2], strict=True):
            alone = told[:1].upper() + told[1:].rstrip("; ")
            for one in re.findall(rf"\b(?:{name})\b", names):
                found.setdefault(one, alone if one == names else f"{names}: {told}".rstrip("; "))
    return found


def _inherited(entry: Entry) -> list[str]:
    """What the classes say that a part's class is made of, but for the vocabulary."""
    classes = inspect.getmro(entry.make) if isinstance(entry.make, type) else ()
    near = [c for c in classes if c.__module__.startswith(("equipoise.attacks.", "equipoise.aggregators."))]
    return [text for c in near if (text := vars(c).get("__doc__"))]


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
    yield from ([_wrapped(doc.notes)] if whole and doc.notes else [])
    yield from _listed([key for key in settings(entry) if key.name not in beside])


def _listed(keys: Sequence[Key]) -> list[str]:
    lines = [_wrapped(f"- `{key.name}`: {key.told('`')}. {key.meaning}", "  ") for key in keys]
    return ["\n".join(lines)] if lines else []


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
_SHOW = """\
`equipoise show NAME` also has the equation, which explains settings that have no word of their own here, and where a
part departs from its paper."""
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
