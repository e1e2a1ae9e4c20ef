"""`RunStore`: the folder of one run."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from isolaw.backend import Checkpoint
from isolaw.config import RunSpec
from isolaw.documents import seal
from isolaw.documents.reading import parse_json
from isolaw.documents.seal import canonical_json
from isolaw.documents.validation import parse_section
from isolaw.errors import Damaged, InputError, NotOurs, StoreError
from isolaw.store import checksums, locks
from isolaw.store.checksums import Lines
from isolaw.store.folder import EntryKind, Folder, SweepFolders
from isolaw.store.states import STATE, States

PUBLISH_EVERY_S = 1.0
PUBLISHING_SHARE = 0.1
# Time for a worker to end after its engine was killed.
WAIT_FOR_A_RUN_S = 5.0
_LOG_TAIL_BYTES, _LOG_TAIL_LINES = 16_384, 40
SPEC, POINTS, PROBLEMS, LOG, STOP = "spec.json", "points.jsonl", "problems.json", "log", "stop"
DONE, FAILED, MEETING = "DONE", "FAILED.json", "meeting.json"
OUT = "out"
# Everything that isolaw creates in a run's folder.
OWN: dict[str, EntryKind] = {
    **dict.fromkeys((SPEC, POINTS, PROBLEMS, LOG, STOP, DONE, FAILED, MEETING, locks.NAME), "file"),
    STATE: "folder",
    OUT: "folder",  # its content belongs to the trainer
}


class RunStore:
    """The folder of one run of a sweep.

    ``damage`` lists what `resume` found damaged. Setting ``asked_to_stop`` ends the run from inside.
    """

    def __init__(self, sweep: SweepFolders, run_id: str) -> None:
        self.run_id, self.sweep = run_id, sweep
        self.asked_to_stop = threading.Event()
        self.sync_alone = True
        self.damage: list[str] = []
        self.states = States(sweep, run_id)
        self._opened: Folder | None = None
        # Number of recorded checkpoints, and step and line checksum of the last one.
        self._checkpoints, self._step, self._crc = 0, 0, 0
        self._continues = False  # whether the run continues from a state

    @property
    def folder(self) -> Path:
        """The folder's path, for messages and for other processes that open it."""
        return self.sweep.directory / "runs" / self.run_id

    @property
    def out(self) -> Path:
        """The folder that a backend's trainer writes to."""
        return self.folder / OUT

    def open(self, make: bool = True) -> Folder:
        """Open the folder; without ``make``, raise FileNotFoundError if it does not exist."""
        if self._opened is None:
            self._opened = self.sweep.runs(make).folder(self.run_id, make)
        return self._opened

    def _status(self, name: str) -> os.stat_result | None:
        with contextlib.suppress(FileNotFoundError):
            return self.open(make=False).status(name)
        return None

    def _read(self, name: str) -> bytes | None:
        with contextlib.suppress(FileNotFoundError):
            return self.open(make=False).read(name)
        return None

    def _document(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(FileNotFoundError):
            return checksums.read(self.open(make=False), name, self.run_id)
        return None

    def create(self, spec: RunSpec) -> None:
        """Write ``spec.json`` for a new run, or for a known one with another horizon or schedule."""
        text = canonical_json(seal.sealed(spec.model_dump(mode="json"), self.run_id)).encode()
        if self._read(SPEC) != text:
            self.open().write(SPEC, text, sync=False)  # the engine syncs all of them together

    def read_spec(self) -> RunSpec:
        """Return the run's spec; raise `Damaged` if it is missing or changed."""
        path = self.folder / SPEC
        document = self._document(SPEC)
        if document is None:
            raise Damaged(f"{path}: missing")
        try:
            return parse_section(RunSpec, document, source=str(path))
        except InputError as error:  # written by another version
            raise Damaged(str(error)) from None

    def recorded(self) -> Lines:
        """Return the checkpoints recorded so far, without damaged lines and a torn last line."""
        marker = None
        with contextlib.suppress(Damaged, NotOurs):  # read before the lines, as the run may be active
            marker = self._document(DONE)
        try:
            lines = Lines.of(self.run_id, self._read(POINTS) or b"", marker)
        except Damaged as error:
            return replace(Lines.of(self.run_id), damage=str(error))
        if lines.damage:
            lines.damage = f"{self.folder / POINTS}: {lines.damage}"
        return lines

    def settled(self) -> list[dict[str, Any]]:
        """Return the checkpoints up to the last published state, which a resumed run never removes."""
        return self.recorded().up_to(self.last_state).checkpoints

    @property
    def last_state(self) -> int | None:
        """The step of the last published state, or None."""
        return next(iter(self.states.steps()), None)

    @property
    def failure(self) -> dict[str, Any] | None:
        """The reason why the run stopped, or None."""
        content = self._read(FAILED)
        try:
            return None if content is None else parse_json(content)
        except ValueError as error:
            return {"cause": f"the cause is unknown: {self.folder / FAILED} is damaged ({error})"}

    @property
    def bytes_recorded(self) -> int:
        """The size of ``points.jsonl``."""
        return status.st_size if (status := self._status(POINTS)) else 0

    @property
    def recorded_at(self) -> float:
        """The Unix time at which ``points.jsonl`` last changed."""
        return status.st_mtime if (status := self._status(POINTS)) else 0.0

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process is the only writer of the run."""
        return locks.locked(self.open(), wait_s=WAIT_FOR_A_RUN_S)

    @property
    def holder(self) -> str | None:
        """The process that has locked the run, None if no process has."""
        with contextlib.suppress(FileNotFoundError):
            return locks.holder(self.open(make=False))
        return None

    def ask_to_stop(self) -> None:
        """Ask the process that holds the run to save its state and end, by a file that any machine sees."""
        with contextlib.suppress(OSError):  # an unwritable disk stops the run anyway
            os.close(self.open().open(STOP, os.O_WRONLY | os.O_CREAT))

    def is_asked_to_stop(self) -> bool:
        """Return whether the run is asked to end."""
        return self.asked_to_stop.is_set() or self.open().status(STOP) is not None

    def proceed(self) -> None:
        """Withdraw the request that `ask_to_stop` made."""
        with contextlib.suppress(OSError):  # the run itself reports problems with its folder
            self.open().remove(STOP)

    def resume(self) -> tuple[Path | None, float]:
        """Cut the lines beyond the last sound state; return that state's folder and the seconds spent."""
        here = self.open()
        self.forget_failure()
        here.remove_leftovers((*OWN, locks.CLOCK))
        lines = self.recorded()
        step, damage = self._last_sound(lines)
        damage += [lines.damage] if lines.damage else []
        try:
            _ = lines.marker or self._document(DONE)
        except Damaged as error:
            damage.append(str(error))
        onward = "starts again" if step is None else f"continues from step {step}"
        self.damage = [f"{cause}; the run {onward}" for cause in damage]
        self.states.keep(step)
        kept = lines.up_to(step)
        if (size := sum(kept.sizes)) != self.bytes_recorded:
            here.write(POINTS, (here.read(POINTS) or b"")[:size] if size else b"")
        if lines.marker is None or lines.marker["lines"] not in kept.marks:
            here.remove(DONE)
        self._checkpoints, self._crc = len(kept.checkpoints), kept.crcs[-1]
        self._step, self._continues = step or 0, step is not None
        if step is None:
            return None, 0.0
        return self.states.folder(step), float(kept.checkpoints[-1]["wall_s"])

    def _last_sound(self, lines: Lines) -> tuple[int | None, list[str]]:
        """Return the last state whose checksum its line confirms, and the problems with later states."""
        damage: list[str] = []
        for step in self.states.steps():
            if step in lines.states:
                if self.states.is_sound(step, lines.states[step]):
                    return step, damage
                damage.append(f"{self.states.folder(step)}: damaged: its checksum does not match")
            elif not lines.damage:  # otherwise a consequence of that damage
                damage.append(f"{self.states.folder(step)}: {POINTS} has no line for this state")
        return None, damage

    def record(self, checkpoints: Iterator[Checkpoint], wall_s: float) -> Iterator[Checkpoint]:
        """Append each checkpoint, publish states at most once a second, and yield the checkpoints.

        A run that is asked to stop ends with the next checkpoint, and publishes its state.
        """
        started = time.monotonic() - wall_s
        began = published = time.monotonic()
        took = 0.0
        # A short run is quickly repeated, so the engine syncs many of them together.
        self.sync_alone = self._continues
        # Buffered, since on a full disk the kernel may write part of a line without an error.
        with os.fdopen(self.open().open(POINTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
            for checkpoint in checkpoints:
                self._keep_problem_ids(checkpoint)
                now = time.monotonic()
                line = checkpoint.line(now - started)
                due = now - published >= max(PUBLISH_EVERY_S, took / PUBLISHING_SHARE)
                last = checkpoint.final or self.is_asked_to_stop()
                self.sync_alone = self.sync_alone or now - began >= PUBLISH_EVERY_S
                state = None
                if (due or last) and checkpoint.save is not None:
                    state = self.states.write(checkpoint.step, checkpoint.save, self.sync_alone)
                text, self._crc = checksums.line(line, self._crc, state)
                file.write(text)
                file.flush()
                self._checkpoints, self._step = self._checkpoints + 1, checkpoint.step
                if state:
                    if self.sync_alone:
                        os.fsync(file.fileno())
                    self.states.publish(checkpoint.step, self.sync_alone)
                    published = time.monotonic()
                    took = published - now
                yield checkpoint
                if last:
                    return

    def problem_ids(self) -> dict[str, list[str]]:
        """Return the problem ids of each evaluation set with single results; may raise `Damaged`."""
        return (self._document(PROBLEMS) or {}).get("sets", {})

    def _keep_problem_ids(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.counts:
            return
        known: dict[str, list[str]] = {}
        with contextlib.suppress(Damaged):
            known = self.problem_ids()
        new = {c.eval_set: list(c.problem_ids) for c in checkpoint.counts if c.eval_set not in known}
        if new:
            checksums.write(self.open(), PROBLEMS, {"sets": {**known, **new}}, self.run_id)

    def finish(self, compute: int) -> None:
        """After `resume` and `record`, mark the run as finished to ``compute`` with the lines so far."""
        lines = {"step": self._step, "checkpoints": self._checkpoints, "lines": f"{self._crc:08x}"}
        marker = {"compute": compute, **lines}
        text = json.dumps(seal.sealed(marker, self.run_id)).encode()
        self.open().write(DONE, text + b"\n", sync=self.sync_alone)

    def fail(self, cause: str, details: str) -> None:
        """Record why the run stopped, with the last lines of its log."""
        failure = {"cause": cause, "details": details, "unix_time": int(time.time()), "log": self._log_tail()}
        self.open().write(FAILED, f"{json.dumps(failure, indent=1)}\n".encode())

    def forget_failure(self) -> None:
        """Remove ``FAILED.json``, in which `fail` recorded a failure."""
        self.open().remove(FAILED)

    def open_log(self) -> int:
        """Open the log for appending, and return its descriptor."""
        return self.open().open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def _log_tail(self) -> list[str]:
        try:
            log = self.open().open(LOG)
        except (FileNotFoundError, StoreError):
            return []
        with os.fdopen(log, "rb") as file:
            file.seek(-min(_LOG_TAIL_BYTES, os.fstat(log).st_size), os.SEEK_END)
            return file.read().decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
