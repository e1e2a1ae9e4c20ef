"""``trainer_state.json``: Hugging Face's Trainer writes it to ``checkpoint-<step>/`` and after training.

Its ``log_history`` contains a record with ``step`` for each log entry and each evaluation. The state of every
checkpoint repeats the history up to that checkpoint, so the states of one run's checkpoints are parts of one
run. A state only has the batch size per device (``train_batch_size``). The arguments are in
``training_args.bin``, a pickle that isolaw never loads.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from isolaw.errors import DataError, NoHistory
from isolaw.readers import limits
from isolaw.readers.configs import beside
from isolaw.readers.literals import loads
from isolaw.readers.raw_log import Container, RawLog, finite

_LONGEST = limits.MB  # characters of a record, and of the text before or after the history
_CHUNK = 4 * limits.MB
_MOST_BETWEEN = 1_000  # characters between two records
_HISTORY = re.compile(r'"log_history"\s{0,9}:\s{0,9}\[')
_BETWEEN = re.compile(r"[\s,]*")
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

    Raises `DataError` if the file cannot be read, takes too long or has no history.
    """
    folder = path.parent
    if _CHECKPOINT.fullmatch(folder.absolute().name):
        folder = folder.parent
    log = RawLog(str(path), "trainer-state", str(folder))
    with limits.opened(path) as file:
        text = _Window(file)
        text.fill()
        match = _HISTORY.search(text.text)
        if match is None:
            raise DataError(f"{path}: not a trainer's state: the first MB has no list 'log_history'")
        begin = text.text[: match.end()]
        text.at = match.end()
        whole = _add_history(log, text)
        if not log.step:
            raise NoHistory(
                f"{path}: log_history has no record, since nothing was logged before the file was written"
            )
        text.fill()
        state = _around(begin, text.text[text.at :] if whole else "")
    config, source = beside(path)
    log.config = {key: state[key] for key in _SETTINGS if key in state} | config
    log.config_source = source or path.name
    if not config and (path.parent / _PICKLE).is_file():
        log.notes.append(f"{_PICKLE} next to the file contains the arguments, but isolaw opens no pickle")
    yield log


class _Window:
    """A window on a file's text that keeps only about the next MB in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self.text, self.at, self._ended = "", 0, False

    def fill(self) -> None:
        """Read until the window contains a MB after ``at``, or the file ends."""
        if self._ended or len(self.text) - self.at >= _LONGEST:
            return
        content = self._file.read(_CHUNK)
        self._ended = not content
        more = self._decoder.decode(content, final=self._ended)
        # After a crash, unwritten blocks contain NUL bytes.
        self.text, self.at = self.text[self.at :] + more.rstrip("\0"), 0


def _add_history(log: RawLog, window: _Window) -> bool:
    """Add the next records of the history to the log, and return whether the history ends.

    Records are read one at a time, so that a long history is never in memory as a tree of objects. In a
    truncated file, the records before the damage are added.
    """
    decoder = json.JSONDecoder()
    while True:
        window.fill()
        at = _BETWEEN.match(window.text, window.at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if window.text.startswith("]", at):
            window.at = at
            return True
        try:
            if at > window.at + _MOST_BETWEEN:
                raise ValueError
            record, window.at = decoder.raw_decode(window.text, at)
        except (ValueError, RecursionError):
            log.dropped["incomplete end of the file"] += 1
            return False
        if not isinstance(record, dict):
            log.damaged("records that are not objects")
            continue
        log.add(record, finite(record.pop("step", None)))


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
