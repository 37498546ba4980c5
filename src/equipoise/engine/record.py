"""A client rule's step, written down once as a list of tensor operations, and played back.

Most of the time of a small step goes into deciding what to do: mapping the model over clients, building the graph of
derivatives, walking it backwards. All of that comes out the same in every step. `record` runs the step once and takes
the operations down, derivatives included (`tape`); `rewrite` and `descent` make them fewer. Then they are
cut in two:

    ahead    all that follows from what holds for many steps, such as the step size and who has a full batch
    step     the rest

A step may overwrite w: whoever plays a recording back hands its w over. Where nothing looks at w as a whole, it can
then also be kept as one tensor for each layer's weights (`Apart`): each begins where a core likes to read, which makes
products a fifth faster than within long rows, and how they are looked at is worked out once.

A step that decides by numbers (an `if` on a tensor, how many are above a bound), makes a constant of an input
(`torch.tensor([at.lr])`), looks at the round or at a whole split cannot be written down; `Unrecordable` says why. A
step is taken down twice, with other inputs the second time: numbers that it took out of torch (`.tolist()`, `.numpy()`)
are constants to whoever watches the operations, but not the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any

import torch
from torch import Tensor, fx

from equipoise.engine import convolutions, custom, pools, products
from equipoise.engine.descent import descend_in_place
from equipoise.engine.rewrite import Graph, Node, aten, hasten, schema_of, simplify, written
from equipoise.engine.tape import Unrecordable as Unrecordable
from equipoise.engine.tape import taken_down

_WORK = ("call_function", "get_attr")


@dataclass(frozen=True)
class Apart:
    """A step whose w is kept in parts: `views` of the parts are worked out once and go behind a step's inputs."""

    places: tuple[slice, ...]
    """Which columns of w each part holds; together all of them, each once."""
    views: Callable[..., Sequence[Tensor]]
    step: Callable[..., Sequence[Tensor]]
    """(*inputs of `Recorded.step` but w, *views) -> all outputs but w: the parts are overwritten."""


