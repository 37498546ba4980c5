"""The run folder: a run killed at any moment and resumed ends with the same bytes as one that was not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise import files
from equipoise.engine.checkpoint import Checkpoint, load_latest, save
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.results import MemoryRun, Result, RunFolder, Table, compare, load_result, verify

CONFIG = b'method = "ditto"\n[attack]\nname = "flip"\n[run]\nseed = 3\n'
ENVIRONMENT = {"torch": "1.2.3"}
RESULTS = ("rounds.parquet", "clients.parquet", "summary.json", "model.safetensors", "personal.safetensors")
FINAL = (*RESULTS, "checksums.json", "config.toml")
CHANGES = ("write", "replace", "unlink", "mkdir", "rmdir")  # between two of them, a kill finds the disk the same


def client_rows(round: int, n: int = 3) -> dict[str, Any]:
    client = np.arange(n)[::-1]  # not in order: the folder sorts
    return {
        "round": round,
        "client": client,
        "split": np.array(["test", "train", "test"][:n] if n <= 3 else ["test"] * n),
        "model": "global",
        "accuracy": torch.tensor(client * 0.1 + round),
        "balanced_accuracy": np.full(n, np.nan),
        "loss": client.astype(np.float32) / 3,
        "n": client + 1,
        "malicious": client == 0,
        "quarantined": False,
        "class_n": np.stack([client, client + 1], axis=1),
        "class_correct": np.zeros((n, 2), dtype=np.int64),
    }


def round_row(round: int) -> dict[str, Any]:
    row: dict[str, Any] = {"round": round, "loss": torch.tensor(1.0 / round), "info": {"k": round, "a": [1]}}
    row["mixed"] = 1 if round < 4 else 0.5  # whole numbers first, fractions later
    if round == 5:
        row |= {"late": np.int64(7), "note": "text", "flag": True}
    return row


def fill(run: RunFolder | MemoryRun, round: int) -> None:
    run.append("rounds", round_row(round))
    if round % 2 == 0:
        run.append("clients", client_rows(round))
    run.time(round, {"train": 0.25})


def outcome(w: torch.Tensor) -> dict[str, Any]:
    personal = {5: w + 1, 2: w - 1}
    return {"summary": {"accuracy_mean": float(w.sum()), "angle": float("nan")}, "model": w, "personal": personal}


def toy(path: Path, rounds: int = 6, every: int = 2) -> Result:
    """A run as the engine makes it: start or resume, and go on to the end."""
    with RunFolder.create(path, CONFIG, ENVIRONMENT) as run:
        if run.finished:
            return load_result(path)
        point = load_latest(path, lambda _: None)
        done, w = (point.round, point.tensors["w"]) if point else (0, torch.zeros(4))
        run.discard_after(done if point else -1)
        for round in range(done + 1, rounds + 1):
            w = w * 0.9 + round
            fill(run, round)
            if round % every == 0 or round == rounds:
                run.flush(round)
                save(path, Checkpoint(round, {"w": w}, {}, run.parts))
                run.mark("running", round)
        return run.finish(**outcome(w))


def final_bytes(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FINAL}


def assert_finished_like(path: Path, expected: dict[str, bytes], rounds: int = 6) -> None:
    assert final_bytes(path) == expected
    assert verify(path) == []
    assert files.read_json(path / "status.json") == {"state": "finished", "round": rounds, "reason": ""}
    assert not (path / "parts").exists()
    assert not (path / "checkpoint").exists()
    assert not [p for p in path.rglob("*") if files.is_partial(p.name)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    path = tmp_path_factory.mktemp("whole") / "run"
    toy(path)
    return path


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls the plug, so nothing need wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class Killed(BaseException):
    """Stands for a process that is gone: nothing catches it."""


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException, Callable[[], Any]], bool]:
    """dies(n, error, act): act with the n-th file operation, and after a kill all later ones, failing; did it die?"""

    def dies(n: int, error: BaseException, act: Callable[[], Any]) -> bool:
        count = 0

        def wrap(name: str) -> Callable[..., Any]:
            real = getattr(os, name)

            def operation(*args: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                if count == n or (count > n and isinstance(error, Killed)):
                    raise error
                return real(*args, **kwargs)

            return operation

        with monkeypatch.context() as patch:
            for name in CHANGES if isinstance(error, Killed) else (*CHANGES, "open", "fsync"):
                patch.setattr(os, name, wrap(name))
            try:
                act()
            except (Killed, EquipoiseError):
                return True
        return False

    return dies


# ----------------------------------------------------------------------------------------------------------- endurance


@pytest.mark.parametrize(("error", "stride"), [(Killed(), 1), (OSError(28, "No space left on device"), 7)])
def test_a_run_stopped_at_any_file_operation_and_resumed_ends_with_the_same_bytes(
    tmp_path: Path, dies: Any, error: BaseException, stride: int
) -> None:
    toy(tmp_path / "whole", rounds=3)
    expected, path, n, stopped = final_bytes(tmp_path / "whole"), tmp_path / "run", 1, True
    while stopped:
        stopped = dies(n, error, lambda: toy(path, rounds=3))
        toy(path, rounds=3)
        assert_finished_like(path, expected, 3)
        shutil.rmtree(path)
        n += stride
    assert n > 60


def test_a_run_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path, whole: Path, dies: Any) -> None:
    deaths, path = 0, tmp_path / "run"
    while dies(25 + 4 * (deaths % 5), Killed(), lambda: toy(path)):
        deaths += 1
        assert deaths < 60
    assert deaths > 3
    assert_finished_like(path, final_bytes(whole))


@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")], ids=["killed", "disk full"])
def test_finish_stopped_at_any_operation_and_called_again_gives_the_same_bytes(
    tmp_path: Path, dies: Any, error: BaseException
) -> None:
    w = torch.ones(4)
    with RunFolder.create(tmp_path / "before", CONFIG, ENVIRONMENT) as run:
        fill(run, 1)
        fill(run, 2)
        run.flush(2)
        save(run.path, Checkpoint(2, {"w": w}, {}, run.parts))
    expected, path, n, stopped = None, tmp_path / "run", 10**9, True
    while stopped:
        shutil.copytree(tmp_path / "before", path)
        with RunFolder.create(path, CONFIG, ENVIRONMENT) as run:
            stopped = dies(n, error, lambda run=run: run.finish(**outcome(w)))
            run.finish(**outcome(w))
        if expected is None:
            expected, n, stopped = final_bytes(path), 0, True
        assert_finished_like(path, expected, 2)
        shutil.rmtree(path)
        n += 1
    assert n > 15


NURSERY = """
import os, pathlib, runpy, signal, sys, time
module, folder, *delays = sys.argv[1:]
toy, folder = runpy.run_path(module)["toy"], pathlib.Path(folder)
os.fsync = lambda fd: None
kills = 0
for delay in map(float, delays):
    child = os.fork()
    if not child:
        toy(folder, rounds=30)
        os._exit(0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
toy(folder, rounds=30)
print(kills)
"""


def test_a_process_killed_at_random_moments_and_resumed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    toy(tmp_path / "whole", rounds=30)
    delays = [f"{0.01 + 0.009 * (5 * i % 12):.3f}" for i in range(12)]
    command = [sys.executable, "-c", NURSERY, __file__, str(tmp_path / "run"), *delays]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 6
    assert final_bytes(tmp_path / "run") == final_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    "name", ["checkpoint/r000004.json", "checkpoint/r000004.safetensors", "parts/clients-000004.arrow"]
)
def test_a_changed_byte_costs_a_checkpoint_and_no_result(tmp_path: Path, whole: Path, dies: Any, name: str) -> None:
    path, n = tmp_path / "run", 1
    while not (path / name).exists() or not (path / "checkpoint" / "r000004.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        n += 5
        dies(n, Killed(), lambda: toy(path))
    data = bytearray((path / name).read_bytes())
    data[len(data) // 2] ^= 4
    (path / name).write_bytes(data)
    said: list[str] = []
    point = load_latest(path, said.append)
    assert point is not None
    assert point.round == 2
    assert len(said) == 1
    toy(path)
    assert_finished_like(path, final_bytes(whole))


# -------------------------------------------------------------------------------------------------------- final tables


@settings(max_examples=15)
@given(borders=st.sets(st.integers(1, 6)))
def test_part_borders_do_not_change_the_final_bytes(
    borders: set[int], whole: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, w = tmp_path_factory.mktemp("borders") / "run", torch.zeros(4)
    with RunFolder.create(path, CONFIG, ENVIRONMENT) as run:
        for round in range(1, 7):
            w = w * 0.9 + round
            fill(run, round)
            if round in borders:
                run.flush(round)
        run.finish(**outcome(w))
    assert final_bytes(path) == final_bytes(whole)


def test_part_borders_do_not_change_large_tables(tmp_path: Path) -> None:
    n = 45_000
    written = []
    for every in (1, 3):
        path = tmp_path / str(every)
        with RunFolder.create(path, CONFIG, ENVIRONMENT) as run:
            for round in range(3):
                run.append("clients", client_rows(round, n))
                if round % every == every - 1:
                    run.flush(round)
            run.finish({}, torch.zeros(1))
        written.append((path / "clients.parquet").read_bytes())
    assert written[0] == written[1]
    assert pq.read_metadata(tmp_path / "1" / "clients.parquet").num_row_groups == 2


COUNTS = """
import os, sys
from equipoise.results import load_result
before = len(os.listdir("/proc/self/task"))
load_result(sys.argv[1])
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads as Linux lists them")
def test_reading_a_run_starts_no_thread_that_could_outlive_python(whole: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COUNTS, str(whole)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_tables_are_sorted_typed_and_complete(whole: Path) -> None:
    result = load_result(whole)
    clients, rounds = result.clients, result.rounds
    assert clients["round"].tolist() == [2, 2, 2, 4, 4, 4, 6, 6, 6]
    assert clients["client"].tolist() == [0, 1, 2] * 3
    assert clients["split"].tolist() == ["test", "train", "test"] * 3
    assert clients["malicious"].tolist() == [True, False, False] * 3
    assert clients["class_n"].tolist() == [[0, 1], [1, 2], [2, 3]] * 3
    assert np.isnan(clients["balanced_accuracy"]).all()
    assert rounds.columns == ("round", "flag", "late", "loss", "mixed", "note", "info")
    assert rounds["mixed"].tolist() == [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    assert rounds["note"].tolist() == [None] * 4 + ["text", None]
    assert rounds["late"][4] == 7
    assert rounds["info"][0] == '{"a": [1], "k": 1}'


def test_columns_of_mixed_kinds_become_text_and_missing_ones_stay_missing() -> None:
    run = MemoryRun()
    for round, value in enumerate([1, "a", True, None]):
        run.append("rounds", {"round": round, "x": value, "never": None})
    rounds = run.finish({}, torch.zeros(1)).rounds
    assert rounds["x"].tolist() == ["1", "a", "true", None]
    assert np.isnan(rounds["never"]).all()


def test_not_a_number_and_infinity_survive_in_both_tables(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT) as run:
        run.append("rounds", {"round": 1, "loss": float("inf")})
        run.append("clients", {**client_rows(1), "loss": np.array([np.inf, np.nan, 1.0])})
        run.flush(1)
        result = run.finish({"loss": float("inf")}, torch.zeros(1))
    assert result.rounds["loss"].tolist() == [np.inf]
    assert result.clients["loss"][2] == np.inf
    assert np.isnan(result.clients["loss"][1])
    assert result.summary() == {"loss": None}


def test_clients_with_different_numbers_of_classes_are_kept_apart() -> None:
    run = MemoryRun()
    run.append("clients", {**client_rows(1, 2), "class_n": [[1], [2, 3]], "class_correct": [[], []]})
    clients = run.finish({}, torch.zeros(1)).clients
    assert [row.tolist() for row in clients["class_n"]] == [[2, 3], [1]]
    assert clients["class_correct"].shape == (2, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"n": np.ones(3)},
        {"loss": np.ones(2)},
        {"class_n": np.ones((2, 2), int)},
        {"class_correct": np.ones((3, 2))},
        {"split": np.array([1, 2, 3])},
        {"malicious": np.array([0, 1, 0])},
        {"extra": 1},
    ],
)
def test_rows_that_do_not_fit_the_clients_table_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EquipoiseError, match="clients"):
        MemoryRun().append("clients", {**client_rows(1), **change})


