"""`RunStore`: the folder of one run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from isolaw import locks
from isolaw.backends.base import Checkpoint
from isolaw.errors import StoreError
from isolaw.parsing import parse_section
from isolaw.spec import RunSpec, canonical_json
from isolaw.store.files import read_json, sync_folder, write_atomically

PUBLISH_EVERY_S = 1.0
PUBLISHING_SHARE = 0.1
# A worker whose engine was killed gets so long to go.
WAIT_FOR_A_RUN_S = 5.0
_LOG_TAIL_BYTES, _LOG_TAIL_LINES = 16_384, 40
_PIECE_BYTES = 2**24
_LINE = {"step", "compute", "tokens", "wall_s", "rows"}


class RunStore:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked_to_stop = threading.Event()
        self.sync_alone = True
        self._checkpoints, self._step = 0, 0  # that `points` has, and the last of them

    # A plan looks at thousands of folders, and at little in each.
    @cached_property
    def points(self) -> Path:
        """The file with a line for each checkpoint."""
        return self.folder / "points.jsonl"

    @cached_property
    def states(self) -> Path:
        """The folder of the states that the run can be continued from."""
        return self.folder / "state"

    @cached_property
    def log(self) -> Path:
        """The file with what libraries printed."""
        return self.folder / "log"

    @cached_property
    def stop(self) -> Path:
        """The file that asks the run to end."""
        return self.folder / "stop"

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
        return parse_section(RunSpec, read_json(path), source=str(path))

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the run stopped, or None."""
        path = self.folder / "FAILED.json"
        if not path.is_file():
            return None
        try:
            return read_json(path)
        except StoreError as error:
            return {"cause": f"not known: {error}"}

    def done_compute(self, lines: list[dict[str, Any]] | None = None) -> int:
        """Return the horizon up to which the run is finished, 0 if it is not.

        A marker that is damaged, or says more than the lines that are there, is not believed. ``lines`` are
        the run's, where they have been read already.
        """
        path = self.folder / "DONE"
        if not path.is_file():
            return 0
        try:
            marker = read_json(path)
            compute, step, checkpoints = (int(marker[key]) for key in ("compute", "step", "checkpoints"))
            lines = self.lines() if lines is None else lines
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

    @property
    def in_use(self) -> bool:
        """Whether somebody is making the run."""
        return locks.in_use(self.folder / "lock")

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
        self._checkpoints, self._step = len(kept), max(last, 0) if kept else 0
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
                self._checkpoints, self._step = self._checkpoints + 1, checkpoint.step
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
        return read_json(path) if path.is_file() else {}

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
            sync_folder(self.states)
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
        """Mark the run, resumed and recorded before, as finished up to ``compute``, and with which lines."""
        marker = {"compute": compute, "step": self._step, "checkpoints": self._checkpoints}
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
