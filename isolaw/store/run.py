"""Define `RunStore`, which reads and writes the folder of one run."""

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
from isolaw.store.states import STATE, States, is_own

PUBLISH_EVERY_S = 1.0
PUBLISHING_SHARE = 0.1
# Seconds for a worker to end after its engine was killed.
WAIT_FOR_A_RUN_S = 5.0
_LOG_TAIL_BYTES, _LOG_TAIL_LINES = 16_384, 40
SPEC, POINTS, PROBLEMS, LOG, STOP = "spec.json", "points.jsonl", "problems.json", "log", "stop"
DONE, FAILED, MEETING = "DONE", "FAILED.json", "meeting.json"
OUT = "out"
# All entries that isolaw creates in a run's folder.
OWN: dict[str, EntryKind] = {
    **dict.fromkeys((SPEC, POINTS, PROBLEMS, LOG, STOP, DONE, FAILED, MEETING, locks.NAME), "file"),
    STATE: "folder",
    OUT: "folder",  # its content belongs to the trainer
}


def kinds_in_run(*place: str) -> tuple[EntryKind, ...]:
    """Return the accepted kinds of an entry in a run's folder, or () for an entry of the user."""
    match place:
        case (name,) if name in OWN:
            return (OWN[name],)
        case (folder, name) if folder == STATE and is_own(name):
            return ("folder",)
        case (folder, _, *inside) if folder == STATE and inside:
            return ("file", "folder")
    return ()


