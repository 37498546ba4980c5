"""Finds the parts: methods, server rules, filters, attacks, objectives, datasets, models and partitions.

There is no list to edit. A part is found because its file lies in the right package and bears its name:
`methods/fedprox.py` has the recipe `fedprox`, `attacks/label_noise.py` has the class `LabelNoise`. In a config and on
the command line the name is that of the file, with "-" for "_". A file whose name starts with "_" is not a part.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from equipoise import core, files
from equipoise.errors import EquipoiseError, nearest
from equipoise.threat import Attack

Kind = Literal["methods", "rules", "filters", "attacks", "objectives", "datasets", "models", "partitions"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
SINGULAR: Mapping[str, str] = {
    **{"methods": "method", "rules": "server rule", "filters": "filter", "attacks": "attack"},
    **{"objectives": "objective", "datasets": "dataset", "models": "model", "partitions": "partition"},
}
REQUIRED: Any = inspect.Parameter.empty
"""The default of a parameter that has none."""

_PACKAGES = {"methods": "methods", "rules": "aggregators", "filters": "aggregators", "attacks": "attacks"}
OWN: tuple[Kind, ...] = ("methods", "rules", "filters", "attacks")
"""Kinds with a file for every part."""
LOADABLE: tuple[Kind, ...] = (*OWN, "models")
"""What a file of the user's own may hold."""
_BASES: Mapping[str, type] = {"rules": core.ServerRule, "filters": core.Filter, "attacks": Attack}
_OWN: dict[str, dict[str, Entry]] = {}  # the user's own files, by kind; see `load_file`
_NAMED: Mapping[str, tuple[Kind, ...]] = {
    "method": ("methods", "rules", "filters"),
    "attack": ("attacks",),
    "model": ("models",),
}
"""What a section of a run may name of these."""


@dataclass(frozen=True)
class Parameter:
    """One setting of a part."""

    name: str
    type: Any
    default: Any = REQUIRED

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Doc:
    """What a part's module says of itself, by section."""

    summary: str = ""
    reference: str = ""
    equation: str = ""
    departures: str = ""
    notes: str = ""
    """Whatever else it says."""

    @classmethod
    def parse(cls, text: str | None) -> Doc:
        """One line in plain words; the reference; the equation, indented; "Departures", which goes on to the end."""
        summary, *rest = _paragraphs(text or "") or [""]
        at = next((i for i, p in enumerate(rest) if p.lstrip(" *").startswith("Departures")), len(rest))
        departures = "\n\n".join(rest[at:]).lstrip(" *").removeprefix("Departures").lstrip(" *:.\n")
        equations = [p for p in rest[:at] if p.startswith(" ")]
        prose = [p for p in rest[:at] if not p.startswith(" ")]
        equation = "\n\n".join(textwrap.dedent(p) for p in equations)
        return cls(summary, prose[0] if prose else "", equation, departures, "\n\n".join(prose[1:]))


def _paragraphs(text: str) -> list[str]:
    """The blocks between blank lines, with the indentation of their first line."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return [b.strip("\n").rstrip() for b in blocks if b.strip()]


@dataclass(frozen=True)
class Entry:
    """A part: how it is called, how it is made, what it says of itself and what can be set."""

    name: str
    kind: Kind
    make: Callable[..., Any]
    doc: Doc
    parameters: tuple[Parameter, ...]
    sha256: str = ""
    """Of the file it was loaded from, if that is the user's own."""

    @classmethod
    def of(cls, name: str, kind: Kind, make: Callable[..., Any], doc: str | None, skip: int = 0) -> Entry:
        """`skip` leaves out leading parameters that are not the user's (a model's shape and classes)."""
        return cls(name, kind, make, Doc.parse(doc), parameters(make)[skip:])


