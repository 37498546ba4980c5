"""How often rules ask a GPU for numbers, which waits for all that it has to do: a pretended one counts and computes."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from equipoise.core import Cohort, Outcome, Schedule, ServerRule, Stream
from equipoise.data.federation import Split
from equipoise.engine.batches import plan_batches
from equipoise.methods.cgsv import CGSV
from equipoise.methods.fedfv import FedFV
from equipoise.methods.fedlf import FedLF
from equipoise.methods.fedmgda import FedMGDA
from equipoise.methods.rffl import RFFL
from equipoise.questions import answer, ask, moved, near, part
from tests.small import cohort

GPU = torch.device("cuda")
WAIT = {
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    *(Tensor.nonzero, torch.nonzero, torch.unique, Tensor.unique, torch.masked_select, Tensor.masked_select),
}
INDEXING = {Tensor.__getitem__, Tensor.__setitem__}


class Far(Tensor):
    """A tensor that says it is on a GPU."""

    device = property(lambda self: GPU)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]


class PretendedGPU(TorchFunctionMode):
    """Whatever is made of far tensors is far; what a GPU would have to be asked, or could not do, is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        far = any(isinstance(t, Far) for t in tensors)
        if func in (Tensor.to, Tensor.cpu):
            return self._moved(func, far, args, kwargs)
        if far and func not in INDEXING:
            assert all(isinstance(t, Far) or t.dim() == 0 for t in tensors), f"{func.__name__}: on two devices"
        if far and self._waits(func, args):
            self.questions.append(func.__name__)
        made_there = torch.device(kwargs.pop("device", None) or "cpu") == GPU
        out = func(*args, **kwargs)
        return out.as_subclass(Far) if made_there else out

    def _moved(self, func: Any, far: bool, args: Any, kwargs: Any) -> Tensor:
        target = next((torch.device(a) for a in args[1:] if isinstance(a, str | torch.device)), args[0].device)
        target = torch.device("cpu") if func is Tensor.cpu else target
        rest = [a for a in args[1:] if not isinstance(a, str | torch.device)]
        if far and target != GPU:
            self.questions.append(func.__name__)
        out = args[0].as_subclass(Tensor).to(*rest, **kwargs) if rest or kwargs else args[0].as_subclass(Tensor)
        return out.as_subclass(Far if target == GPU else Tensor)

    @staticmethod
    def _waits(func: Any, args: Any) -> bool:
        """For a number, for how many there will be, or for an index to be sent."""
        index = tree_leaves(args[1]) if func in INDEXING else []
        return func in WAIT or any(isinstance(t, Tensor) and (t.dtype == torch.bool or t.device != GPU) for t in index)


def far(c: Cohort, noted: bool) -> Cohort:
    """The cohort on a GPU, with or without a note of where its ids came from."""
    named = {f.name: getattr(c, f.name) for f in fields(c)}
    there = replace(c, **{name: t.as_subclass(Far) for name, t in named.items() if isinstance(t, Tensor)})
    if noted:
        there.ids.came_from = c.ids  # type: ignore[attr-defined]
    return there


def rounds(rule: ServerRule) -> Iterator[tuple[Cohort, Outcome]]:
    """Changing cohorts, everything near; d is more than one product on a GPU takes at a time."""
    state = rule.init(torch.zeros(9000))
    for t, ids in enumerate([[0, 1, 2], [2, 3, 4], [1, 5, 6], [0, 3, 6]]):
        c = replace(cohort(3, 9000, seed=t, ids=ids, dtype=torch.float32), round=t, probe=None)
        c = replace(c, updates=c.updates + 0.5)
        yield c, (outcome := rule(c, state))
        state = outcome.state


@pytest.mark.parametrize("noted", [True, False], ids=["ids known here", "ids far"])
@pytest.mark.parametrize(
    "rule",
    [
        *(FedLF(), FedLF(fair="none", absent="all"), FedMGDA(), FedFV(), FedFV(tau=3)),
        *(RFFL(), RFFL(clip=0.5, beta=2.0), CGSV()),
    ],
    ids=str,
)
def test_a_round_asks_a_gpu_once_and_for_ids_only_where_it_must(rule: ServerRule, noted: bool) -> None:
    with PretendedGPU():
        state = rule.init(torch.zeros(9000).as_subclass(Far))
    for c, expected in rounds(rule):
        theirs = far(c, noted)
        with PretendedGPU() as gpu:
            outcome = rule(theirs, state)
        state = outcome.state
        who = not noted and not isinstance(rule, FedMGDA)
        assert len(gpu.questions) == 1 + who, gpu.questions
        assert isinstance(outcome.direction, Far)
        kept = [t for name, t in state.items() if name != "rows"]
        assert not any(isinstance(x, Far) for x in (*kept, *outcome.info.values()))
        assert torch.allclose(outcome.direction.as_subclass(Tensor), expected.direction, rtol=1e-4, atol=1e-6)


