"""Start, follow, check, stop and continue a training run by the user's command.

The run's folder contains the folders ``0``, ``1``, …, one for each start from scratch. Each contains the
trainer's own files and ``output``, which has at least the last `_OUTPUT` bytes that the command printed.

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
from isolaw.backend import (
    Checkpoint,
    Measurement,
    RunContext,
    RunNote,
    UnreadableState,
    saved_step,
    saving,
)
from isolaw.backends.command import template
from isolaw.backends.command.adapters import ADAPTERS
from isolaw.backends.command.following import Following, plain
from isolaw.backends.command.options import NOT_FINITE, CommandOptions, holds
from isolaw.config import RunSpec
from isolaw.errors import RunError, Wording
from isolaw.readers import frameworks
from isolaw.readers.frameworks.base import Framework
from isolaw.readers.names import ASSUMED

FIRST = "0"  # folder of the first start
COMMAND = "command.sh"  # file of the started commands
OUTPUT = "output"  # file of their printed output
BEGUN, ENDED = "begun", "ended"  # files by which a script marks that it began, and that its command finished
_OUTPUT = 64 * 2**20  # size in bytes at which ``output`` is rotated; one older part is kept
_WAITING = 4 * 2**20  # most bytes of it that wait in memory while the disk is full
_LAST_LINES, _LONGEST_LINE = 20, 300
_POLLING_S = 0.25
_STEADY = 10  # least number of steps with one lr that are no warm-up
_OTHER_VALUES = "the command trains with other values than the run"
_GRACE_S = 30.0  # time for the command to end after SIGTERM
_ENDING_S = 600.0  # time for it to exit after its last step and evaluation; it may still write a checkpoint


def train(spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
    """Train from the start or from ``ctx.state``, and yield the checkpoints.

    Raise `RunError` if the command fails, ends early, prints nothing for too long, or trains with other
    settings than requested.
    """
    options = CommandOptions.of(spec)
    done = saved_step(ctx.state)
    assert ctx.folder is not None
    out, at, checkpoint = place(ctx.folder.absolute(), options, ctx.state, done)
    ended = out / ENDED
    if ended.exists():
        at = spec.steps
    here = (ctx.nodes.names, ctx.nodes.address) if ctx.nodes else ()
    values = template.values_of(spec, options, str(out), checkpoint, at, *here)
    log = Following(_log(options, out, values), _reader(options), at)
    pace = _Pace(spec, out, options, done)
    yield from pace.checkpoints(log, final=True, whole=at)
    if ended.exists():
        ended.unlink()
        if pace.done < spec.steps:
            raise RunError(
                f"{out}: a script trained this run, and its command ended after {pace.done:,} of "
                f"{spec.steps:,} steps"
            )
    if pace.done >= spec.steps:
        return
    command = template.command_of(options, values)
    if ctx.nodes:
        command = replace(command, environment={**command.environment, **ctx.nodes.environment})
    _announce(command, options, out)
    with _Process(command, options, out) as process:
        while process.goes_on(_POLLING_S):
            if ctx.stopping():
                return
            yield from pace.checkpoints(log)
            if pace.is_over():
                break
            pace.check(log, process)
        pace.ending = process.notes(is_over=pace.seen > spec.steps)
        yield from pace.checkpoints(log, final=True, whole=spec.steps)
        if pace.done < spec.steps and not ctx.stopping():
            what = f"ended after {max(pace.seen, 0):,} of {spec.steps:,} steps"
            raise process.failure(what, log, pace.notes)


class _Pace:
    """Tracks the progress of a training run: turns logged steps into checkpoints, and detects a stall."""

    def __init__(self, spec: RunSpec, out: Path, options: CommandOptions, done: int) -> None:
        self.spec, self.out, self.options, self.done = spec, out, options, done
        self.seen = done  # the last step in the log
        self.evaluated = -1  # the last step in the log with an evaluation
        self.began = self.moved = time.monotonic()
        self.notes: list[RunNote] = []  # for the next checkpoint
        self.ending: list[RunNote] = []  # for the last one
        self._dropped = 0.0  # rollouts that the trainer has generated and not used
        self._trained = 0  # the last step in the log with training values
        self._logged = max(done, 0)  # the last such step that was yielded
        self._apart: collections.Counter[int] = collections.Counter()  # distances between such steps
        self._missing: list[range] = []

    def checkpoints(self, log: Following, final: bool = False, whole: int = -1) -> Iterator[Checkpoint]:
        """Yield a checkpoint for each new step with complete values in the log.

        Steps up to ``whole`` are complete. Later steps are complete if they are not the last step in the log.
        The last step of the run is yielded only after the command has ended, because the trainer can still be
        writing a checkpoint. Raise `RunError` if the log contradicts the spec, or if a stop condition holds.
        """
        records = log.read(final)
        steps = sorted(step for step in records if self.done < step <= self.spec.steps)
        last = max(records, default=-1)
        if last > self.seen:
            self.seen, self.moved = last, time.monotonic()
        sets = {step: {eval_set for eval_set, _ in values} for step, values in records.items()}
        self.evaluated = max([self.evaluated, *(step for step, seen in sets.items() if seen - {"train"})])
        if self.seen > 0:  # check before yielding any row
            _compare(self.spec, log, final)
        if self.seen - log.unrated >= max(_STEADY, self.spec.steps / 2):
            _compare_rate(self.spec, log)
        if NOT_FINITE in self.options.stop_if and log.not_finite:
            raise RunError(
                f"stopped at step {self.seen:,}, since a value of its log is NaN or infinite "
                "(command.stop_if)"
            )
        kept = _newest(self.out, self.options)[0] if steps else 0
        self._note_rewritten(log)
        trained = {step for step in steps if "train" in sets[step]} or {*steps}
        self._count(trained)
        for step in steps:
            if step > whole and (step == last or step == self.spec.steps):
                return
            values = {f"{eval_set}/{metric}": value for (eval_set, metric), value in records[step].items()}
            for condition in self.options.stop_if:
                if holds(condition, values):
                    raise RunError(f"stopped at step {step:,}: {condition} (command.stop_if)")
            rows = [Measurement(*target, value) for target, value in records[step].items()]
            self.done = step
            log.taken = step
            compute = step * self.spec.batch_rollouts
            keep = saving(step) if step <= kept else None
            machine = {} if final else {"gpus": self.options.gpus or None}  # `costs` counts steps seen live
            if step in trained:
                self._note_missing(step, final)
            self._dropped += records[step].get(("train", "dropped_rollouts"), 0.0)
            last_step = step == self.spec.steps
            if last_step and self._dropped > 0:
                share = self._dropped / (self._dropped + compute)
                text = (
                    f"its trainer dropped {self._dropped:,.0f} rollouts ({share:.0%}), which C does not count"
                )
                self.notes.append(RunNote("dropped_rollouts", text, {"rollouts": self._dropped}))
            notes, self.notes = [*self.notes, *(self.ending if last_step else ())], []
            yield Checkpoint(step, compute, rows, keep, final=last_step, machine=machine, notes=notes)

    def _note_rewritten(self, log: Following) -> None:
        """Note the files of the log that the trainer wrote anew; isolaw itself rotates the printed output."""
        for name in log.rewritten:
            if name != str(self.out / OUTPUT):
                file, step = os.path.relpath(name, self.out), max(self.seen, 0)
                text = f"its trainer wrote {file} anew by step {step:,}; isolaw keeps the steps read before"
                self.notes.append(RunNote("log_rewritten", text, {"file": file, "step": step}))
        log.rewritten.clear()

    def _count(self, trained: set[int]) -> None:
        """Count how far apart the log's steps are."""
        for step in sorted(step for step in trained if step > self._trained):
            if self._trained:
                self._apart[step - self._trained] += 1
            self._trained = step

    def _note_missing(self, step: int, final: bool) -> None:
        """Note the steps between the previous step and this one, unless the log's steps are so far apart."""
        self._missing.append(range(self._logged + 1, step))
        self._logged = step
        if not self._apart and not final:  # it is not known yet
            return
        usual = max(((times, apart) for apart, times in self._apart.items()), default=(0, 1))[1]
        for lost in self._missing:
            if len(lost) >= usual:
                steps = f"step {lost[0]:,}" if len(lost) == 1 else f"steps {lost[0]:,} to {lost[-1]:,}"
                facts = {"first": lost[0], "last": lost[-1]}
                self.notes.append(RunNote("missing_steps", f"its log has no values for {steps}", facts))
        self._missing.clear()

    def is_over(self) -> bool:
        """Return whether the command has made all steps and has had enough time to exit afterwards.

        If it evaluates, but has not yet evaluated its last step, it may take ``silent_minutes``.
        """
        waited, enough = time.monotonic() - self.moved, _ENDING_S
        if -1 < self.evaluated < self.seen:
            enough = max(enough, 60 * self.options.silent_minutes)
        return self.seen > self.spec.steps or (self.seen == self.spec.steps and waited > enough)

    def check(self, log: Following, process: _Process) -> None:
        """Raise `RunError` if a time limit for the command is exceeded."""
        now = time.monotonic()
        if now - self.moved > 60 * self.options.silent_minutes:
            what = f"has logged no new step for {self.options.silent_minutes:g} minutes"
            raise process.failure(f"{what} (command.silent_minutes)", log, self.notes)
        if (hours := self.options.limit_hours) and now - self.began > 3600 * hours:
            what = f"took more than {hours:g} hours (command.limit_hours)"
            raise process.failure(what, log, self.notes)