def parameters(make: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What a function, a class or a partial of one takes, with resolved type hints."""
    hints = typing.get_type_hints(getattr(make, "func", make))
    named = [p for p in inspect.signature(make).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return tuple(Parameter(p.name, hints.get(p.name, Any), p.default) for p in named)


_WORDS = {float: "a number", int: "a whole number", str: "text", bool: "true or false", types.NoneType: "nothing"}
_WORDS[Path] = "a path"

_NOUNS: Mapping[type, str] = {
    **{core.ServerRule: "a server rule", core.ClientRule: "a client rule", core.Objective: "an objective"},
    **{core.Method: "a method", core.Filter: "a filter"},
}


def arms(hint: Any) -> tuple[Any, ...]:
    """The types that a union is of; any other type alone."""
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def describe(hint: Any) -> str:
    """A type in plain words: `tuple[int, ...] | None` is "a list, each a whole number or nothing"."""
    if hint in _WORDS:
        return _WORDS[hint]
    origin, args = typing.get_origin(hint), [a for a in typing.get_args(hint) if a is not Ellipsis]
    if origin is Literal:
        return " or ".join(f'"{a}"' if isinstance(a, str) else str(a) for a in args)
    if len(arms(hint)) > 1:
        return " or ".join(describe(a) for a in args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a table"
    if isinstance(origin, type) and issubclass(origin, Sequence) and args:
        return "a list" if args[0] is Any else f"a list, each {describe(args[0])}"
    named = next((word for base, word in _NOUNS.items() if isinstance(hint, type) and issubclass(hint, base)), "")
    return named or ("a table" if is_dataclass(hint) else str(getattr(hint, "__name__", hint)))


# ------------------------------------------------------------------------------------------------------- finding


def entries(kind: Kind) -> Mapping[str, Entry]:
    """All parts of a kind by name, in alphabetical order."""
    return dict(sorted({**_built_in(kind), **_OWN.get(kind, {})}.items()))


def methods() -> Mapping[str, Entry]:
    return entries("methods")


def rules() -> Mapping[str, Entry]:
    return entries("rules")


def filters() -> Mapping[str, Entry]:
    return entries("filters")


def attacks() -> Mapping[str, Entry]:
    return entries("attacks")


def get(kind: Kind, name: str) -> Entry:
    """The part called `name`; an unknown name is an error with the nearest one."""
    found = entries(kind)
    if name not in found:
        raise EquipoiseError(f"no {SINGULAR[kind]} is called {name!r}", nearest(name, found))
    return found[name]


def name_of(kind: Kind, part: object) -> str | None:
    """The name under which a part such as `Krum(f=2)` is known."""
    return next((e.name for e in entries(kind).values() if e.make is type(part)), None)


@cache
def _built_in(kind: Kind) -> Mapping[str, Entry]:
    if kind == "models":
        from equipoise.models import MODELS

        return {n: Entry.of(n, kind, f, f.__doc__, skip=2) for n, f in MODELS.items()}
    if kind == "partitions":
        from equipoise.data.partitioners import PARTITIONS

        return {n: Entry.of(n, kind, c, c.__doc__) for n, c in PARTITIONS.items()}
    if kind == "datasets":
        return _datasets()
    if kind == "objectives":
        from equipoise.objectives import ClassTilted, Tilted

        known = {"mean": core.Mean, "tilted": Tilted, "class-tilted": ClassTilted}
        return {name: Entry.of(name, kind, made, made.__doc__) for name, made in known.items()}
    found = _walk(kind)
    if kind == "rules":
        found["weighted-mean"] = Entry.of("weighted-mean", kind, core.WeightedMean, core.WeightedMean.__doc__)
    return found


def _datasets() -> Mapping[str, Entry]:
    """Read from files, or drawn from a distribution; the parameters are what may stand in [data] under options."""
    from equipoise.data.catalogue import CATALOGUE
    from equipoise.data.loaders import LOADERS
    from equipoise.data.synthetic import SYNTHETIC

    drawn = {n: Entry.of(n, "datasets", f, f.__doc__) for n, f in SYNTHETIC.items()}
    for name, entry in drawn.items():
        drawn[name] = replace(entry, parameters=tuple(p for p in entry.parameters if p.name != "seed"))
    infos = {n: CATALOGUE[n] for n in LOADERS}
    docs = {
        n: Doc(i.what, i.source, notes=f"{i.samples:,} samples, {i.classes} classes. {i.licence}")
        for n, i in infos.items()
    }
    return drawn | {n: Entry(n, "datasets", f, docs[n], parameters(f)[1:]) for n, f in LOADERS.items()}


def _walk(kind: Kind) -> dict[str, Entry]:
    package = importlib.import_module(f"equipoise.{_PACKAGES[kind]}")
    stems = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]
    modules = {stem: importlib.import_module(f"{package.__name__}.{stem}") for stem in stems}
    made = {stem: _part_in(module, stem, kind) for stem, module in modules.items()}
    return {_kebab(s): Entry.of(_kebab(s), kind, make, modules[s].__doc__) for s, make in made.items() if make}


def _kebab(stem: str) -> str:
    return stem.replace("_", "-")


def _part_in(module: types.ModuleType, stem: str, kind: Kind) -> Callable[..., Any] | None:
    """The recipe or class of a module that bears the module's name, whatever its capitals (`NNM` in nnm.py)."""
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__}
    if kind == "methods":
        recipe = own.get(stem)
        return recipe if inspect.isfunction(recipe) and not _builds_models(recipe) else None
    if kind == "models":
        builder = own.get(stem)
        return builder if inspect.isfunction(builder) and _builds_models(builder) else None
    plain = stem.replace("_", "")
    base = _BASES[kind]
    return next((v for n, v in own.items() if n.lower() == plain and isinstance(v, type) and issubclass(v, base)), None)