def test_what_was_moved_is_near_without_a_question_and_what_was_made_of_it_is_asked_for() -> None:
    here = torch.arange(3)
    with PretendedGPU() as gpu:
        there = moved(here, GPU)
        assert near(there) is here and near(here) is here
        assert not gpu.questions
        assert near(there[1:]).tolist() == [1, 2] and gpu.questions == ["cpu"]
        assert near(part(there, slice(1, 3))).tolist() == [1, 2] and gpu.questions == ["cpu"]
    assert moved(here, here.device) is here and part(here, slice(1, 3)).tolist() == [1, 2]


def test_the_longest_of_clients_that_were_drawn_here_is_known_here() -> None:
    split = Split.of([torch.arange(n) for n in (3, 7, 5)])
    far = Split(*(getattr(split, f.name).as_subclass(Far) for f in fields(split)))
    with PretendedGPU() as gpu:
        there = moved(torch.tensor([0, 2]), GPU)
        assert far.longest(there) == 5 and gpu.questions == ["cpu"]  # sizes, once
        assert far.longest(there) == 5 and far.longest(part(there, slice(0, 1))) == 3 and gpu.questions == ["cpu"]
    assert split.longest(torch.empty(0, dtype=torch.int64)) == 0


def test_what_was_asked_is_as_it_was_then() -> None:
    far, here = torch.arange(3).as_subclass(Far), torch.tensor([True, False])
    with PretendedGPU() as gpu:
        told = ask(far, here)
        assert gpu.questions == ["to"]
        far += 1
        here.logical_not_()
        assert [t.tolist() for t in told()] == [[0, 1, 2], [1, 0]] and gpu.questions == ["to"]


def test_an_answer_is_one_question_whatever_is_asked_and_what_is_here_is_not_asked_for() -> None:
    asked = torch.ones(2, 2, dtype=torch.bool), torch.arange(3), torch.tensor(0.5)
    with PretendedGPU() as gpu:
        flags, numbers, one = answer(asked[0].as_subclass(Far), asked[1], asked[2].as_subclass(Far))
        assert gpu.questions == ["to"] and answer() == [] and answer(asked[1])[0].tolist() == [0, 1, 2]
        assert gpu.questions == ["to"]
    assert (flags == 1).all() and flags.shape == (2, 2) and numbers.tolist() == [0, 1, 2] and one == 0.5
    given = torch.zeros(2, dtype=torch.float64)
    answer(given)[0][:] = 1
    assert not given.any()  # what is told is the asker's own


def test_the_pretended_gpu_notes_what_makes_one_wait_and_refuses_what_it_could_not_do() -> None:
    x, here = torch.arange(4.0).as_subclass(Far), torch.arange(4)
    waits: list[Callable[[], object]] = [
        *(lambda: bool(x.any()), lambda: x.tolist(), lambda: x.cpu(), lambda: x.to("cpu", torch.float64)),
        *(lambda: x[x > 1], lambda: x[here], lambda: torch.nonzero(x), lambda: float(x[0])),
    ]
    with PretendedGPU() as gpu:
        for ask in waits:
            ask()
        assert len(gpu.questions) == len(waits)
        assert torch.arange(3, device=x.device).device == here.to(x.device).device == (x * 2 + 1)[1:].device == GPU
        assert len(gpu.questions) == len(waits)
        with pytest.raises(AssertionError, match="two devices"):
            x + here


@pytest.mark.parametrize("sizes", [(6, 6, 6), (9, 3, 5), (40, 1, 0)], ids=["a full table", "a table", "strips"])
def test_batches_are_planned_on_a_gpu_without_a_question_and_are_the_same(sizes: tuple[int, ...]) -> None:
    split, ids = Split.of(list(torch.split(torch.arange(sum(sizes)), sizes))), torch.arange(3)
    here = plan_batches(split, ids, Schedule(2, batch=2), Stream(5), 2)
    theirs = replace(split, **{n: getattr(split, n).as_subclass(Far) for n in ("index", "start", "size")})
    with PretendedGPU() as gpu:
        there = plan_batches(theirs, ids.as_subclass(Far), Schedule(2, batch=2), Stream(5), 2, torch.tensor(sizes))
    assert not gpu.questions and isinstance(there.index, Far) and isinstance(there.mask, Far)
    assert torch.equal(there.index.as_subclass(Tensor), here.index) and torch.equal(there.counts, here.counts)
    assert torch.equal(there.mask.as_subclass(Tensor), here.mask)
