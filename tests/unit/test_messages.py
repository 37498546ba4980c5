"""Messages: whatever a client puts on the line, the run goes on, and the log says what was wrong with it."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise import registry
from equipoise.engine.messages import Answer, Ask, Expected, Parcel, Raw, cap, pack, read_answer, read_ask, unpack
from equipoise.engine.settings import Run
from equipoise.layout import Layout
from tests.messages import Deployed
from tests.small import simulation

RUN = Run(executor="loop", replay="off", device="cpu")
LAYOUT = Layout.of({"w": torch.zeros(2, 3), "b": torch.zeros(3)})
MOST = cap(LAYOUT)


def deployed(name: str = "qffl", folder: Path | None = None) -> Deployed:
    method = registry.methods()[name].make()
    return Deployed(simulation(method, run=RUN).scenario, method, RUN, folder)


def edited(change: Callable[[Parcel], Parcel]) -> Callable[[bytes], bytes]:
    """An answer, changed on the way."""

    def edit(data: bytes) -> bytes:
        parcel = unpack(data, 1 << 40)
        assert isinstance(parcel, Parcel)
        return pack(change(parcel))

    return edit


def arrays(**new: Raw | None) -> Callable[[bytes], bytes]:
    """An answer with these arrays (None: without them); "__" in a name stands for "/"."""
    named = {n.replace("__", "/"): raw for n, raw in new.items()}

    def change(p: Parcel) -> Parcel:
        return replace(p, arrays={n: r for n, r in {**p.arrays, **named}.items() if r is not None})

    return edited(change)


def facts(**new: object) -> Callable[[bytes], bytes]:
    return edited(lambda p: replace(p, facts={**p.facts, **new}))  # type: ignore[dict-item]


def spoilt(value: float) -> Callable[[bytes], bytes]:
    """The first tensor of the update, all of one value."""

    def change(p: Parcel) -> Parcel:
        name = next(n for n in p.arrays if n.startswith("update/"))
        raw = Raw.of(torch.full(p.arrays[name].shape, value))
        return replace(p, arrays={**p.arrays, name: raw})

    return edited(change)


def reshaped(dtype: str, shape: tuple[int, ...], data: bytes) -> Callable[[bytes], bytes]:
    def change(p: Parcel) -> Parcel:
        name = next(n for n in p.arrays if n.startswith("update/"))
        return replace(p, arrays={**p.arrays, name: Raw(dtype, shape, data)})

    return edited(change)


def claims_a_gigabyte(data: bytes) -> bytes:
    entry = {"dtype": "F32", "shape": [1 << 28], "data_offsets": [0, 1 << 30]}
    head = json.dumps({"__metadata__": {"equipoise": "{}"}, "update/weight": entry}).encode()
    return len(head).to_bytes(8, "little") + head


HOSTILE: dict[str, tuple[Callable[[bytes], object], str]] = {
    "nothing": (lambda data: None, "late"),
    "not bytes": (lambda data: {"update": 1}, "garbage"),
    "no bytes": (lambda data: b"", "garbage"),
    "noise": (lambda data: bytes(range(256)), "garbage"),
    "half of it": (lambda data: data[: len(data) // 2], "garbage"),
    "a pickle": (lambda data: b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00.", "garbage"),
    "a header that is no JSON": (lambda data: (4).to_bytes(8, "little") + b"{{{{", "garbage"),
    "a header that is a list": (lambda data: (2).to_bytes(8, "little") + b"[]", "garbage"),
    "a very deep header": (lambda data: (100_000).to_bytes(8, "little") + b"[" * 100_000, "garbage"),
    "a gigabyte in a hundred bytes": (claims_a_gigabyte, "oversized"),
    "far too many bytes": (lambda data: data + bytes(8 << 20), "oversized"),
    "a huge shape": (reshaped("float32", (1 << 40, 1 << 40), b""), "oversized"),
    "a negative shape": (reshaped("float32", (-1, -6), bytes(24)), "oversized"),
    "another shape": (reshaped("float32", (1,), bytes(4)), "shape"),
    "fewer bytes than the shape says": (reshaped("float32", (3, 6), bytes(4)), "garbage"),
    "integers": (reshaped("int32", (3, 6), bytes(72)), "dtype"),
    "nan": (spoilt(float("nan")), "not-finite"),
    "infinity": (spoilt(float("inf")), "not-finite"),
    "one tensor too many": (arrays(update__more=Raw("float32", (1,), bytes(4))), "names"),
    "a loss that is no number": (arrays(loss=Raw.of(torch.tensor(torch.nan))), "loss"),
    "no loss": (arrays(loss=None), "loss"),
    "a loss of another type": (arrays(loss=Raw.of(torch.tensor(1))), "loss"),
    "a signal nobody asked for": (arrays(signal__gap=Raw.of(torch.tensor(1.0))), "signal"),
    "a negative size": (facts(size=-5), "size"),
    "a size beyond all numbers": (facts(size=10**40), "size"),
    "a size in words": (facts(size="many"), "size"),
    "no size": (facts(size=float("nan")), "size"),
    "another client's name": (facts(client=0), "identity"),
    "an answer to an earlier round": (facts(round=-1), "late"),
    "an answer to another run": (facts(run="other"), "late"),
    "an answer from somebody who was not asked": (facts(token="0" * 32), "identity"),
    "no token": (facts(token=0), "identity"),
    "an error": (facts(error="out of memory"), "error"),
    "another format": (facts(format=2), "garbage"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_answer_is_quarantined_and_the_run_goes_on_as_if_its_client_were_absent(what: str) -> None:
    make, reason = HOSTILE[what]
    attacked, absent = deployed(), deployed()
    absent.server.excluded[1] = True
    honest = attacked.lines[1]
    attacked.lines[1] = lambda data: make(honest(data))  # type: ignore[arg-type]
    for _ in range(2):
        record = attacked.step()
        absent.step()
        assert record.quarantined == {1: reason}
        assert record.admitted == (0, 2, 3)
    assert torch.equal(attacked.server.w, absent.server.w)


def test_missing_or_misshapen_signals_are_quarantined() -> None:
    far = deployed("fedfa")
    honest = far.lines[2]
    for change in (arrays(signal__accuracy=None), arrays(signal__accuracy=Raw.of(torch.zeros(2)))):
        far.lines[2] = lambda data, change=change: change(honest(data))  # type: ignore[misc]
        assert far.step().quarantined == {2: "signal"}


def test_an_evaluation_that_cannot_be_is_refused() -> None:
    far = deployed()
    honest, wrong = far.lines[0], Raw.of(torch.tensor(10**6))
    for change in (arrays(evaluation__test__global__correct=wrong), arrays(evaluation__test__global__n=None)):
        far.lines[0] = lambda data, change=change: change(honest(data))  # type: ignore[misc]
        far.finish()
        assert far.exchange.refused == {0: "evaluation"}
    assert far.exchange.evaluation("test/global", 4).n.tolist() == [0, 5, 5, 5]


def test_a_node_that_fails_says_so_and_is_back_in_the_next_round() -> None:
    far = deployed("rffl")
    rule, far.nodes[1].here.rule = far.nodes[1].here.rule, None  # type: ignore[assignment]
    assert far.step().quarantined == {1: "error"}
    far.nodes[1].here.rule = rule
    assert far.step().quarantined == {}


def test_a_client_that_does_not_answer_a_line_search_does_not_stop_it() -> None:
    far = deployed("fedmdfg")
    honest = far.lines[1]

    def silent(data: bytes) -> object:
        parcel = unpack(data, 1 << 40)
        return None if isinstance(parcel, Parcel) and parcel.facts["kind"] == "probe" else honest(data)

    far.lines[1] = silent
    before = far.server.w.clone()
    record = far.step()
    assert record.skipped == "" and not torch.equal(before, far.server.w)


def test_every_message_has_a_token_of_its_own() -> None:
    far = deployed()
    seen: list[object] = []

    def listen(honest: Callable[[bytes], object], data: bytes) -> object:
        parcel = unpack(data, 1 << 40)
        assert isinstance(parcel, Parcel)
        seen.append(parcel.facts["token"])
        return honest(data)

    for k, honest in list(far.lines.items()):
        far.lines[k] = partial(listen, honest)
    far.step()
    far.step()
    assert len(set(seen)) == len(seen) == 8 and all(len(str(token)) == 32 for token in seen)


def test_a_node_answers_only_for_itself() -> None:
    far = deployed()
    far.lines[1], far.lines[2] = far.lines[2], far.lines[1]
    assert far.step().quarantined == {1: "error", 2: "error"}


def test_a_node_holds_no_samples_but_its_own() -> None:
    far = deployed()
    for k, node in far.nodes.items():
        whole = far.scenario.federation
        own = sum(int(s.size[k]) for s in whole.splits.values())
        assert len(node.here.federation.data) == own


def test_the_name_of_a_run_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    far = deployed("ditto", tmp_path / "state")
    far.exchange.run = "../../evil"
    assert set(far.step().quarantined.values()) == {"error"}
    assert not list(tmp_path.glob("*evil*"))


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"),
        st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint8", "bool"]).flatmap(
            lambda kind: st.lists(st.integers(0, 3), max_size=3).map(
                lambda shape: Raw.of(torch.ones(shape, dtype=getattr(torch, kind)))
            )
        ),
        max_size=4,
    ),
    st.dictionaries(st.text(max_size=8), st.integers() | st.floats(allow_nan=False) | st.text(), max_size=4),
)
def test_what_is_packed_comes_out_again(held: dict[str, Raw], said: dict[str, int | float | str]) -> None:
    got = unpack(pack(Parcel(held, said)), 1 << 20)
    assert isinstance(got, Parcel)
    assert got.facts == said
    assert {n: (r.dtype, r.shape, bytes(r.data)) for n, r in got.arrays.items()} == {
        n: (r.dtype, r.shape, r.data) for n, r in held.items()
    }


ANSWER = Answer(torch.arange(9.0), 5, torch.tensor(0.5)).parcel(Ask("train", "run", 0, 1, 0.1), LAYOUT)


@given(st.binary(max_size=300) | st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=6)))
def test_no_bytes_whatever_raise(noise: bytes | tuple[int, bytes]) -> None:
    data = noise
    if isinstance(noise, tuple):
        whole = bytearray(pack(ANSWER))
        whole[noise[0] : noise[0] + len(noise[1])] = noise[1]
        data = bytes(whole)
    got = unpack(data, MOST)
    ask = Ask("train", "run", 0, 1, 0.1, needs=frozenset({"losses"}))
    told = got if isinstance(got, str) else read_answer(got, ask, Expected(LAYOUT, torch.float32))
    assert isinstance(told, str | Answer)


def test_an_ask_comes_through_as_it_was_sent() -> None:
    g = torch.Generator().manual_seed(0)
    sent = Ask(
        **{"kind": "train", "run": "r1", "round": 3, "client": 2, "lr": 0.1 / 3, "w": torch.randn(9, generator=g)},
        messages={"weight": torch.tensor(0.3, dtype=torch.float64)},
        needs=frozenset({"losses", "probe"}),
        evaluate=("test", "validation"),
        probe=torch.randn((4, 9), generator=g),
        download=torch.randn(9, generator=g),
        received=2,
        token="abc",
    )
    parcel = unpack(pack(sent.parcel(LAYOUT)), 1 << 20)
    assert isinstance(parcel, Parcel)
    got = read_ask(parcel, LAYOUT, torch.float32)
    for name in ("w", "probe", "download"):
        assert torch.equal(getattr(got, name), getattr(sent, name))
    assert torch.equal(got.messages["weight"], sent.messages["weight"])
    plain = {"w": None, "probe": None, "download": None, "messages": {}}
    assert replace(got, **plain) == replace(sent, **plain)  # type: ignore[arg-type]
