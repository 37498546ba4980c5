"""One run on the disk: one writer, any number of readers, and nothing half written for them to see."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from equipoise import files
from equipoise.errors import EquipoiseError
from equipoise.layout import Layout
from equipoise.results.result import Result, State, parse_config
from equipoise.results.rows import CLIENTS, Rows, arrow, parquet, table_of

_PART = re.compile(r"(rounds|clients)-(\d{6,})\.(json|arrow)")
_OWN = "personal.safetensors"
_CHECKED = ("own", "data")  # of the environment: a run with others is refused
_RESULTS = ("rounds.parquet", "clients.parquet", "summary.json", "model.safetensors", _OWN)
IN_PYTHON = "# made from Python"
"""How the config.toml of a run begins that has no config."""
_BEFORE_CONFIG = {".lock", "environment.json", "status.json", "log.txt"}


class RunFolder:
    """One run on the disk. `create` for the one writer, `open` for readers."""

    models = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._lock = files.Lock(self.path)
        self._writing = False
        self._rows = Rows()
        self._parts: dict[str, str] = {}
        self._timings: dict[int, dict[str, float]] = {}

    @classmethod
    def create(cls, path: Path | str, config: bytes, environment: Mapping[str, Any]) -> RunFolder:
        """Start a run, or go on with the one of the same config; what a killed writer left half done is put right."""
        run = cls(path)
        _refuse_foreign(run.path)
        files.make_folder(run.path)
        run._lock.acquire()
        try:
            run._prepare(config, environment)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        if not (Path(path) / "config.toml").is_file():
            raise EquipoiseError(f"{path} is not a run folder: it has no config.toml", "give the --out of a run")
        return cls(path)

    def _prepare(self, config: bytes, environment: Mapping[str, Any]) -> None:
        self._writing = True
        files.clean(self.path)
        if not (self.path / "config.toml").exists():
            files.write_atomic(self.path / "environment.json", _environment(environment))
            self.mark("running", 0)
            files.write_atomic(self.path / "config.toml", config)  # last: from here on it is a run
        elif self.config != config:
            hint = f"{self.goes_on}; for a new run choose another {_out(config)}"
            raise EquipoiseError(f"{self.path} already holds another run: its config.toml differs", hint)
        else:
            self.same_files(environment.get("own", {}))
            self.same_data(environment.get("data"))
            if self.finished:
                self._wind_up()
                return
            self._note_changes(environment)
        files.make_folder(self.path / "parts")
        self._parts = {name: files.sha256(self.path / name) for name in self._on_disk()}
        self._timings = self._read_timings()
        self.mark("running", max(map(_round_of, self._parts), default=0))

    def same_files(self, own: Mapping[str, str]) -> None:
        """An error if the run was made with other files of the user's own than these."""
        then = own if self.own is None else self.own
        told = [
            f"the file of {name} is not the one that {self.path} was made with: "
            f"sha256 {_short(then.get(name))} then, {_short(own.get(name))} now"
            for name in sorted({*then, *own})
            if then.get(name) != own.get(name)
        ]
        if told:
            raise EquipoiseError("; ".join(told), f"put the file back as it was, or {self._anew}")

    def same_data(self, now: str | None) -> None:
        """An error if the run was made with other data; nothing, where either is not known."""
        then = self.data
        if now and then and now != then:
            sums = f"sha256 {_short(then)} then, {_short(now)} now"
            hint = f"put the data back as they were, or {self._anew}"
            raise EquipoiseError(f"the data are not those that {self.path} was made with: {sums}", hint)

    def _note_changes(self, environment: Mapping[str, Any]) -> None:
        """What was not noted in the beginning, because nobody did, is no change."""
        path, held = self.path / "environment.json", self._held()
        now = {n: v for n, v in environment.items() if n in held or n not in _CHECKED}
        if not path.exists() or files.read_bytes(path) != _environment(now):
            self.log("resumed in another environment than environment.json has: numbers may differ in the last bits")

    def _read_timings(self) -> dict[int, dict[str, float]]:
        try:
            return {row.pop("round"): row for row in files.read_json(self.path / "timings.json")["rounds"]}
        except (EquipoiseError, LookupError, TypeError, AttributeError):  # none yet, or damaged: no result needs them
            return {}

    def close(self) -> None:
        self._writing = False
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what there is

    @property
    def config(self) -> bytes:
        return files.read_bytes(self.path / "config.toml")

    @property
    def own(self) -> dict[str, str] | None:
        """The user's own parts in it, with the sha256 of the file of each; None: none, or older than this record."""
        own = self._held().get("own")
        return own if isinstance(own, dict) else None

    @property
    def data(self) -> str | None:
        """The fingerprint of its data; None: they were not the user's own, or it is older than this record."""
        data = self._held().get("data")
        return data if isinstance(data, str) else None

    def _held(self) -> dict[str, Any]:
        """Its environment.json, or nothing."""
        try:
            held = files.read_json(self.path / "environment.json")
        except EquipoiseError:
            return {}
        return held if isinstance(held, dict) else {}

    @property
    def in_python(self) -> bool:
        """Whether it was made by a script, which alone can make its parts again."""
        return _in_python(self.config)

    @property
    def goes_on(self) -> str:
        """What goes on with it, in words."""
        if self.in_python:
            return "eq.run with the same arguments and the same out= goes on with it"
        return f"equipoise resume {shlex.quote(str(self.path))} goes on with it"

    @property
    def _anew(self) -> str:
        return f"run anew: with another {_out(self.config)}, or after removing this folder"

    @property
    def status(self) -> dict[str, Any]:
        """{"state": "running" | "interrupted" | "finished" | "failed", "round": how many are done, "reason": str}"""
        return dict(files.read_json(self.path / "status.json"))

    @property
    def finished(self) -> bool:
        return (self.path / "checksums.json").exists()

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """(name, sha256) of all files with rows so far: what a checkpoint has to name."""
        return tuple(sorted(self._parts.items()))

    def _on_disk(self) -> list[str]:
        folder = self.path / "parts"
        with files.disk("read", folder):
            names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        return sorted(f"parts/{name}" for name in names if _PART.fullmatch(name))

    # -- writing

    def _check_writing(self) -> None:
        if not self._writing:
            raise EquipoiseError(f"{self.path} is open for reading only", "RunFolder.create opens it for writing")

    def append(self, name: str, columns: Mapping[str, Any]) -> None:
        """Rows for the table "clients" (arrays), or one row for "rounds" (scalars); written at the next flush."""
        self._rows.append(name, columns)

    def time(self, round: int, seconds: Mapping[str, float]) -> None:
        """Wall times of a round; written at the next flush."""
        self._timings[round] = dict(seconds)

    def mark(self, state: State, round: int, reason: str = "") -> None:
        self._check_writing()
        files.write_json(self.path / "status.json", {"state": state, "round": round, "reason": reason})

    def log(self, line: str) -> None:
        self._check_writing()
        with files.disk("write", self.path / "log.txt"), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(line.rstrip("\n") + "\n")

    def flush(self, round: int) -> tuple[tuple[str, str], ...]:
        """Write the rows since the last flush, a file for each table; returns their names and checksums."""
        self._check_writing()
        latest = max(map(_round_of, self._parts), default=-1)
        data: dict[str, bytes] = {}
        if self._rows.rounds:
            data[f"parts/rounds-{round:06d}.json"] = (json.dumps(self._rows.rounds, sort_keys=True) + "\n").encode()
        if self._rows.clients:
            data[f"parts/clients-{round:06d}.arrow"] = arrow(self._rows.clients)
        if data and round <= latest:
            raise EquipoiseError(f"flush: round {round} after round {latest}", "one flush a round, after all its rows")
        new = {name: files.write_atomic(self.path / name, content) for name, content in data.items()}
        self._parts, self._rows = {**self._parts, **new}, Rows()
        rows = [{"round": r, **self._timings[r]} for r in sorted(self._timings)]
        files.write_json(self.path / "timings.json", {"rounds": rows})
        return tuple(new.items())

    def discard_after(self, round: int) -> None:
        """Forget all rows of later rounds: a run resumed after `round` makes them again. -1 forgets everything."""
        self._check_writing()
        self._rows = Rows()
        for name in [name for name in self._parts if _round_of(name) > round]:
            files.remove(self.path / name)
            del self._parts[name]

    def finish(
        self,
        summary: Mapping[str, Any],
        model: Tensor,
        personal: Mapping[int, Tensor] | None = None,
        layout: Layout | None = None,
    ) -> Result:
        """Write the results. Killed at any point and called again, it leaves the same bytes.

        With a `layout`, model.safetensors holds the model's named tensors instead of one vector.
        """
        self._check_writing()
        if not self.finished:
            rows = _read_parts(self.path, self._parts)
            rows.rounds += self._rows.rounds
            rows.clients += self._rows.clients
            data = {"rounds.parquet": parquet(rows.rounds_table()), "clients.parquet": parquet(rows.clients_table())}
            data["summary.json"] = files.encode_json(summary)
            data["model.safetensors"] = _encode_model(model, layout)
            if personal is not None:
                data[_OWN] = _encode_personal(personal)
            sums = {name: files.write_atomic(self.path / name, content) for name, content in data.items()}
            sums["config.toml"] = files.sha256(self.path / "config.toml")
            files.write_json(self.path / "checksums.json", {"round": len(rows.rounds), "sha256": sums})
        self._wind_up()
        return load_result(self.path)

    def _wind_up(self) -> None:
        files.clean(self.path)
        files.remove_folder(self.path / "parts")
        files.remove_folder(self.path / "checkpoint")
        self._parts, self._rows = {}, Rows()
        self.mark("finished", _checksums(self.path)[0])