@pytest.mark.parametrize("row", [{}, {"round": 1.0}, {"round": True}, {"round": 1, "x": [1]}, {"round": 1, "x": 2**63}])
def test_rows_that_do_not_fit_the_rounds_table_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(EquipoiseError, match="rounds"):
        MemoryRun().append("rounds", row)


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(EquipoiseError, match="client") as error:
        MemoryRun().append("client", {})
    assert "clients" in error.value.hint


# ---------------------------------------------------------------------------------------------------------- the folder


def test_wall_times_are_in_no_result(tmp_path: Path, whole: Path) -> None:
    with RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT) as run:
        w = torch.zeros(4)
        for round in range(1, 7):
            w = w * 0.9 + round
            fill(run, round)
            run.time(round, {"train": round * 9.0})
            run.flush(round)
        run.finish(**outcome(w))
    assert final_bytes(tmp_path / "run") == final_bytes(whole)
    assert files.read_json(tmp_path / "run" / "timings.json")["rounds"][-1] == {"round": 6, "train": 54.0}
    assert len(files.read_json(whole / "timings.json")["rounds"]) == 6


def test_timings_go_on_after_a_resume_also_when_they_were_damaged(tmp_path: Path) -> None:
    for round, damage in ((1, False), (2, True), (3, False)):
        with RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT) as run:
            run.time(round, {"train": 1.0})
            run.flush(round)
        if damage:
            (tmp_path / "run" / "timings.json").write_text("{")
    assert files.read_json(tmp_path / "run" / "timings.json") == {"rounds": [{"round": 3, "train": 1.0}]}


