"""From a table of a config to the part that it describes, and to the same table with every default written out.

A table is checked against the signature of the recipe or class that it names: unknown keys, missing ones, values of the
wrong type and the part's own complaints all become errors that name the full key, the value found, and a way out.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from equipoise import core, registry
from equipoise.errors import EquipoiseError, nearest
from equipoise.registry import Entry, Kind, Parameter

Table = dict[str, Any]
T = TypeVar("T")


# -------------------------------------------------------------------------------------------------------- problems


class Problems(EquipoiseError):
    """Several problems as one: it reads as the first and knows how many there are."""

    def __init__(self, problems: Sequence[EquipoiseError]) -> None:
        super().__init__(problems[0].message, problems[0].hint)
        self.count = sum(getattr(p, "count", 1) for p in problems)


class Collector:
    """Goes on after a problem, so that all of them are counted."""

    def __init__(self) -> None:
        self.problems: list[EquipoiseError] = []

    def attempt(self, f: Callable[..., T], *args: Any) -> T | None:
        try:
            return f(*args)
        except EquipoiseError as error:
            self.problems.append(error)
            return None

    def add(self, message: str, hint: str) -> None:
        self.problems.append(EquipoiseError(message, hint))

    def done(self) -> None:
        if self.problems:
            raise Problems(self.problems)


def shown(value: object) -> str:
    """A value as its owner wrote it, cut where it gets long."""
    text = write(value)
    return text if len(text) <= 60 else text[:57] + "..."


_WANTED = {
    "float_type": "a number, such as 0.1",
    "int_type": "a whole number, such as 10",
    "bool_type": "true or false, without quotes",
    "string_type": 'text in quotes, such as "auto"',
    "tuple_type": "a list, such as [1, 2]",
    "list_type": "a list, such as [1, 2]",
    "dict_type": "a table, such as { key = 1 }",
}


def _in_our_words(error: ValidationError, key: str, raw: Any, kind: Any = None) -> Problems:
    problems = []
    for e in error.errors():
        places = _places(e["loc"], raw)
        if e["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            hint = nearest(str(places[-1]), _names(kind, places[:-1]))
            problems.append(EquipoiseError(f"{_at(key, places)}: unknown key", hint))
        elif e["type"] in ("missing", "missing_argument"):
            home, at = _at(key, places), _at(key, (*places, e["loc"][-1]))
            problems.append(EquipoiseError(f"{at} is missing", f"[{home}] needs it" if home else "the file needs it"))
        else:
            wanted = _WANTED.get(e["type"], e["msg"].replace("Input should be", "use"))
            problems.append(EquipoiseError(f"{_at(key, places)} is {shown(e['input'])}", wanted))
    return Problems(problems)


def _at(key: str, places: Sequence[int | str]) -> str:
    return (key + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in places)).lstrip(".")


def _places(loc: Sequence[int | str], raw: Any) -> tuple[int | str, ...]:
    """The way to a value through tables and lists; where pydantic names types of a union besides, it is at its end."""
    found: list[int | str] = []
    for place in loc:
        listed = isinstance(raw, list | tuple) and isinstance(place, int)
        if not listed and not (isinstance(raw, dict) and place in raw):
            break
        raw = raw[place]
        found.append(place)
    return tuple(found)


def _names(kind: Any, places: Sequence[int | str]) -> list[str]:
    """What the table there may hold; dicts and lists hold tables of one kind."""
    for place in places:
        whole = dataclasses.is_dataclass(kind)
        kind = typing.get_type_hints(kind)[str(place)] if whole else typing.get_args(kind)[-1]
    return [f.name for f in dataclasses.fields(kind)]


# ---------------------------------------------------------------------------------------------- sections and values


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _plain(value: Any) -> Any:
    """A number of numpy's as Python's; anything else as text, for a message."""
    return value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else str(value)


def section(kind: type[T], raw: Any, key: str) -> T:
    """A table as a dataclass. Through JSON, because pydantic's strict mode then still takes lists and whole floats."""
    if not isinstance(raw, dict):
        raise EquipoiseError(f"{key} is {shown(raw)}", f"a table: a line [{key}], then key = value")
    try:
        return typing.cast(T, _adapter(typing.cast(Any, kind)).validate_json(json.dumps(raw, default=_plain)))
    except ValidationError as error:
        raise _in_our_words(error, key, raw, kind) from None


