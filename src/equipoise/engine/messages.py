"""What travels between the server and a client: named raw arrays and a few plain facts, and nothing that could run.

The server sends an `Ask`, a client sends an `Answer`. Either becomes a `Parcel`, which any carrier can take: as one
block of bytes in the safetensors format (`pack`, `unpack`), or as the records of a framework. Names, by layer:

    ask      facts  format kind run round client token lr needs evaluate       arrays  model/T  message/M  download/T
                    received
                                                                                       probe/T (a row per trial model)
    answer   facts  format kind run round client token size error              arrays  update/T  loss  signal/S  probe
                                                                                       evaluation/SPLIT/WHOSE/COLUMN

T is a tensor of the model, M what the server rule's `plan` sends, S what the client rule reports. The token is drawn
anew for every ask and comes back in its answer: only whoever the ask was delivered to can know it. An answer is judged
before anything in it is copied: how much it claims to hold, its types, its names and shapes, in this order. Whatever is
wrong gives a reason, never an exception; whether numbers are finite and claims sane is for `admission`, as always.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.core import State
from equipoise.engine.admission import decode
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout

REFUSALS = {
    "absent": "it cannot be reached",
    "late": "it did not answer in time, or answered another round",
    "error": "it reported an error",
    "garbage": "what it sent is not a message",
    "oversized": "what it sent, or claims to have sent, is too large",
    "identity": "it speaks for another client than the one on this line, or was not asked",
    "evaluation": "its evaluation is missing or misshapen",
}
"""Why an answer never reached admission, beside admission's own reasons."""

KINDS = ("train", "probe", "evaluate", "finish")
COLUMNS = {"n": "int64", "correct": "int64", "loss": "float64", "class_n": "int64", "class_correct": "int64"}
_FORMAT = 1
_SLACK = 4 << 20  # bytes beside the update: names, signals, evaluations
_HEADER = 1 << 20
_CODES = {"F16": "float16", "F32": "float32", "F64": "float64", "I32": "int32", "I64": "int64", "U8": "uint8"}
_CODES |= {"BOOL": "bool"}
_WIDTH = {name: np.dtype(name).itemsize for name in _CODES.values()}
_FACTS = "equipoise"

Fact = int | float | str
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Raw:
    """An array as it travels: what it claims to be, and its bytes, which nobody has looked at."""

    dtype: str
    shape: Shape
    data: bytes | memoryview

    @classmethod
    def of(cls, t: Tensor) -> Raw:
        a = t.detach().cpu().contiguous().numpy()
        return cls(a.dtype.name, tuple(t.shape), a.tobytes())

    def fault(self) -> str:
        """Why this cannot be an array; "" if it can."""
        if self.dtype not in _WIDTH:
            return "dtype"
        return "" if self.bytes() == len(self.data) else "garbage"

    def bytes(self) -> int:
        """How many bytes it claims to hold; shapes that are none claim infinitely many."""
        if any(type(n) is not int or n < 0 for n in self.shape) or len(self.shape) > 16:
            return 1 << 62
        return math.prod(self.shape) * _WIDTH.get(self.dtype, 1)

    def array(self) -> np.ndarray:
        """A view of the bytes; only after `fault` found none."""
        flat = np.frombuffer(self.data, dtype="uint8" if self.dtype == "bool" else self.dtype)
        return (flat != 0 if self.dtype == "bool" else flat).reshape(self.shape)

    def tensor(self) -> Tensor:
        return torch.from_numpy(self.array().copy())  # at an address of its own: kernels may look at alignment


@dataclass(frozen=True)
class Parcel:
    """A message as carriers see it."""

    arrays: Mapping[str, Raw] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)

    def fault(self, cap: int) -> str:
        """Why this is not taken in, looking at what it claims only; "" if it may be read."""
        if sum(raw.bytes() for raw in self.arrays.values()) > cap:
            return "oversized"
        return next((why for raw in self.arrays.values() if (why := raw.fault())), "")

    def below(self, prefix: str) -> dict[str, Raw]:
        return {n.removeprefix(prefix): raw for n, raw in self.arrays.items() if n.startswith(prefix)}


def cap(layout: Layout) -> int:
    """The most bytes that an answer may hold: the update in double precision, and some."""
    return 8 * layout.size + _SLACK


# ------------------------------------------------------------------------------------------------------------- as bytes


def pack(parcel: Parcel) -> bytes:
    """One block of bytes in the safetensors format, the facts as JSON in its metadata."""
    codes = {name: code for code, name in _CODES.items()}
    header: dict[str, Any] = {"__metadata__": {_FACTS: json.dumps(dict(parcel.facts))}}
    body, at = [], 0
    for name, raw in parcel.arrays.items():
        header[name] = {"dtype": codes[raw.dtype], "shape": raw.shape, "data_offsets": (at, at + len(raw.data))}
        body.append(raw.data)
        at += len(raw.data)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return b"".join([len(head).to_bytes(8, "little"), head, *body])