def _reader(options: CommandOptions) -> Framework:
    """Return the framework that defines the meaning of the names in the log."""
    if options.framework == "none":
        return plain(options.evaluation_set)
    adapter = ADAPTERS.get(options.framework)
    return frameworks.named((adapter and adapter.reader) or options.framework)


def _compare(spec: RunSpec, log: Following, final: bool) -> None:
    """Raise `RunError` if any record of the log shows other settings than requested."""
    asked = {
        "rollouts_per_problem": ("n", spec.rollouts_per_problem),
        "problems_per_batch": ("B_p", spec.problems_per_batch),
        "rollouts_per_step": ("rollouts per step", spec.batch_rollouts),
        "seed": ("seed", spec.seed),
        "lr": ("lr", template.lr_of(spec)),
    }
    wrong = []
    for name, fact in log.facts(final):
        symbol, value = asked.get(name, ("", None))
        if value is None or fact.origin == ASSUMED or not isinstance(fact.value, int | float):
            continue
        if not math.isclose(fact.value, value, rel_tol=1e-6):
            wrong.append(f"{symbol} is {fact.value:g} in its log ({fact.origin}); expected {value:g}")
    if wrong:
        raise RunError(f"{_OTHER_VALUES}: {'; '.join(dict.fromkeys(wrong))}")


