"""``trainer_state.json``, which Hugging Face's Trainer leaves in ``checkpoint-<step>/`` and at a run's end.

Its ``log_history`` holds a record for each logging and each evaluation, with ``step``. Every checkpoint's
state repeats the history up to there, so the states of one run's checkpoints are parts of one run. Of the
batch it holds the share of one device only (``train_batch_size``); the arguments lie in
``training_args.bin``, a pickle, which is never loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.errors import DataError
from isolaw.logs.configs import beside
from isolaw.logs.containers.base import Container
from isolaw.logs.raw import RawLog, number

_LARGEST = 1 << 29  # bytes; a thousand steps have one or two million
_HISTORY = re.compile(r'"log_history"\s{0,9}:\s{0,9}\[')
_BETWEEN = re.compile(r"[\s,]*")
_CHECKPOINT = re.compile(r"checkpoint-\d+")
# What of the state is configuration.
_SETTINGS = ("train_batch_size", "logging_steps", "max_steps", "num_train_epochs", "eval_steps", "save_steps")
_PICKLE = "training_args.bin"


def is_state(_path: Path, head: bytes) -> bool:
    """Return whether a file is a trainer's state."""
    return (
        head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")
        and b'"log_history"' in head
        and b'"global_step"' in head
    )


def read(path: Path) -> Iterator[RawLog]:
    """Read one state; of one that was cut off while it was written, the records that are whole.

    Raises
    ------
    DataError
        it cannot be read, is larger than 512 MB, or has no history.
    """
    text = _text(path)
    found = _HISTORY.search(text)
    if found is None:
        raise DataError(f"{path}: not a trainer's state: no list 'log_history' in it")
    folder = path.parent
    if _CHECKPOINT.fullmatch(folder.absolute().name):
        folder = folder.parent
    log = RawLog(str(path), "trainer state", str(folder))
    end = _add_history(log, text, found.end())
    if not log.step:
        raise DataError(f"{path}: its log_history holds no record: nothing was logged before it was written")
    state = _around(text, found.end(), end)
    config, source = beside(path)
    log.config = {key: state[key] for key in _SETTINGS if key in state} | config
    log.config_source = source or path.name
    if not config and (path.parent / _PICKLE).is_file():
        log.notes.append(f"{_PICKLE} beside it holds the arguments, but is a pickle: it was left closed")
    yield log


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise DataError(f"{path}: larger than {_LARGEST >> 20} MB; not a trainer's state")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    # A crash may leave NUL bytes where the file system had not written yet.
    return content.decode("utf-8-sig", errors="replace").rstrip("\0")


def _add_history(log: RawLog, text: str, at: int) -> int:
    """Add the records from ``at`` on; return where the list ends, -1 if it does not.

    One record at a time: a long history is never held as a tree of objects, and a torn one ends the list.
    """
    decoder = json.JSONDecoder()
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text.startswith("]", at):
            return at
        try:
            record, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            log.drop("torn end of the file")
            return -1
        if not isinstance(record, dict):
            log.drop("records that are not objects")
            continue
        step = number(record.pop("step", None))
        log.add(record, float("nan") if step is None else step)


def _around(text: str, begin: int, end: int) -> dict[str, Any]:
    """What the state holds beside its history: all of it, or where that is torn, what comes before."""
    for tail in (text[end:] if end >= 0 else "", "]}"):
        try:
            state = json.loads(text[:begin] + tail)
        except (ValueError, RecursionError):
            continue
        return state if isinstance(state, dict) else {}
    return {}


def _never(_path: Path) -> bool:
    return False


CONTAINER = Container("trainer-state", directory=_never, file=is_state, read=read)
