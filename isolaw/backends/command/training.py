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
import glob
import math
import os
import re
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO

from isolaw import children
from isolaw.backend import Checkpoint, Measurement, RunContext, UnreadableState, saved_step, saving
from isolaw.backends.command import template
from isolaw.backends.command.adapters import ADAPTERS
from isolaw.backends.command.following import Following, plain
from isolaw.backends.command.options import NOT_FINITE, CommandOptions, holds
from isolaw.config import RunSpec
from isolaw.errors import MessageLines, RunError
from isolaw.readers import frameworks
from isolaw.readers.assignments import ASSUMED
from isolaw.readers.frameworks.base import Framework

FIRST = "0"  # folder of the first start
COMMAND = "command.sh"  # file of the started commands
OUTPUT = "output"  # file of their printed output
BEGUN, ENDED = "begun", "ended"  # files by which a script marks that it began, and that its command finished
_OUTPUT = 64 * 2**20  # size in bytes at which ``output`` is rotated; one older part is kept
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
    values = template.values_of(spec, options, str(out), checkpoint, at)
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
    _announce(command := template.command_of(options, values), options, out)
    with _Process(command, options, out) as process:
        while process.goes_on(_POLLING_S):
            if ctx.stopping():
                return
            yield from pace.checkpoints(log)
            if pace.is_over():
                break
            pace.check(log, process)
        yield from pace.checkpoints(log, final=True, whole=spec.steps)
        if pace.done < spec.steps and not ctx.stopping():
            raise process.failure(f"ended after {max(pace.seen, 0):,} of {spec.steps:,} steps", log)


class _Pace:
    """Tracks the progress of a training run: turns logged steps into checkpoints, and detects a stall."""

    def __init__(self, spec: RunSpec, out: Path, options: CommandOptions, done: int) -> None:
        self.spec, self.out, self.options, self.done = spec, out, options, done
        self.seen = done  # the last step in the log
        self.evaluated = -1  # the last step in the log with an evaluation
        self.began = self.moved = time.monotonic()
        self._checked = self._rate_checked = False

    def checkpoints(self, log: Following, final: bool = False, whole: int = -1) -> Iterator[Checkpoint]:
        """Yield a checkpoint for each new step with complete values in the log.

        Steps up to ``whole`` are complete. Later steps are complete if they are not the last step in the log.
        The last step of the run is yielded only after the command has ended, because the trainer can still be
        writing a checkpoint. Raise `RunError` if the log contradicts the spec, or if a stop condition holds.
        """
        found = log.read(final)
        steps = sorted(step for step in found if self.done < step <= self.spec.steps)
        last = max(found, default=-1)
        if last > self.seen:
            self.seen, self.moved = last, time.monotonic()
        sets = {step: {eval_set for eval_set, _ in values} for step, values in found.items()}
        self.evaluated = max([self.evaluated, *(step for step, own in sets.items() if own - {"train"})])
        if self.seen > 0 and not self._checked:  # check before yielding any row
            self._checked = True
            _compare(self.spec, log)
        if not self._rate_checked and self.seen >= max(_STEADY, self.spec.steps / 2):
            self._rate_checked = True
            _compare_rate(self.spec, log)
        if NOT_FINITE in self.options.stop_if and log.not_finite:
            raise RunError(
                f"stopped at step {self.seen:,}, since a value of its log is NaN or infinite "
                "(command.stop_if)"
            )
        kept = newest(self.out, self.options)[0] if steps else 0
        for step in steps:
            if step > whole and (step == last or step == self.spec.steps):
                return
            values = {f"{eval_set}/{metric}": value for (eval_set, metric), value in found[step].items()}
            for condition in self.options.stop_if:
                if holds(condition, values):
                    raise RunError(f"stopped at step {step:,}: {condition} (command.stop_if)")
            rows = [Measurement(*target, value) for target, value in found[step].items()]
            self.done = step
            log.taken = step
            compute = step * self.spec.batch_rollouts
            keep = saving(step) if step <= kept else None
            machine = {} if final else {"gpus": self.options.gpus or None}  # `costs` counts steps seen live
            yield Checkpoint(step, compute, rows, keep, final=step == self.spec.steps, machine=machine)

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
            what = f"its log has no new step for {self.options.silent_minutes:g} minutes"
            raise process.failure(f"{what} (command.silent_minutes)", log)
        if (hours := self.options.limit_hours) and now - self.began > 3600 * hours:
            raise process.failure(f"it took more than {hours:g} hours (command.limit_hours)", log)


