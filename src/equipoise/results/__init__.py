"""The run folder: what a run leaves behind, and how to read it.

    config.toml environment.json     what was run, and with what
    status.json log.txt timings.json how it goes; wall times are here and in no table
    parts/ checkpoint/               rows so far and points to resume from, until the run is finished
    rounds.parquet clients.parquet summary.json model.safetensors personal.safetensors    what came out
    checksums.json                   of the results; once it is there, the run cannot be lost any more

A run killed at any moment and resumed ends with the same bytes as one that was not.
"""

from equipoise.results.comparing import compare
from equipoise.results.folder import IN_PYTHON, RunFolder, load_result, verify
from equipoise.results.result import MemoryRun, Result
from equipoise.results.table import Table

__all__ = ["IN_PYTHON", "MemoryRun", "Result", "RunFolder", "Table", "compare", "load_result", "verify"]