def test_a_folder_with_another_run_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT).close()
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()}
    with pytest.raises(EquipoiseError, match="another run") as error:
        RunFolder.create(tmp_path / "run", CONFIG + b"#", ENVIRONMENT)
    assert "equipoise resume" in error.value.hint
    assert "--out" in error.value.hint
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir() if p.is_file()} == before
    RunFolder.create(tmp_path / "run", CONFIG, ENVIRONMENT).close()  # and the lock is free


def test_a_folder_with_foreign_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "precious").write_text("mine")
    with pytest.raises(EquipoiseError, match="checkpoint"):
        RunFolder.create(tmp_path, CONFIG, ENVIRONMENT)
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]


def test_there_is_one_writer_at_a_time(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, CONFIG, ENVIRONMENT):
        with pytest.raises(EquipoiseError, match=str(os.getpid())):
            RunFolder.create(tmp_path, CONFIG, ENVIRONMENT)
        load_result(tmp_path)
    RunFolder.create(tmp_path, CONFIG, ENVIRONMENT).close()


def test_readers_cannot_write(whole: Path) -> None:
    run = RunFolder.open(whole)
    for act in (lambda: run.flush(9), lambda: run.mark("failed", 1), lambda: run.finish({}, torch.zeros(1))):
        with pytest.raises(EquipoiseError, match="reading only"):
            act()
    with pytest.raises(EquipoiseError, match="not a run folder"):
        RunFolder.open(whole / "nowhere")


