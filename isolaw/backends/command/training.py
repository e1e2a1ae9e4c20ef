"""Start, follow, check, stop and continue a training run by the user's command.

The run's folder contains the folders ``0``, ``1``, …, one for each start from scratch. Each contains the
trainer's own files and ``output``, which has at least the last `_OUTPUT_BYTES` that the command printed.

A run continues from the trainer's newest checkpoint, which has k updates. Steps up to k are read from the
existing log, and later steps from the log of the new start. The store writes a state only at steps that a
trainer's checkpoint covers, so that no resumed run keeps a step that is trained again.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import glob
import math
import os
import re
import select
import shlex
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import IO

from isolaw import children
from isolaw.backend import Checkpoint, Measurement, RunContext, RunNote, UnreadableState, saved_step, saving
from isolaw.backends.command import template
from isolaw.backends.command.adapters import ADAPTERS
from isolaw.backends.command.following import GrowingLog, plain_framework
from isolaw.backends.command.options import NOT_FINITE, CommandOptions, holds
from isolaw.config import RunSpec
from isolaw.errors import RunError, Wording
from isolaw.readers import frameworks
from isolaw.readers.frameworks.base import Framework
from isolaw.readers.names import ASSUMED

COMMAND_FILE = "command.sh"  # file of the started commands
OUTPUT_FILE = "output"  # file of their printed output
BEGUN_FILE, ENDED_FILE = "begun", "ended"  # a script began, its command finished
_OUTPUT_BYTES = 64 * 2**20  # size in bytes at which ``output`` is rotated; one older part is kept
_WAITING_BYTES = 4 * 2**20  # most bytes of it that wait in memory while the disk is full
_LAST_LINES, _LONGEST_LINE = 20, 300
_POLLING_S = 0.25
_STEADY_STEPS = 10  # least number of steps with one lr that are no warm-up
_OTHER_VALUES = "the command trains with other values than the run"
_GRACE_S = 30.0  # time for the command to end after SIGTERM
_ENDING_S = 600.0  # time for it to exit after its last step and evaluation; it may still write a checkpoint


def train(spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
    """Train from the start or from ``ctx.state``, and yield the checkpoints.

    Raise `RunError` if the command fails, ends early, prints nothing for too long, or trains with other
    settings than requested.
    """
    options = CommandOptions.of(spec)
    saved_updates = saved_step(ctx.state)
    assert ctx.folder is not None
    out, updates, checkpoint = choose_attempt(ctx.folder.absolute(), options, ctx.state, saved_updates)
    ended_file = out / ENDED_FILE
    if ended_file.exists():
        updates = spec.steps
    machines = (ctx.nodes.names, ctx.nodes.address) if ctx.nodes else ()
    values = template.values_of(spec, options, str(out), checkpoint, updates, *machines)
    log = GrowingLog(_log_pattern(options, out, values), _framework_of(options), updates)
    progress = _Progress(spec, out, options, saved_updates)
    yield from progress.checkpoints(log, final=True, complete=updates)
    if ended_file.exists():
        ended_file.unlink()
        if progress.done < spec.steps:
            raise RunError(
                f"{out}: a script trained this run, and its command ended after {progress.done:,} of "
                f"{spec.steps:,} steps"
            )
    if progress.done >= spec.steps:
        return
    command = template.command_of(options, values)
    if ctx.nodes:
        command = replace(command, environment={**command.environment, **ctx.nodes.environment})
    _append_command(command, options, out)
    with _Process(command, options, out) as process:
        while process.runs_after(_POLLING_S):
            if ctx.stopping():
                return
            yield from progress.checkpoints(log)
            if progress.is_over():
                break
            progress.check_time_limits(log, process)
        progress.final_notes = process.notes(is_over=progress.last_logged > spec.steps)
        yield from progress.checkpoints(log, final=True, complete=spec.steps)
        if progress.done < spec.steps and not ctx.stopping():
            fault = f"ended after {max(progress.last_logged, 0):,} of {spec.steps:,} steps"
            raise process.failure(fault, log, progress.notes)


class _Progress:
    """Tracks the progress of a training run: turns logged steps into checkpoints, and detects a stall."""

    def __init__(self, spec: RunSpec, out: Path, options: CommandOptions, done: int) -> None:
        self.spec, self.out, self.options, self.done = spec, out, options, done
        self.last_logged = done  # the last step in the log
        self.last_evaluated = -1  # the last step in the log with an evaluation
        self.started_at = self.advanced_at = time.monotonic()
        self.notes: list[RunNote] = []  # for the next checkpoint
        self.final_notes: list[RunNote] = []  # for the last one
        self._dropped_rollouts = 0.0  # rollouts that the trainer has generated and not used

    def checkpoints(self, log: GrowingLog, final: bool = False, complete: int = -1) -> Iterator[Checkpoint]:
        """Yield a checkpoint for each new step with complete values in the log.

        Steps up to ``complete`` are complete. Later steps are complete if they are not the last in the log.
        The last step of the run is yielded only after the command has ended, because the trainer can still be
        writing a checkpoint. Raise `RunError` if the log contradicts the spec, or if a stop condition holds.
        """
        records = log.read(final)
        steps = sorted(step for step in records if self.done < step <= self.spec.steps)
        last_step = max(records, default=-1)
        if last_step > self.last_logged:
            self.last_logged, self.advanced_at = last_step, time.monotonic()
        evaluated_steps = [step for step, values in records.items() for name, _ in values if name != "train"]
        self.last_evaluated = max([self.last_evaluated, *evaluated_steps])
        if self.last_logged > 0:  # check before yielding any row
            _check_settings(self.spec, log, final)
        if self.last_logged - log.last_step_without_lr >= max(_STEADY_STEPS, self.spec.steps / 2):
            _check_lr(self.spec, log)
        if NOT_FINITE in self.options.stop_if and log.not_finite_values:
            raise RunError(
                f"stopped at step {self.last_logged:,}, since a value of its log is NaN or infinite "
                "(command.stop_if)"
            )
        checkpoint_step = _newest_checkpoint(self.out, self.options)[0] if steps else 0
        for step in steps:
            if step > complete and (step == last_step or step == self.spec.steps):
                return
            values = {f"{eval_set}/{metric}": value for (eval_set, metric), value in records[step].items()}
            for condition in self.options.stop_if:
                if holds(condition, values):
                    raise RunError(f"stopped at step {step:,}: {condition} (command.stop_if)")
            rows = [Measurement(*target, value) for target, value in records[step].items()]
            self.done = step
            log.taken_step = step
            compute = step * self.spec.batch_rollouts
            save = saving(step) if step <= checkpoint_step else None
            machine = {} if final else {"gpus": self.options.gpus or None}  # `costs` counts steps seen live
            self._dropped_rollouts += records[step].get(("train", "dropped_rollouts"), 0.0)
            is_last = step == self.spec.steps
            if is_last and self._dropped_rollouts > 0:
                dropped = self._dropped_rollouts
                share = f"{dropped / (dropped + compute):.0%}"
                text = f"its trainer dropped {dropped:,.0f} rollouts ({share}), which C does not count"
                self.notes.append(RunNote("dropped_rollouts", text, {"rollouts": dropped}))
            notes, self.notes = [*self.notes, *(self.final_notes if is_last else ())], []
            yield Checkpoint(step, compute, rows, save, final=is_last, machine=machine, notes=notes)

    def is_over(self) -> bool:
        """Return whether the command has made all steps and has had enough time to exit afterwards.

        If it evaluates, but has not yet evaluated its last step, it may take ``silent_minutes``.
        """
        waited_s, limit_s = time.monotonic() - self.advanced_at, _ENDING_S
        if -1 < self.last_evaluated < self.last_logged:
            limit_s = max(limit_s, 60 * self.options.silent_minutes)
        beyond = self.last_logged - self.spec.steps
        return beyond > 0 or (beyond == 0 and waited_s > limit_s)

    def check_time_limits(self, log: GrowingLog, process: _Process) -> None:
        """Raise `RunError` if a time limit for the command is exceeded."""
        now = time.monotonic()
        if now - self.advanced_at > 60 * self.options.silent_minutes:
            fault = f"has logged no new step for {self.options.silent_minutes:g} minutes"
            raise process.failure(f"{fault} (command.silent_minutes)", log, self.notes)
        if (hours := self.options.limit_hours) and now - self.started_at > 3600 * hours:
            fault = f"took more than {hours:g} hours (command.limit_hours)"
            raise process.failure(fault, log, self.notes)


def _framework_of(options: CommandOptions) -> Framework:
    """Return the framework that defines the meaning of the names in the log."""
    if options.framework == "none":
        return plain_framework(options.evaluation_set)
    adapter = ADAPTERS.get(options.framework)
    return frameworks.named((adapter and adapter.reader) or options.framework)


def _check_settings(spec: RunSpec, log: GrowingLog, final: bool) -> None:
    """Raise `RunError` if any record of the log shows other settings than requested."""
    requested = {
        "rollouts_per_problem": ("n", spec.rollouts_per_problem),
        "problems_per_batch": ("B_p", spec.problems_per_batch),
        "rollouts_per_step": ("rollouts per step", spec.batch_rollouts),
        "seed": ("seed", spec.seed),
        "lr": ("lr", template.lr_of(spec)),
    }
    differences = []
    for name, fact in log.facts(final):
        symbol, value = requested.get(name, ("", None))
        if value is None or fact.origin == ASSUMED or not isinstance(fact.value, int | float):
            continue
        if not math.isclose(fact.value, value, rel_tol=1e-6):
            differences.append(f"{symbol} is {fact.value:g} in its log ({fact.origin}); expected {value:g}")
    if differences:
        raise RunError(f"{_OTHER_VALUES}: {'; '.join(dict.fromkeys(differences))}")


def _check_lr(spec: RunSpec, log: GrowingLog) -> None:
    """Raise `RunError` if a script logs one lr for half of the steps, and another one than requested.

    A schedule changes the lr sooner. The requested lr may round to the logged digits.
    """
    logged, requested = log.constant_lr, template.lr_of(spec)
    if logged is None or requested is None:
        return
    rounding = 0.5 * 10.0 ** int(Decimal(repr(logged.value)).as_tuple().exponent)
    if not math.isclose(logged.value, requested, rel_tol=1e-6, abs_tol=rounding):
        raise RunError(
            f"{_OTHER_VALUES}: lr is {logged.value:g} in its log ({logged.origin}); expected {requested:g}"
        )


def _newest_checkpoint(out: Path, options: CommandOptions) -> tuple[int, str]:
    """Return the updates and the path of the trainer's newest finished checkpoint; 0 and "" if none exists.

    The path component with ``{step}`` in the pattern is the checkpoint. If the pattern names a file below it,
    the checkpoint is finished when this file exists.
    """
    best = 0, ""
    if not options.checkpoints:
        return best
    prefix, _, after = options.checkpoints.removeprefix("{out}/").partition("{step}")
    suffix, _, marker_file = after.partition("/")
    checkpoint_name = re.compile(f"{_as_regex(prefix)}(\\d+){_as_regex(suffix)}")
    for path in out.glob(f"{prefix}*{suffix}"):
        match = checkpoint_name.fullmatch(path.relative_to(out).as_posix())
        if match and int(match[1]) > best[0] and (not marker_file or any(path.glob(marker_file))):
            best = int(match[1]), str(path)
    return best


def _as_regex(pattern: str) -> str:
    return "[^/]*".join(map(re.escape, pattern.split("*")))


def next_attempt(folder: Path, options: CommandOptions) -> tuple[Path, int, str]:
    """Return the folder in which to train, the updates already made, and the checkpoint to continue from."""
    number = max((int(attempt.name) for attempt in folder.glob("*") if attempt.name.isdecimal()), default=-1)
    attempt = folder / str(number)
    updates, checkpoint = _newest_checkpoint(attempt, options)  # 0 and "" if there was no start
    if not updates and not (attempt / ENDED_FILE).exists() and (number < 0 or any(attempt.iterdir())):
        attempt = folder / str(number + 1)
    return attempt, updates, checkpoint


def choose_attempt(
    folder: Path, options: CommandOptions, state: Path | None = None, saved_updates: int = -1
) -> tuple[Path, int, str]:
    """Return `next_attempt`, whose folder then exists; raise `UnreadableState` if it lacks saved updates."""
    attempt, updates, checkpoint = next_attempt(folder, options)
    if state is not None and updates < saved_updates:
        error = RunError(f"{folder} has no checkpoint of the trainer from step {saved_updates:,}")
        raise UnreadableState(state, error)
    attempt.mkdir(parents=True, exist_ok=True)
    return attempt, updates, checkpoint


def _append_command(command: template.Invocation, options: CommandOptions, out: Path) -> None:
    """Append the started command to the file `COMMAND_FILE`, so that a user can start it without isolaw."""
    lines = f"cd {shlex.quote(options.folder or '.')}\n{command.line}\n"
    with _open_to_append(out / COMMAND_FILE) as file:
        file.write(os.fsencode(lines))


def _log_pattern(options: CommandOptions, out: Path, values: dict[str, str]) -> str:
    """Return the glob pattern that matches the log's files."""
    folder = glob.escape(str(out))
    pattern = template.fill(options.log, {**values, "out": folder}) if options.log else OUTPUT_FILE
    return os.path.join(folder, pattern)


