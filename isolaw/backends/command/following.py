"""Read the log of a training run while it grows, with the same result as from the complete log.

Only the appended text of a text log is read. A file that the trainer rewrites (a trainer's state) and a
folder (TensorBoard) are read in full after each change. Reading takes at most a tenth of the time.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import json
import math
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from isolaw.errors import DataError
from isolaw.files import natural
from isolaw.readers import frameworks, limits, names
from isolaw.readers.assemble import assemble
from isolaw.readers.containers import candidates
from isolaw.readers.frameworks.base import Fact, Framework, Target
from isolaw.readers.raw_log import HEAD, RawLog, number, whole
from isolaw.readers.stitch import stitch

_PIECE = 32 * 2**20  # bytes to read at a time
_SHARE = 0.1  # maximum fraction of time for reading
_LONGEST_LINE = 2**20
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
    """

    def metric(key: str) -> Target | None:
        if found := _EVALUATION.fullmatch(key):
            return evaluation_set, found[1]
        name = key.removeprefix("train/")
        return None if name in (*_STEP, "time") or _own_fact(key) else ("train", name)

    return Framework("none", metric, step_keys=_STEP)


class Following:
    """The growing log of one training run, which consists of all files that match ``pattern``.

    Content that exists at the start is from before the training resumed at ``step`` updates. `read` returns
    its steps up to ``step``, and then the steps that the training adds. It omits steps up to ``taken``.
    """

    def __init__(self, pattern: str, framework: Framework, step: int) -> None:
        self.pattern, self.framework = pattern, framework
        self.taken = -1
        self.not_finite = 0  # number of NaN or infinite values from the training itself
        self._known = framework.name == "none"
        self._facts: dict[str, Fact] = {}  # facts that a user's own script logs
        self._rates: dict[float, str] = {}  # the learning rates that it logs, with their keys
        self._targets: dict[str, Target | None] = {}
        self._learn(())
        self._values: dict[int, Values] = {}
        self._first: RawLog | None = None  # the beginning, which shows whether steps count from 0
        self._containers: dict[str, Any] = {}
        self._columns: dict[str, list[str]] = {}  # columns of CSV files
        self._places: dict[str, int] = {}  # number of bytes read from each growing file
        self._seen: dict[str, tuple[int, int]] = {}  # modification time and size of files read as a whole
        self._starts: dict[str, int] = {}  # size of each such file when the training began
        self._due = 0.0
        self._gather(final=True)
        self._values = {own: values for own, values in self._values.items() if own <= step}
        self._starts = {name: size for name, (_, size) in self._seen.items()}
        self.not_finite = 0

    def read(self, final: bool = False) -> dict[int, Values]:
        """Return the values of the steps after ``taken``; ``final`` includes an unfinished last line."""
        if final or time.monotonic() >= self._due:
            began = time.monotonic()
            self._gather(final)
            self._due = time.monotonic() + (time.monotonic() - began) / _SHARE
        self._values = {step: own for step, own in self._values.items() if step > self.taken}
        return dict(sorted(self._values.items()))

    def _gather(self, final: bool) -> None:
        for name in sorted(glob.glob(self.pattern, recursive=True), key=natural):
            path = Path(name)
            if not path.exists() or (path.is_file() and not path.stat().st_size):
                continue
            if name not in self._containers and not self._known:
                if (found := _container_of(path)) is None:
                    continue
                self._containers[name] = found
            container = self._containers.get(name)
            if container is not None and container.name in _WHOLE:
                self._again(path, container)
            else:
                self._grown(path, container, final)

    def _again(self, path: Path, container: Any) -> None:
        """Read a whole log file, which the trainer rewrites, if it has changed since the last call."""
        status = path.stat()
        mark = status.st_mtime_ns, status.st_size
        if self._seen.get(str(path)) == mark:
            return
        with contextlib.suppress(DataError):  # the file is being written
            if container.name == _PRINTED and (before := self._starts.get(str(path), 0)):
                with path.open("rb") as file:
                    file.seek(before)
                    self._add(_read_piece(container, path, file.read(limits.LARGEST_LOG)))
            else:
                self._add(list(container.read(path)))
        self._seen[str(path)] = mark

    def _grown(self, path: Path, container: Any, final: bool) -> None:
        """Read the text that the trainer appended to a log file since the last call."""
        name, size = str(path), path.stat().st_size
        at = self._places.get(name, 0)
        if size < at:  # the file was rewritten
            at = 0
        with path.open("rb") as file:
            while at < size:
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
                        self._add(_read_piece(container, path, whole))
        self._places[name] = at

    def _add_lines(self, text: bytes, columns: list[str]) -> None:
        """Add the values in the JSON lines, or the rows of a table, that a user's own script writes."""
        for line in text.splitlines():
            if (record := _record(line, columns)) is None:
                continue
            step = next((whole(record[key], 0) for key in _STEP if key in record), None)
            if step is None:
                continue
            own = self._values.setdefault(step, {})
            if (keys := tuple(record)) != self._keys:
                self._learn(keys)
            values = list(record.values())
            found = [values[place] for place in self._which]
            if {*map(type, found)} <= {float, int} and math.isfinite(sum(found)):
                own.update(zip(self._names, map(float, found), strict=True))  # fast path for the usual case
            else:
                for target, read in zip(self._names, map(number, found), strict=True):
                    if read is not None:
                        own[target] = read if math.isfinite(read) else math.nan
                        self.not_finite += not math.isfinite(read)
            for key in self._own:
                value, fact = number(record[key]), _own_fact(key)
                if value is not None and fact:
                    self._facts[fact] = Fact(value, key)
                elif value is not None and math.isfinite(value) and len(self._rates) < 2:
                    self._rates[value] = key

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
        files = [path for path in map(Path, glob.glob(self.pattern, recursive=True)) if path.is_file()]
        path = max(files, key=lambda own: own.stat().st_size, default=None)
        if path is None or not path.stat().st_size or self._values or self.taken >= 0:
            return ""
        with path.open("rb") as file:
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

    def check(self) -> dict[str, Fact]:
        """Return facts about the run from its log and the configuration next to it, by isolaw's names."""
        found = dict(self._facts)
        for name, container in self._containers.items():
            with contextlib.suppress(DataError):
                for run in assemble(list(container.read(Path(name))))[0]:
                    found |= {key: fact for key, fact in run.facts.items() if fact.value is not None}
        return found


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
                return dict(json.loads(line))  # accepts NaN
    elif columns:
        with contextlib.suppress(csv.Error):
            cells = next(csv.reader([line.decode("utf-8", "replace")]), [])
            return dict(zip(columns, cells, strict=True)) if len(cells) == len(columns) else None
    return None


def _container_of(path: Path) -> Any:
    """Return the reader of a log file's format, or None."""
    head = limits.start(path, HEAD)
    return next((own for own in candidates("auto") if own.file(path, head)), None)


def _framework_of(path: Path) -> str:
    """Return the framework whose log a file is, or an empty string."""
    container = _container_of(path)
    with contextlib.suppress(DataError):
        logs = list(container.read(path)) if container else []
        found = frameworks.find({key for log in logs for key in log.series}, {})
        return found.name if found else ""
    return ""


def _read_piece(container: Any, path: Path, text: bytes) -> list[RawLog]:
    """Read one piece of a log file, and return the logs in it."""
    with tempfile.TemporaryDirectory(prefix="isolaw-") as folder:
        piece = Path(folder) / path.name
        piece.write_bytes(text)
        return list(container.read(piece))


def _beginning(log: RawLog) -> RawLog:
    """Return a copy of a log that contains only its first record."""
    out = RawLog(log.source, log.container, log.run)
    out.add(
        {key: own.value[0] for key, own in log.series.items() if own.record[0] == 0},
        log.step[0],
        log.wall_s[0],
    )
    return out