def _builds_models(function: Callable[..., Any]) -> bool:
    """What a function takes first tells a model's builder from a method's recipe, both being functions."""
    return list(inspect.signature(function).parameters)[:2] == ["shape", "classes"]


# ------------------------------------------------------------------------------------------------ the user's own


def load_file(path: Path, kind: Kind | None = None) -> Entry:
    """Import a file that the user named on the command line, and make its part known for the rest of the process.

    `kind` is what it must be; left out, it may be any of `LOADABLE`. It runs the file's code. Only a user's own word
    may lead here, never a string from a config.
    """
    kinds: tuple[Kind, ...] = (kind,) if kind else LOADABLE
    stem, what = path.stem.replace("-", "_"), " or ".join(SINGULAR[k] for k in kinds)
    if not path.is_file() or path.suffix != ".py":
        raise EquipoiseError(f"{path}: not a Python file", f"give the path of a .py file with a {what}")
    source = files.read_bytes(path)
    with blaming(path):
        module = _import(path, source, f"equipoise_own_{kind or 'part'}_{stem}")
        made = {k: make for k in kinds if (make := _part_in(module, stem, k))}
        if not made:
            found = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
            wanted = dict.fromkeys(_form(k, stem) for k in kinds)
            hint = f"the file must have {' or '.join(wanted)}"
            raise EquipoiseError(f"{path}: no {what} called {stem!r}, only {found}", hint)
        home, make = next(iter(made.items()))
        _require_new(path, _kebab(stem), (home,) if kind or home == "models" else OWN)
        entry = Entry.of(_kebab(stem), home, make, module.__doc__ or make.__doc__, skip=2 if home == "models" else 0)
    entry = replace(entry, sha256=hashlib.sha256(source).hexdigest())
    _OWN.setdefault(home, {})[entry.name] = entry
    return entry


def own_files(sections: Mapping[str, Any]) -> dict[str, str]:
    """The user's own parts that a run's sections name, such as "method mine", with the sha256 of the file of each."""
    found: dict[str, str] = {}
    for section, kinds in _NAMED.items():
        own = [entry for kind in kinds for entry in _OWN.get(kind, {}).values()]
        words = set(_words(sections.get(section))) if own else set()
        found |= {f"{SINGULAR[e.kind]} {e.name}": e.sha256 for e in own if e.name in words}
    return found


def _words(value: Any) -> Iterator[str]:
    """All text in tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _words(inner)


def _require_new(path: Path, name: str, kinds: Sequence[Kind]) -> None:
    if known := [SINGULAR[k] for k in kinds if name in _built_in(k)]:
        told = f"{path}: {known[0]} {name!r} is already there"
        raise EquipoiseError(told, "give the file, and what is in it, another name")


def _form(kind: Kind, stem: str) -> str:
    functions = {"methods": f"def {stem}(...) -> Method", "models": f"def {stem}(shape, classes, ...) -> nn.Module"}
    return functions.get(kind, f"a class {stem.title().replace('_', '')}")


@contextmanager
def blaming(where: object) -> Iterator[None]:
    """Whatever a user's code raises is told as an error in it: `where` is its file, or what it was to make."""
    try:
        yield
    except EquipoiseError:
        raise
    except Exception as error:
        told = f"{where}: {type(error).__name__}: {error}"
        raise EquipoiseError(told, "the file cannot be used as it is; -v shows where it fails") from error


def _import(path: Path, source: bytes, name: str) -> types.ModuleType:
    """The module of what was read, not of the file, or of its bytecode, as it may be by now."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up while it is being made
    exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    return module