def _value(hint: Any, raw: Any, key: str) -> tuple[Any, Any]:
    """One parameter: as it stands in a config, and as the part takes it."""
    kind = _kind_of(hint)
    if kind is not None:
        return part(kind, raw, key)
    arms = [a for a in registry.arms(hint) if a is not types.NoneType]  # a config has no word for None
    try:
        value = _adapter(typing.Union[tuple(arms)]).validate_json(json.dumps(raw, default=str), strict=True)  # noqa: UP007
    except ValidationError as error:
        if len(arms) > 1:
            raise EquipoiseError(f"{key} is {shown(raw)}", " or ".join(map(registry.describe, arms))) from None
        raise _in_our_words(error, key, raw) from None
    return plain(value), value


def _kind_of(hint: Any) -> str | None:
    """Which kind of part a parameter of this type takes, if any."""
    bases = {core.ServerRule: "rules", core.ClientRule: "clients", core.Method: "methods", core.Objective: "objectives"}
    types = [t for t in (hint, *typing.get_args(hint)) if isinstance(t, type)]
    return next((kind for base, kind in bases.items() for t in types if issubclass(t, base)), None)


def plain(value: Any) -> Any:
    """A value as it would stand in a config; None where it cannot be written (then the part's own default holds)."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    kinds: tuple[Kind, ...] = ("rules", "filters", "objectives")
    name = next((n for n in (registry.name_of(k, value) for k in kinds) if n), None)
    if name is None:
        return None
    fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"name": name, **{k: v for k, v in fields.items() if v is not None}}


def arguments(
    parameters: Iterable[Parameter], given: Mapping[str, Any], key: str, beside: Sequence[str] = ()
) -> tuple[Table, Table]:
    """A part's parameters, defaults filled in: as they stand in a config, and as the part takes them.

    `beside` are keys that the table may have as well, for the hint to a misspelt one.
    """
    problems = Collector()
    written: Table = {}
    values: Table = {}
    known = {p.name: p for p in parameters}
    for name in given:
        if name not in known:
            hint = nearest(name, [*known, *beside]) if known or beside else "there is nothing to set here"
            problems.add(f"{key}.{name}: unknown key", hint)
    for name, p in known.items():
        raw = given.get(name, None if p.required else plain(p.default))
        if raw is not None:
            written[name], values[name] = problems.attempt(_value, p.type, raw, f"{key}.{name}") or (None, None)
        elif p.required:
            problems.add(f"{key}.{name} is missing", f"give {registry.describe(p.type)}")
    problems.done()
    return written, values


# ------------------------------------------------------------------------------------------------------------ parts


def named(kind: str, raw: Any, key: str, name_key: str = "name") -> tuple[Entry, Table]:
    """The part that a table (or a name alone) names, and the rest of the table."""
    table = {name_key: raw} if isinstance(raw, str) else raw
    found = _choices(kind)
    if not isinstance(table, dict):
        example = f'{{ {name_key} = "{next(iter(found), "...")}" }}'
        raise EquipoiseError(f"{key} is {shown(raw)}", f"a table, such as {example}")
    name = table.get(name_key)
    if name is None:
        raise EquipoiseError(f"{key}.{name_key} is missing", f"known: {', '.join(found)}")
    if not isinstance(name, str) or name not in found:
        own = "; your own needs --own FILE.py" if kind in (*registry.LOADABLE, "clients") else ""
        own += ", with a function that takes (shape, classes, ...)" if kind == "models" else ""
        raise EquipoiseError(f"{key}.{name_key} is {shown(name)}, which is not known", nearest(str(name), found) + own)
    return found[name], {k: v for k, v in table.items() if k != name_key}


def _choices(kind: str) -> Mapping[str, Entry]:
    """What may stand where a part is wanted: a method also serves as its server rule or its client rule."""
    if kind == "rules":
        return {**registry.methods(), **registry.rules()}
    return registry.methods() if kind == "clients" else registry.entries(typing.cast(Kind, kind))


def part(kind: str, raw: Any, key: str, name_key: str = "name") -> tuple[Table, Any]:
    """A part from its table: the table with all defaults, and the part itself."""
    entry, given = named(kind, raw, key, name_key)
    is_method = entry.kind == "methods"
    filters = given.pop("filters", []) if is_method else []
    written, values = arguments(entry.parameters, given, key, ("filters",) if is_method else ())
    made = keyed(lambda: entry.make(**values), key, [p.name for p in entry.parameters])
    table = {name_key: entry.name, **written}
    if not is_method:
        return table, made
    if not isinstance(made, core.Method):
        raise EquipoiseError(f"{key}.{name_key} is {entry.name!r}, which made {type(made).__name__}", "return a Method")
    if filters:
        table["filters"], made = _filtered(made, filters, f"{key}.filters")
    return table, made if kind == "methods" else _half(kind, made, f"{key}.{name_key} is {shown(entry.name)}")


def _half(kind: str, method: core.Method, what: str) -> core.ServerRule | core.ClientRule:
    """The rule that a method stands for. One whose other half alone is its own, such as FedProx, stands for none."""
    plain, rules = core.Method(), kind == "rules"
    mean, sgd = type(method.server) is type(plain.server), method.client == plain.client
    if mean and not sgd and rules:
        hint = 'it is for method.name or a base; the plain mean is "weighted-mean"'
        raise EquipoiseError(f"{what}, a method of clients whose server rule is the plain mean", hint)
    if sgd and not mean and not rules:
        raise EquipoiseError(f"{what}, a server rule whose clients do as FedAvg's", 'plain clients are "fedavg"')
    return method.server if rules else method.client


def _filtered(method: core.Method, raw: Any, key: str) -> tuple[list[Table], core.Method]:
    if not isinstance(raw, list):
        raise EquipoiseError(f"{key} is {shown(raw)}", 'a list of tables, such as [{ name = "clip" }]')
    pairs = [part("filters", table, f"{key}[{i}]") for i, table in enumerate(raw)]
    server = keyed(lambda: core.chain(*(f for _, f in pairs), method.server), key)
    return [table for table, _ in pairs], dataclasses.replace(method, server=server)


def keyed(make: Callable[[], T], key: str, names: Iterable[str] = ()) -> T:
    """What `make` makes; a part's own complaint is told under the full key of the parameter that it names."""
    try:
        return make()
    except EquipoiseError as error:
        name = next((n for n in names if re.search(rf"\b{n} (is|=)", error.message)), "")
        at = f"{key}.{name}" if name else key
        raise EquipoiseError(f"{at}: {error.message}", error.hint or "`equipoise show` tells the range") from error
    except Exception as error:
        raise EquipoiseError(f"{key}: {type(error).__name__}: {error}", "the part refuses these values") from error


# ------------------------------------------------------------------------------------------------------ TOML as text


def write(value: Any) -> str:
    """A value on one line. What TOML has no word for is written as Python shows it, which serves messages only."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(write(v) for v in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + write_pairs(value, ", ") + " }" if value else "{}"
    return repr(value) if isinstance(value, int | float) else str(value)


def write_pairs(table: Mapping[str, Any], between: str = "\n") -> str:
    """`key = value` for every key that has a value: TOML has no word for None."""
    return between.join(f"{_key(k)} = {write(v)}" for k, v in table.items() if v is not None)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else write(name)
