"""The post on Flower's grid, with a grid that nothing real is behind: who is written to, and what replies are worth."""

import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equipoise.engine.messages import Parcel, Raw
from equipoise.flower.roster import Roster
from tests.e2e.test_flower import MARKS

pytestmark = MARKS

SENT = Parcel({"w": Raw.of(torch.zeros(2))}, {"kind": "train"})


class FakeGrid:
    """Nodes with keys; a reply is a value, or something to call when it is fetched."""

    def __init__(self, keys: dict[int, bytes], replies: dict[int, Any]) -> None:
        self.keys, self.replies, self.written = keys, replies, list[int]()

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, public_key=key) for node, key in self.keys.items()]

    def push_messages(self, messages: list[tuple[Any, int]]) -> list[str]:
        self.written += [node for _, node in messages]
        return [str(node) for _, node in messages]

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        (number,) = ids
        reply = self.replies.get(int(number))
        reply = reply() if callable(reply) else reply
        return [] if reply is None else [reply]


def reply(node: int, content: Any = None, code: int = 0) -> Any:
    from equipoise.flower.records import to_records

    error = SimpleNamespace(code=code, reason="")
    metadata = SimpleNamespace(src_node_id=node)
    held = to_records(SENT) if content is None else content
    return SimpleNamespace(content=held, metadata=metadata, error=error, has_error=lambda: code > 0)


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Node 10 + k has the key of client k; 99 has a key that nobody knows."""
    from equipoise.flower import grid

    monkeypatch.setattr(grid, "_message", lambda content, node: (content, node))  # a Message exists in a task only
    monkeypatch.setattr(grid, "fingerprint", bytes.decode)
    monkeypatch.setattr(grid, "_POLL", 0.01)

    def make(replies: dict[int, Any], gone: tuple[int, ...] = ()) -> Any:
        keys = {10 + k: f"key-{k}".encode() for k in range(4) if k not in gone}
        fake = FakeGrid({99: b"key-9", **keys}, replies)
        return grid.FlowerPost(fake, Roster({f"key-{k}": k for k in range(4)}), 4, 0.3)

    return make


def everyone() -> dict[int, Parcel]:
    return dict.fromkeys(range(4), SENT)


def test_answers_are_told_apart_by_node_and_nobody_else_is_written_to(post: Callable[..., Any]) -> None:
    here = post({10 + k: reply(10 + k) for k in range(4)})
    assert here(everyone()) == everyone()
    assert sorted(here.grid.written) == [10, 11, 12, 13]


def test_each_way_to_fail_has_its_reason_and_the_others_are_heard(post: Callable[..., Any]) -> None:
    from flwr.app import ConfigRecord, RecordDict

    def unreadable() -> Any:
        raise ValueError("invalid protobuf")

    noise = RecordDict({"noise": ConfigRecord({})})
    here = post({10: reply(10), 11: unreadable, 12: reply(12, noise), 13: reply(99)})
    assert here(everyone()) == {0: SENT, 1: "garbage", 2: "garbage", 3: "identity"}
    here = post({10: reply(10, code=5), 11: reply(11, code=2), 12: reply(12, code=8)}, gone=(3,))
    assert here(everyone()) == {0: "absent", 1: "error", 2: "error", 3: "absent"}


def test_who_does_not_answer_is_left_out_after_the_timeout(post: Callable[..., Any]) -> None:
    assert post({11: reply(11)})(everyone()) == {1: SENT}


def test_a_reply_that_is_announced_and_never_comes_holds_nobody_up(post: Callable[..., Any]) -> None:
    forever = threading.Event()
    here = post({10: forever.wait, **{10 + k: reply(10 + k) for k in (1, 2, 3)}})
    assert here(everyone()) == dict.fromkeys((1, 2, 3), SENT)
    forever.set()


def test_a_superlink_that_is_away_for_a_moment_costs_nobody_its_answer(post: Callable[..., Any]) -> None:
    import httpx

    tries = iter([httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])

    def shaky() -> Any:
        for problem in tries:
            raise problem
        return reply(10)

    here = post({10: shaky})
    assert here({0: SENT}) == {0: SENT}


def test_a_node_that_comes_back_under_another_number_is_the_same_client(post: Callable[..., Any]) -> None:
    here = post({10: reply(10), 50: reply(50)})
    assert here({0: SENT}) == {0: SENT}
    del here.grid.keys[10]
    here.grid.keys[50] = b"key-0"
    assert here({0: SENT}) == {0: SENT}
    assert here.grid.written == [10, 50]
