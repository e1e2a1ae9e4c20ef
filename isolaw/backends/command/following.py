"""Read the log of a training run while it grows, with the same result as from the complete log.

Only the appended text of a text log is read. A file that the trainer rewrites (a trainer's state) and a
folder (TensorBoard) are read in full after each change. Reading takes at most a tenth of the time.

A trainer can do anything to its log at any time, so each look examines the log anew: whether it is a file,
and whether it still contains what isolaw has read.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import math
import os
import re
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import orjson

from isolaw.errors import DataError
from isolaw.files import natural, open_file
from isolaw.metrics import is_accuracy
from isolaw.readers import frameworks, limits, names
from isolaw.readers.assemble import assemble
from isolaw.readers.containers import candidates
from isolaw.readers.frameworks.base import Fact, Framework, Target
from isolaw.readers.literals import loads
from isolaw.readers.raw_log import HEAD, RawLog, number, whole
from isolaw.readers.stitch import stitch

_PIECE = 32 * 2**20  # bytes to read at a time
_SHARE = 0.1  # maximum fraction of time for reading
_LONGEST_LINE = 2**20
_MARK = 256  # bytes at the beginning of a log, and before the place up to which it was read
# Log formats that must be read as whole files; for `_PRINTED`, all output since the start.
_PRINTED = "stdout-dicts"
_WHOLE = {"trainer-state", "tensorboard", "json", "wandb-offline", "mlflow", _PRINTED}
_STEP = ("step", "global_step", "training_step", "iteration")
_EVALUATION = re.compile(r"(?:eval|val|valid|validation|test)[/_.](.+)", re.S)

# Other meanings of these names are common: micro-batches, rollouts so far, seeds of one process.
_UNCLEAR = {*names.AMBIGUOUS, "n_rollouts", "rollouts_n", "rng_seed"}
# Facts about the run that a user's own script can log in addition to metrics.
_OWN_FACTS = {
    name: fact
    for fact in ("rollouts_per_problem", "problems_per_batch", "seed")
    for name in names.CALLED[fact].split()
    if name not in _UNCLEAR
} | dict.fromkeys(["B", *names.BATCH.split()], "rollouts_per_step")
_RATES = names.RECIPE["lr"].split()


def _own_fact(key: str) -> str | None:
    """Return the fact that a key of a user's own script has, or None.

    >>> [_own_fact(key) for key in ("train/Group-Size", "B", "b", "N", "eval/n")]
    ['rollouts_per_problem', 'rollouts_per_step', None, None, None]
    """
    name = key.removeprefix("train/")
    return _OWN_FACTS.get(name if len(name) == 1 else names.plain(name))


Values = dict[Target, float]


def plain(evaluation_set: str) -> Framework:
    """Return the `Framework` for a user's own lines with ``step``; ``eval/x`` is an evaluation metric.

    >>> plain("validation").metric("eval_acc"), plain("aime24").metric("val/acc"), plain("v").metric("reward")
    (('validation', 'acc'), ('aime24', 'acc'), ('train', 'reward'))
    >>> plain("validation").metric("avg@4")
    ('validation', 'avg@4')
    """

    def metric(key: str) -> Target | None:
        if match := _EVALUATION.fullmatch(key):
            return evaluation_set, match[1]
        name = key.removeprefix("train/")
        if is_accuracy(key) and "@" in key:
            return evaluation_set, key
        return None if name in (*_STEP, "time") or _own_fact(key) else ("train", name)

    return Framework("none", metric, step_keys=_STEP)


class Following:
    """The growing log of one training run, which consists of all files that match ``pattern``.

    Content that exists at the start is from before the training resumed at ``step`` updates. `read` returns
    its steps up to ``step``, and then the steps that the training adds. It omits steps up to ``taken``.
    ``unusable`` has the files that the last look could not read, with the reasons, and ``rewritten`` the
    files that the trainer wrote anew.
    """

    def __init__(self, pattern: str, framework: Framework, step: int) -> None:
        self.pattern, self.framework = pattern, framework
        self.taken = -1
        self.not_finite = 0  # number of NaN or infinite values from the training itself
        self._known = framework.name == "none"
        self.unusable: dict[str, str] = {}
        self.rewritten: list[str] = []
        # Facts that a user's own script logs, with their keys. Two values of each show a change.
        self._facts: dict[str, dict[float, str]] = {}
        self._facts_until: float = step  # later steps of an earlier start are trained again
        self._rates: dict[float, str] = {}  # the learning rates that it logs, with their keys
        self.unrated = 0  # the last step before the first learning rate
        self._targets: dict[str, Target | None] = {}
        self._learn(())
        self._values: dict[int, Values] = {}
        self._first: RawLog | None = None  # the beginning, which shows whether steps count from 0
        self._containers: dict[str, Any] = {}
        self._columns: dict[str, list[str]] = {}  # columns of CSV files
        self._places: dict[str, int] = {}  # number of bytes read from each growing file
        self._marks: dict[
            str, tuple[bytes, bytes]
        ] = {}  # their first bytes, and the last ones that were read
        # Modification time, size and inode of files read as a whole.
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._checked = 0  # number of bytes of the files when `facts` last read them
        self._starts: dict[str, int] = {}  # size of each such file when the training began
        self._due = 0.0
        self._gather(final=True)
        self._values = {earlier: values for earlier, values in self._values.items() if earlier <= step}
        self._starts = {name: size for name, (_, size, _) in self._seen.items()}
        self._facts_until = math.inf
        self.not_finite = 0

    def read(self, final: bool = False) -> dict[int, Values]:
        """Return the values of the steps after ``taken``; ``final`` includes an unfinished last line."""
        if final or time.monotonic() >= self._due:
            began = time.monotonic()
            self._gather(final)
            self._due = time.monotonic() + (time.monotonic() - began) / _SHARE
        self._values = {step: value for step, value in self._values.items() if step > self.taken}
        return dict(sorted(self._values.items()))

    def _gather(self, final: bool) -> None:
        self.unusable = {}
        names = sorted(glob.glob(self.pattern, recursive=True), key=natural)
        for name in names:
            if len(names) > 1 and os.path.isdir(name):
                continue  # a pattern such as ** matches folders too
            try:
                self._look(Path(name), final)
            except OSError as error:
                self.unusable[name] = error.strerror or str(error)

    def _look(self, path: Path, final: bool) -> None:
        """Read what is new in a file; raise `OSError` if it is not a file that can be read."""
        name = str(path)
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                return
            if status.st_size - self._places.get(name, 0) > limits.LARGEST_LOG:
                most = f"isolaw reads logs of up to {limits.LARGEST_LOG // limits.MB:,} MB"
                raise OSError(0, f"{status.st_size // limits.MB:,} MB; {most}")
            if name not in self._containers and not self._known:
                if (recognised := _container_of(path)) is None:
                    return
                self._containers[name] = recognised
            container = self._containers.get(name)
            if container is not None and container.name in _WHOLE:
                self._again(path, file, status, container)
            else:
                self._grown(path, file, status.st_size, container, final)

    def _again(self, path: Path, file: IO[bytes], status: os.stat_result, container: Any) -> None:
        """Read a whole log file, which the trainer rewrites, if it has changed since the last call."""
        mark = status.st_mtime_ns, status.st_size, status.st_ino
        if self._seen.get(str(path)) == mark:
            return
        with contextlib.suppress(DataError):  # the file is being written
            before = self._starts.get(str(path), 0)
            if container.name == _PRINTED and 0 < before <= status.st_size:
                file.seek(before)
                self._add(_read_piece(container, path, file))
            else:
                self._add(list(container.read(path)))
        self._seen[str(path)] = mark

    def _grown(self, path: Path, file: IO[bytes], size: int, container: Any, final: bool) -> None:
        """Read the text that the trainer appended to a log file since the last call.

        A look reads one piece, so that a large log holds nobody up, and the ``final`` one all of it.
        """
        name = str(path)
        at = self._places.get(name, 0)
        if at and (size < at or self._marks[name] != _mark(file, at)):
            self.rewritten.append(name)
            at = 0
        until = size if final else min(size, at + _PIECE)
        while at < until:
            file.seek(at)
            piece = file.read(_PIECE)
            whole = piece if final and at + len(piece) >= size else piece[: piece.rfind(b"\n") + 1]
            if not whole:
                if len(piece) < _LONGEST_LINE:
                    break
                whole = piece  # such a long line is not a log record
            at += len(whole)
            if container is None:
                if at == len(whole):
                    self._columns[name] = _columns(whole.partition(b"\n")[0])
                self._add_lines(whole, self._columns[name])
            else:
                with contextlib.suppress(DataError):  # the lines contain no record
                    self._add(_read_piece(container, path, io.BytesIO(whole)))
        self._places[name], self._marks[name] = at, _mark(file, at)

    def _add_lines(self, text: bytes, columns: list[str]) -> None:
        """Add the values in the JSON lines, or the rows of a table, that a user's own script writes."""
        for line in text.splitlines():
            if (record := _record(line, columns)) is None:
                continue
            step = next((whole(record[key], 0) for key in _STEP if key in record), None)
            if step is None:
                continue
            row = self._values.setdefault(step, {})
            if (keys := tuple(record)) != self._keys:
                self._learn(keys)
            values = list(record.values())
            numbers = [values[place] for place in self._which]
            if _are_finite(numbers):  # fast path for the usual case
                row.update(zip(self._names, map(float, numbers), strict=True))
            else:
                for target, read in zip(self._names, map(number, numbers), strict=True):
                    if read is not None:
                        row[target] = read if math.isfinite(read) else math.nan
                        self.not_finite += not math.isfinite(read)
            if step > self._facts_until:
                continue
            for key in self._own:
                value, fact = number(record[key]), _own_fact(key)
                if value is not None and fact and not math.isnan(value):
                    if len(values_of := self._facts.setdefault(fact, {})) < 2:
                        values_of.setdefault(value, key)
                elif value is not None and math.isfinite(value) and len(self._rates) < 2:
                    self._rates[value] = key
            if not self._rates:
                self.unrated = step

    def _learn(self, keys: tuple[str, ...]) -> None:
        """Cache which keys of a line are metrics, because most lines have the same keys."""
        for key in keys:
            if key not in self._targets and len(self._targets) < limits.MOST_SETTINGS:
                self._targets[key] = self.framework.metric(key)
        self._keys = keys
        self._own = [key for key in keys if _own_fact(key) or key.removeprefix("train/") in _RATES]
        self._which = [i for i, key in enumerate(keys) if self._targets.get(key) is not None]
        self._names = [target for key in keys if (target := self._targets.get(key)) is not None]

    def _add(self, logs: list[RawLog]) -> None:
        """Add the values in the logs of a framework."""
        self.not_finite += sum(log.dropped["values that are not finite"] for log in logs)
        before = [] if self._first is None else [self._first]
        curves = stitch([*before, *logs], self.framework)
        if self._first is None and (log := next((log for log in logs if len(log.step)), None)):
            self._first = _beginning(log)
        for (eval_set, metric), curve in curves.of.items():
            for step, value in zip(curve.step.tolist(), curve.value.tolist(), strict=True):
                self._values.setdefault(step, {})[eval_set, metric] = value
        for target, step in curves.diverged.items():
            self._values.setdefault(step, {}).setdefault(target, math.nan)

    def unread(self) -> str:
        """Return what the log has instead of steps, or an empty string if it has steps or is empty."""
        if self.unusable:
            return "; ".join(
                f"isolaw cannot read {Path(name).name}: {why}"
                for name, why in list(self.unusable.items())[:3]
            )
        files = [path for path in map(Path, glob.glob(self.pattern, recursive=True)) if path.is_file()]
        path = max(files, key=lambda candidate: candidate.stat().st_size, default=None)
        if path is None or not path.stat().st_size or self._values or self.taken >= 0:
            return ""
        with open_file(path) as file:
            lines = file.read(_PIECE).count(b"\n")
        expected = 'JSON with "step"' if self._known else f"a step of {self.framework.name}"
        text = f"{path.name} has {lines:,} line{'s' * (lines != 1)}, but none is {expected}"
        if written := _framework_of(path):
            return f'{text}. Its names are those of {written}: set command.framework = "{written}"'
        other = 'lines such as {"step": 1, "reward": 0.5}, or a CSV file with a column "step"'
        return f"{text}; expected {other}" if self._known else text

    @property
    def rate(self) -> Fact | None:
        """The learning rate in the lines of a user's own script if it is constant, and so no schedule."""
        return Fact(*next(iter(self._rates.items()))) if len(self._rates) == 1 else None

    def facts(self, final: bool = False) -> list[tuple[str, Fact]]:
        """Return all facts about the run in its log and the configuration next to it, by isolaw's names.

        The log of a framework is read in full, each time that it has doubled in size and at the end. Each of
        its parts is understood by itself too, because together the first configuration counts.
        """
        facts = [
            (name, Fact(value, key)) for name, stated in self._facts.items() for value, key in stated.items()
        ]
        size = sum(self._places.values()) + sum(look[1] for look in self._seen.values())
        if not final and size < 2 * self._checked:
            return facts
        self._checked = size
        for name, container in self._containers.items():
            if not os.path.isfile(name):  # what the file was replaced by could block
                continue
            with contextlib.suppress(DataError, OSError):
                parts = list(container.read(Path(name)))
                for logs in [[*parts], *([part] for part in parts if len(parts) > 1)]:
                    for run in assemble(logs)[0]:
                        facts += [(key, fact) for key, fact in run.facts.items() if fact.value is not None]
        return facts


