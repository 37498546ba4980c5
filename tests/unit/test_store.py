"""The client store keeps what it was given, and room only for those who gave something."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.engine.store import ClientStore


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True), max_size=8))
def test_the_last_row_put_is_the_row_got(puts: list[list[int]]) -> None:
    store, truth = ClientStore(31), {}
    for n, ids in enumerate(puts):
        rows = torch.tensor([[100.0 * n + i, i] for i in ids])
        store.put(torch.tensor(ids), {"a": rows, "b": rows[:, 0]})
        truth.update({i: (r, r[0]) for i, r in zip(ids, rows, strict=True)})
    assert store.ids().tolist() == sorted(truth)
    if truth:
        some = torch.tensor(sorted(truth))[::2]
        got = store.get(some)
        assert torch.equal(got["a"], torch.stack([truth[int(i)][0] for i in some]))
        assert torch.equal(got["b"], torch.stack([truth[int(i)][1] for i in some]))
    again = ClientStore(31)
    again.load(store.dump())
    assert again.dump().keys() == store.dump().keys()
    assert all(torch.equal(t, again.dump()[n]) for n, t in store.dump().items())


def test_clients_without_state_take_no_room() -> None:
    store = ClientStore(1_000_000)
    store.put(torch.arange(10), {})
    assert store.dump() == {}
    store.put(torch.tensor([5, 999_999]), {"a": torch.ones(2, 3)})
    assert store.dump()["rows/a"].shape == (2, 3)
