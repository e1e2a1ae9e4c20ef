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
from isolaw.readers.measures import PHASES, eval_set_of, is_supervised
from isolaw.readers.names import CONFIGURATIONS, SPLIT, guess, is_step
from isolaw.readers.raw_log import HEAD, Container, RawLog, finite, lines, progress

_LONGEST_KEY = 300  # characters of a nested key, joined
_EPOCH = 1e9  # seconds; a smaller "time" is not a clock time
_SHOWN = 3
_COUNTERS = {"epoch", "global_step", "training_step", "num_tokens", "num_input_tokens_seen"}
_DEEPEST = 20  # levels of nested metrics
_LOGGER = re.compile(rb'\s*\{"step": ?\d+, ?"data": ?\{')
_BROKEN = "lines that are not JSON objects"
# Generic file names. Such runs are named after their directory.
GENERIC = {"metrics", "experiment_log", "log", "logs", "logging", "train", "history", "events", "data"}


def _is_metrics(_path: Path, head: bytes) -> bool:
    """Return whether a file consists of JSON objects whose keys are a framework's metrics."""
    if head.lstrip(b"\0 \t\r\n")[:1] != b"{":
        return False
    whole, end, _ = head.rpartition(b"\n")
    if not end and len(head) >= HEAD:  # the head contains only a part of one long line
        return _LOGGER.match(head) is not None
    records = [parsed(line) for line in (whole or head).splitlines() if line.strip(b"\0 \t\r")]
    known = [record for record in records if record is not None]
    if not known or len(known) < len(records) / 2:
        return False
    if any(set(record) == {"step", "data"} and type(record["data"]) is dict for record in known):
        return True
    keys = {key for record in known for key, value in flat(record).items() if type(value) is not list}
    return frameworks.find(keys, {}) is not None or is_supervised(keys)


def _read(path: Path) -> Iterator[RawLog]:
    """Read one file in one pass; raise `DataError` if it cannot be read or no line is a JSON object."""
    log = RawLog(str(path), "jsonl", configs.run_name(path, GENERIC))
    settings, config = Settings(log), dict[str, Any]()
    began = math.nan
    for at, record, escaped in objects(path, log):
        if not any(map(is_step, record)) and (header := _configuration(record)):
            config = config | header
            settings.hold(config, f"line {at} of {path.name}")
        else:
            began = add(log, record, began, escaped)
    if not log.step:
        raise DataError(f"{path}: found no JSON object; expected one object on each line")
    yield from settings.parts(*configs.find_config(path))


def objects(
    path: Path, log: RawLog, parse: Callable[[bytes], dict[str, Any] | None] | None = None
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield the number of each line, its object, and whether it has escape sequences.

    A line that is not an object is skipped and counted in ``log``, whose notes give its number. As the last
    line, it counts as the truncated line of a killed run.
    """
    broken: list[int] = []  # the first broken lines
    torn = 0  # number of the previous line, if it is broken
    for at, line in lines(path, log):
        if torn:
            log.damaged(_BROKEN)
            broken += [torn] if len(broken) < _SHOWN else []
            torn = 0
        record = (parse or parsed)(line)
        if record is not None:
            yield at, record, b"\\" in line
        elif line.strip(b"\0 \t\r"):
            torn = at
    if torn:
        log.dropped["torn last line"] += 1
    if broken:
        more = ", …" if log.dropped[_BROKEN] > _SHOWN else ""
        log.notes.append(f"isolaw left out {_BROKEN}: line {', '.join(map(str, broken))}{more}")


def add(log: RawLog, record: dict[str, Any], began: float, escaped: bool) -> float:
    """Add a record and return the clock time of the first record.

    ``began`` is that time, or NaN before the first record.
    """
    values = flat(record)
    if escaped:  # control characters and surrogates are escaped in JSON, and must not be printed
        values = {"".join(c if c.isprintable() else "?" for c in key): v for key, v in values.items()}
    if any(eval_set_of(record.get(name)) == "validation" for name in PHASES):  # the keys do not show this
        values = {key if key in _COUNTERS else _held_out(key): value for key, value in values.items()}
    clock = finite(record.get("time"))
    clock = clock if clock >= _EPOCH else math.nan
    began = clock if math.isnan(began) else began
    step = finite(record["step"]) if "step" in record else progress(values)
    log.add(values, step, clock - began)
    return began


def _held_out(key: str) -> str:
    """Return the key of an evaluation metric with the prefix that frameworks use."""
    return key if key.startswith(("eval", "val")) else f"eval{'/' if '/' in key else '_'}{key}"


def _configuration(record: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration in a record without a step, with flat keys; empty for any other record."""
    sections = [section for name in CONFIGURATIONS if isinstance(section := record.get(name), dict)]
    if not sections and set(guess(list(record))) & {*SPLIT, "seed"}:
        sections = [record]
    try:
        return configs.flatten(sections[0]) if sections else {}
    except DataError:
        return {}


def parsed(line: bytes) -> dict[str, Any] | None:
    """Parse the object in a line, or return None. A crash can leave a block of NUL bytes in a line."""
    record = parse_json(line.replace(b"\0", b""))
    return record if type(record) is dict else None


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a record, in which nested keys are joined as in ``a/b``."""
    values = record.get("data") if "step" in record else None
    if type(values) is not dict:
        values = {key: value for key, value in record.items() if key != "step"}
    return dict(_joined(values)) if dict in map(type, values.values()) else values


def _joined(values: dict[str, Any], prefix: str = "", depth: int = 1) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if len(prefix) + len(key) > _LONGEST_KEY or depth > _DEEPEST:
            continue
        if type(value) is dict:
            yield from _joined(value, f"{prefix}{key}/", depth + 1)
        else:
            yield f"{prefix}{key}", value


CONTAINER = Container("jsonl", _read, file=_is_metrics)
