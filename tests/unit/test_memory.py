"""Memory that is kept: counted in pages that the system had to fill, in processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from equipoise.engine import memory

GLIBC = platform.libc_ver()[0] == "glibc"
PROGRAM = """
import resource, torch
from equipoise.engine.memory import give_back, keep_memory

kept = keep_memory() if {keep} else None
filled = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = filled()
for _ in range(20):
    torch.ones(10_000_000) + torch.ones(10_000_000)
pages, held = filled() - before, resident()
give_back()
print(kept, pages, held - resident())
"""


def ran(keep: bool, **env: str) -> list[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(memory.OF_THE_USER)}
    command = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return subprocess.run(command, env=plain | env, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(not GLIBC, reason="nothing to tell another C library")
def test_tensors_come_out_of_what_was_freed_before_until_that_is_given_back() -> None:
    (kept, few, held), (_, many, none) = ran(keep=True), ran(keep=False)
    assert kept == "True" and 4 * int(few) < int(many)
    assert int(held) > 100_000_000 > 10 * int(none)


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_who_told_the_c_library_otherwise_is_obeyed(name: str) -> None:
    value = "glibc.malloc.arena_max=1" if name == "GLIBC_TUNABLES" else "1"
    assert ran(keep=True, **{name: value})[0] == "False"


def test_where_the_c_library_cannot_be_told_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith(memory.OF_THE_USER)]:
        monkeypatch.delenv(name)
    for found in (TypeError(), OSError(), object()):

        def library(name: None, found: object = found) -> object:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(memory.ctypes, "CDLL", library)
        assert memory.keep_memory() is False
        memory.give_back()
