"""`RawLog`: one log as written, as records of numbers under the framework's own keys.

A *container* reads a file format: JSON lines, a console, TensorBoard events (`isolaw.readers.containers`). A
*framework* interprets names: veRL, TRL (`isolaw.readers.frameworks`). Any container can contain any
framework's names; only this module connects the two.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.readers import limits

HEAD = 65_536  # bytes of a file that are used to recognise it
LARGEST_COUNT = 2**31
# A printed number can be wrapped: np.float64(0.5), tensor(0.5, device='cuda:0').
_WRAPPED_NUMBER = re.compile(
    r"^(?:[a-z]+\.)?(?:float|int|uint|bfloat|tensor)\d*\(\s*([^,()]+?)\s*(?:,[^()]*)?\)$", re.I
)
_INTEGER_TEXT = re.compile(r"[-+]?\d+(?:\.\d*)?")  # an integer beyond any float is a value, not a text


@dataclass
class Series:
    """The values of one key of a log, with the index of the record that each value comes from."""

    record: array[int] = field(default_factory=lambda: array("I"))
    value: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class RawLog:
    """A log as read: records of numbers in file order, not yet interpreted."""

    source: str  # the file (or run directory), for messages
    container: str  # the name of the container that read it: ``jsonl``, ``tensorboard``
    # The run's directory, or its name in a tracker. Parts with the same name are stitched in order (e.g. the
    # second file of a resumed run, or a later checkpoint's state).
    run: str
    config: dict[str, Any] = field(default_factory=dict)  # flat keys: ``actor_rollout_ref.rollout.n``
    config_source: str = ""  # path of the configuration
    # For each record, the step as the container counts it, and the seconds since the first record; NaN if
    # unknown.
    step: array[float] = field(default_factory=lambda: array("d"))
    wall_s: array[float] = field(default_factory=lambda: array("d"))
    series: dict[str, Series] = field(default_factory=dict)  # the values, by the framework's key
    not_finite: dict[str, int] = field(default_factory=dict)  # index of a key's last NaN or infinity
    dropped: Counter[str] = field(default_factory=Counter)  # reason → number left out
    notes: list[str] = field(default_factory=list)
    is_torn: bool = False  # whether a text file ends in the middle of a line
    in_order: bool = True  # whether the records are in the order in which they were written
    # Shared by the logs of one file; by default its own.
    memory: limits.MemoryMeter = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.memory = self.memory or limits.MemoryMeter(self.source)

    @property
    def of_tracker(self) -> bool:
        """True if a tracker wrote the log, whose own steps can count records instead of updates."""
        return self.container.startswith("wandb")

    def new_log(self, run: str, config: dict[str, Any] | None = None, config_source: str = "") -> RawLog:
        """Return an empty log of the same file, for the next part of a run or for another run."""
        return RawLog(self.source, self.container, run, config or {}, config_source, memory=self.memory)

    def split_at(self, begins: Sequence[int], names: Sequence[str]) -> Iterator[RawLog]:
        """Yield the records from each of these positions to the next, as logs of the runs ``name_count``."""
        for name, (start, end) in zip(names, pairwise([*begins, len(self.step)]), strict=True):
            piece = replace(
                self, run=name, step=self.step[start:end], wall_s=self.wall_s[start:end], series={},
                not_finite={key: i - start for key, i in self.not_finite.items() if start <= i < end},
                dropped=Counter(self.dropped if end == len(self.step) else ()), notes=list(self.notes),
            )  # fmt: skip
            for key, series in self.series.items():
                low, high = bisect_left(series.record, start), bisect_left(series.record, end)
                if high > low:
                    record = array("I", (index - start for index in series.record[low:high]))
                    piece.series[key] = Series(record, series.value[low:high])
            yield piece

    def add(self, values: Mapping[str, Any], step: float = math.nan, wall_s: float = math.nan) -> None:
        """Append a record. Numbers that are not finite are dropped and counted, never read as 0.

        Raises `DataError` if the numbers of the file take too much memory.
        """
        self.memory.record(len(values))
        index = len(self.step)
        self.step.append(step)
        self.wall_s.append(wall_s)
        series_of, finite = self.series, math.isfinite  # reading spends most of its time in this loop
        for key, value in values.items():
            float_value = value if type(value) is float else number(value)
            if float_value is None:
                continue  # text or a list, not a curve
            if not finite(float_value):
                self.dropped["values that are not finite"] += 1
                if len(key) <= limits.LONGEST_NAME:
                    self.memory.name_count += key not in self.not_finite
                    self.not_finite[key] = index
                continue
            series = series_of.get(key)
            if series is None:
                if len(key) > limits.LONGEST_NAME:
                    self.dropped[f"values of names longer than {limits.LONGEST_NAME:,} characters"] += 1
                    continue
                self.memory.name_count += 1
                series = series_of[key] = Series()
            series.record.append(index)
            series.value.append(float_value)

    def count_damaged(self, reason: str) -> None:
        """Count a record that cannot be read; raise `DataError` beyond 100,000 records."""
        self.dropped[reason] += 1
        if self.dropped[reason] > limits.MOST_DAMAGED:
            raise DataError(
                f"{self.source}: over {limits.MOST_DAMAGED:,} {reason}, so it is not a {self.container} log. "
                "Leave the file out, or export it again from the tracker"
            )


@dataclass(frozen=True)
class Container:
    """A reader of one file format of logs.

    A reader never unpickles, imports or evaluates anything in a file, and reads in one pass. It raises
    `isolaw.errors.DataError` with the file (and line) if a file is unusable. Unneeded parts, such as a
    truncated last line or a NUL byte, are dropped and counted in `RawLog.dropped`.
    """

    name: str  # the value of ``--format``: ``verl-console``, ``tensorboard``
    read: Callable[[Path], Iterable[RawLog]]
    # Whether a file has this format, by its first `HEAD` bytes. The extension can confirm this, but never
    # decide it.
    file: Callable[[Path, bytes], bool] = lambda _path, _head: False
    # Whether a whole directory has this format (an MLflow run, an offline W&B run), by the names in it.
    directory: Callable[[Path], bool] = lambda _path: False


def finite(value: Any) -> float:
    """Return ``value`` as a finite float, or NaN if it is anything else."""
    parsed = number(value)
    return math.nan if parsed is None or math.isinf(parsed) else parsed


def whole(value: Any, minimum: int) -> int | None:
    """Return ``value`` as a whole number from ``minimum`` to 2³¹, or None if it is anything else."""
    parsed = finite(value)
    return int(parsed) if minimum <= parsed <= LARGEST_COUNT and parsed == round(parsed) else None


def swift_step(values: Mapping[str, Any]) -> float:
    """Return the step of a record in ms-swift's forms, or NaN if it has none.

    >>> swift_step({"global_step/max_steps": "20/1875"}), swift_step({"iteration": "5/500"})
    (20.0, 5.0)
    """
    progress_text = values.get("global_step/max_steps", values.get("iteration"))
    is_fraction = isinstance(progress_text, str) and "/" in progress_text
    return finite(progress_text.partition("/")[0]) if is_fraction else math.nan


def number(value: Any) -> float | None:
    """Return a number as a float, however it was printed, or None for anything else.

    >>> number("0.25"), number("np.float64(0.5)"), number("easy"), number(True)
    (0.25, 0.5, None, None)
    """
    if isinstance(value, bool) or (not value and value != 0):
        return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return float(value) if abs(value) < 2**1000 else math.inf
    if not isinstance(value, str) or (len(value) > 200 and not _INTEGER_TEXT.fullmatch(value)):
        return None
    text = value.strip()
    wrapped = _WRAPPED_NUMBER.match(text)
    try:
        return float(wrapped[1] if wrapped else text)
    except ValueError:
        return None


# The lines of a text log

_CHUNK_BYTES = 1 << 16
# Escape sequences (colours, cursor, window titles), and colour codes whose escape byte was lost in a copy.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*\x07?|[@-Z\\^_=>])|\[\d{1,3}(?:;\d{1,3}){0,4}m")
# Ray's prefix for a line of a worker: "(TaskRunner pid=123, ip=10.0.0.2) ".
_RAY_PREFIX = re.compile(
    r"\s{0,8}(\([^()\s]{1,100}(?: [^()\s]{1,100}){0,3}? pid=\d{1,10}(?:, ip=[\w.:]{1,50})?\)) ?"
)
# The prefix of ``srun --label`` for a line of a task: " 0: ".
_SRUN_PREFIX = re.compile(r" {0,4}\d{1,5}: ")
_NUL_GAP = bytes(8)
_CONTROL_CHARACTERS = dict.fromkeys([*range(9), *range(11, 32), 127])


def lines(path: str | Path, log: RawLog, at_returns: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each nonempty line, without its line end.

    A line of more than 1 MB is dropped and counted in ``log``. With ``at_returns``, a carriage return also
    ends a line, since progress bars write many lines into one. Raises `DataError` if the file cannot be read,
    takes too long, or has a line of more than 256 MB.
    """
    line_number, unfinished, skipped_bytes = 0, b"", 0
    with limits.opened(path) as file:
        at_end = False
        while not at_end:
            chunk = file.read(_CHUNK_BYTES)
            at_end, log.is_torn = not chunk, bool(unfinished)
            if at_returns:
                chunk = chunk.replace(b"\r", b"\n")
            content = unfinished + (chunk or b"\n")  # the end of the file ends the last line
            is_plain = len(content) <= limits.LONGEST_LINE and _NUL_GAP not in content  # as nearly always
            *finished, unfinished = content.split(b"\n")
            for line in finished:
                line_number, skipped_bytes = line_number + 1, 0
                if is_plain:
                    if line:
                        yield line_number, line
                elif len(line) > limits.LONGEST_LINE:
                    log.dropped["lines longer than 1 MB"] += 1
                elif _NUL_GAP in line:  # left by a crash; what is before it can be cut off anywhere
                    bytes_before, _, line = line.rpartition(_NUL_GAP)
                    if bytes_before.strip(b"\0"):
                        log.dropped["lines cut off by NUL bytes"] += 1
                    yield line_number, line.lstrip(b"\0")
                elif line:
                    yield line_number, line
            if len(unfinished) > limits.LONGEST_LINE:  # the end of a long line is not kept
                skipped_bytes += len(unfinished) - limits.LONGEST_LINE - 1
                unfinished = unfinished[: limits.LONGEST_LINE + 1]
                if skipped_bytes > limits.LONGEST_SKIPPED:
                    raise DataError(
                        f"{path}: line {line_number + 1} is longer than "
                        f"{limits.LONGEST_SKIPPED // limits.MB} MB, so it is no text log, or has a gap of "
                        "null bytes. Truncate the file before that line"
                    )


