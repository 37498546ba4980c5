"""How well every client is served: the global model and every personal model, on every client's own split.

The global model answers each sample once, in large batches, and the answers are added up per client. Personal models
answer their own client's samples, many clients at a time.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equipoise.data.federation import Federation, Split
from equipoise.engine.net import Net
from equipoise.engine.risk import CHUNK, answers
from equipoise.engine.simulator import Simulator
from equipoise.losses import correct
from equipoise.metrics import Evaluation

_SAMPLES = 4096  # in one pass of the global model
_NUMBERS = 1 << 26  # of parameters and inputs in one pass of personal models
_WILD = 1e12  # a mean over a sample with a loss beyond this is reported as infinite


def evaluate_global(simulator: Simulator, w: Tensor, split: str, on: Federation | None = None) -> Evaluation:
    """The same model for everyone; `on` other data than the simulator's."""
    federation = on or simulator.federation
    data, part = federation.data, federation.splits[split]
    samples = torch.unique(part.index)
    loss = torch.zeros(len(data), dtype=torch.float64, device=w.device)
    right = torch.zeros(len(data), dtype=torch.bool, device=w.device)
    for at in range(0, len(samples), _SAMPLES):
        index = samples[at : at + _SAMPLES]
        out, losses = _plain(simulator.net, w, data.inputs(index, w.dtype), data.y[index])
        loss[index], right[index] = losses.to(torch.float64), correct(out, data.y[index])
    return _per_client(part, loss[part.index], right[part.index], data.y, data.classes)


def _plain(net: Net, w: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out, losses = net.forward(w[None], x[None], y[None], vectorised=False)
    return out[0], losses[0]


def _per_client(part: Split, loss: Tensor, right: Tensor, y: Tensor, classes: int) -> Evaluation:
    """Add up per client: prefix sums over the split's array, so ranges may overlap and the order is always the same."""

    def total(values: Tensor) -> Tensor:
        running = torch.cat([values.new_zeros(1), values.cumsum(0)])
        return running[part.start + part.size] - running[part.start]

    n, wild = part.size, ~(loss < _WILD)  # one wild loss must not drown the other clients' in the prefix sums
    mean = total(torch.where(wild, torch.zeros_like(loss), loss)) / n.clamp(min=1)
    mean = torch.where(total(wild.long()) > 0, torch.full_like(mean, torch.inf), mean)
    counts, hits = [], []
    for c in range(classes):
        is_c = y[part.index] == c if not y.is_floating_point() else y[part.index].argmax(-1) == c
        counts.append(total(is_c.long()))
        hits.append(total((is_c & right).long()))
    return _evaluation(n, total(right.long()), mean, counts, hits)


def evaluate_personal(simulator: Simulator, w: Tensor, split: str, on: Federation | None = None) -> Evaluation:
    """Each client's own model."""
    federation = on or simulator.federation
    world = replace(simulator.executor().world, federation=federation)
    part, n, classes = federation.splits[split], federation.n_clients, federation.data.classes
    right = torch.zeros(n, dtype=torch.int64, device=w.device)
    loss = torch.zeros(n, dtype=torch.float64, device=w.device)
    counts = torch.zeros(n, classes, dtype=torch.int64, device=w.device)
    hits = torch.zeros_like(counts)
    for ids in _blocks(part.size.cpu(), simulator, len(w)):
        at = ids.to(w.device)
        for out, losses, y, mask in answers(world, at, simulator.personal(at, w), split):
            good = correct(out, y) & mask
            right[at] += good.sum(1)
            loss[at] += torch.where(mask, losses, torch.zeros_like(losses)).sum(1, dtype=torch.float64)
            if classes:
                label = y if not y.is_floating_point() else y.argmax(-1)
                one_hot = torch.nn.functional.one_hot(label, classes) * mask[..., None]
                counts[at] += one_hot.sum(1)
                hits[at] += (one_hot * good[..., None]).sum(1)
    return _evaluation(part.size, right, loss / part.size.clamp(min=1), list(counts.T), list(hits.T))


def _blocks(sizes: Tensor, simulator: Simulator, d: int) -> list[Tensor]:
    """Clients of like size together, so that little is padded; one at a time for the loop."""
    order = sizes.argsort(stable=True)
    if not simulator.vectorised:
        return list(torch.split(order, 1))
    data = simulator.federation.data
    inputs = min(int(sizes.max()), CHUNK) * (data.x[0].numel() if len(data) else 1)
    return list(torch.split(order, max(1, _NUMBERS // (d + inputs))))


def _evaluation(n: Tensor, right: Tensor, loss: Tensor, counts: list[Tensor], hits: list[Tensor]) -> Evaluation:
    def table(columns: list[Tensor]) -> Tensor:
        return torch.stack(columns, 1) if columns else n.new_zeros((len(n), 0))

    return Evaluation(
        n=n.cpu().numpy(),
        correct=right.cpu().numpy(),
        loss=torch.where(n > 0, loss, torch.full_like(loss, torch.nan)).cpu().numpy(),
        class_n=table(counts).cpu().numpy(),
        class_correct=table(hits).cpu().numpy(),
    )