class RunStore:
    """The folder of one run of a sweep.

    ``damage`` lists the damage that `resume` found. A run that this process executes stops if
    ``asked_to_stop`` is set.
    """

    def __init__(self, sweep: SweepFolders, run_id: str) -> None:
        self.run_id, self.sweep = run_id, sweep
        self.asked_to_stop = threading.Event()
        self.sync_alone = True
        self.damage: list[str] = []
        self.states = States(sweep, run_id)
        self._open_folder: Folder | None = None
        # Number of recorded checkpoints, and the step and line checksum of the last checkpoint.
        self._checkpoint_count, self._last_step, self._last_crc = 0, 0, 0
        self._continues = False  # whether the run continues from a state

    @property
    def folder(self) -> Path:
        """Path of the folder, for messages and for other processes that open it."""
        return self.sweep.directory / "runs" / self.run_id

    @property
    def out(self) -> Path:
        """Folder that a backend's trainer writes to."""
        return self.folder / OUT

    def open(self, make: bool = True) -> Folder:
        """Open the folder, and create it if it does not exist.

        Without ``make``, raise `FileNotFoundError` if it does not exist.
        """
        if self._open_folder is None:
            self._open_folder = self.sweep.runs(make).folder(self.run_id, make)
        return self._open_folder

    def check(self) -> None:
        """Raise `NotOurs` as `SweepStore.check` does, for this run: a sweep can have thousands of runs."""
        self.open().check(kinds_in_run)

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
        """Write ``spec.json`` for a new run, or for an existing run with a new horizon or schedule."""
        text = canonical_json(seal.sealed(spec.model_dump(mode="json"), self.run_id)).encode()
        if self._read(SPEC) != text:
            self.open().write(SPEC, text, sync=False)  # the engine syncs the files of all runs together

    def read_spec(self) -> RunSpec:
        """Return the run's spec; raise `Damaged` if the file is missing or was changed."""
        path = self.folder / SPEC
        document = self._document(SPEC)
        if document is None:
            raise Damaged(f"{path}: missing")
        try:
            return parse_section(RunSpec, document, source=str(path))
        except InputError as error:  # the file was written by another version
            raise Damaged(str(error)) from None

    def recorded(self) -> Lines:
        """Return the recorded checkpoints, without damaged lines and an incomplete last line."""
        marker = None
        with contextlib.suppress(Damaged, NotOurs):  # read before the lines, because the run can be active
            marker = self._document(DONE)
        try:
            lines = Lines.of(self.run_id, self._read(POINTS) or b"", marker)
        except Damaged as error:
            return replace(Lines.of(self.run_id), damage=str(error))
        if lines.damage:
            lines.damage = f"{self.folder / POINTS}: {lines.damage}"
        return lines

    def settled(self) -> list[dict[str, Any]]:
        """Return the checkpoints up to the last published state, which resuming the run never removes."""
        return self.recorded().up_to(self.last_state).checkpoints

    @property
    def last_state(self) -> int | None:
        """Step of the last published state, or None."""
        return next(iter(self.states.steps()), None)

    @property
    def failure(self) -> dict[str, Any] | None:
        """Content of ``FAILED.json`` with the cause of the run's failure, or None if it has not failed."""
        content = self._read(FAILED)
        try:
            return None if content is None else parse_json(content)
        except ValueError as error:
            return {"cause": f"the cause is unknown: {self.folder / FAILED} is damaged ({error})"}

    @property
    def bytes_recorded(self) -> int:
        """Size of ``points.jsonl`` in bytes."""
        return status.st_size if (status := self._status(POINTS)) else 0

    @property
    def recorded_at(self) -> float:
        """Unix time of the last change of ``points.jsonl``."""
        return status.st_mtime if (status := self._status(POINTS)) else 0.0

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this process is the only writer of the run."""
        return locks.locked(self.open(), wait_s=WAIT_FOR_A_RUN_S)

    @property
    def holder(self) -> str | None:
        """Description of the process that has locked the run, or None if it is not locked."""
        with contextlib.suppress(FileNotFoundError):
            return locks.holder(self.open(make=False))
        return None

    def ask_to_stop(self) -> None:
        """Ask the process that executes the run, on any machine, to save its state and end.

        The request is the file ``stop`` in the run's folder.
        """
        with contextlib.suppress(OSError):  # if the disk is not writable, the run stops anyway
            os.close(self.open().open(STOP, os.O_WRONLY | os.O_CREAT))

    def is_asked_to_stop(self) -> bool:
        """Return whether the run was asked to stop."""
        return self.asked_to_stop.is_set() or self.open().status(STOP) is not None

    def proceed(self) -> None:
        """Withdraw the request of `ask_to_stop`."""
        with contextlib.suppress(OSError):  # the run itself reports problems with its folder
            self.open().remove(STOP)

    def resume(self) -> tuple[Path | None, float]:
        """Remove all lines after the last undamaged state; return its folder and the seconds spent so far.

        The folder is None if there is no such state.
        """
        folder = self.open()
        self.forget_failure()
        folder.remove_leftovers((*OWN, locks.CLOCK))
        lines = self.recorded()
        step, damage = self._last_sound(lines)
        damage += [lines.damage] if lines.damage else []
        try:
            _ = lines.marker or self._document(DONE)
        except Damaged as error:
            damage.append(str(error))
        outcome = "starts again" if step is None else f"continues from step {step}"
        self.damage = [f"{cause}; the run {outcome}" for cause in damage]
        self.states.keep(step)
        resumed = lines.up_to(step)
        if (bytes_kept := sum(resumed.sizes)) != self.bytes_recorded:
            folder.write(POINTS, (folder.read(POINTS) or b"")[:bytes_kept] if bytes_kept else b"")
        if lines.marker is None or lines.marker["lines"] not in resumed.marks:
            folder.remove(DONE)
        self._checkpoint_count, self._last_crc = len(resumed.checkpoints), resumed.crcs[-1]
        self._last_step, self._continues = step or 0, step is not None
        if step is None:
            return None, 0.0
        return self.states.folder(step), float(resumed.checkpoints[-1]["wall_s"])

    def _last_sound(self, lines: Lines) -> tuple[int | None, list[str]]:
        """Return the step of the last state that matches its checksum, and the damage of later states."""
        damage: list[str] = []
        for step in self.states.steps():
            if step in lines.states:
                if self.states.is_sound(step, lines.states[step]):
                    return step, damage
                damage.append(f"{self.states.folder(step)}: damaged: its checksum does not match")
            elif not lines.damage:  # otherwise the missing line is a consequence of that damage
                damage.append(f"{self.states.folder(step)}: {POINTS} has no line for this state")
        return None, damage

    def record(self, checkpoints: Iterator[Checkpoint], wall_s: float) -> Iterator[Checkpoint]:
        """Append each checkpoint to ``points.jsonl``, and yield it; publish states at most once a second.

        After a request to stop, publish a state at the next checkpoint and end.
        """
        started_at = time.monotonic() - wall_s
        began_at = published_at = time.monotonic()
        publish_s = 0.0
        # Short runs are not synced individually, because they are quick to repeat. The engine syncs many of
        # them together.
        self.sync_alone = self._continues
        # Writes are buffered, because on a full disk the kernel can write part of a line without an error.
        with os.fdopen(self.open().open(POINTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "wb") as file:
            for checkpoint in checkpoints:
                self._keep_problem_ids(checkpoint)
                now = time.monotonic()
                record = checkpoint.line(now - started_at)
                is_due = now - published_at >= max(PUBLISH_EVERY_S, publish_s / PUBLISHING_SHARE)
                is_last = checkpoint.final or self.is_asked_to_stop()
                self.sync_alone = self.sync_alone or now - began_at >= PUBLISH_EVERY_S
                state = None
                if (is_due or is_last) and checkpoint.save is not None:
                    state = self.states.write(checkpoint.step, checkpoint.save, self.sync_alone)
                line, self._last_crc = checksums.line(record, self._last_crc, state)
                file.write(line)
                file.flush()
                self._checkpoint_count, self._last_step = self._checkpoint_count + 1, checkpoint.step
                if state:
                    if self.sync_alone:
                        os.fsync(file.fileno())
                    self.states.publish(checkpoint.step, self.sync_alone)
                    published_at = time.monotonic()
                    publish_s = published_at - now
                yield checkpoint
                if is_last:
                    return

    def problem_ids(self) -> dict[str, list[str]]:
        """Return the problem ids of each evaluation set with per-problem results; can raise `Damaged`."""
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
        """Mark the run as finished at the horizon ``compute``; call this after `resume` and `record`."""
        counts = {"step": self._last_step, "checkpoints": self._checkpoint_count}
        marker = {"compute": compute, **counts, "lines": f"{self._last_crc:08x}"}
        text = json.dumps(seal.sealed(marker, self.run_id)).encode()
        self.open().write(DONE, text + b"\n", sync=self.sync_alone)

    def fail(self, cause: str, details: str) -> None:
        """Write the cause of a failure to ``FAILED.json``, with the last lines of the log."""
        failure = {"cause": cause, "details": details, "unix_time": int(time.time()), "log": self._log_tail()}
        self.open().write(FAILED, f"{json.dumps(failure, indent=1)}\n".encode())

    def forget_failure(self) -> None:
        """Remove the file ``FAILED.json`` that `fail` wrote."""
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
