"""Reads the pickles of CIFAR's python version without unpickling them: nothing in the file is ever executed.

A pickle is a little program. Python's own machine for it may import and call anything; the one here knows only the
instructions that build dicts, lists, tuples, texts, numbers and arrays of bytes, treats every name as a mere label, and
refuses the file at the first instruction or name that it does not know.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.formats import broken, content
from equipoise.errors import EquipoiseError


class _Name(Enum):
    """What a global of the file stands for. It is never looked up."""

    RECONSTRUCT = auto()
    ARRAY = auto()
    DTYPE = auto()
    ENCODE = auto()


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy", "ndarray"): _Name.ARRAY,
    ("numpy", "dtype"): _Name.DTYPE,
    ("_codecs", "encode"): _Name.ENCODE,  # how Python 3 writes bytes in protocol 2
}


class _Bytes:
    """The dtype of bytes, the only one that is accepted."""


class _Array:
    """An array that gets its content later, from a BUILD instruction."""

    value: np.ndarray[Any, Any] | None = None

    def fill(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        _require(isinstance(dtype, _Bytes) and isinstance(data, str | bytes), "an array that is not of bytes")
        raw = bytearray(data.encode("latin-1") if isinstance(data, str) else data)
        _require(all(isinstance(n, int) and n >= 0 for n in shape), "an array of an impossible shape")
        self.value = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


def _require(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(f"holds {what}")


def _call(name: Any, args: Any) -> Any:
    """What a REDUCE instruction leaves on the stack."""
    if name is _Name.RECONSTRUCT and args[0] is _Name.ARRAY:
        return _Array()
    if name is _Name.DTYPE and args[0] in ("u1", b"u1"):
        return _Bytes()
    if name is _Name.ENCODE and args[1] == "latin1":
        return args[0].encode("latin-1")
    raise ValueError("holds a call that is not allowed")


class _Machine:
    """The stack, the marks on it, and the memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def pop(self, count: int) -> list[Any]:
        _require(len(self.stack) - (self.marks[-1] if self.marks else 0) >= count, "an instruction without operands")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def name(self, module: Any, name: Any) -> None:
        _require(isinstance(module, str) and isinstance(name, str), "a name that is not a text")
        _require((module, name) in _NAMES, f"the name {module}.{name}, which is not allowed")
        self.stack.append(_NAMES[module, name])

    def set_items(self, items: list[Any]) -> None:
        _require(isinstance(self.stack[-1], dict) and len(items) % 2 == 0, "items without a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _require(isinstance(key, str | bytes), "a key that is not a text")
            self.stack[-1][key.decode("latin-1") if isinstance(key, bytes) else key] = value

    def extend(self, items: list[Any]) -> None:
        _require(isinstance(self.stack[-1], list), "items without a list")
        self.stack[-1].extend(items)

    def build(self) -> None:
        (state,) = self.pop(1)
        _require(isinstance(self.stack[-1], _Array | _Bytes), "a BUILD of something else than an array")
        if isinstance(self.stack[-1], _Array):
            self.stack[-1].fill(state)

    def global_(self, arg: str) -> None:
        self.name(*arg.split(" ", 1))

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def tuple_(self, count: int) -> None:
        self.stack.append(tuple(self.pop(count)))


_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
_TEXTS = ("SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES")

_STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    **dict.fromkeys(_NUMBERS + _TEXTS, lambda m, value: m.push(value)),
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    "PROTO": lambda m, version: _require(version <= 4, f"protocol {version}"),
    "FRAME": lambda m, size: None,
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "EMPTY_DICT": lambda m, _: m.push({}),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE1": lambda m, _: m.tuple_(1),
    "TUPLE2": lambda m, _: m.tuple_(2),
    "TUPLE3": lambda m, _: m.tuple_(3),
    "TUPLE": lambda m, _: m.push(tuple(m.since_mark())),
    "APPEND": lambda m, _: m.extend(m.pop(1)),
    "APPENDS": lambda m, _: m.extend(m.since_mark()),
    "SETITEM": lambda m, _: m.set_items(m.pop(2)),
    "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
    "BINPUT": lambda m, slot: m.memo.__setitem__(slot, m.stack[-1]),
    "LONG_BINPUT": lambda m, slot: m.memo.__setitem__(slot, m.stack[-1]),
    "MEMOIZE": lambda m, _: m.memo.__setitem__(len(m.memo), m.stack[-1]),
    "BINGET": lambda m, slot: m.push(m.memo[slot]),
    "LONG_BINGET": lambda m, slot: m.push(m.memo[slot]),
    "GLOBAL": lambda m, arg: m.global_(arg),
    "STACK_GLOBAL": lambda m, _: m.name(*m.pop(2)),
    "REDUCE": lambda m, _: m.push(_call(*m.pop(2))),
    "BUILD": lambda m, _: m.build(),
}


def _run(data: bytes) -> dict[str, Any]:
    machine = _Machine()
    for code, arg, _ in pickletools.genops(data):
        if code.name == "STOP":
            break
        _require(code.name in _STEPS, f"the instruction {code.name}, which is not allowed")
        _STEPS[code.name](machine, arg)
    _require(len(machine.stack) == 1 and isinstance(machine.stack[0], dict), "something else than one dict")
    return {key: v.value if isinstance(v, _Array) else v for key, v in machine.stack[0].items()}


def read_pickled(path: Path) -> dict[str, Any]:
    """The dict of a CIFAR python batch: its "data" as an array, its labels as lists."""
    try:
        return _run(bytes(content(path)))
    except EquipoiseError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        hint = "only CIFAR's own python batches are read; the binary version of the set works as well"
        raise broken(path, f"refused, nothing of it was run: {problem}", hint) from problem