def unpack(data: object, cap: int) -> Parcel | str:
    """The parcel in a block of bytes, or the reason why there is none in it."""
    if not isinstance(data, bytes):
        return "garbage"
    size = int.from_bytes(data[:8], "little")
    if len(data) > cap + _HEADER:
        return "oversized"
    if size > min(len(data) - 8, _HEADER):
        return "garbage"
    try:
        header = json.loads(data[8 : 8 + size])
        facts = json.loads(header.pop("__metadata__")[_FACTS])
        body = memoryview(data)[8 + size :]
        arrays = {name: _raw(entry, body) for name, entry in header.items()}
    except Exception:  # whatever a stranger's bytes make a parser say, it comes to the same
        return "garbage"
    if not isinstance(facts, dict) or not all(isinstance(v, Fact) for v in facts.values()):
        return "garbage"
    parcel = Parcel(arrays, facts)
    return parcel.fault(cap) or parcel


def _raw(entry: dict[str, Any], body: memoryview) -> Raw:
    first, last = entry["data_offsets"]
    return Raw(_CODES.get(entry["dtype"], "?"), tuple(entry["shape"]), body[max(first, 0) : max(last, 0)])


def _named(prefix: str, rows: Tensor, layout: Layout) -> dict[str, Raw]:
    return {f"{prefix}/{name}": Raw.of(t) for name, t in layout.tensors(rows.contiguous()).items()}


# --------------------------------------------------------------------------------------------------------------- asking


@dataclass(frozen=True)
class Ask:
    """What the server wants of one client."""

    kind: str
    """"train", "probe" (losses of trial models), "evaluate", or "finish": the last training, then an evaluation."""
    run: str
    round: int
    client: int
    lr: float
    w: Tensor | None = None
    """[d]: the global model; not sent to be probed."""
    messages: State = field(default_factory=dict)
    """Scalars."""
    needs: frozenset[str] = frozenset()
    evaluate: tuple[str, ...] = ()
    """Splits to evaluate the received and the personal model on, before any training except the last."""
    probe: Tensor | None = None
    """[T, d]."""
    download: Tensor | None = None
    """[d]: the delta that the server made for this client after round `received`."""
    received: int = -1
    token: str = ""
    """What the answer must repeat."""

    def parcel(self, layout: Layout) -> Parcel:
        facts: dict[str, Fact] = {"format": _FORMAT, "kind": self.kind, "run": self.run, "round": self.round}
        facts |= {"client": self.client, "token": self.token, "lr": self.lr, "received": self.received}
        facts |= {"needs": " ".join(sorted(self.needs)), "evaluate": " ".join(self.evaluate)}
        arrays = {f"message/{name}": Raw.of(t) for name, t in self.messages.items()}
        for prefix, rows in {"model": self.w, "probe": self.probe, "download": self.download}.items():
            arrays |= {} if rows is None else _named(prefix, rows, layout)
        return Parcel(arrays, facts)


def read_ask(parcel: Parcel, layout: Layout, dtype: torch.dtype) -> Ask:
    """What a server asks; EquipoiseError if this is not it."""
    facts = parcel.facts
    if facts.get("format") != _FORMAT or facts.get("kind") not in KINDS:
        raise EquipoiseError(f"not a message of format {_FORMAT}", "server and clients must run the same version")
    if why := parcel.fault(1 << 60):
        raise EquipoiseError(f"the server's message is {why}", "server and clients must run the same version")

    def rows(prefix: str) -> Tensor | None:
        found = parcel.below(f"{prefix}/")
        return _rows(found, layout, dtype, prefix) if found else None

    return Ask(
        kind=str(facts["kind"]),
        run=str(facts["run"]),
        round=int(facts["round"]),
        client=int(facts["client"]),
        lr=float(facts["lr"]),
        w=rows("model"),
        messages={n: raw.tensor() for n, raw in parcel.below("message/").items()},
        needs=frozenset(str(facts["needs"]).split()),
        evaluate=tuple(str(facts["evaluate"]).split()),
        probe=rows("probe"),
        download=rows("download"),
        received=int(facts["received"]),
        token=str(facts["token"]),
    )


def _rows(found: Mapping[str, Raw], layout: Layout, dtype: torch.dtype, what: str) -> Tensor:
    """[d], or [T, d] for trial models."""
    name = str(dtype).removeprefix("torch.")
    lead = 1 if what == "probe" else 0
    fits = set(found) == {s.name for s in layout.slots} and all(
        found[s.name].dtype == name and found[s.name].shape[lead:] == s.shape for s in layout.slots
    )
    if not fits:
        raise EquipoiseError(f"the server's {what} is not this client's model", "both must be set up from one config")
    tensors = [found[s.name].tensor() for s in layout.slots]
    return torch.cat([t.reshape(*t.shape[:lead], -1) for t in tensors], -1)


# ------------------------------------------------------------------------------------------------------------ answering


