"""Malicious clients all repeat what one honest client says, which then counts for many.

Karimireddy, He, Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022 (the mimic
attack, and its appendix on how to choose whom to copy).

    mu <- t/(1+t) mu + 1/(1+t) mean_i x_i               in round t = 0, ..., warmup - 1; x_i: honest updates
    s   = sum_i <x_i - mu, v> (x_i - mu)                v at first at random
    v  <- t/(1+t) v + 1/(1+t) s / ||s||                 then ||v|| = 1: Oja's estimate of the top principal direction
    i*  = argmax_i |<v, x_i - mean_j x_j>|              chosen anew in every round of the warm-up, then kept for good

    u_k <- x_i*                                         for every malicious client k, in every round

Nothing that is sent is out of place, so that no defence can find it; where clients differ, the mean is pulled to one.

Departures: the paper was not at hand; mu, s / ||s|| and warmup = 1 are those of the authors' program, which takes the
largest <v, x_i> without regard to the other side: v may point either way, so here the client furthest out on either
side is taken, and of several the first in the order of ids. The paper has everyone in every round. Here t counts the
rounds in which the attacker saw honest clients, and v stays where all of them agree. In a round without i*, the client
furthest along v among those that are there takes its place; in a round without honest clients, what its own clients
learned is sent. search is not in the paper: in every round, of the `evaluations` clients furthest out along v, the one
that leads the server's actual rule furthest from mean_i x_i.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.aggregators._distances import columns
from equipoise.attacks._forging import mean, sent
from equipoise.attacks._line_search import check_evaluations
from equipoise.errors import EquipoiseError
from equipoise.threat import Attack, Forgery


@dataclass(frozen=True, kw_only=True)
class Mimic(Attack):
    """warmup: rounds in which whom to copy is still open, 1 or more. search: choose in every round whoever leads the
    server's actual rule furthest astray. evaluations: how many clients a search tries, 3 or more."""

    warmup: int = 1
    search: bool = False
    evaluations: int = 17

    def __post_init__(self) -> None:
        super().__post_init__()
        check_evaluations("mimic", self.evaluations)
        if self.warmup < 1:
            raise EquipoiseError(f"mimic: warmup is {self.warmup}", "rounds, 1 or more")

    def remember(self, seen: Forgery) -> dict[str, Tensor]:
        """v [d] and i* ("client"); until the warm-up is over also mu [d] and t."""
        rows, ids = present(seen)
        old = dict(seen.memory)
        if len(rows) == 0 or (old and "t" not in old):
            return old
        t, now = int(old.get("t", 0)), mean(rows)
        mu = now if t == 0 else (t * old["mu"] + now) / (t + 1)
        v = old["v"] if t else unit(seen.stream.normal(torch.arange(len(now), device=now.device)))
        s = unit(pulled(rows, mu, along(rows, mu, v)))
        v = unit(t * v + s) if bool(s.any()) else v
        client = ids[furthest_out(rows, now, v)[0]].clone()
        open_still = {} if t + 1 >= self.warmup else {"mu": mu, "t": torch.tensor(t + 1)}
        return {"v": v, "client": client, **open_still}

    def corrupt(self, seen: Forgery) -> Tensor:
        rows, ids = present(seen)
        if len(rows) == 0:
            return seen.own
        mu = mean(rows)
        order = furthest_out(rows, mu, seen.memory["v"])
        if not self.search:
            chosen = torch.nonzero(ids == seen.memory["client"]).flatten()
            return sent(rows[chosen[0] if len(chosen) else order[0]], seen)
        tried = [sent(rows[i], seen) for i in order[: self.evaluations]]
        away = torch.stack([(seen.oracle(t).to(torch.float64) - mu).norm() for t in tried])
        return tried[int(away.nan_to_num(nan=-1.0, posinf=-1.0).argsort(descending=True, stable=True)[0])]


def present(seen: Forgery) -> tuple[Tensor, Tensor]:
    """The updates that can be copied, and whose they are."""
    finite = torch.isfinite(seen.honest).all(1)
    return seen.honest[finite], seen.honest_ids[finite]


def unit(v: Tensor) -> Tensor:
    """v at length 1; 0 stays 0."""
    scaled = v / v.abs().amax().clamp(min=1e-300)
    out: Tensor = scaled / scaled.norm().clamp(min=1.0)
    return out


def along(rows: Tensor, centre: Tensor, v: Tensor) -> Tensor:
    """[h] float64: <x_i - centre, v>, in units of the largest number among the updates."""
    out = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    largest = rows.abs().amax().double().clamp(min=1e-300)
    for piece in columns(rows.shape[1], len(rows), rows.device):
        out += (rows[:, piece].double() - centre[piece]) / largest @ v[piece]
    return out


def pulled(rows: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
    """[d] float64: sum_i weights_i (x_i - centre)."""
    pieces = columns(rows.shape[1], len(rows), rows.device)
    return torch.cat([weights @ (rows[:, c].double() - centre[c]) for c in pieces])


def furthest_out(rows: Tensor, centre: Tensor, v: Tensor) -> Tensor:
    """[h]: the clients, the one furthest along v first, on either side. What differs in rounding only is equal."""
    out = along(rows, centre, v).abs()
    return (1e9 * out / out.max().clamp(min=1e-300)).round().argsort(descending=True, stable=True)