@dataclass(frozen=True)
class Recorded:
    """A step as a list of operations; the first input and the first output are w."""

    ahead: Callable[..., Sequence[Any]]
    """Inputs that hold -> what follows from them alone."""
    step: Callable[..., Sequence[Tensor]]
    """(*the other inputs, *what comes ahead) -> outputs."""
    used: tuple[bool, ...]
    """Which inputs they look at."""
    apart: Apart | None
    """If there is one, that is what is played back, and `step` has no kernels for products."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """Which operations have no kernels of their own, on a GPU where they might, and why."""


def record(
    step: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    holds: Sequence[bool],
    others: Callable[[], Sequence[Tensor]] | None = None,
) -> Recorded:
    """`step` of these inputs, written down; `holds` says which of them are the same for many steps.

    With `others`, which makes inputs that it might be given too, it is taken down twice, and must do the same again.
    """
    examples = _examples(inputs, holds)
    try:
        step(*examples)  # what is only made the first time must not be written down
        with torch.no_grad():
            module = taken_down(step, examples)
            if others is not None:
                _refuse_another(module, taken_down(step, _examples(others(), holds)))
    except Unrecordable:
        raise
    except Exception as error:  # tracing runs the user's code on unusual tensors: anything may come out
        raise Unrecordable(custom.told(error)) from None
    _refuse_what_depends(module)
    device = examples[0].device
    simplify(module.graph, device)
    module, grouped = convolutions.apart(module, device)
    module, pooled = pools.apart(module, device)
    descend_in_place(module.graph, device)
    products.look(module.graph, device)
    plain = {what: why for what, why in (("convolutions", grouped), ("pools", pooled)) if why is not None}
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    used = tuple(bool(n.users) for n in placeholders)
    ahead, late = _ahead(module, [n for n, held in zip(placeholders, holds, strict=True) if held])
    put = partial(_put_products, device, plain)
    apart = _apart(late, examples[0].shape[1], put)
    return Recorded(_ready(ahead), _ready(late, put) if apart is None else _ready(late), used, apart, plain)


def _refuse_another(module: Any, again: Any) -> None:
    """What came out otherwise when the step was taken down once more, with other inputs, follows from inputs unseen."""
    for first, second in zip_longest(_told(module), _told(again)):
        if first is None or second is None or first[0] != second[0]:
            raise Unrecordable("with other inputs the step does something else")
        for a, b in zip(first[1], second[1], strict=True):
            if a is not b and (a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a, b)):
                raise Unrecordable("the step makes a constant of an input")


def _told(module: Any) -> Iterator[tuple[str, list[Tensor]]]:
    """Every node in words, and the constants in it."""
    for node in module.graph.nodes:
        held = [getattr(module, node.target)] if node.op == "get_attr" else []
        yield node.format_node() or f"{node.op} {node.args}", held


def _examples(inputs: Sequence[Tensor], holds: Sequence[bool]) -> list[Tensor]:
    """Inputs to take a step down with: what holds is not a number, so that whatever is made of it shows."""
    hide = [held and t.is_floating_point() for t, held in zip(inputs, holds, strict=True)]
    return [torch.full_like(t, torch.nan) if hidden else t.clone() for t, hidden in zip(inputs, hide, strict=True)]


def _refuse_what_depends(module: Any) -> None:
    """Shapes that depend on numbers, and constants that were made of inputs: of those that hold, which are NaN here."""
    for node in module.graph.nodes:
        if node.op == "get_attr" and bool(torch.isnan(getattr(module, node.target)).any()):
            raise Unrecordable("the step makes a constant of an input")
        told = getattr(node.target, "tags", ()) if node.op == "call_function" else ()
        by_number = node.target is aten.index.Tensor and not any(_is_mask(n) for n in node.args[1])
        if torch.Tag.dynamic_output_shape in told and not by_number:
            raise Unrecordable(f"the shape of what {node.target} gives depends on numbers")


def _is_mask(node: Any) -> bool:
    return node is not None and node.meta["form"].dtype in (torch.bool, torch.uint8)


def _put_products(device: torch.device, plain: dict[str, str], graph: Graph) -> None:
    if (why := products.put(graph, device)) is not None:
        plain["products"] = why


def _ready(module: Any, put: Callable[[Graph], None] = lambda graph: None) -> Callable[..., Sequence[Any]]:
    hasten(module.graph, put)
    module.recompile()
    run: Callable[..., Sequence[Any]] = module.forward
    return run


def _ahead(module: Any, held: list[Node]) -> tuple[Any, Any]:
    """All that follows from the inputs `held` alone, and the rest."""
    kept, before = written(module.graph), fx.Graph()

    def may(node: Node) -> bool:
        return node not in kept and (node.op == "get_attr" or (schema_of(node) is not None and not _by_chance(node)))

    return _cut(module, before, {n: before.placeholder(n.name) for n in held}, may)


def _by_chance(node: Node) -> bool:
    return schema_of(node) is not None and torch.Tag.nondeterministic_seeded in node.target.tags


def _apart(module: Any, d: int, put: Callable[[Graph], None]) -> Apart | None:
    """The step with w in parts, if all it ever looks at are the same pieces of w, and it overwrites them."""
    w = next(n for n in module.graph.nodes if n.op == "placeholder")
    outputs = _outputs(module.graph)
    cuts = [n for n in w.users if n.op != "output"]
    if outputs[0] is not w or w in outputs[1:] or any(n.target is not aten.slice.Tensor for n in cuts):
        return None
    places = sorted({tuple(n.args[1:]) for n in cuts})
    edges = [0, *(stop for _, _, stop in places)]
    if [(1, a, b) for a, b in pairwise(edges)] != places or edges[-1] != d:
        return None
    if any(n.target is aten.as_strided.default for n in module.graph.nodes):  # tells where numbers lie in a long row
        return None
    before = fx.Graph()
    part = {place: before.placeholder(f"part_{i}") for i, place in enumerate(places)}
    whole = w.meta["form"]
    for (_, a, b), node in part.items():
        node.meta["form"] = whole._replace(shape=torch.Size((whole.shape[0], b - a)), stride=(b - a, 1))
    known = {w: None, **{n: part[tuple(n.args[1:])] for n in cuts}}
    views, step = _cut(module, before, known, _is_view)
    products.lie(views.graph.nodes)  # in a part of its own, not in a long row
    seen, inputs = _outputs(views.graph), [n for n in step.graph.nodes if n.op == "placeholder"]
    for node, view in zip(inputs[len(inputs) - len(seen) :], seen, strict=True):
        node.meta = dict(view.meta)
    return Apart(tuple(slice(a, b) for _, a, b in places), _ready(views), _ready(step, put))


def _cut(module: Any, before: Graph, known: dict[Node, Any], may: Callable[[Node], bool]) -> tuple[Any, Any]:
    """What follows from `known` by operations that `may` go ahead, and the rest: (*other inputs, *that) -> outputs.

    `known` gives, for nodes of the module, what stands for them in the graph `before`; None is of no use there.
    """
    nodes, outputs = list(module.graph.nodes), _outputs(module.graph)
    for node in nodes:
        if node.op in _WORK and node not in known and may(node) and known.keys() >= set(node.all_input_nodes):
            known[node] = before.node_copy(node, known.__getitem__)
    wanted = [n for n, there in known.items() if there is not None and any(user not in known for user in n.users)]
    before.output([known[n] for n in wanted])
    after = fx.Graph()
    others = [n for n in nodes if n.op == "placeholder" and n not in known]
    later = {n: after.placeholder(f"input_{i}") for i, n in enumerate([*others, *wanted])}
    for node, there in later.items():
        there.meta = dict(node.meta)
    for node in nodes:
        if node.op in _WORK and node not in known:
            later[node] = after.node_copy(node, later.__getitem__)
    after.output([later[n] for n in outputs if known.get(n, n) is not None])
    return fx.GraphModule(module, before), fx.GraphModule(module, after)


def _outputs(graph: Graph) -> list[Node]:
    return list(next(n for n in graph.nodes if n.op == "output").args[0])


def _is_view(node: Node) -> bool:
    """Whether it is another look at the same numbers, and no more."""
    schema = schema_of(node)
    told = [r.alias_info for r in schema.returns] if schema is not None else []
    view = bool(told) and all(a is not None and not a.is_write for a in told)
    return view and node.target is not aten.reshape.default  # which may be a copy
