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

_PIECE_BYTES = 32 * 2**20  # bytes to read at a time
_READING_SHARE = 0.1  # maximum fraction of time for reading
_LONGEST_LINE = 2**20
_MARK_BYTES = 256  # bytes at the beginning of a log, and before the place up to which it was read
# Log formats that must be read as whole files; for `_PRINTED_FORMAT`, all output since the start.
_PRINTED_FORMAT = "stdout-dicts"
_WHOLE_FORMATS = {"trainer-state", "tensorboard", "json", "wandb-offline", "mlflow", _PRINTED_FORMAT}
_STEP_KEYS = ("step", "global_step", "training_step", "iteration")
_EVALUATION_KEY = re.compile(r"(?:eval|val|valid|validation|test)[/_.](.+)", re.S)

# Other meanings of these names are common: micro-batches, rollouts so far, seeds of one process.
_UNCLEAR_NAMES = {*names.AMBIGUOUS, "n_rollouts", "rollouts_n", "rng_seed"}
# Facts about the run that a user's own script can log in addition to metrics.
_FACT_OF_NAME = {
    name: fact
    for fact in ("rollouts_per_problem", "problems_per_batch", "seed")
    for name in names.CALLED[fact].split()
    if name not in _UNCLEAR_NAMES
} | dict.fromkeys(["B", *names.BATCH.split()], "rollouts_per_step")
_LR_NAMES = names.RECIPE["lr"].split()


def _fact_of(key: str) -> str | None:
    """Return the fact that a key of a user's own script has, or None.

    >>> [_fact_of(key) for key in ("train/Group-Size", "B", "b", "N", "eval/n")]
    ['rollouts_per_problem', 'rollouts_per_step', None, None, None]
    """
    name = key.removeprefix("train/")
    return _FACT_OF_NAME.get(name if len(name) == 1 else names.plain(name))


StepValues = dict[Target, float]


def plain_framework(evaluation_set: str) -> Framework:
    """Return the `Framework` for a user's own lines with ``step``; ``eval/x`` is an evaluation metric.

    >>> plain_framework("validation").metric("eval_acc"), plain_framework("v").metric("reward")
    (('validation', 'acc'), ('train', 'reward'))
    >>> plain_framework("aime24").metric("val/acc"), plain_framework("validation").metric("avg@4")
    (('aime24', 'acc'), ('validation', 'avg@4'))
    """

    def metric(key: str) -> Target | None:
        if match := _EVALUATION_KEY.fullmatch(key):
            return evaluation_set, match[1]
        name = key.removeprefix("train/")
        if is_accuracy(key) and "@" in key:
            return evaluation_set, key
        return None if name in (*_STEP_KEYS, "time") or _fact_of(key) else ("train", name)

    return Framework("none", metric, step_keys=_STEP_KEYS)


