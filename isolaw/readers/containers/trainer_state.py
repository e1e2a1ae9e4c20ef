"""``trainer_state.json``: Hugging Face's Trainer writes it to ``checkpoint-<step>/`` and after training.

Its ``log_history`` contains a record with ``step`` for each log entry and each evaluation. The state of every
checkpoint repeats the history up to that checkpoint, so the states of one run's checkpoints are parts of one
run. A state only has the batch size per device (``train_batch_size``). The arguments are in
``training_args.bin``, a pickle that isolaw never loads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.errors import DataError, NoHistory
from isolaw.readers import limits
from isolaw.readers.configs import beside
from isolaw.readers.containers.json_document import in_sequence
from isolaw.readers.literals import loads
from isolaw.readers.raw_log import Container, RawLog, finite

_LARGEST = 100 * limits.MB  # of a history with a million values; what follows is an incomplete end
_HISTORY = re.compile(r'"log_history"\s{0,9}:\s{0,9}\[')
_CHECKPOINT = re.compile(r"checkpoint-\d+")
# Keys of the state that belong to the configuration.
_SETTINGS = ("train_batch_size", "logging_steps", "max_steps", "num_train_epochs", "eval_steps", "save_steps")
_PICKLE = "training_args.bin"


def _is_state(_path: Path, head: bytes) -> bool:
    """Return whether a file is a trainer state."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text.startswith(b"{") and b'"log_history"' in text and b'"global_step"' in text


def _read(path: Path) -> Iterator[RawLog]:
    """Read one state. From a truncated file, read the complete records.

    Raises `DataError` if the file cannot be read or has no history.
    """
    folder = path.parent
    if _CHECKPOINT.fullmatch(folder.absolute().name):
        folder = folder.parent
    log = RawLog(str(path), "trainer-state", str(folder))
    with limits.opened(path) as file:
        content = file.read(min(_LARGEST, path.stat().st_size))
    text = content.decode("utf-8-sig", "replace").rstrip("\0")  # as a crash leaves them
    match = _HISTORY.search(text)
    if match is None:
        raise DataError(f"{path}: not a trainer's state: it has no list 'log_history'")
    end = match.end()
    for record, end in in_sequence(text, log, match.end()):  # noqa: B007
        log.add(record, finite(record.pop("step", None)))
    if not log.step:
        raise NoHistory(
            f"{path}: log_history has no record, since nothing was logged before the file was written"
        )
    state = _around(text[: match.end()], text[end : end + limits.MB])
    config, source = beside(path)
    log.config = {key: state[key] for key in _SETTINGS if key in state} | config
    log.config_source = source or path.name
    if not config and (path.parent / _PICKLE).is_file():
        log.notes.append(f"{_PICKLE} next to the file contains the arguments, but isolaw opens no pickle")
    yield log


def _around(begin: str, end: str) -> dict[str, Any]:
    """Return the state without its history; for a truncated file, only the part before the history."""
    for tail in (end, "]}"):
        try:
            state = loads(begin + tail)
        except (ValueError, RecursionError):
            continue
        return state if isinstance(state, dict) else {}
    return {}


CONTAINER = Container("trainer-state", _read, file=_is_state)