def is_text(head: bytes) -> bool:
    """Return whether the first bytes of a file can be a console's, rather than weights or an archive.

    >>> is_text("τ = 0.5".encode()), is_text(b"\\0" * 99 + b"step:1"), is_text(bytes(range(256)))
    (True, True, False)
    """
    text = head.replace(b"\0", b"")
    return text.decode("utf-8", errors="replace").count("\ufffd") <= len(text) / 20


def clean(line: bytes) -> str:
    r"""Return a line as text, without NUL and control bytes, escape sequences and undecodable bytes.

    >>> clean(b"\x1b[36m(main_task pid=7)\x1b[0m step:1 \x00- a/b:0.5 [32m")
    '(main_task pid=7) step:1 - a/b:0.5 '
    """
    text = line.decode("utf-8", errors="ignore")
    if "\x1b" in text or "[" in text:
        text = _ANSI.sub("", text)
    return text if text.isprintable() else text.translate(_CONTROL_CHARACTERS)


def unprefixed(text: str) -> tuple[str, str]:
    """Return the worker that wrote a line according to Ray or SLURM (empty if none), and the line itself.

    >>> unprefixed("(TaskRunner pid=123, ip=10.0.0.2) step:1 - a/b:0.5 [repeated 2x across cluster]")
    ('(TaskRunner pid=123, ip=10.0.0.2)', 'step:1 - a/b:0.5')
    >>> unprefixed("0: {'loss': 0.5}")
    ('0: ', "{'loss': 0.5}")
    """
    srun_label = _SRUN_PREFIX.match(text)
    task_prefix = srun_label[0] if srun_label else ""
    text = text[len(task_prefix) :]
    ray_prefix = _RAY_PREFIX.match(text)
    if ray_prefix:
        return task_prefix + ray_prefix[1], text[ray_prefix.end() :].partition(" [repeated ")[0]
    return task_prefix, text
