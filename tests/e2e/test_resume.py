"""Killed at any moment and resumed, a run ends with the same bytes."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise import config, experiment
from equipoise.errors import EquipoiseError
from equipoise.results import verify

TEXT = """
[data]
dataset = "digits"
clients = 8
partition = {{ kind = "dirichlet", alpha = 1.0 }}
validation = 0.1
[model]
kind = "linear"
[train]
rounds = {rounds}
steps = 2
[participation]
per_round = 4
dropout = 0.1
[method]
name = "local"
[attack]
name = "sign-flip"
fraction = 0.25
[run]
eval_every = 3
checkpoint_every = 2
"""
KEPT = ("model.safetensors", "personal.safetensors", "clients.parquet", "rounds.parquet", "summary.json", "config.toml")


@pytest.fixture(scope="module")
def job() -> experiment.Experiment:
    return experiment.build(config.load(TEXT.format(rounds=9)))


@pytest.fixture(scope="module")
def whole(job: experiment.Experiment, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return content(experiment.execute(job, tmp_path_factory.mktemp("whole") / "run").path)


def content(path: Path | None) -> dict[str, bytes]:
    assert path is not None and verify(path) == []
    return {name: (path / name).read_bytes() for name in KEPT}


def stopped(job: experiment.Experiment, path: Path, round: int) -> None:
    """The run, but for what comes after that round."""

    def stop(progress: experiment.Progress) -> None:
        if progress.round == round:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        experiment.execute(job, path, stop)


def child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def how_it_ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def dying(n: int, work: Callable[[], object]) -> Callable[[], object]:
    """`work`, killed with SIGKILL just before its n-th operation on the disk."""

    def run() -> object:
        left = n

        def counted(operation: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **more: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return operation(*args, **more)

            return call

        for name in ("fsync", "replace", "rename", "unlink", "rmdir", "mkdir", "write"):
            setattr(os, name, counted(getattr(os, name)))
        return work()

    return run


def survive(job: experiment.Experiment, path: Path, step: int) -> int:
    """Die at one disk operation after the other, resuming in between, until the run ends; how many deaths that took."""
    deaths = 0
    while True:
        code = how_it_ended(child(dying(step * (deaths % 7 + 1), lambda: experiment.execute(job, path))))
        if code == 0:
            return deaths
        assert code == -signal.SIGKILL, code
        deaths += 1
        assert deaths < 400, "it never gets anywhere"


def test_a_first_death_at_every_disk_operation(
    job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path
) -> None:
    n, ended = 0, False
    while not ended:
        path = tmp_path / str(n)
        code = how_it_ended(child(dying(n, lambda path=path: experiment.execute(job, path))))
        ended = code == 0
        assert content(experiment.execute(job, path).path) == whole, f"killed before operation {n}"
        n += 13 if n > 9 else 1
    assert n > 40


def test_deaths_in_a_row(job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path) -> None:
    assert survive(job, tmp_path / "run", step=9) > 2
    assert content(tmp_path / "run") == whole


def random_deaths(job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path, count: int) -> None:
    start = time.monotonic()
    assert how_it_ended(child(lambda: experiment.execute(job, tmp_path / "timed"))) == 0
    took, rng, deaths, number = time.monotonic() - start, random.Random(0), 0, 0
    while deaths < count:
        path, number = tmp_path / f"run{number}", number + 1
        while True:
            pid = child(lambda path=path: experiment.execute(job, path))
            time.sleep(rng.uniform(0, 1.1 * took))
            os.kill(pid, signal.SIGKILL)
            if how_it_ended(pid) == 0:
                break
            deaths += 1
            if rng.random() < 0.3:
                experiment.execute(job, path)
                break
        assert content(path) == whole


def test_kills_at_random_moments(job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path) -> None:
    random_deaths(job, whole, tmp_path, count=6)


@pytest.mark.slow
def test_fifty_kills_at_random_moments(job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path) -> None:
    random_deaths(job, whole, tmp_path, count=50)


def test_a_flipped_byte_in_a_checkpoint_falls_back_to_the_one_before(
    job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "run"

    def die(progress: experiment.Progress) -> None:
        if progress.round == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("safetensors", "json"):
        assert how_it_ended(child(lambda: experiment.execute(job, path, die))) == -signal.SIGKILL
        found = sorted((path / "checkpoint").glob(f"*.{name}"))
        assert len(found) == 2
        data = bytearray(found[-1].read_bytes())
        data[len(data) // 2] ^= 1
        found[-1].write_bytes(data)
    assert content(experiment.execute(job, path).path) == whole
    assert "passed over" in (path / "log.txt").read_text()


def test_ctrl_c_finishes_the_round_and_says_how_to_resume(
    job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "run"

    def press(progress: experiment.Progress) -> None:
        if progress.round == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(experiment.Interrupted, match=f"equipoise resume {path}"):
        experiment.execute(job, path, press)
    assert content(experiment.resume(path).path) == whole


def test_a_config_that_was_changed_under_a_run_is_refused(job: experiment.Experiment, tmp_path: Path) -> None:
    path, made = tmp_path / "run", tmp_path / "run" / "config.toml"
    stopped(job, path, 5)
    before = made.read_text()
    made.write_text(before.replace("lr = 0.05", "lr = 0.5"))
    with pytest.raises(EquipoiseError, match=r"config\.toml was changed after the run began"):
        experiment.resume(path)
    made.write_text(before)
    experiment.resume(path)
    made.write_text(before.replace("seed = 0", "seed = 7"))
    with pytest.raises(EquipoiseError, match=r"config\.toml is not what was written"):
        experiment.resume(path)


def test_a_folder_with_another_run_is_refused(job: experiment.Experiment, tmp_path: Path) -> None:
    experiment.execute(job, tmp_path / "run")
    other = experiment.build(config.load(TEXT.format(rounds=8)))
    with pytest.raises(EquipoiseError, match="run"):
        experiment.execute(other, tmp_path / "run")


def test_a_finished_run_is_not_run_again(job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path) -> None:
    experiment.execute(job, tmp_path / "run")
    steps: list[int] = []
    again = experiment.execute(job, tmp_path / "run", lambda p: steps.append(p.round))
    assert steps == [] and content(again.path) == whole


def test_a_folder_from_before_there_was_a_setting_means_its_default(
    job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path, made = tmp_path / "run", tmp_path / "run" / "config.toml"
    stopped(job, path, 4)
    old = made.read_bytes().replace(b'personal = "auto"\n', b"")
    assert old != made.read_bytes()
    made.write_bytes(old)
    other = experiment.build(config.load(TEXT.format(rounds=9), ["run.seed=1"]))
    with pytest.raises(EquipoiseError, match="already holds another run"):
        experiment.execute(other, path)
    for go_on in (lambda: experiment.execute(job, path), lambda: experiment.resume(path)):
        assert content(go_on().path) == {**whole, "config.toml": old}


def test_a_run_goes_on_with_other_settings_that_change_no_result(
    job: experiment.Experiment, whole: dict[str, bytes], tmp_path: Path
) -> None:
    path = tmp_path / "run"
    stopped(job, path, 4)
    other = experiment.build(config.load(TEXT.format(rounds=9), ["run.personal=disk"]))
    assert content(experiment.execute(other, path).path) == whole
