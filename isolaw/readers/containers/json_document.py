"""Metrics in one JSON document, or in JSON objects that span several lines each.

::

    [{"step": 1, "reward": 0.25}, …]                       records
    {"config": {…}, "history": [{"step": 1, …}, …]}        records below a key, next to a configuration
    {"step": [1, 2, …], "reward": [0.25, 0.5, …]}          columns, also below a key
    {"step": 1, "reward": 0.25}{"step": 2, …               one object after the other, over several lines

Unlike the other containers, this one loads the whole file into memory, so it accepts only small files.

``trainer_state.json`` is such a document, which Hugging Face's Trainer writes to ``checkpoint-<step>/`` and
after training. Its ``log_history`` contains a record with ``step`` for each log entry and each evaluation.
The state of every checkpoint repeats the history up to that checkpoint, so the states of one run's
checkpoints are parts of one run. A state only has the batch size per device (``train_batch_size``). The
arguments are in ``training_args.bin``, a pickle that isolaw never loads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from isolaw.errors import DataError, NoHistory
from isolaw.readers import configs, frameworks, limits
from isolaw.readers.containers.jsonlines import GENERIC, add_record, flat_metrics
from isolaw.readers.literals import loads, parse_json
from isolaw.readers.measures import eval_set_of
from isolaw.readers.names import CONFIGURATIONS, is_step
from isolaw.readers.raw_log import Container, RawLog, finite, number

_LARGEST = 50 * limits.MB
_DEEPEST = 4  # levels above the list of records
_INNERMOST = re.compile(rb"\{[^{}]{2,20000}\}")
_COLUMN_START = re.compile(rb'"([^"\\\n]{1,300})"\s{0,9}:\s{0,9}\[\s{0,99}(?:-?\d|null|NaN)')
_MOST_TRIED = 20  # objects to check when recognising a document
_MIN_RECORDS = 2  # records, or values of a column
_SEPARATORS = re.compile(r"[\s,\0]*")


def _is_document(_path: Path, head: bytes) -> bool:
    """Return whether a file is JSON with a framework's metrics, as records or as columns."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] not in (b"{", b"["):
        return False
    objects = (parse_json(match[0]) for match in islice(_INNERMOST.finditer(text), _MOST_TRIED))
    records = [record for record in objects if type(record) is dict]
    keys = {key for record in records for key, value in record.items() if number(value) is not None}
    columns = {match[1].decode("utf-8", "replace") for match in _COLUMN_START.finditer(text)}
    return (len(records) >= _MIN_RECORDS and _names_metrics(keys)) or _names_metrics(columns)


