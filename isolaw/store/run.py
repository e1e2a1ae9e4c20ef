"""A sweep's directory on disk, safe against a kill at any instant.

::

    DIR/sweep.toml                     as written (when there was a file)
    DIR/sweep.json                     resolved
    DIR/lock                           held by the one engine that writes
    DIR/runs/<run_id>/spec.json
                      points.jsonl     one line per checkpoint
                      problems.json    ids of the problems whose results the lines hold, if they do
                      state/<step>/    what continues the run from there
                      log              what the libraries of a run printed, if they did
                      stop             while it is there the run shall end, with its state
                      DONE             how far it got, or
                      FAILED.json      why it stopped, and the last lines of the log
    DIR/points.parquet                 all runs, sorted by key; can always be rebuilt
    DIR/problems.parquet               results of single problems, where a backend records them

A checkpoint is one appended line. At most once a second, with at most a tenth of the time spent on it,
and at a run's end, the lines are synced and the state is published under a temporary name, synced and
renamed. Runs of less than a second are synced together, by the engine, once a second. On resume, lines
beyond the last published state are cut and a torn last line is dropped, so at most the last second (or ten
times what a state takes to write) is lost and nothing is counted twice. No pickles.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from isolaw import locks
from isolaw.backends.base import Checkpoint
from isolaw.errors import StoreError
from isolaw.parsing import parse_section
from isolaw.runs import Runs
from isolaw.spec import RunSpec, SweepSpec, canonical_json

PUBLISH_EVERY_S = 1.0
PUBLISHING_SHARE = 0.1
# A worker whose engine was killed gets so long to go.
WAIT_FOR_A_RUN_S = 5.0
_LOG_TAIL_BYTES, _LOG_TAIL_LINES = 16_384, 40
FORMAT = "isolaw.sweep/1"
_PIECE_BYTES = 2**24
_LAST_SYNC_S = 5.0
_LINE = {"step", "compute", "tokens", "wall_s", "rows"}


def write_atomically(path: Path, text: str, sync: bool = True) -> None:
    """Write ``text`` under a temporary name, sync it, and rename it to ``path``."""
    with _replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name for what shall become ``path``; of what cannot be finished nothing is left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _has_content(path: Path) -> bool:
    """Whether a file is there, and not left empty by a power cut."""
    return path.is_file() and path.stat().st_size > 0


def _leftovers(folder: Path) -> list[Path]:
    """Temporary files of a writer that was killed."""
    names = ("sweep", "points", "problems", "clock")
    return [path for name in names for path in folder.glob(f".{name}.*.tmp")]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SweepStore:
    """The directory of one sweep.

    Parameters
    ----------
    directory
        an existing sweep, an empty folder, or a path that does not exist yet.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    @property
    def exists(self) -> bool:
        """Whether the directory holds a sweep."""
        return (self.directory / "sweep.json").is_file()

    @property
    def in_use(self) -> bool:
        """Whether an engine holds the directory now."""
        return locks.in_use(self.directory / "lock")

    def claim(self) -> None:
        """Refuse a path that holds something else; nothing is created or changed."""
        d = self.directory
        if d.exists() and not d.is_dir():
            raise StoreError(f"{d}: is a file; accepted: a new directory or a sweep's")
        if d.is_dir() and not self.exists:
            own = {d / "lock", *_leftovers(d)}
            held = sorted(p.name for p in d.iterdir() if p not in own)
            if held:
                shown = ", ".join(held[:4]) + (" …" if len(held) > 4 else "")
                raise StoreError(
                    f"{d}: holds something else ({shown}); accepted: a new or empty directory, or a sweep's"
                )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory as its only engine."""
        self.directory.mkdir(parents=True, exist_ok=True)
        # Long enough for somebody's look at `in_use` to pass.
        with locks.locked(self.directory / "lock", f"{self.directory}", wait_s=0.3):
            for leftover in _leftovers(self.directory):
                leftover.unlink()
            yield

    def read_spec(self) -> SweepSpec:
        """Return the resolved spec of the sweep."""
        data = _read_json(self.directory / "sweep.json")
        if data.pop("format", None) != FORMAT:
            raise StoreError(f"{self.directory / 'sweep.json'}: not an isolaw sweep of format {FORMAT!r}")
        return parse_section(SweepSpec, data, source=str(self.directory / "sweep.json"))

    def write_spec(self, spec: SweepSpec, written: str | None) -> None:
        """Write ``sweep.json``, and ``sweep.toml`` as the user wrote it."""
        data = {"format": FORMAT, **spec.model_dump(mode="json")}
        write_atomically(self.directory / "sweep.json", json.dumps(data, indent=1) + "\n")
        if written is not None:
            write_atomically(self.directory / "sweep.toml", written)

    def run(self, run_id: str) -> RunStore:
        """Return the folder of one run."""
        return RunStore(self.directory / "runs" / run_id)

    def run_ids(self) -> list[str]:
        """Return all runs that the directory holds, sorted."""
        runs = self.directory / "runs"
        return (
            sorted(p.name for p in runs.iterdir() if _has_content(p / "spec.json")) if runs.is_dir() else []
        )

    @contextlib.contextmanager
    def synced(self) -> Iterator[threading.Event]:
        """While entered, what was written is made to survive a power cut, at most once a second.

        Yields what to set when something was. One call for the whole file system (``syncfs``) takes as long
        as one for a single file. Where that has other things to write, its end is not waited for for ever.
        """
        news, ended = threading.Event(), threading.Event()

        def sync() -> None:
            while not ended.wait(PUBLISH_EVERY_S) or news.is_set():
                if news.is_set():
                    news.clear()
                    descriptor = os.open(self.directory, os.O_RDONLY)
                    ctypes.CDLL(None).syncfs(descriptor)
                    os.close(descriptor)

        thread = threading.Thread(target=sync, daemon=True)
        thread.start()
        try:
            yield news
        finally:
            ended.set()
            thread.join(_LAST_SYNC_S)

    def collect(self) -> Runs:
        """Return all recorded checkpoints, also those of unfinished runs."""
        records: list[dict[str, Any]] = []
        problems: list[pd.DataFrame] = []
        attributes = {}
        unfinished = 0
        for run_id in self.run_ids():
            run = self.run(run_id)
            spec = run.read_spec()
            lines = run.lines()
            if lines:
                records += _records(run_id, spec, lines)
                problems += _problem_results(run_id, lines, run.problem_ids())
                attributes[run_id] = attributes_of(spec)
                unfinished += run.done_compute() // spec.batch_rollouts < spec.steps
        if not records:
            raise StoreError(f"{self.directory}: no checkpoint has been recorded yet")
        notes = (f"{unfinished} of {len(attributes)} runs are not finished",) if unfinished else ()
        return Runs(
            pd.DataFrame.from_records(records),
            attributes,
            str(self.directory),
            notes,
            pd.concat(problems, ignore_index=True) if problems else None,
        )

    def publish(self, runs: Runs) -> Path:
        """Write ``points.parquet``, and ``problems.parquet`` where there are results of single problems."""
        path = self.directory / "points.parquet"
        tables = {path: runs.to_parquet}
        if runs.problems is not None:
            tables[self.directory / "problems.parquet"] = runs.problems.to_parquet
        for target, write in tables.items():
            with _replacing(target) as temporary:
                write(temporary)
        return path


class RunStore:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points = folder / "points.jsonl"
        self.states = folder / "state"
        self.log = folder / "log"
        self.stop = folder / "stop"
        self.asked_to_stop = threading.Event()
        self.sync_alone = True

    def create(self, spec: RunSpec) -> None:
        """Write ``spec.json``: a new run, or a known one with another horizon or schedule."""
        self.folder.mkdir(parents=True, exist_ok=True)
        text = canonical_json(spec.model_dump(mode="json"))
        path = self.folder / "spec.json"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text, sync=False)  # the engine syncs all of them together

    def read_spec(self) -> RunSpec:
        """Return the run's spec."""
        path = self.folder / "spec.json"
        return parse_section(RunSpec, _read_json(path), source=str(path))

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the run stopped, or None."""
        path = self.folder / "FAILED.json"
        return _read_json(path) if path.is_file() else None

    def done_compute(self) -> int:
        """Return the horizon up to which the run is finished, 0 if it is not.

        A marker that is damaged, or says more than the lines that are there, is not believed.
        """
        path = self.folder / "DONE"
        if not path.is_file():
            return 0
        try:
            marker = _read_json(path)
            compute, step, checkpoints = (int(marker[key]) for key in ("compute", "step", "checkpoints"))
            lines = self.lines()
        except (StoreError, KeyError, TypeError, ValueError):
            return 0
        return compute if len(lines) == checkpoints and lines and lines[-1]["step"] == step else 0

    def state(self) -> Path | None:
        """Return the last published state's folder, or None."""
        steps = [p for p in self.states.iterdir() if p.name.isdigit()] if self.states.is_dir() else []
        return max(steps, key=lambda p: int(p.name)) if steps else None

    def lines(self) -> list[dict[str, Any]]:
        """Return the checkpoints recorded so far; a torn last line is left out."""
        if not self.points.is_file():
            return []
        whole, _, _torn = self.points.read_bytes().rpartition(b"\n")
        out = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not set(record) >= _LINE:
                raise StoreError(f"{self.points}: line {number} is not a checkpoint; the file was damaged")
            out.append(record)
        return out

    def settled(self) -> list[dict[str, Any]]:
        """Return the checkpoints that no resume cuts: those up to the last published state."""
        state = self.state()
        return [line for line in self.lines() if state is not None and line["step"] <= int(state.name)]

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Hold the run as its only writer."""
        return locks.locked(self.folder / "lock", f"{self.folder}", wait_s=WAIT_FOR_A_RUN_S)

    def ask_to_stop(self) -> None:
        """Let whoever makes the run keep its state and end; a file, so that any machine can ask."""
        with contextlib.suppress(OSError):  # a disk that cannot be written stops it anyway
            self.stop.touch()

    def is_asked_to_stop(self) -> bool:
        """Return whether somebody did."""
        return self.asked_to_stop.is_set() or os.path.exists(self.stop)  # asked often, and quick

    def proceed(self) -> None:
        """Take that back: the run shall be made."""
        with contextlib.suppress(OSError):  # what is wrong with the folder is the run's to report
            self.stop.unlink(missing_ok=True)

    def resume(self) -> tuple[Path | None, float]:
        """Cut what lies beyond the last published state; return that state and the seconds spent."""
        self.states.mkdir(exist_ok=True)
        (self.folder / "FAILED.json").unlink(missing_ok=True)
        state = self.state()
        for leftover in [*self.states.iterdir(), *self.folder.glob(".*.tmp")]:
            if leftover != state:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        last = int(state.name) if state else -1
        kept = [line for line in self.lines() if line["step"] <= last]
        if state is not None and (not kept or kept[-1]["step"] != last):
            # The state outlived its line (a damaged disk): start the run again rather than guess.
            shutil.rmtree(self.states)
            self.states.mkdir()
            state, kept = None, []
        whole = "".join(json.dumps(line) + "\n" for line in kept)
        if self.points.exists() and self.points.read_text(encoding="utf-8", errors="replace") != whole:
            write_atomically(self.points, whole)
        return state, float(kept[-1]["wall_s"]) if kept else 0.0

    def record(self, checkpoints: Iterator[Checkpoint], wall_s: float) -> Iterator[Checkpoint]:
        """Append each checkpoint, publish states at most once a second, and pass them on.

        A run that is asked to stop ends with the next of them, and its state.
        """
        started = time.monotonic() - wall_s
        began = published = time.monotonic()
        took = 0.0
        # What a short run would lose is soon made again: the engine syncs many of them together.
        self.sync_alone = self.state() is not None
        with self.points.open("a", encoding="utf-8") as file:
            for checkpoint in checkpoints:
                self._keep_problem_ids(checkpoint)
                file.write(json.dumps(checkpoint.line(time.monotonic() - started), allow_nan=False) + "\n")
                file.flush()
                now = time.monotonic()
                due = now - published >= max(PUBLISH_EVERY_S, took / PUBLISHING_SHARE)
                last = checkpoint.final or self.is_asked_to_stop()
                self.sync_alone = self.sync_alone or now - began >= PUBLISH_EVERY_S
                if due or last:
                    self._publish(file, checkpoint)
                    published = time.monotonic()
                    took = published - now
                yield checkpoint
                if last:
                    return

    def problem_ids(self) -> dict[str, list[str]]:
        """Return the ids of the problems of each evaluation set whose single results are recorded."""
        path = self.folder / "problems.json"
        return _read_json(path) if path.is_file() else {}

    def _keep_problem_ids(self, checkpoint: Checkpoint) -> None:
        if checkpoint.counts:
            known = self.problem_ids()
            new = {c.eval_set: list(c.problem_ids) for c in checkpoint.counts if c.eval_set not in known}
            if new:
                write_atomically(self.folder / "problems.json", json.dumps({**known, **new}))

    def _publish(self, points: TextIO, checkpoint: Checkpoint) -> None:
        if self.sync_alone:
            os.fsync(points.fileno())
        temporary = self.states / f".{checkpoint.step}"
        temporary.mkdir()
        checkpoint.save(temporary)
        self._keep_state(temporary)

    def _keep_state(self, temporary: Path) -> None:
        """Publish the state in ``.<step>`` in place of the one before."""
        for path in temporary.rglob("*") if self.sync_alone else ():
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        before = self.state()
        temporary.rename(self.states / temporary.name.removeprefix("."))
        if self.sync_alone:
            _sync_folder(self.states)
        if before is not None:
            shutil.rmtree(before)

    def pieces(self) -> Iterator[dict[str, Any]]:
        """Yield what is settled of the run, in pieces that `accept` puts together elsewhere."""
        state = self.state()
        if state is not None:
            for path in sorted(p for p in state.rglob("*") if p.is_file()):
                name = f"state/.{state.name}/{path.relative_to(state)}"
                with path.open("rb") as file:
                    while data := file.read(_PIECE_BYTES):
                        yield {"append": name, "data": data}
        for path in (self.folder / name for name in ("problems.json", "points.jsonl")):
            if path.is_file():
                yield {"write": path.name, "text": path.read_text(encoding="utf-8")}
        if state is not None:
            yield {"publish": state.name}

    def accept(self, piece: dict[str, Any]) -> None:
        """Take a piece of a run that is made elsewhere: of a file, a whole file, or that a state is whole."""
        if "append" in piece:
            path = self.folder / piece["append"]
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(piece["data"])
        elif "write" in piece:
            write_atomically(self.folder / piece["write"], piece["text"])
        else:
            self._keep_state(self.states / f".{piece['publish']}")

    def finish(self, compute: int) -> None:
        """Mark the run as finished up to ``compute``, and with which lines."""
        lines = self.lines()
        marker = {"compute": compute, "step": lines[-1]["step"], "checkpoints": len(lines)}
        write_atomically(self.folder / "DONE", json.dumps(marker) + "\n", sync=self.sync_alone)

    def restart(self) -> None:
        """Forget all that was recorded: its state cannot be continued from."""
        shutil.rmtree(self.states, ignore_errors=True)
        self.points.unlink(missing_ok=True)

    def fail(self, cause: str, details: str) -> None:
        """Record why the run stopped, with the last lines of its log."""
        failure = {"cause": cause, "details": details, "unix_time": int(time.time()), "log": self._log_tail()}
        write_atomically(self.folder / "FAILED.json", json.dumps(failure, indent=1) + "\n")

    def _log_tail(self) -> list[str]:
        if not self.log.is_file():
            return []
        with self.log.open("rb") as file:
            file.seek(-min(_LOG_TAIL_BYTES, self.log.stat().st_size), os.SEEK_END)
            return file.read().decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]


def _records(run_id: str, spec: RunSpec, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    run = {
        "run_id": run_id,
        "problem_set": spec.problems.set,
        "algorithm": spec.recipe.algorithm,
        "problems_per_batch": spec.problems_per_batch,
        "rollouts_per_problem": spec.rollouts_per_problem,
        "seed": spec.seed,
    }
    per_line = ("step", "compute", "tokens", "wall_s")
    return [{**run, **{k: line[k] for k in per_line}, **row} for line in lines for row in line["rows"]]


def _problem_results(
    run_id: str, lines: list[dict[str, Any]], ids: dict[str, list[str]]
) -> list[pd.DataFrame]:
    return [
        pd.DataFrame(
            {
                "run_id": run_id,
                "step": line["step"],
                "eval_set": eval_set,
                "problem_id": ids[eval_set],
                "correct": counts["correct"],
                "samples": counts["samples"],
            }
        )
        for line in lines
        for eval_set, counts in line.get("counts", {}).items()
    ]


def attributes_of(spec: RunSpec) -> dict[str, Any]:
    """Return what rides on a run beside its columns: backend, recipe, D, model."""
    recipe = spec.recipe.model_dump(exclude={"algorithm"}, exclude_none=True)
    own: dict[str, Any] = {"backend": spec.backend, **recipe, **spec.options.get("recorded", {})}
    if spec.backend != "replay" and spec.problems.n_train is not None:
        own["n_train_problems"] = spec.problems.n_train
    if "model" in spec.sources:
        own["model"] = Path(spec.sources["model"]).name
    return own


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise StoreError(f"{path}: not a JSON object")
    return data
