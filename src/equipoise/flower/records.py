"""Messages as Flower's records: an ArrayRecord of raw bytes and a ConfigRecord of facts. Nothing is pickled.

Flower checks no array's shape and type against its bytes; `Parcel.fault` does, before anybody looks at them.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from equipoise.engine.messages import Fact, Parcel, Raw

_RAW = "equipoise.raw"


def to_records(parcel: Parcel) -> RecordDict:
    arrays = {n: Array(raw.dtype, raw.shape, _RAW, bytes(raw.data)) for n, raw in parcel.arrays.items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "facts": ConfigRecord(dict(parcel.facts))})


def from_records(content: RecordDict) -> Parcel | str:
    """The parcel in a message's content, or "garbage"."""
    arrays, facts = content.array_records.get("arrays"), content.config_records.get("facts")
    if arrays is None or facts is None or any(a.stype != _RAW for a in arrays.values()):
        return "garbage"
    if not all(isinstance(value, Fact) for value in facts.values()):
        return "garbage"
    return Parcel({n: Raw(a.dtype, tuple(a.shape), a.data) for n, a in arrays.items()}, dict(facts))