def _read(path: Path) -> Iterator[RawLog]:
    """Read a document.

    Raises `DataError` if the file is larger than 50 MB or not JSON, and `NoHistory` if it has no records.
    """
    with limits.opened(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise DataError(
            f"{path}: a JSON document of more than {_LARGEST // limits.MB} MB; write it as JSON lines, with "
            "an object on each line"
        )
    log = RawLog(str(path), "json", configs.run_name(path, GENERIC))
    document = parse_json(content.strip(b"\xef\xbb\xbf\0 \t\r\n"))
    config: dict[str, Any] = {}
    records: Iterable[dict[str, Any]]
    if document is None:
        text = content.decode("utf-8-sig", "replace").lstrip("[ \t\r\n\0")
        records = (record for record, _ in _iterate_records(text, log))
    else:
        known_lists = [
            (records, values)
            for records, values in record_lists(document)
            if _names_metrics({key for record in records[:_MOST_TRIED] for key in flat_metrics(record)})
        ]
        records, config = max(known_lists, key=lambda pair: len(pair[0]), default=([], {}))
    start_time = math.nan
    for record in records:
        start_time = add_record(log, record, start_time, has_escapes=True)
    if not log.step:
        raise NoHistory(f"{path}: found no list of records; expected [{{'step': 1, 'reward': 0.5}}, …]")
    file_config, source = configs.find_config(path)
    with limits.errors_in(path):
        log.config = file_config | configs.flatten(config)
    log.config_source = path.name if config else source
    yield log


def _iterate_records(text: str, log: RawLog, end: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the objects of a sequence or of a list, which can be truncated, each with the index of its end.

    They are read one by one, so that a long history is never in memory as a tree of objects.
    """
    decoder = json.JSONDecoder()
    while (match := _SEPARATORS.match(text, end)) and (end := match.end()) < len(text) and text[end] != "]":
        try:
            record, end = decoder.raw_decode(text, end)
        except (ValueError, RecursionError):
            log.dropped["incomplete end of the file"] += 1
            return
        if isinstance(record, dict):
            yield record, end
        else:
            log.count_damaged("records that are not objects")


_Records = tuple[list[dict[str, Any]], dict[str, Any]]  # records, and the plain values next to them


def record_lists(document: Any, outside: dict[str, Any] | None = None, depth: int = 1) -> Iterator[_Records]:
    """Yield the lists of records in a document, each with the values next to it and above it.

    Equally long lists are columns if one of them counts steps, or if they are a framework's metrics. A key
    above a list, next to other ones, can be its evaluation set.
    """
    outside = outside or {}
    if isinstance(document, list):
        records = [record for record in document if isinstance(record, dict)]
        if len(records) >= _MIN_RECORDS:
            yield records, outside
    elif isinstance(document, dict) and depth <= _DEEPEST:
        lists = {key: value for key, value in document.items() if isinstance(value, list)}
        own_values = {key: value for key, value in document.items() if not isinstance(value, dict | list)}
        for name in CONFIGURATIONS:
            own_values |= configs.flatten(section) if isinstance(section := document.get(name), dict) else {}
        is_plain = {key: not any(isinstance(item, dict | list) for item in lists[key]) for key in lists}
        columns = {key: lists[key] for key in lists if is_plain[key] and len(lists[key]) >= _MIN_RECORDS}
        same_length = len(columns) > 1 and len({len(column) for column in columns.values()}) == 1
        if same_length and (any(map(is_step, columns)) or _names_metrics({*columns})):
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            yield rows, outside | own_values
        nested = {key: value for key, value in document.items() if isinstance(value, dict | list)}
        nested = {key: nested[key] for key in nested if key not in CONFIGURATIONS and key not in columns}
        for name, value in nested.items():
            phase = eval_set_of(name) if len(nested) > 1 else ""
            above = outside | own_values | ({"phase": phase} if phase else {})
            yield from record_lists(value, above, depth + 1)


def _names_metrics(keys: set[str]) -> bool:
    return bool(keys) and frameworks.find(keys, {}) is not None


CONTAINER = Container("json", _read, file=_is_document)


# The state of a Trainer

_LARGEST_STATE = 100 * limits.MB  # of a history with a million values; what follows is an incomplete end
_HISTORY_START = re.compile(r'"log_history"\s{0,9}:\s{0,9}\[')
_CHECKPOINT_FOLDER = re.compile(r"checkpoint-\d+")
# Keys of the state that belong to the configuration.
_SETTINGS = ("train_batch_size", "logging_steps", "max_steps", "num_train_epochs", "eval_steps", "save_steps")
_PICKLE = "training_args.bin"


def _is_state(_path: Path, head: bytes) -> bool:
    """Return whether a file is a trainer state."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text.startswith(b"{") and b'"log_history"' in text and b'"global_step"' in text


def _read_state(path: Path) -> Iterator[RawLog]:
    """Read one state. From a truncated file, read the complete records.

    Raises `DataError` if the file cannot be read or has no history.
    """
    folder = path.parent
    if _CHECKPOINT_FOLDER.fullmatch(folder.absolute().name):
        folder = folder.parent
    log = RawLog(str(path), "trainer-state", str(folder))
    with limits.opened(path) as file:
        content = file.read(min(_LARGEST_STATE, path.stat().st_size))
    text = content.decode("utf-8-sig", "replace").rstrip("\0")  # as a crash leaves them
    match = _HISTORY_START.search(text)
    if match is None:
        raise DataError(f"{path}: not a trainer's state: it has no list 'log_history'")
    history_end = match.end()
    for record, history_end in _iterate_records(text, log, match.end()):  # noqa: B007
        log.add(record, finite(record.pop("step", None)))
    if not log.step:
        raise NoHistory(
            f"{path}: log_history has no record, since nothing was logged before the file was written"
        )
    state = _state_without_history(text[: match.end()], text[history_end : history_end + limits.MB])
    config, source = configs.find_config(path)
    log.config = {key: state[key] for key in _SETTINGS if key in state} | config
    log.config_source = source or path.name
    if not config and (path.parent / _PICKLE).is_file():
        log.notes.append(f"{_PICKLE} next to the file contains the arguments, but isolaw opens no pickle")
    yield log


def _state_without_history(before: str, after: str) -> dict[str, Any]:
    """Return the state without its history; for a truncated file, only the part before the history."""
    for ending in (after, "]}"):
        try:
            state = loads(before + ending)
        except (ValueError, RecursionError):
            continue
        return state if isinstance(state, dict) else {}
    return {}


TRAINER_STATE = Container("trainer-state", _read_state, file=_is_state)