def _in_python(config: bytes) -> bool:
    return config.startswith(IN_PYTHON.encode())


def _out(config: bytes) -> str:
    """What says where a run's folder is, to whoever made it."""
    return "out=" if _in_python(config) else "--out"


def _short(sha256: object) -> str:
    return f"{sha256!s:.12}..." if sha256 else "none"


def _environment(environment: Mapping[str, Any]) -> bytes:
    return files.encode_json({**environment, "pyarrow": pa.__version__})


def _checksums(path: Path) -> tuple[int, dict[str, str]]:
    """The last round of a finished run, and the sha256 of each of its results."""
    match files.read_json(path / "checksums.json"):
        case {"round": int(last), "sha256": dict(sums)}:
            return last, sums
    raise EquipoiseError(f"{path / 'checksums.json'} is not what was written", "the file is damaged")


def _round_of(part: str) -> int:
    return int(part.rpartition("-")[2].partition(".")[0])


def _refuse_foreign(path: Path) -> None:
    """A folder that is no run's is left alone: finishing a run removes things."""
    if not path.is_dir() or (path / "config.toml").exists():
        return
    foreign = [p.name for p in path.iterdir() if p.name not in _BEFORE_CONFIG and not files.is_partial(p.name)]
    if foreign:
        raise EquipoiseError(f"{path} holds {sorted(foreign)[0]!r} and no run", "choose a new or empty folder as --out")