def _compare_rate(spec: RunSpec, log: Following) -> None:
    """Raise `RunError` if a script logs one lr for half of the steps, and another one than requested.

    A schedule changes the lr sooner. The requested lr may round to the logged digits.
    """
    rate, asked = log.rate, template.lr_of(spec)
    if rate is None or asked is None:
        return
    rounding = 0.5 * 10.0 ** int(Decimal(repr(rate.value)).as_tuple().exponent)
    if not math.isclose(rate.value, asked, rel_tol=1e-6, abs_tol=rounding):
        raise RunError(
            f"{_OTHER_VALUES}: lr is {rate.value:g} in its log ({rate.origin}); expected {asked:g}"
        )


def _newest(out: Path, options: CommandOptions) -> tuple[int, str]:
    """Return the updates and the path of the trainer's newest finished checkpoint; 0 and "" if none exists.

    The path component with ``{step}`` in the pattern is the checkpoint. If the pattern names a file below it,
    the checkpoint is finished when this file exists.
    """
    best = 0, ""
    if not options.checkpoints:
        return best
    before, _, after = options.checkpoints.removeprefix("{out}/").partition("{step}")
    end, _, mark = after.partition("/")
    numbered = re.compile(f"{_as_regex(before)}(\\d+){_as_regex(end)}")
    for path in out.glob(f"{before}*{end}"):
        match = numbered.fullmatch(path.relative_to(out).as_posix())
        if match and int(match[1]) > best[0] and (not mark or any(path.glob(mark))):
            best = int(match[1]), str(path)
    return best


def _as_regex(pattern: str) -> str:
    return "[^/]*".join(map(re.escape, pattern.split("*")))


def place(
    folder: Path, options: CommandOptions, state: Path | None = None, done: int = -1
) -> tuple[Path, int, str]:
    """Return the folder in which to train, the updates already made, and the checkpoint to continue from."""
    number = max((int(attempt.name) for attempt in folder.glob("*") if attempt.name.isdecimal()), default=-1)
    last = folder / str(number)
    at, checkpoint = _newest(last, options)  # 0 and "" if there was no start
    if state is not None and at < done:
        where = last if number >= 0 else folder
        error = RunError(f"{where} has no checkpoint of the trainer from step {done:,}")
        raise UnreadableState(state, error)
    if not at and not (last / ENDED).exists() and (number < 0 or any(last.iterdir())):
        last = folder / str(number + 1)
        last.mkdir(parents=True)
    return last, at, checkpoint


def _announce(command: template.Invocation, options: CommandOptions, out: Path) -> None:
    """Append the started command to the file `COMMAND`, so that a user can start it without isolaw."""
    lines = f"cd {shlex.quote(options.folder or '.')}\n{command.line}\n"
    with _appended(out / COMMAND) as file:
        file.write(os.fsencode(lines))


def _log(options: CommandOptions, out: Path, values: dict[str, str]) -> str:
    """Return the glob pattern that matches the log's files."""
    here = glob.escape(str(out))
    log = template.fill(options.log, {**values, "out": here}) if options.log else OUTPUT
    return os.path.join(here, log)