def _open_to_append(path: Path) -> IO[bytes]:
    """Open a file to append to it; raise `OSError` if the trainer has put something else in its place."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
    file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a file", str(path))
    return file


class _Output:
    """The file `OUTPUT_FILE` with the last part of what a command prints.

    If the file cannot be written, as on a full disk, the text waits in memory. Text beyond `_WAITING_BYTES`
    is lost (``lost_bytes``), in whole lines: a mark ends the line that the file has only in part.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lost_bytes, self.reason = path, 0, ""
        self._file: IO[bytes] | None = None
        self._waiting = bytearray()

    def write(self, text: bytes) -> None:
        """Write the text, or keep it until the file can be written."""
        self._waiting += text
        try:
            self._file = self._file or _open_to_append(self.path)
            if os.fstat(self._file.fileno()).st_size > _OUTPUT_BYTES:
                self._file.close()
                self._file = None
                self.path.replace(self.path.with_name(f"{OUTPUT_FILE}.before"))
                self._file = _open_to_append(self.path)
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]  # a full disk can take a part
        except OSError as error:
            self.reason = error.strerror or str(error)
            if len(self._waiting) > _WAITING_BYTES:
                dropped = self._waiting.rfind(b"\n") + 1 or len(self._waiting)
                self.lost_bytes += dropped
                self._waiting[:dropped] = f" [isolaw left out output: {self.reason}]\n".encode()

    def close(self) -> None:
        """Close the file; text that still waits is lost."""
        self.write(b"")
        self.lost_bytes += len(self._waiting)
        if self._file is not None:
            self._file.close()