class GrowingLog:
    """The growing log of one training run, which consists of all files that match ``pattern``.

    Content that exists at the start is from before the training resumed at ``step`` updates. `read` returns
    its steps up to ``step``, and then the steps that the training adds. It omits steps up to ``taken_step``.
    ``unusable_files`` has the files that the last look could not read, with the reasons.
    """

    def __init__(self, pattern: str, framework: Framework, step: int) -> None:
        self.pattern, self.framework = pattern, framework
        self.taken_step = -1
        self.not_finite_values = 0  # number of NaN or infinite values from the training itself
        self._is_plain = framework.name == "none"
        self.unusable_files: dict[str, str] = {}
        # Facts that a user's own script logs, with their keys. Two values of each show a change.
        self._logged_facts: dict[str, dict[float, str]] = {}
        self._last_fact_step: float = step  # later steps of an earlier start are trained again
        self._key_of_lr: dict[float, str] = {}  # the learning rates that it logs, with their keys
        self.last_step_without_lr = 0  # the last step before the first learning rate
        self._target_of_key: dict[str, Target | None] = {}
        self._cache_keys(())
        self._values: dict[int, StepValues] = {}  # by step
        self._first_record: RawLog | None = None  # the beginning, which shows whether steps count from 0
        self._container_of_file: dict[str, Any] = {}
        self._columns_of_file: dict[str, list[str]] = {}  # columns of CSV files
        self._bytes_read: dict[str, int] = {}  # number of bytes read from each growing file
        # Their first bytes, and the last ones that were read.
        self._mark_of_file: dict[str, tuple[bytes, bytes]] = {}
        # Modification time, size and inode of files read as a whole.
        self._state_of_file: dict[str, tuple[int, int, int]] = {}
        self._checked_bytes = 0  # number of bytes of the files when `facts` last read them
        self._start_sizes: dict[str, int] = {}  # size of each such file when the training began
        self._next_read = 0.0
        self._read_files(final=True)
        self._values = {k: values for k, values in self._values.items() if k <= step}
        self._start_sizes = {name: size for name, (_, size, _) in self._state_of_file.items()}
        self._last_fact_step = math.inf
        self.not_finite_values = 0

    def read(self, final: bool = False) -> dict[int, StepValues]:
        """Return the values of the steps after ``taken_step``; ``final`` includes an unfinished last line."""
        if final or time.monotonic() >= self._next_read:
            began = time.monotonic()
            self._read_files(final)
            self._next_read = time.monotonic() + (time.monotonic() - began) / _READING_SHARE
        self._values = {step: value for step, value in self._values.items() if step > self.taken_step}
        return dict(sorted(self._values.items()))

    def _read_files(self, final: bool) -> None:
        self.unusable_files = {}
        paths = sorted(glob.glob(self.pattern, recursive=True), key=natural)
        for path in paths:
            if len(paths) > 1 and os.path.isdir(path):
                continue  # a pattern such as ** matches folders too
            try:
                self._read_new(Path(path), final)
            except OSError as error:
                self.unusable_files[path] = error.strerror or str(error)

    def _read_new(self, path: Path, final: bool) -> None:
        """Read what is new in a file; raise `OSError` if it is not a file that can be read."""
        name = str(path)
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                return
            if status.st_size - self._bytes_read.get(name, 0) > limits.LARGEST_LOG:
                limit = f"isolaw reads logs of up to {limits.LARGEST_LOG // limits.MB:,} MB"
                raise OSError(0, f"{status.st_size // limits.MB:,} MB; {limit}")
            if name not in self._container_of_file and not self._is_plain:
                if (recognised := _container_of(path)) is None:
                    return
                self._container_of_file[name] = recognised
            container = self._container_of_file.get(name)
            if container is not None and container.name in _WHOLE_FORMATS:
                self._read_whole(path, file, status, container)
            else:
                self._read_appended(path, file, status.st_size, container, final)

    def _read_whole(self, path: Path, file: IO[bytes], status: os.stat_result, container: Any) -> None:
        """Read a whole log file, which the trainer rewrites, if it has changed since the last call."""
        state = status.st_mtime_ns, status.st_size, status.st_ino
        if self._state_of_file.get(str(path)) == state:
            return
        with contextlib.suppress(DataError):  # the file is being written
            start_size = self._start_sizes.get(str(path), 0)
            if container.name == _PRINTED_FORMAT and 0 < start_size <= status.st_size:
                file.seek(start_size)
                self._add_logs(_read_piece(container, path, file))
            else:
                self._add_logs(list(container.read(path)))
        self._state_of_file[str(path)] = state

    def _read_appended(self, path: Path, file: IO[bytes], size: int, container: Any, final: bool) -> None:
        """Read the text that the trainer appended to a log file since the last call.

        A look reads one piece, so that a large log holds nobody up, and the ``final`` one all of it.
        """
        name = str(path)
        offset = self._bytes_read.get(name, 0)
        if offset and (size < offset or self._mark_of_file[name] != _mark_of(file, offset)):
            offset = 0  # the trainer wrote the file anew
        end = size if final else min(size, offset + _PIECE_BYTES)
        while offset < end:
            file.seek(offset)
            piece = file.read(_PIECE_BYTES)
            taken = piece if final and offset + len(piece) >= size else piece[: piece.rfind(b"\n") + 1]
            if not taken:
                if len(piece) < _LONGEST_LINE:
                    break
                taken = piece  # such a long line is not a log record
            offset += len(taken)
            if container is None:
                if offset == len(taken):
                    self._columns_of_file[name] = _csv_columns(taken.partition(b"\n")[0])
                self._add_lines(taken, self._columns_of_file[name])
            else:
                with contextlib.suppress(DataError):  # the lines contain no record
                    self._add_logs(_read_piece(container, path, io.BytesIO(taken)))
        self._bytes_read[name], self._mark_of_file[name] = offset, _mark_of(file, offset)

    def _add_lines(self, content: bytes, columns: list[str]) -> None:
        """Add the values in the JSON lines, or the rows of a table, that a user's own script writes."""
        for line in content.splitlines():
            if (record := _parse_line(line, columns)) is None:
                continue
            step = next((whole(record[key], 0) for key in _STEP_KEYS if key in record), None)
            if step is None:
                continue
            step_values = self._values.setdefault(step, {})
            if (keys := tuple(record)) != self._cached_keys:
                self._cache_keys(keys)
            values = list(record.values())
            numbers = [values[i] for i in self._metric_indices]
            if _all_finite(numbers):  # fast path for the usual case
                step_values.update(zip(self._metric_targets, map(float, numbers), strict=True))
            else:
                for target, parsed in zip(self._metric_targets, map(number, numbers), strict=True):
                    if parsed is not None:
                        step_values[target] = parsed if math.isfinite(parsed) else math.nan
                        self.not_finite_values += not math.isfinite(parsed)
            if step > self._last_fact_step:
                continue
            for key in self._fact_keys:
                value, fact = number(record[key]), _fact_of(key)
                if value is not None and fact and not math.isnan(value):
                    if len(key_of_value := self._logged_facts.setdefault(fact, {})) < 2:
                        key_of_value.setdefault(value, key)
                elif value is not None and math.isfinite(value) and len(self._key_of_lr) < 2:
                    self._key_of_lr[value] = key
            if not self._key_of_lr:
                self.last_step_without_lr = step

    def _cache_keys(self, keys: tuple[str, ...]) -> None:
        """Cache which keys of a line are metrics, because most lines have the same keys."""
        for key in keys:
            if key not in self._target_of_key and len(self._target_of_key) < limits.MOST_SETTINGS:
                self._target_of_key[key] = self.framework.metric(key)
        self._cached_keys = keys
        self._fact_keys = [key for key in keys if _fact_of(key) or key.removeprefix("train/") in _LR_NAMES]
        targets = [self._target_of_key.get(key) for key in keys]
        self._metric_indices = [i for i, target in enumerate(targets) if target is not None]
        self._metric_targets = [target for target in targets if target is not None]

    def _add_logs(self, logs: list[RawLog]) -> None:
        """Add the values in the logs of a framework."""
        self.not_finite_values += sum(log.dropped["values that are not finite"] for log in logs)
        earlier = [] if self._first_record is None else [self._first_record]
        curves = stitch([*earlier, *logs], self.framework)
        if self._first_record is None and (log := next((log for log in logs if len(log.step)), None)):
            self._first_record = _first_record_of(log)
        for (eval_set, metric), curve in curves.of.items():
            for step, value in zip(curve.step.tolist(), curve.value.tolist(), strict=True):
                self._values.setdefault(step, {})[eval_set, metric] = value
        for target, step in curves.diverged.items():
            self._values.setdefault(step, {}).setdefault(target, math.nan)

    def unread_reason(self) -> str:
        """Return what the log has instead of steps, or an empty string if it has steps or is empty."""
        if self.unusable_files:
            return "; ".join(
                f"isolaw cannot read {Path(name).name}: {reason}"
                for name, reason in list(self.unusable_files.items())[:3]
            )
        files = [path for path in map(Path, glob.glob(self.pattern, recursive=True)) if path.is_file()]
        path = max(files, key=lambda candidate: candidate.stat().st_size, default=None)
        if path is None or not path.stat().st_size or self._values or self.taken_step >= 0:
            return ""
        with open_file(path) as file:
            lines = file.read(_PIECE_BYTES).count(b"\n")
        expected = 'JSON with "step"' if self._is_plain else f"a step of {self.framework.name}"
        text = f"{path.name} has {lines:,} line{'s' * (lines != 1)}, but none is {expected}"
        if framework := _framework_of(path):
            return f'{text}. Its names are those of {framework}: set command.framework = "{framework}"'
        accepted = 'lines such as {"step": 1, "reward": 0.5}, or a CSV file with a column "step"'
        return f"{text}; expected {accepted}" if self._is_plain else text

    @property
    def constant_lr(self) -> Fact | None:
        """The learning rate in the lines of a user's own script if it is constant, and so no schedule."""
        return Fact(*next(iter(self._key_of_lr.items()))) if len(self._key_of_lr) == 1 else None

    def facts(self, final: bool = False) -> list[tuple[str, Fact]]:
        """Return all facts about the run in its log and the configuration next to it, by isolaw's names.

        The log of a framework is read in full, each time that it has doubled in size and at the end. Each of
        its parts is understood by itself too, because together the first configuration counts.
        """
        facts = [
            (name, Fact(value, key))
            for name, key_of_value in self._logged_facts.items()
            for value, key in key_of_value.items()
        ]
        size = sum(self._bytes_read.values()) + sum(state[1] for state in self._state_of_file.values())
        if not final and size < 2 * self._checked_bytes:
            return facts
        self._checked_bytes = size
        for name, container in self._container_of_file.items():
            if not os.path.isfile(name):  # what the file was replaced by could block
                continue
            with contextlib.suppress(DataError, OSError):
                logs = list(container.read(Path(name)))
                for assembled in [logs, *([log] for log in logs if len(logs) > 1)]:
                    for run in assemble(assembled)[0]:
                        facts += [(key, fact) for key, fact in run.facts.items() if fact.value is not None]
        return facts