def test_rows_of_a_round_that_was_already_flushed_are_refused(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, CONFIG, ENVIRONMENT) as run:
        fill(run, 2)
        assert [name for name, _ in run.flush(2)] == ["parts/rounds-000002.json", "parts/clients-000002.arrow"]
        assert run.flush(2) == ()
        fill(run, 2)
        with pytest.raises(EquipoiseError, match="round 2 after round 2"):
            run.flush(2)


def test_rows_after_the_checkpoint_are_discarded(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, CONFIG, ENVIRONMENT) as run:
        for round in (2, 4, 6):
            fill(run, round)
            run.flush(round)
        fill(run, 8)
        run.discard_after(4)
        kept = [f"parts/{name}" for name in ("clients-000002.arrow", "clients-000004.arrow")]
        kept += [f"parts/{name}" for name in ("rounds-000002.json", "rounds-000004.json")]
        assert [name for name, _ in run.parts] == kept
        assert all(files.sha256(tmp_path / name) == digest for name, digest in run.parts)
        assert load_result(tmp_path).rounds["round"].tolist() == [2, 4]
        run.discard_after(-1)
        assert run.parts == ()
        assert len(load_result(tmp_path).clients) == 0


def test_another_environment_is_noted_and_the_first_one_kept(tmp_path: Path) -> None:
    for environment in (ENVIRONMENT, ENVIRONMENT, {"torch": "9"}):
        RunFolder.create(tmp_path, CONFIG, environment).close()
    assert (tmp_path / "log.txt").read_text().count("environment") == 2  # one line that names the file
    kept = files.read_json(tmp_path / "environment.json")
    assert kept["torch"] == "1.2.3"
    assert "pyarrow" in kept


