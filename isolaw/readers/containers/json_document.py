"""Metrics in one JSON document, or in JSON objects that span several lines each.

::

    [{"step": 1, "reward": 0.25}, …]                       records
    {"config": {…}, "history": [{"step": 1, …}, …]}        records below a key, next to a configuration
    {"step": [1, 2, …], "reward": [0.25, 0.5, …]}          columns, also below a key
    {"step": 1, "reward": 0.25}{"step": 2, …               one object after the other, over several lines

Unlike the other containers, this one loads the whole file into memory, so it accepts only small files.
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
from isolaw.readers.containers.jsonlines import GENERIC, add, flat
from isolaw.readers.literals import parse_json
from isolaw.readers.raw_log import Container, RawLog, number

_LARGEST = 50 * limits.MB
_DEEPEST = 3  # deepest level of the list of records
_INNERMOST = re.compile(rb"\{[^{}]{2,20000}\}")
_COLUMN = re.compile(rb'"([^"\\\n]{1,300})"\s{0,9}:\s{0,9}\[\s{0,99}(?:-?\d|null|NaN)')
_MOST_TRIED = 20  # objects to check when recognising a document
_FEWEST = 2  # records, or values of a column
_BETWEEN = re.compile(r"[\s,\[\0]*")


def is_document(_path: Path, head: bytes) -> bool:
    """Return whether a file is JSON with a framework's metrics, as records or as columns."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] not in (b"{", b"["):
        return False
    objects = (parse_json(match[0]) for match in islice(_INNERMOST.finditer(start), _MOST_TRIED))
    records = [record for record in objects if type(record) is dict]
    keys = {key for record in records for key, value in record.items() if number(value) is not None}
    columns = {match[1].decode("utf-8", "replace") for match in _COLUMN.finditer(start)}
    return (len(records) >= _FEWEST and _known(keys)) or _known(columns)


def read(path: Path) -> Iterator[RawLog]:
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
        records = _in_sequence(content.decode("utf-8-sig", "replace"), log)
    else:
        records, config = _records(document)
    began = math.nan
    for record in records:
        began = add(log, record, began, escaped=True)
    if not log.step:
        raise NoHistory(f"{path}: found no list of records; expected [{{'step': 1, 'reward': 0.5}}, …]")
    beside, source = configs.beside(path)
    with limits.errors_in(path):
        log.config = beside | configs.flatten(config)
    log.config_source = path.name if config else source
    yield log


def _in_sequence(text: str, log: RawLog) -> Iterator[dict[str, Any]]:
    """Yield the objects of a sequence or a truncated list one by one."""
    decoder, at = json.JSONDecoder(), 0
    while match := _BETWEEN.match(text, at):
        if (at := match.end()) == len(text):
            return
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            log.dropped["incomplete end of the file"] += 1
            return
        if isinstance(record, dict):
            yield record
        else:
            log.damaged("records that are not objects")


def _records(document: Any, depth: int = 1) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the records of a document, and the configuration next to them."""
    if isinstance(document, list):
        records = [record for record in document if isinstance(record, dict)]
        keys = {key for record in records[:_MOST_TRIED] for key in flat(record)}
        return (records if len(records) >= _FEWEST and _known(keys) else []), {}
    if not isinstance(document, dict):
        return [], {}
    columns = {
        key: column for key, column in document.items() if isinstance(column, list) and len(column) >= _FEWEST
    }
    columns = {
        key: column for key, column in columns.items() if any(number(value) is not None for value in column)
    }
    if _known(set(columns)):
        lengths = {len(column) for column in columns.values()}
        if len(lengths) == 1:
            rows = zip(*columns.values(), strict=True)
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            return records, _rest(document, set(columns))
    if depth < _DEEPEST:
        for key, below in document.items():
            records, config = _records(below, depth + 1)
            if records:
                return records, config | _rest(document, {key})
    return [], {}


def _rest(document: dict[str, Any], used: set[str]) -> dict[str, Any]:
    """Return the configuration next to the records, without its section name."""
    rest = {key: value for key, value in document.items() if key not in used}
    inner = [part for key in ("config", "args", "hparams") if isinstance(part := rest.get(key), dict)]
    return inner[0] if inner else {key: value for key, value in rest.items() if not isinstance(value, list)}


def _known(keys: set[str]) -> bool:
    return bool(keys) and frameworks.find(keys, {}) is not None


CONTAINER = Container("json", read, file=is_document)