def _mark(file: IO[bytes], at: int) -> tuple[bytes, bytes]:
    """Return the first bytes of a file, and the last bytes before ``at``."""
    length, number = min(at, _MARK), file.fileno()
    return os.pread(number, length, 0), os.pread(number, length, at - length)


def _are_finite(values: list[Any]) -> bool:
    with contextlib.suppress(OverflowError):  # an integer beyond all floats
        return {*map(type, values)} <= {float, int} and math.isfinite(sum(values))
    return False


def _columns(line: bytes) -> list[str]:
    """Return the columns of a CSV file with steps from its first line; empty for any other text."""
    with contextlib.suppress(csv.Error):
        columns = next(csv.reader([line.decode("utf-8-sig", "replace").rstrip("\r")]), [])
        return columns if set(_STEP) & set(columns) and not line.startswith(b"{") else []
    return []


def _record(line: bytes, columns: list[str]) -> dict[str, Any] | None:
    """Return the values in a line of JSON, or in a line of a table with these columns; else None."""
    if len(line) > _LONGEST_LINE:
        return None
    if line.lstrip()[:1] == b"{":
        try:
            return dict(orjson.loads(line))
        except ValueError:
            with contextlib.suppress(ValueError, RecursionError):
                return dict(loads(line))  # accepts NaN
    elif columns:
        with contextlib.suppress(csv.Error):
            cells = next(csv.reader([line.decode("utf-8", "replace")]), [])
            return dict(zip(columns, cells, strict=True)) if len(cells) == len(columns) else None
    return None


def _container_of(path: Path) -> Any:
    """Return the reader of a log file's format, or None."""
    head = limits.start(path, HEAD)
    return next((candidate for candidate in candidates("auto") if candidate.file(path, head)), None)


def _framework_of(path: Path) -> str:
    """Return the framework whose log a file is, or an empty string."""
    container = _container_of(path)
    with contextlib.suppress(DataError):
        logs = list(container.read(path)) if container else []
        framework = frameworks.find({key for log in logs for key in log.series}, {})
        return framework.name if framework else ""
    return ""


def _read_piece(container: Any, path: Path, text: IO[bytes]) -> list[RawLog]:
    """Read one piece of a log file, the rest of an open file, and return the logs in it."""
    with tempfile.TemporaryDirectory(prefix="isolaw-") as folder:
        piece = Path(folder) / path.name
        with piece.open("wb") as copy:
            shutil.copyfileobj(text, copy)
        return list(container.read(piece))


def _beginning(log: RawLog) -> RawLog:
    """Return a copy of a log that contains only its first record."""
    out = RawLog(log.source, log.container, log.run)
    out.add(
        {key: series.value[0] for key, series in log.series.items() if series.record[0] == 0},
        log.step[0],
        log.wall_s[0],
    )
    return out