def test_a_run_with_another_file_of_ones_own_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    first, path = {**ENVIRONMENT, "own": {"method mine": "a" * 64}}, tmp_path / "run"
    RunFolder.create(path, CONFIG, first).close()
    before = {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}
    for now, told in (({"method mine": "b" * 64}, "a{12}... then, b{12}... now"), ({}, "a{12}... then, none now")):
        with pytest.raises(EquipoiseError, match=rf"the file of method mine .*{path} .*sha256 {told}") as error:
            RunFolder.create(path, CONFIG, {**ENVIRONMENT, "own": now})
        assert "put the file back" in error.value.hint and "another --out" in error.value.hint
        assert {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()} == before
    with RunFolder.create(path, CONFIG, first) as run:
        fill(run, 1)
        run.flush(1)
        run.finish({}, torch.zeros(2))
    with pytest.raises(EquipoiseError, match="the file of method mine"):  # finished: it would pass for the new file's
        RunFolder.create(path, CONFIG, {**ENVIRONMENT, "own": {"method mine": "b" * 64}})


@pytest.mark.parametrize("noted", [b'{"torch": "1.2.3"}', b'{"own": 3}', b"[]", b"{", None])
def test_a_run_from_before_files_were_noted_goes_on(noted: bytes | None, tmp_path: Path) -> None:
    RunFolder.create(tmp_path, CONFIG, ENVIRONMENT).close()
    (tmp_path / "environment.json").unlink() if noted is None else (tmp_path / "environment.json").write_bytes(noted)
    RunFolder.create(tmp_path, CONFIG, {**ENVIRONMENT, "own": {"method mine": "a" * 64}}).close()
    assert RunFolder.open(tmp_path).own is None


def test_a_part_damaged_under_the_run_is_seen_when_it_finishes(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, CONFIG, ENVIRONMENT) as run:
        fill(run, 2)
        run.flush(2)
        part = tmp_path / "parts" / "clients-000002.arrow"
        part.write_bytes(part.read_bytes()[:-1] + b"x")
        with pytest.raises(EquipoiseError, match="clients-000002"):
            run.finish({}, torch.zeros(1))
        part.write_bytes(b"no table")
        with pytest.raises(EquipoiseError, match="clients-000002"):
            load_result(tmp_path)


