"""JSON lines with metrics: the files of veRL and EasyR1, prime-rl's ``metrics.jsonl``, and similar files.

veRL writes ``{"step": 1, "data": {"critic/score/mean": 0.5, …}}``. EasyR1 nests the parts of its keys, as in
``{"step": 1, "reward": {"overall": 0.5}}``. prime-rl writes flat keys and several lines per
step, as in ``{"step": 1, "time": …, "optim/lr": …}``. A first line ``{"config": {…}}`` contains the
configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.readers import configs, frameworks
from isolaw.readers.containers.printed_config import Settings
from isolaw.readers.literals import parse_json
from isolaw.readers.measures import PHASES, eval_set_of
from isolaw.readers.names import CONFIGURATIONS, SPLIT, guess, is_step
from isolaw.readers.raw_log import HEAD, Container, RawLog, finite, lines, swift_step

_LONGEST_KEY = 300  # characters of a nested key, joined
_FIRST_CLOCK_TIME = 1e9  # seconds; a smaller "time" is not a clock time
_MAX_NAMED = 3
_COUNTERS = {"epoch", "global_step", "training_step", "num_tokens", "num_input_tokens_seen"}
_DEEPEST = 20  # levels of nested metrics
_VERL_LINE = re.compile(rb'\s*\{"step": ?\d+, ?"data": ?\{')
_BROKEN_LINES = "lines that are not JSON objects"
# Generic file names. Such runs are named after their directory.
GENERIC = {"metrics", "experiment_log", "log", "logs", "logging", "train", "history", "events", "data"}


def _has_metrics(_path: Path, head: bytes) -> bool:
    """Return whether a file consists of JSON objects whose keys are a framework's metrics."""
    if head.lstrip(b"\0 \t\r\n")[:1] != b"{":
        return False
    complete, newline, _ = head.rpartition(b"\n")
    if not newline and len(head) >= HEAD:  # the head contains only a part of one long line
        return _VERL_LINE.match(head) is not None
    records = [parse_record(line) for line in (complete or head).splitlines() if line.strip(b"\0 \t\r")]
    parsed_records = [record for record in records if record is not None]
    if not parsed_records or len(parsed_records) < len(records) / 2:
        return False
    if any(set(record) == {"step", "data"} and type(record["data"]) is dict for record in parsed_records):
        return True
    items = [item for record in parsed_records for item in flat_metrics(record).items()]
    keys = {key for key, value in items if type(value) is not list}
    return frameworks.find(keys, {}) is not None


def _read(path: Path) -> Iterator[RawLog]:
    """Read one file in one pass; raise `DataError` if it cannot be read or no line is a JSON object."""
    log = RawLog(str(path), "jsonl", configs.run_name(path, GENERIC))
    settings, config = Settings(log), dict[str, Any]()
    start_time = math.nan
    for line_number, record, has_escapes in iterate_objects(path, log):
        if not any(map(is_step, record)) and (file_config := _configuration(record)):
            config = config | file_config
            settings.set_config(config, f"line {line_number} of {path.name}")
        else:
            start_time = add_record(log, record, start_time, has_escapes)
    if not log.step:
        raise DataError(f"{path}: found no JSON object; expected one object on each line")
    yield from settings.parts(*configs.find_config(path))


def iterate_objects(
    path: Path, log: RawLog, parse: Callable[[bytes], dict[str, Any] | None] | None = None
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield the number of each line, its object, and whether it has escape sequences.

    A line that is not an object is skipped and counted in ``log``, whose notes give its number. As the last
    line, it counts as the truncated line of a killed run.
    """
    broken_lines: list[int] = []  # the first broken lines
    torn_line = 0  # number of the previous line, if it is broken
    for line_number, line in lines(path, log):
        if torn_line:
            log.count_damaged(_BROKEN_LINES)
            broken_lines += [torn_line] if len(broken_lines) < _MAX_NAMED else []
            torn_line = 0
        record = (parse or parse_record)(line)
        if record is not None:
            yield line_number, record, b"\\" in line
        elif line.strip(b"\0 \t\r"):
            torn_line = line_number
    if torn_line:
        log.dropped["torn last line"] += 1
    if broken_lines:
        etc = ", …" if log.dropped[_BROKEN_LINES] > _MAX_NAMED else ""
        log.notes.append(f"isolaw left out {_BROKEN_LINES}: line {', '.join(map(str, broken_lines))}{etc}")


def add_record(log: RawLog, record: dict[str, Any], start_time: float, has_escapes: bool) -> float:
    """Add a record and return the clock time of the first record.

    ``start_time`` is that time, or NaN before the first record.
    """
    values = flat_metrics(record)
    if has_escapes:  # control characters and surrogates are escaped in JSON, and must not be printed
        values = {"".join(c if c.isprintable() else "?" for c in key): values[key] for key in values}
    if any(eval_set_of(record.get(name)) == "validation" for name in PHASES):  # the keys do not show this
        renamed = [key for key in values if key not in _COUNTERS and not key.startswith(("eval", "val"))]
        prefixed = {key: f"eval{'/' if '/' in key else '_'}{key}" for key in renamed}
        values = {prefixed.get(key, key): value for key, value in values.items()}
    clock_time = finite(record.get("time"))
    clock_time = clock_time if clock_time >= _FIRST_CLOCK_TIME else math.nan
    start_time = clock_time if math.isnan(start_time) else start_time
    step = finite(record["step"]) if "step" in record else swift_step(values)
    log.add(values, step, clock_time - start_time)
    return start_time


def _configuration(record: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration in a record without a step, with flat keys; empty for any other record."""
    sections = [section for name in CONFIGURATIONS if isinstance(section := record.get(name), dict)]
    if not sections and set(guess(list(record))) & {*SPLIT, "seed"}:
        sections = [record]
    try:
        return configs.flatten(sections[0]) if sections else {}
    except DataError:
        return {}


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse the object in a line, or return None. A crash can leave a block of NUL bytes in a line."""
    record = parse_json(line.replace(b"\0", b""))
    return record if type(record) is dict else None


def flat_metrics(record: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a record, in which nested keys are joined as in ``a/b``."""
    values = record.get("data") if "step" in record else None
    if type(values) is not dict:
        values = {key: value for key, value in record.items() if key != "step"}
    return dict(_flat_items(values)) if dict in map(type, values.values()) else values


def _flat_items(values: dict[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if len(prefix) + len(key) > _LONGEST_KEY or depth > _DEEPEST:
            continue
        if type(value) is dict:
            yield from _flat_items(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value


CONTAINER = Container("jsonl", _read, file=_has_metrics)