def _mark_of(file: IO[bytes], offset: int) -> tuple[bytes, bytes]:
    """Return the first bytes of a file, and the last bytes before ``offset``."""
    count, descriptor = min(offset, _MARK_BYTES), file.fileno()
    return os.pread(descriptor, count, 0), os.pread(descriptor, count, offset - count)


def _all_finite(values: list[Any]) -> bool:
    with contextlib.suppress(OverflowError):  # an integer beyond all floats
        return {*map(type, values)} <= {float, int} and math.isfinite(sum(values))
    return False


def _csv_columns(line: bytes) -> list[str]:
    """Return the columns of a CSV file with steps from its first line; empty for any other text."""
    with contextlib.suppress(csv.Error):
        columns = next(csv.reader([line.decode("utf-8-sig", "replace").rstrip("\r")]), [])
        return columns if set(_STEP_KEYS) & set(columns) and not line.startswith(b"{") else []
    return []


def _parse_line(line: bytes, columns: list[str]) -> dict[str, Any] | None:
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


def _read_piece(container: Any, path: Path, content: IO[bytes]) -> list[RawLog]:
    """Read one piece of a log file, the rest of an open file, and return the logs in it."""
    with tempfile.TemporaryDirectory(prefix="isolaw-") as folder:
        piece = Path(folder) / path.name
        with piece.open("wb") as copy:
            shutil.copyfileobj(content, copy)
        return list(container.read(piece))


def _first_record_of(log: RawLog) -> RawLog:
    """Return a copy of a log that contains only its first record."""
    beginning = RawLog(log.source, log.container, log.run)
    values = {key: series.value[0] for key, series in log.series.items() if series.record[0] == 0}
    beginning.add(values, log.step[0], log.wall_s[0])
    return beginning
