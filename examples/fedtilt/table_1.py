"""Table I, measured: what the signs of the tilts do on the toy problems.

python examples/fedtilt/table_1.py [FOLDER]

class_gap is the difference between the mean training losses of a client's two classes (problem 2; smaller is more
even), typical and worst are the median and the largest training loss in the noisy class (problem 3; a low median with a
high maximum means that outliers are ignored), accuracy is that of both clients' test data there.

The signs of lam and tau do what the table says, with one exception: tau < 0 makes classes less even also where lam > 0.
The last part tilts the server: between two clients every q >= 0 meets in the middle, a very negative q goes to one.
"""

from typing import Any

from _toy import Fit, fit, folder, line, write

SIGNS = [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (0.0, 0.0), (-1.0, -1.0)]  # (tau, lam), in the table's order


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def class_gap(fitted: Fit, client: int) -> float:
    losses, y = fitted.losses(client), fitted.samples(client, "train")[1]
    return abs(float(losses[y == 0].mean() - losses[y == 1].mean()))


def local_row(tau: float, lam: float) -> dict[str, Any]:
    uneven, noisy = fit(2, lam, tau), fit(3, lam, tau)
    first = [noisy.losses(k)[noisy.samples(k, "train")[1] == 0] for k in (0, 1)]
    return {
        "tau": tau,
        "lam": lam,
        "class_gap": mean([class_gap(uneven, k) for k in (0, 1)]),
        "typical": mean([float(losses.median()) for losses in first]),
        "worst": mean([float(losses.max()) for losses in first]),
        "accuracy": mean([noisy.accuracy(k) for k in (0, 1)]),
    }


def server_row(q: float) -> dict[str, Any]:
    """How far the global boundary's coefficients are from each client's own."""
    found = fit(1, 1.0, 1.0, q)
    shared = line(found.shared)
    away = [sum((a - b) ** 2 for a, b in zip(line(p), shared, strict=True)) ** 0.5 for p in found.personal]
    return {"q": q, "nearer": min(away), "further": max(away)}


def show(rows: list[dict[str, Any]]) -> None:
    print("  ".join(f"{name:>9}" for name in rows[0]))
    for row in rows:
        print("  ".join(f"{value:9.4g}" for value in row.values()))


if __name__ == "__main__":
    for name, rows in (
        ("table-1-local", [local_row(tau, lam) for tau, lam in SIGNS]),
        ("table-1-server", [server_row(q) for q in (-20.0, 0.0, 20.0)]),
    ):
        show(rows)
        write(folder() / f"{name}.csv", rows)