class _Process:
    """A running command, and the last lines that it has printed."""

    def __init__(self, command: template.Invocation, options: CommandOptions, out: Path) -> None:
        self.out = out
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        environment = {**os.environ, **command.environment}
        self.process = children.start(
            command.words,
            cwd=options.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._pidfd = os.pidfd_open(self.process.pid)
        self._output = _Output(out / OUTPUT_FILE)
        self._thread = threading.Thread(target=self._read_output, args=(self.process.stdout,), daemon=True)
        self._thread.start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        children.end(self.process, _GRACE_S)
        self._thread.join(_GRACE_S)
        os.close(self._pidfd)

    def runs_after(self, seconds: float) -> bool:
        """Wait up to the given seconds; return whether the command is still running."""
        readable, _, _ = select.select([self._pidfd], [], [], seconds)
        if not readable:
            return True
        self._thread.join(_GRACE_S)
        return False

    def notes(self, is_over: bool) -> list[RunNote]:
        """Return notes if the command did not end by itself and well, and if parts of its output are lost.

        A command that ``is_over`` trains beyond the steps of the run, so isolaw ends it.
        """
        notes, code = [], self.process.poll()
        if code is None and not is_over:
            text = "its command did not end after the last step, so isolaw ended it"
            notes.append(RunNote("did_not_end", text))
        elif code:
            text = f"its command ended with {_exit_text(code)} after the last step"
            fact = {"exit_status": code} if code > 0 else {"signal": _exit_text(code)}
            notes.append(RunNote("ended_badly", text, fact))
        if lost_bytes := self._output.lost_bytes:
            text = f"{lost_bytes:,} bytes of its output are not in {OUTPUT_FILE}: {self._output.reason}"
            notes.append(RunNote("output_lost", text, {"bytes": lost_bytes, "reason": self._output.reason}))
        return notes

    def failure(self, fault: str, log: GrowingLog, notes: list[RunNote]) -> RunError:
        """Return an error that describes how the command ended, and the last lines that it printed."""
        code = self.process.poll()
        text = f"the command {fault}{f' ({_exit_text(code)})' if code is not None else ''}"
        if not glob.glob(log.pattern):
            text += f"; it wrote no log: {log.pattern}"
        elif (not code or log.unusable_files) and (unread := log.unread_reason()):  # else its lines tell why
            text += f"; {unread}"
        lost = [note for note in self.notes(is_over=True) if note.code == "output_lost"]
        text += "".join(f"; {note.text}" for note in [*notes, *lost])
        if not self.last_lines:
            return RunError(f"{text}; it printed nothing")
        return RunError(Wording(text, "  its last lines:", *(f"  | {line}" for line in self.last_lines)))

    def _read_output(self, stream: IO[bytes]) -> None:
        """Read the command's output in a thread until its end; a full pipe would block the command."""
        tail = b""
        with contextlib.suppress(OSError, ValueError):  # `children.end` closes the stream
            while piece := os.read(stream.fileno(), 2**16):
                self._output.write(piece)
                *lines, tail = (tail + piece).split(b"\n")
                tail = tail[-_LONGEST_LINE:]
                for line in lines[-_LAST_LINES:]:
                    self._remember(line)
        self._output.close()
        if tail:
            self._remember(tail)

    def _remember(self, line: bytes) -> None:
        text = line.rpartition(b"\r")[2][:_LONGEST_LINE].decode("utf-8", "replace")
        self.last_lines.append("".join(c if c.isprintable() else " " for c in text))


def _exit_text(code: int) -> str:
    """Return how a process ended.

    >>> _exit_text(3), _exit_text(-9), _exit_text(-40)
    ('exit status 3', 'SIGKILL', 'signal 40')
    """
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