def test_a_finished_run_is_not_started_again(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    with RunFolder.create(path, CONFIG, ENVIRONMENT) as run:
        assert run.finished
        run.finish({"other": 1}, torch.ones(1))
    assert_finished_like(path, final_bytes(whole))


@pytest.mark.parametrize("name", [*RESULTS, "config.toml"])
def test_verify_finds_a_changed_byte_and_a_missing_file(whole: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    data = bytearray((path / name).read_bytes())
    data[-1] ^= 1
    (path / name).write_bytes(data)
    assert verify(path) == [f"{name} is not what was written"]
    if name != "config.toml":
        with pytest.raises(EquipoiseError, match=name):
            load_result(path)
        (path / name).unlink()
        assert verify(path) == [f"{name} is missing"]
        with pytest.raises(EquipoiseError, match=name):
            load_result(path)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_checksums_never_pass_for_another_result(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(whole, path)
    sums = bytearray((path / "checksums.json").read_bytes())
    sums[data.draw(st.integers(0, len(sums) - 1))] ^= data.draw(st.integers(1, 255))
    (path / "checksums.json").write_bytes(sums)
    try:
        result = load_result(path)
    except EquipoiseError:
        assert isinstance(verify(path), list)
    else:
        assert result.personal is not None
        assert len(result.clients) == 9


def test_verify_says_when_a_run_is_not_finished(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, CONFIG, ENVIRONMENT).close()
    assert verify(tmp_path) == [f"{tmp_path} is not finished"]


# --------------------------------------------------------------------------------------------------------------- result


def test_a_run_in_memory_gives_the_same_result_as_one_in_a_folder(whole: Path) -> None:
    run, w = MemoryRun(CONFIG), torch.zeros(4)
    for round in range(1, 7):
        w = w * 0.9 + round
        fill(run, round)
        assert run.flush(round) == ()
    a, b = run.finish(**outcome(w)), load_result(whole)
    for name in ("clients", "rounds"):
        mine, theirs = getattr(a, name), getattr(b, name)
        assert mine.columns == theirs.columns
        for column in mine:
            np.testing.assert_array_equal(mine[column], theirs[column])
            assert mine[column].dtype == theirs[column].dtype
    assert (a.summary(), a.config) == (b.summary(), b.config)
    assert a.model is not None
    assert b.model is not None
    assert torch.equal(a.model, b.model)
    assert a.personal is not None
    assert b.personal is not None
    assert list(a.personal) == list(b.personal) == [2, 5]
    assert all(torch.equal(a.personal[k], b.personal[k]) for k in a.personal)
    assert (a.path, b.path, a.note, b.note) == (None, whole, "", "")
    assert "6 rounds" in repr(b)


def test_a_model_with_a_layout_is_stored_under_its_names_and_comes_back_as_a_vector(tmp_path: Path) -> None:
    layout = Layout.of({"z.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2)})
    with RunFolder.create(tmp_path, CONFIG, ENVIRONMENT) as run:
        result = run.finish({}, torch.arange(8.0), layout=layout)
    assert result.model is not None
    assert result.model.tolist() == list(range(8))
    assert result.personal is None
    stored, _ = files.read_tensors(tmp_path / "model.safetensors")
    assert {k: tuple(t.shape) for k, t in stored.items()} == {"z.weight": (2, 3), "a.bias": (2,)}
    assert not (tmp_path / "personal.safetensors").exists()


def test_an_interrupted_run_can_be_read_with_a_note(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, CONFIG, ENVIRONMENT) as run:
        fill(run, 1)
        fill(run, 2)
        run.flush(2)
        fill(run, 3)
        run.mark("interrupted", 2, "Ctrl-C")
    result = load_result(tmp_path)
    assert result.rounds["round"].tolist() == [1, 2]
    assert len(result.clients) == 3
    assert result.model is None
    assert result.summary() == {}
    assert result.note == "not finished: interrupted at round 2 (Ctrl-C)"


def test_a_reader_meets_a_run_that_finishes_under_its_eyes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(tmp_path, CONFIG, ENVIRONMENT)
    fill(run, 2)
    run.flush(2)
    real, finishing = files.read_bytes, []

    def read_bytes(path: Path) -> bytes:
        if "parts" in str(path) and not finishing:
            finishing.append(path)
            monkeypatch.undo()
            run.finish({"x": 1}, torch.zeros(1))
        return real(path)

    monkeypatch.setattr(files, "read_bytes", read_bytes)
    result = load_result(tmp_path)
    run.close()
    assert finishing
    assert result.summary() == {"x": 1}


# ---------------------------------------------------------------------------------------------------------------- table


def sample_table() -> Table:
    names, scores = np.array(["b", "a", None, "a"], dtype=object), np.array([1.0, np.nan, 3.0, 2.0])
    return Table({"name": names, "score": scores, "pair": np.arange(8).reshape(4, 2)})


def test_a_table_filters_by_equality_and_takes_whole_rows() -> None:
    found = sample_table().filter(name="a", score=2.0)
    assert len(found) == 1
    assert found["pair"].tolist() == [[6, 7]]
    assert len(sample_table().filter(name="c")) == 0
    assert len(sample_table().head(2)) == 2


def test_a_table_sorts_by_the_first_name_first_with_missing_values_last() -> None:
    table = sample_table()
    assert table.sort("name", "score")["pair"][:, 0].tolist() == [6, 2, 0, 4]
    assert table.sort("score")["score"][:3].tolist() == [1, 2, 3]
    assert table.sort("score", descending=True)["score"][:3].tolist() == [3, 2, 1]
    assert table.sort("name", descending=True)["pair"][:, 0].tolist() == [0, 2, 6, 4]
    with pytest.raises(EquipoiseError, match="lists"):
        table.sort("pair")


def test_a_misspelt_column_gets_the_nearest_name() -> None:
    with pytest.raises(EquipoiseError, match="scores") as error:
        sample_table()["scores"]
    assert "'score'" in error.value.hint
    assert "score" in sample_table()
    assert list(sample_table()) == ["name", "score", "pair"]


def test_a_table_shows_itself_within_a_line_and_says_what_it_hides() -> None:
    table = Table({f"column_{i}": np.linspace(0, 1, 30) for i in range(30)})
    lines = repr(table).split("\n")
    assert len(lines) == 12
    assert max(map(len, lines)) <= 120
    assert "30 rows, 30 columns" in lines[-1]
    assert "not shown" in lines[-1]
    assert "0.03448" in repr(table)
    assert repr(Table({})).endswith("[0 rows, 0 columns]")


def test_a_table_becomes_a_data_frame(whole: Path) -> None:
    pytest.importorskip("pandas")
    frame = load_result(whole).clients.to_pandas()
    assert len(frame) == 9
    assert list(frame["class_n"][0]) == [0, 1]
    assert frame["accuracy"].mean() == pytest.approx(4.1)


# -------------------------------------------------------------------------------------------------------------- compare


def result_of(config: bytes, summary: dict[str, Any]) -> Result:
    return MemoryRun(config).finish(summary, torch.zeros(1))


def test_compare_has_a_row_per_run_and_tolerates_what_is_missing(whole: Path) -> None:
    other = result_of(
        b'[method]\nname = "fedavg"\n', {"accuracy_mean": 0.5, "worst_10": 1, "test": {"gap": 2}, "seed": 9}
    )
    empty = result_of(b"not toml [", {"words": ["ignored"]})
    table = compare([load_result(whole), other, empty])
    assert table.columns == ("run", "method", "attack", "seed", "accuracy_mean", "worst_10", "angle", "test.gap")
    assert table["run"].tolist() == ["run", "1", "2"]
    assert table["method"].tolist() == ["ditto", "fedavg", None]
    assert table["attack"].tolist() == ["flip", None, None]
    assert table["seed"][:2].tolist() == [3, 9]
    assert np.isnan(table["angle"]).all()
    assert table["worst_10"][1] == 1
    assert len(compare([])) == 0
