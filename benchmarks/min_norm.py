"""The shortest vector of a hull, ours against well-known solvers: CPU time and exactness, in one run.

    python benchmarks/min_norm.py

Every solver is given Gram matrices, as FedLF has them, and asked for all layers of a model: 3 to 10 layers, 11 rows (a
cohort of 10 and the row of even losses) to 200 rows (with absent clients). Rows have random directions around a common
one ("common"), around hardly any ("spread"), or, "fair", are of one length and the last is a mixture of the first ten.
"pivoting" is `solvers.min_norm`; "interior" is the method that it falls back on, made to solve everything. The error is
the largest violation of (G w)_j >= w' G w, with equality where w_j > 0, relative to ||x_j|| sum_i w_i ||x_i||. scipy is
always there; quadprog, clarabel and osqp are measured if they are installed. One thread; interleaved repeats; medians.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy import optimize, sparse
from torch import Tensor

from equipoise import solvers
from equipoise.streams import Stream

Array = np.ndarray
REPEATS = 7
CASES = [(5, 11), (3, 101), (5, 101), (10, 200)]
KINDS = ("fair", "common", "spread")


def grams(layers: int, n: int, kind: str) -> Tensor:
    g = Stream(n).child(kind).torch()
    rows = torch.randn((layers, n, 2000), generator=g, dtype=torch.float64)
    centre = torch.randn((layers, 1, 2000), generator=g, dtype=torch.float64)
    rows = rows + {"fair": 0.3, "common": 1.0, "spread": 0.0}[kind] * centre
    if kind == "fair":
        rows[:, -1] = torch.linspace(-1, 0.7, 10, dtype=torch.float64) @ rows[:, :10]
        rows = rows / rows.norm(dim=-1, keepdim=True)
    return rows @ rows.mT


def by_interior_point(gram: Tensor) -> Tensor:
    """Ours without pivoting: an answer of zeros is accepted for no set, so that the other method solves all."""
    pivoted = solvers._pivoted
    solvers._pivoted = lambda c, b, real: torch.zeros_like(b)
    try:
        return solvers.min_norm(gram)
    finally:
        solvers._pivoted = pivoted


def by_nnls(gram: Array) -> Array:
    """min ||A z||^2 + (sum z - 1)^2 over z >= 0, A' A = G, has the same direction."""
    values, vectors = np.linalg.eigh(gram / np.diag(gram).mean())
    a = np.vstack([(vectors * np.sqrt(values.clip(0))).T, np.ones(len(gram))])
    z, _ = optimize.nnls(a, np.r_[np.zeros(len(gram)), 1.0], maxiter=100 * len(gram))
    return np.asarray(z / z.sum())


def by_quadprog(gram: Array) -> Array:
    import quadprog

    n = len(gram)
    g = gram / np.diag(gram).mean() + 1e-13 * np.eye(n)
    w = quadprog.solve_qp(g, np.zeros(n), np.c_[np.ones(n), np.eye(n)], np.r_[1.0, np.zeros(n)], 1)[0]
    w = np.where(w > 1e-12, w, 0.0)
    return np.asarray(w / w.sum())


def by_clarabel(gram: Array) -> Array:
    import clarabel

    n = len(gram)
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    a = sparse.csc_matrix(np.vstack([np.ones((1, n)), -np.eye(n)]))
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(n)]
    p = sparse.csc_matrix(np.triu(gram / np.diag(gram).mean()))
    w = np.array(clarabel.DefaultSolver(p, np.zeros(n), a, np.r_[1.0, np.zeros(n)], cones, settings).solve().x)
    w = np.where(w > 1e-9, w, 0.0)
    return np.asarray(w / w.sum())


def by_osqp(gram: Array) -> Array:
    import osqp

    n, solver = len(gram), osqp.OSQP()
    a = sparse.csc_matrix(np.vstack([np.ones((1, n)), np.eye(n)]))
    low, high = np.r_[1.0, np.zeros(n)], np.r_[1.0, np.full(n, np.inf)]
    p = sparse.csc_matrix(np.triu(gram / np.diag(gram).mean()))
    solver.setup(p, np.zeros(n), a, low, high, verbose=False, eps_abs=1e-10, eps_rel=1e-10, max_iter=100_000)
    w = solver.solve().x
    w = np.where(w > 1e-9, w, 0.0)
    return np.asarray(w / w.sum())


def one_by_one(solve: Callable[[Array], Array]) -> Callable[[Tensor], Tensor]:
    return lambda gram: torch.from_numpy(np.stack([solve(g) for g in gram.numpy()]))


def error(gram: Tensor, w: Tensor) -> float:
    length = gram.diagonal(dim1=-2, dim2=-1).sqrt()
    products = (gram @ w[..., None])[..., 0]
    slack = products - (w * products).sum(-1, keepdim=True)
    failing = torch.where(w > 0, slack.abs(), -slack)
    return float((failing / (length * (w * length).sum(-1, keepdim=True))).max())


def main() -> None:
    torch.set_num_threads(1)
    ways: dict[str, Callable[[Tensor], Tensor]] = {"pivoting": solvers.min_norm, "interior": by_interior_point}
    others = {"quadprog": by_quadprog, "clarabel": by_clarabel, "osqp": by_osqp}
    installed = {name: f for name, f in others.items() if importlib.util.find_spec(name)}
    ways |= {name: one_by_one(f) for name, f in {"scipy nnls": by_nnls, **installed}.items()}
    print(f"{'layers x rows':22}{'solver':12}{'CPU ms':>10}{'x ours':>8}{'error':>10}  rows used")
    for (layers, n), kind in itertools.product(CASES, KINDS):
        gram = grams(layers, n, kind)
        times: dict[str, list[float]] = {name: [] for name in ways}
        answers = {name: solve(gram) for name, solve in ways.items()}
        for _ in range(REPEATS):
            for name, solve in ways.items():
                began = time.process_time()
                solve(gram)
                times[name].append(time.process_time() - began)
        for name, w in answers.items():
            spent = 1000 * statistics.median(times[name])
            ratio = statistics.median(a / b for a, b in zip(times[name], times["pivoting"], strict=True))
            used = (w > 0).sum(-1).double().mean()
            what = f"{layers} x {n} {kind}" if name == "pivoting" else ""
            print(f"{what:22}{name:12}{spent:10.2f}{ratio:8.2f}{error(gram, w):10.0e}{used:6.0f}")


if __name__ == "__main__":
    main()
