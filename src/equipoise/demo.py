"""The demonstration behind `make demo`: an audit of seven methods, with and without attackers, and its report."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from equipoise.audit import AuditData, audit
from equipoise.cli.audits import show
from equipoise.cli.steps import steps
from equipoise.report import write_report

AUDIT = """
[audit]
title = "Seven methods on handwritten digits"
methods = [
  "fedavg",
  "ditto",
  { name = "fedtilt", lam = 1.0, tau = 1.0 },
  "fedlf",
  { name = "eagle", lam = 0.1, scale = "sqrt_k", window = 20, cap = 100 },
  { name = "rffl", clip = 0.5, grace = 5 },
  { name = "fedavg", label = "multi-krum", server = { name = "multi-krum", f = 3 } },
]
attacks = ["none", { name = "label-noise", fraction = 0.3 }, { name = "sign-flip", fraction = 0.3, scale = 3.0 }]
seeds = [0, 1, 2]
baseline = "fedavg"
alone_epochs = 60
[data]
dataset = "digits"
clients = 20
partition = { kind = "dirichlet", alpha = 0.5, min_size = 30 }
validation = 0.15
[model]
kind = "mlp"
hidden = [32]
[train]
rounds = 25
epochs = 2
batch = 20
lr = 0.3
[participation]
per_round = 10
[run]
eval_every = 5
checkpoint_every = 25
"""


def main(out: Path = Path("runs/demo")) -> AuditData:
    """Run the audit anew, print the comparison, say where the report is."""
    shutil.rmtree(out, ignore_errors=True)
    began = time.monotonic()
    with steps(False, out) as report:
        data = audit(AUDIT, out, workers=max(1, os.cpu_count() or 1), report=report)
    page = write_report(data, out / "report.html")
    show(data)
    sys.stderr.write(f"\n{len(data.cells)} runs in {time.monotonic() - began:.0f} s\nreport: {page.resolve()}\n")
    return data


if __name__ == "__main__":
    main()