def _reader(options: CommandOptions) -> Framework:
    """Return the framework that defines the meaning of the names in the log."""
    if options.framework == "none":
        return plain(options.evaluation_set)
    adapter = ADAPTERS.get(options.framework)
    return frameworks.named((adapter and adapter.reader) or options.framework)


def _compare(spec: RunSpec, log: Following) -> None:
    """Raise `RunError` if the log shows that the command trains with other settings than requested."""
    asked = {
        "rollouts_per_problem": ("n", spec.rollouts_per_problem),
        "problems_per_batch": ("B_p", spec.problems_per_batch),
        "rollouts_per_step": ("rollouts per step", spec.batch_rollouts),
        "seed": ("seed", spec.seed),
        "lr": ("lr", template.lr_of(spec)),
    }
    wrong = []
    for name, fact in log.check().items():
        symbol, value = asked.get(name, ("", None))
        if value is None or fact.origin == ASSUMED or not isinstance(fact.value, int | float):
            continue
        if not math.isclose(fact.value, value, rel_tol=1e-6):
            wrong.append(f"{symbol} is {fact.value:g} in its log ({fact.origin}); expected {value:g}")
    if wrong:
        raise RunError(f"{_OTHER_VALUES}: {'; '.join(wrong)}")


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


def newest(out: Path, options: CommandOptions) -> tuple[int, str]:
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
        found = numbered.fullmatch(path.relative_to(out).as_posix())
        if found and int(found[1]) > best[0] and (not mark or any(path.glob(mark))):
            best = int(found[1]), str(path)
    return best


def _as_regex(pattern: str) -> str:
    return "[^/]*".join(map(re.escape, pattern.split("*")))


def place(
    folder: Path, options: CommandOptions, state: Path | None = None, done: int = -1
) -> tuple[Path, int, str]:
    """Return the folder in which to train, the updates already made, and the checkpoint to continue from."""
    number = max((int(own.name) for own in folder.glob("*") if own.name.isdecimal()), default=-1)
    last = folder / str(number)
    at, checkpoint = newest(last, options)  # 0 and "" if there was no start
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
    with (out / COMMAND).open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(lines)


def _log(options: CommandOptions, out: Path, values: dict[str, str]) -> str:
    """Return the glob pattern that matches the log's files."""
    here = glob.escape(str(out))
    log = template.fill(options.log, {**values, "out": here}) if options.log else OUTPUT
    return os.path.join(here, log)


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

    def failure(self, what: str, log: Following) -> RunError:
        """Return an error that describes how the command ended, and the last lines that it printed."""
        code = self.process.poll()
        how = "" if code is None else f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        text = f"the command {what}{f' ({how})' if how else ''}"
        if not glob.glob(log.pattern):
            text += f"; it wrote no log: {log.pattern}"
        elif not code and (unread := log.unread()):  # otherwise its last lines tell why it failed
            text += f"; {unread}"
        if not self.lines:
            return RunError(f"{text}; it printed nothing")
        return RunError(MessageLines(text, "  its last lines:", *(f"  | {line}" for line in self.lines)))

    def _keep(self, stream: IO[bytes]) -> None:
        """Write the command's output to a file in a thread; keep only its last part."""
        path, rest = self.out / OUTPUT, b""
        with contextlib.suppress(OSError, ValueError):
            file = path.open("ab", buffering=0)
            while piece := os.read(stream.fileno(), 2**16):
                if file.tell() > _OUTPUT:
                    file.close()
                    path.replace(path.with_name(f"{OUTPUT}.before"))
                    file = path.open("wb", buffering=0)
                file.write(piece)
                *whole, rest = (rest + piece).split(b"\n")
                rest = rest[-_LONGEST_LINE:]
                for line in whole[-_LAST_LINES:]:
                    self._say(line)
            file.close()
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        text = line.rpartition(b"\r")[2][:_LONGEST_LINE].decode("utf-8", "replace")
        self.lines.append("".join(c if c.isprintable() else " " for c in text))