@dataclass(frozen=True)
class Answer:
    """What a client has to say."""

    update: Tensor | None = None
    """[d]."""
    size: int = 0
    loss: Tensor | None = None
    signals: State = field(default_factory=dict)
    """Without the rows: what the client rule's `report` gave for this one."""
    probe: Tensor | None = None
    """[T]."""
    evaluations: Mapping[str, State] = field(default_factory=dict)
    """By "SPLIT/WHOSE" ("test/personal"): the columns of `metrics.Evaluation`, of this client."""
    error: str = ""

    def parcel(self, ask: Ask, layout: Layout) -> Parcel:
        facts: dict[str, Fact] = {"format": _FORMAT, "kind": ask.kind, "run": ask.run, "round": ask.round}
        facts |= {"client": ask.client, "token": ask.token, "size": self.size, "error": self.error[:500]}
        arrays = {} if self.update is None else _named("update", self.update, layout)
        arrays |= {} if self.loss is None else {"loss": Raw.of(self.loss)}
        arrays |= {} if self.probe is None else {"probe": Raw.of(self.probe)}
        arrays |= {f"signal/{name}": Raw.of(t) for name, t in self.signals.items()}
        for what, columns in self.evaluations.items():
            arrays |= {f"evaluation/{what}/{name}": Raw.of(t) for name, t in columns.items()}
        return Parcel(arrays, facts)


@dataclass(frozen=True)
class Expected:
    """What an answer must look like."""

    layout: Layout
    dtype: torch.dtype
    signals: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)
    """Type and shape of every signal that the method's clients report."""
    classes: int = 0
    personalised: bool = False


def read_answer(parcel: Parcel, ask: Ask, expected: Expected) -> Answer | str:
    """What a client answered to `ask`, or the reason why it is refused. The client is the one that was asked: what the
    message says of its sender can only get it refused."""
    facts = parcel.facts
    if facts.get("format") != _FORMAT:
        return "garbage"
    if why := parcel.fault(cap(expected.layout)):
        return why
    if facts.get("client") != ask.client:
        return "identity"
    if (facts.get("kind"), facts.get("run"), facts.get("round")) != (ask.kind, ask.run, ask.round):
        return "late"
    if facts.get("token") != ask.token:
        return "identity"
    if facts.get("error"):
        return "error"
    found = _evaluations(parcel, ask, expected)
    if isinstance(found, str):
        return found
    if ask.kind == "train":
        return _trained(parcel, ask, expected, found)
    probe = None
    if ask.probe is not None:
        probe = _typed(parcel.arrays.get("probe"), ask.probe.dtype, (len(ask.probe),))
        if probe is None:
            return "loss"
    return Answer(probe=probe, evaluations=found)


def _trained(parcel: Parcel, ask: Ask, expected: Expected, found: Mapping[str, State]) -> Answer | str:
    row, why = decode({n: raw.array() for n, raw in parcel.below("update/").items()}, expected.layout)
    if row is None:
        return why
    loss = _typed(parcel.arrays.get("loss"), expected.dtype, ())
    if "losses" in ask.needs and loss is None:
        return "loss"
    size = parcel.facts.get("size")
    if type(size) is not int or abs(size) >= 1 << 62:
        return "size"
    said = parcel.below("signal/")
    signals = {n: _typed(said.get(n), getattr(torch, kind), shape) for n, (kind, shape) in expected.signals.items()}
    whole = {n: t for n, t in signals.items() if t is not None}
    if len(whole) < len(signals) or set(said) != set(signals):
        return "signal"
    with np.errstate(over="ignore"):  # what is too large for the model's type becomes infinite, and is not admitted
        update = torch.from_numpy(row).to(expected.dtype)
    return Answer(update, size, loss if "losses" in ask.needs else None, whole, evaluations=found)


def _typed(raw: Raw | None, dtype: torch.dtype, shape: Shape) -> Tensor | None:
    if raw is None or raw.dtype != str(dtype).removeprefix("torch.") or raw.shape != shape:
        return None
    return raw.tensor()


def _evaluations(parcel: Parcel, ask: Ask, expected: Expected) -> dict[str, State] | str:
    """Exactly the evaluations that were asked for."""
    whose = ("global", "personal") if expected.personalised else ("global",)
    found: dict[str, State] = {}
    for what in (f"{split}/{who}" for split in ask.evaluate for who in whose):
        said = parcel.below(f"evaluation/{what}/")
        shapes = {name: (expected.classes,) if name.startswith("class") else () for name in COLUMNS}
        columns = {n: _typed(said.get(n), getattr(torch, kind), shapes[n]) for n, kind in COLUMNS.items()}
        whole = {n: t for n, t in columns.items() if t is not None}
        if len(whole) < len(columns) or not _sane(whole):
            return "evaluation"
        found[what] = whole
    return found


def _sane(columns: State) -> bool:
    """Whether no count is negative and no more are right than there are."""
    pairs = (("correct", "n"), ("class_correct", "class_n"))
    return all(bool(((columns[a] >= 0) & (columns[a] <= columns[b])).all()) for a, b in pairs)