def _encode_model(model: Tensor, layout: Layout | None) -> bytes:
    tensors = layout.tensors(model) if layout and layout.slots else {"model": model}
    return files.encode_tensors(tensors, {"order": list(tensors)})


def _encode_personal(personal: Mapping[int, Tensor]) -> bytes:
    ids = sorted(personal)
    rows = torch.stack([personal[i].detach().cpu() for i in ids]) if ids else torch.empty(0, 0)
    return files.encode_tensors({"ids": torch.tensor(ids, dtype=torch.int64), "rows": rows})


def _read_parts(path: Path, parts: Mapping[str, str | None]) -> Rows:
    rows = Rows()
    for name in sorted(parts, key=_round_of):
        data = _checked(path / name, parts[name])
        if name.endswith(".json"):
            rows.rounds += files.decode_json(data, path / name)
        else:
            rows.clients.append(_read_arrow(data, path / name))
    return rows


def _read_arrow(data: bytes, where: Path) -> pa.Table:
    try:
        table = pa.ipc.open_file(data).read_all()
        table.validate(full=True)
        return table.cast(CLIENTS)
    except (pa.ArrowException, OSError, ValueError) as e:
        raise EquipoiseError(f"{where} cannot be read: {e}", "the file is damaged") from None


def _checked(path: Path, digest: str | None) -> bytes:
    data = files.read_bytes(path)
    if digest is not None and hashlib.sha256(data).hexdigest() != digest:
        raise EquipoiseError(
            f"{path} is not what was written",
            "the file was damaged or changed; restore it, or remove the folder and run again",
        )
    return data


def load_result(path: Path | str) -> Result:
    """Read a run folder; of one that is not finished, the rows so far, and a note."""
    run = RunFolder.open(path)
    for _ in range(5):  # a run may finish under our eyes, and put its tables in the place of its parts
        try:
            return _read_finished(run) if run.finished else _read_unfinished(run)
        except EquipoiseError as e:
            if not isinstance(e.__cause__, FileNotFoundError):
                raise
            error = e
    raise error


def _decoded(data: bytes) -> pa.Table:
    """Without pyarrow's threads: one that lets go of the bytes while Python is exiting aborts the process."""
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _read_finished(run: RunFolder) -> Result:
    _, sums = _checksums(run.path)
    there = [name for name in _RESULTS if name in sums or name != _OWN or (run.path / name).exists()]
    data = {name: _checked(run.path / name, sums.get(name, "")) for name in there}
    rounds, clients = (table_of(_decoded(data[name])) for name in _RESULTS[:2])
    tensors, metadata = files.decode_tensors(data["model.safetensors"], run.path / "model.safetensors")
    model = torch.cat([tensors[name].reshape(-1) for name in metadata["order"]])
    personal = None
    if _OWN in data:
        own, _ = files.decode_tensors(data[_OWN], run.path / _OWN)
        personal = dict(zip(own["ids"].tolist(), own["rows"], strict=True))
    summary = files.decode_json(data["summary.json"], run.path / "summary.json")
    config = _checked(run.path / "config.toml", sums.get("config.toml"))
    return Result(clients, rounds, summary, model, personal, parse_config(config), run.path)


def _read_unfinished(run: RunFolder) -> Result:
    rows = _read_parts(run.path, dict.fromkeys(run._on_disk()))
    status = run.status
    reason = f" ({status['reason']})" if status["reason"] else ""
    note = f"not finished: {status['state']} at round {status['round']}{reason}"
    rounds, clients = table_of(rows.rounds_table()), table_of(rows.clients_table())
    return Result(clients, rounds, {}, None, None, parse_config(run.config), run.path, note)


def verify(path: Path | str) -> list[str]:
    """What is wrong with a finished run folder, in words; empty if nothing is."""
    run = RunFolder.open(path)
    if not run.finished:
        return [f"{path} is not finished"]
    try:
        _, sums = _checksums(run.path)
    except EquipoiseError as e:
        return [e.message]
    missing = [name for name in sums if not (run.path / name).is_file()]
    changed = [name for name in sums if name not in missing and files.sha256(run.path / name) != sums[name]]
    return [f"{name} is missing" for name in missing] + [f"{name} is not what was written" for name in changed]
