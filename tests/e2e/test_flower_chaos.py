"""Real processes that die, hang or lie: the run ends in bounded time, with the right result, and says what happened."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from equipoise import config, files
from equipoise.errors import EquipoiseError
from tests.e2e.test_flower import MARKS, has_bits_of, missing, processes, simulated, until, wanted

pytestmark = MARKS

HOSTILE = """
import time
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from equipoise.flower.apps import client_app

honest = client_app(Path(__file__).with_name("run.toml"))
app = ClientApp()
DEEDS = {deeds}


def spoilt(array, deed):
    if deed == "nan":
        return Array(array.dtype, array.shape, array.stype, b"\\xff" * len(array.data))
    if deed == "shape":
        return Array(array.dtype, (1,), array.stype, array.data[:4])
    return Array(array.dtype, (1 << 28,), array.stype, array.data[:100])


def answer(message, context):
    facts = message.content.config_records.get("facts", {{}})
    deed = DEEDS.get(facts.get("round")) if context.node_config["partition-id"] == 2 else None
    if deed == "silence":
        time.sleep(3600)
    reply = honest(message, context)
    if deed == "garbage":
        return Message(RecordDict({{"noise": ConfigRecord({{"x": "y" * 1000}})}}), reply_to=message)
    if deed == "promise":  # parts that have another name than was announced: Flower waits for the others
        Array.deflate = lambda self: b"Array 4\\x00\\xff\\xff\\xff\\xff"
        Array.object_id = property(lambda self: __import__("hashlib").sha256(self.deflate()).hexdigest())
    elif deed:
        arrays = reply.content["arrays"]
        reply.content["arrays"] = ArrayRecord({{n: spoilt(a, deed) for n, a in arrays.items()}})
    return reply


app.train()(answer)
app.query()(answer)
"""


@contextmanager
def running(chosen: config.Config, out: Path, timeout: float = 100, deeds: dict[int, str] | None = None) -> Iterator:
    """A federation at work on an app; client 2 does its deeds, by round."""
    from equipoise.flower import local, writing

    with local.prepared(chosen, out) as here:
        app = writing.new(here.work / "app", chosen, out, timeout, here.roster())
        if deeds is not None:
            (app / "federation" / "client_app.py").write_text(HOSTILE.format(deeds=deeds))
        local.start(here)
        here.submit(app)
        yield here
    assert processes(out.parent) == []


def rounds_done(out: Path) -> int:
    try:
        return max((int(p.name.rpartition("-")[2].partition(".")[0]) for p in (out / "parts").iterdir()), default=0)
    except OSError:
        return 0


def finished(out: Path) -> bool:
    return (out / "checksums.json").exists()


def test_lies_of_every_kind_are_told_by_name_and_change_nothing(tmp_path: Path) -> None:
    chosen, out = wanted(clients=3, rounds=4), tmp_path / "far"
    deeds = {0: "garbage", 1: "nan", 2: "shape", 3: "gigabyte"}
    with running(chosen, out, deeds=deeds) as here:
        here.wait(out, 600)
    why = missing(out)
    assert why == {(0, 2): "garbage", (1, 2): "not-finite", (2, 2): "shape", (3, 2): "oversized"}
    has_bits_of(simulated(chosen, why), out)
    log = (out / "log.txt").read_text()
    for reason in ("garbage", "not-finite", "shape", "oversized"):
        assert f"client 2 does not count ({reason})" in log


def test_a_reply_that_is_announced_and_never_comes_costs_the_timeout_and_no_more(tmp_path: Path) -> None:
    chosen, out = wanted(clients=3, rounds=2), tmp_path / "far"
    with running(chosen, out, timeout=90, deeds={1: "promise"}) as here:
        here.wait(out, 600)
    why = missing(out)
    assert set(why) == {(1, 2)} and why[1, 2] in ("late", "absent", "error")
    has_bits_of(simulated(chosen, why), out)


def test_a_node_that_is_killed_in_a_round_is_missing_from_then_on(tmp_path: Path) -> None:
    chosen, out = wanted("ditto", clients=3), tmp_path / "far"
    with running(chosen, out, timeout=150) as here:
        until(lambda: rounds_done(out) == 1, "the first round")
        got = here.log("supernode-2").read_text().count("Receiving: train")
        until(lambda: here.log("supernode-2").read_text().count("Receiving: train") > got, "the next message")
        here.stop("supernode-2", signal.SIGKILL)
        here.wait(out, 600)
    why = missing(out)
    assert set(why) == {(1, 2), (2, 2)} and set(why.values()) <= {"absent", "late"}
    log = (out / "log.txt").read_text()
    assert "round 1: client 2 does not count" in log and "round 2: client 2 does not count" in log
    model, _ = files.read_tensors(out / "model.safetensors")
    near = simulated(chosen, why)
    assert all((t == model[n]).all() for n, t in near.server.layout.tensors(near.server.w).items())


def test_a_client_that_never_answers_costs_the_timeout_and_no_more(tmp_path: Path) -> None:
    chosen, out = wanted(clients=3, rounds=2), tmp_path / "far"
    with running(chosen, out, timeout=90, deeds={1: "silence"}) as here:
        here.wait(out, 600)
    assert missing(out) == {(1, 2): "late"}
    assert "round 1: client 2 does not count (late): it did not answer in time" in (out / "log.txt").read_text()
    has_bits_of(simulated(chosen, missing(out)), out)


def serverapps(superexec: int) -> list[int]:
    """The ServerApps that a SuperExec has started."""
    listed = subprocess.run(["ps", "-ewwo", "pid,ppid,args"], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    return [int(pid) for pid, parent, args in rows if int(parent) == superexec and "flwr-serverapp" in args]


def test_a_serverapp_that_is_killed_goes_on_when_it_is_started_again(tmp_path: Path) -> None:
    chosen, out = wanted("ditto", clients=3), tmp_path / "far"
    with running(chosen, out) as here:
        until(lambda: rounds_done(out) == 1, "the first round")
        (app,) = serverapps(here.processes["superexec"].pid)
        os.kill(app, signal.SIGKILL)
        with pytest.raises(EquipoiseError, match="did not finish"):
            here.wait(out, 300)
        assert not finished(out)
        here.submit(here.work / "app")
        here.wait(out, 400)
    assert missing(out) == {}
    assert "goes on after round 1" in (out / "log.txt").read_text()
    has_bits_of(simulated(chosen), out)


def test_a_superlink_that_is_killed_and_started_again_changes_nothing(tmp_path: Path) -> None:
    chosen, out = wanted("ditto", clients=3), tmp_path / "far"
    names = ("superexec", "supernode-0", "supernode-1", "supernode-2")
    with running(chosen, out, timeout=200) as here:
        until(lambda: rounds_done(out) == 1, "the first round")
        told = {name: len(here.log(name).read_text()) for name in names}

        def since(name: str) -> str:
            return here.log(name).read_text()[told[name] :]

        here.stop("superlink", signal.SIGKILL)
        # Not before everyone has seen that it is gone: a node that is busy all the while would have nothing to tell.
        until(lambda: all("Connection attempt failed" in since(name) for name in names), "the loss")
        here.start_link()
        until(lambda: finished(out), "the end", 400)
    assert missing(out) == {}
    for name in names:
        assert "Connection successful after" in since(name), name
    has_bits_of(simulated(chosen), out)