def _appended(path: Path) -> IO[bytes]:
    """Open a file to append to it; raise `OSError` if the trainer has put something else in its place."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
    file = os.fdopen(os.open(path, flags, 0o666), "ab", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a file", str(path))
    return file


class _Output:
    """The file `OUTPUT` with the last part of what a command prints.

    If the file cannot be written, as on a full disk, the text waits in memory. Text beyond `_WAITING` bytes
    is ``lost``, in whole lines: a mark ends the line that the file has only in part.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lost, self.reason = path, 0, ""
        self._file: IO[bytes] | None = None
        self._waiting = bytearray()

    def write(self, text: bytes) -> None:
        """Write the text, or keep it until the file can be written."""
        self._waiting += text
        try:
            self._file = self._file or _appended(self.path)
            if os.fstat(self._file.fileno()).st_size > _OUTPUT:
                self._file.close()
                self._file = None
                self.path.replace(self.path.with_name(f"{OUTPUT}.before"))
                self._file = _appended(self.path)
            while self._waiting:
                del self._waiting[: self._file.write(self._waiting)]  # a full disk can take a part
        except OSError as error:
            self.reason = error.strerror or str(error)
            if len(self._waiting) > _WAITING:
                whole = self._waiting.rfind(b"\n") + 1 or len(self._waiting)
                self.lost += whole
                self._waiting[:whole] = f" [isolaw left out output: {self.reason}]\n".encode()

    def close(self) -> None:
        """Close the file; text that still waits is lost."""
        self.write(b"")
        self.lost += len(self._waiting)
        if self._file is not None:
            self._file.close()


class _Process:
    """A running command, and the last lines that it has printed."""

    def __init__(self, command: template.Invocation, options: CommandOptions, out: Path) -> None:
        self.out = out
        self.lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        environment = {**os.environ, **command.environment}
        self.process = children.start(
            command.words,
            cwd=options.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._ended = os.pidfd_open(self.process.pid)
        self._output = _Output(out / OUTPUT)
        self._printing = threading.Thread(target=self._keep, args=(self.process.stdout,), daemon=True)
        self._printing.start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        children.end(self.process, _GRACE_S)
        self._printing.join(_GRACE_S)
        os.close(self._ended)

    def goes_on(self, seconds: float) -> bool:
        """Wait up to the given seconds; return whether the command is still running."""
        ended, _, _ = select.select([self._ended], [], [], seconds)
        if not ended:
            return True
        self._printing.join(_GRACE_S)
        return False

    def notes(self, is_over: bool) -> list[RunNote]:
        """Return notes if the command did not end by itself and well, and if parts of its output are lost.

        A command that ``is_over`` trains beyond the steps of the run, so isolaw ends it.
        """
        out, code = [], self.process.poll()
        if code is None and not is_over:
            text = "its command did not end after the last step, so isolaw ended it"
            out.append(RunNote("did_not_end", text))
        elif code:
            text = f"its command ended with {_ending(code)} after the last step"
            fact = {"exit_status": code} if code > 0 else {"signal": _ending(code)}
            out.append(RunNote("ended_badly", text, fact))
        if lost := self._output.lost:
            text = f"{lost:,} bytes of its output are not in {OUTPUT}: {self._output.reason}"
            out.append(RunNote("output_lost", text, {"bytes": lost, "reason": self._output.reason}))
        return out

    def failure(self, what: str, log: Following, notes: list[RunNote]) -> RunError:
        """Return an error that describes how the command ended, and the last lines that it printed."""
        code = self.process.poll()
        text = f"the command {what}{f' ({_ending(code)})' if code is not None else ''}"
        if not glob.glob(log.pattern):
            text += f"; it wrote no log: {log.pattern}"
        elif unread := log.unread() if not code or log.unusable else "":  # otherwise its last lines tell why
            text += f"; {unread}"
        lost = [note for note in self.notes(is_over=True) if note.code == "output_lost"]
        text += "".join(f"; {note.text}" for note in [*notes, *lost])
        if not self.lines:
            return RunError(f"{text}; it printed nothing")
        return RunError(Wording(text, "  its last lines:", *(f"  | {line}" for line in self.lines)))

    def _keep(self, stream: IO[bytes]) -> None:
        """Read the command's output in a thread until its end; a full pipe would block the command."""
        rest = b""
        with contextlib.suppress(OSError, ValueError):  # `children.end` closes the stream
            while piece := os.read(stream.fileno(), 2**16):
                self._output.write(piece)
                *whole, rest = (rest + piece).split(b"\n")
                rest = rest[-_LONGEST_LINE:]
                for line in whole[-_LAST_LINES:]:
                    self._say(line)
        self._output.close()
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        text = line.rpartition(b"\r")[2][:_LONGEST_LINE].decode("utf-8", "replace")
        self.lines.append("".join(c if c.isprintable() else " " for c in text))


def _ending(code: int) -> str:
    """Return how a process ended.

    >>> _ending(3), _ending(-9), _ending(-40)
    ('exit status 3', 'SIGKILL', 'signal 40')
    """
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
