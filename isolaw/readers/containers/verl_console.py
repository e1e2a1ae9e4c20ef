"""veRL's console: ``step:1 - actor/grad_norm:0.3 - …`` among model output, progress bars and Ray's prefixes.

The line of a step can be split into two lines, or printed twice, once for training and once for validation.
The configuration is printed at the start (`printed_config`); otherwise isolaw looks for a file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from isolaw.errors import DataError
from isolaw.readers import configs, limits
from isolaw.readers.containers.printed_config import PrintedConfig, Settings
from isolaw.readers.raw_log import HEAD, Container, RawLog, clean, is_text, lines, number, unprefixed

_STEP = re.compile(r"step:(?<![A-Za-z_/.@-]step:)\s?(\d{1,12}) -(?: |$)")  # starts with a literal for speed
# A value with other output right after it: "perf/throughput:512.3Training Progress: 10%|".
_VALUE_BEFORE_OUTPUT = re.compile(
    r"([^:]{1,300}):\s?((?:[a-z]{1,10}\.)?[a-z]{1,10}\d{0,3}\([^():]{1,60}\)"
    r"|[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)(?=[A-Za-z(\[]|\s)"
)
_WORD = re.compile(r"\w{0,40}\s?")
_PART_OF_NUMBER = re.compile(r"[\d.eE+-]{1,30}\)?")
_LONGEST_KEY = 300
_INITIAL_ITEM = re.compile(r"'([^']{1,300})': ?([\w.]{1,30}\([^()]{1,60}\)|[^,{}'\s]{1,60})")
_INITIAL_VALIDATION = "Initial validation metrics: {"
_MOST_LINES = 200  # lines of one step
_LONGEST_VALIDATION = 100_000  # characters of the initial validation
_SEARCHED = 16 * limits.MB  # much output can precede the first step
_MOST_TRIED = 100_000  # lines that resemble a step
# Generic file names. Such runs are named after their directory.
_GENERIC = {
    *("output", "console", "train", "training", "log", "stdout", "stderr", "run", "nohup", "main", "verl")
}


def _is_console(path: Path, head: bytes) -> bool:
    """Return whether a text file contains a veRL line with the metrics of a step."""
    if head.count(b"\0") > len(head) / 2 or _is_json(head) or not is_text(head):
        return False
    return _has_steps(head) or (len(head) >= HEAD and _has_steps(limits.start(path, _SEARCHED)))


def _has_steps(text: bytes) -> bool:
    if b"step:" not in text:  # as in nearly all files, which can have many short lines
        return False
    lines_with_step = (
        line
        for line in text.replace(b"\r", b"\n").split(b"\n")
        if b"step:" in line and len(line) <= limits.LONGEST_LINE
    )
    return any(map(_has_step, islice(lines_with_step, _MOST_TRIED)))


def _is_json(head: bytes) -> bool:
    with contextlib.suppress(ValueError):
        return isinstance(orjson.loads(head.lstrip().partition(b"\n")[0]), dict | list)
    return False


def _has_step(line: bytes) -> bool:
    return any(_parse_step(text)[0] for _, text in _steps_of(unprefixed(clean(line))[1]))


def _read(path: Path) -> Iterator[RawLog]:
    """Read one console in one pass; raise `DataError` if it cannot be read or has no metrics of a step."""
    log = RawLog(str(path), "verl-console", configs.run_name(path, _GENERIC))
    reader = _Reader(log)
    for _, line in lines(path, log, at_returns=True):
        if (
            reader.must_read_next
            or b"step:" in line
            or b"{" in line
            or b"python" in line
            or b"overrides: [" in line
            or line[-1:] == b":"
        ):
            reader.take(*unprefixed(clean(line)))
    reader.finish(torn=log.is_torn)
    if not log.step:
        raise DataError(f"{path}: found no step; expected lines like 'step:1 - critic/score/mean:0.5 - …'")
    printed = reader.printed
    config, source = ({}, "") if printed.config else configs.find_config(path)
    if printed.is_torn and not config | printed.command:
        source = "the console prints one, but not as a whole dictionary"
    sources = [source, "the printed command" if printed.command else ""]
    yield from reader.settings.parts(config | printed.command, " and ".join(filter(None, sources)))


@dataclass
class _Step:
    """A step whose line may continue on the next line."""

    worker: str
    number: float
    items: str
    lines: int = 1
    is_last: bool = True  # whether its line is the last line read so far


class _Reader:
    """Joins steps that span several lines, and reads the configuration around them."""

    def __init__(self, log: RawLog) -> None:
        self.log = log
        self.printed, self.settings = PrintedConfig(), Settings(log)
        self._step: _Step | None = None
        self._initial_values: dict[str, str] = {}
        self._validation_lines: list[str] | None = None  # they can be several

    @property
    def must_read_next(self) -> bool:
        """True if the next line must be read regardless of its content, because it can continue a step."""
        return self._step is not None or self._validation_lines is not None or self.printed.is_collecting

    def take(self, worker: str, text: str) -> None:
        """Process the next line that a worker printed."""
        step = self._step
        same_worker = step is not None and worker == step.worker
        if step is not None:
            step.is_last = False
            joined_items = None
            if (same_worker or not worker) and step.lines < _MOST_LINES:
                joined_items = _join_step(step.items, text)
            if joined_items is not None:
                step.items, step.lines, step.is_last = joined_items, step.lines + 1, True
                return
        steps = _steps_of(text)
        if step is not None and not same_worker:
            steps = [pair for pair in steps if _parse_step(pair[1])[0]]  # or model output of another worker
        if steps or same_worker:
            self._flush()
        for step_number, items in steps:
            self._flush()
            self._step = _Step(worker, step_number, items)
        if not steps:
            self._read_validation(text)
            self.printed.add(worker, text)

    def finish(self, torn: bool) -> None:
        """Add the remaining values at the end of the file, which is in the middle of a line if ``torn``."""
        if torn and self._step is not None and self._step.is_last:
            self._step.items = self._step.items.rpartition(" - ")[0]  # half a number looks like a number
            self.log.dropped["torn last value"] += 1
        self._flush()
        if self._initial_values and not self.log.step:
            self.log.add(self._initial_values, 0)
        self.printed.close()
        self.settings.configs[-1] = self.settings.configs[-1] or self.printed.config

    def _flush(self) -> None:
        step, self._step = self._step, None
        values, unread_count = _parse_step(step.items) if step else ({}, 0)
        if step is None or not values:
            return  # model output often contains "step:1 - "
        if unread_count:
            self.log.dropped["values that could not be read"] += unread_count
        self.settings.set_config(self.printed.config)
        if self._initial_values and not self.log.step and not self._initial_values.keys() <= values.keys():
            self.log.add(self._initial_values, 0)  # printed, but not logged
        self._initial_values = {}
        self.log.add(values, step.number)

    def _read_validation(self, text: str) -> None:
        """Read ``"Initial validation metrics: {…}"``, a printed string that can span several lines."""
        if self._validation_lines is None and _INITIAL_VALIDATION in text:
            self._validation_lines = []
        if self._validation_lines is not None:
            self._validation_lines.append(text.strip().removeprefix("(").removesuffix(")")[1:-1])
            size = sum(map(len, self._validation_lines))
            if "}" in text or len(self._validation_lines) > _MOST_LINES or size > _LONGEST_VALIDATION:
                validation = "".join(self._validation_lines)[:_LONGEST_VALIDATION]
                self._initial_values = dict(_INITIAL_ITEM.findall(validation))
                self._validation_lines = None


def _steps_of(text: str) -> list[tuple[float, str]]:
    """Return each step in a line with the text of its items. The first item may lack its value."""
    matches = list(_STEP.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    pieces = [(float(match[1]), text[match.end() : end]) for match, end in zip(matches, ends, strict=False)]
    return [
        (step, items) for step, items in pieces if "/" in items.partition(" - ")[0] or _WORD.fullmatch(items)
    ]


def _parse_step(items: str) -> tuple[dict[str, Any], int]:
    """Return the values of a step by key, and how many could not be read; no values if the line is no step.

    >>> _parse_step("actor/lr:1e-06 - val/a - b:c/acc:np.float64(0.5) - x/y:?")
    ({'actor/lr': 1e-06, 'val/a - b:c/acc': 0.5}, 1)
    """
    values: dict[str, Any] = {}
    unread_count = 0
    key_start = ""  # start of a key that contains " - "
    pieces = items.split(" - ")
    with contextlib.suppress(ValueError):  # the usual case: "key:1.5 - key:2"
        keys, _, value_texts = zip(*[piece.rpartition(":") for piece in pieces], strict=True)
        values = dict(zip(map(str.strip, keys), _parse_numbers(value_texts), strict=True))
        if "" not in values and max(map(len, pieces)) <= _LONGEST_KEY and any("/" in key for key in values):
            return values, 0
        values = {}
    for piece in pieces:
        item_text = f"{key_start} - {piece}" if key_start else piece
        item = _parse_item(item_text) or _parse_prefix(item_text)
        key_start = "" if item or ":" in item_text or len(item_text) > _LONGEST_KEY else item_text
        if item:
            values[item[0]] = item[1]
        elif not key_start:
            unread_count += 1
    unread_count += bool(key_start)
    is_step = any("/" in key for key in values) and unread_count <= len(values)
    return (values, unread_count) if is_step else ({}, 0)


def _parse_numbers(texts: Sequence[str]) -> list[float]:
    """Return the numbers that texts spell; raise `ValueError` for any other text.

    >>> _parse_numbers(["0.1", "1e-06", "7"]), _parse_numbers(["nan", "+1"])
    ([0.1, 1e-06, 7.0], [nan, 1.0])
    """
    with contextlib.suppress(ValueError):  # ten times as fast as float, which takes most of the time
        numbers = orjson.loads(f"[{','.join(texts)}]")
        if {int, float}.issuperset(map(type, numbers)):
            return list(map(float, numbers))
    return list(map(float, texts))


def _parse_item(piece: str) -> tuple[str, float] | None:
    """Return the key and the number of ``key:number``, or None. The key can contain colons.

    >>> items = ("val/test_score/a:b:0.5", "actor/loss:tensor(0.5, device='cuda:0')", "critic/sco")
    >>> tuple(map(_parse_item, items))
    (('val/test_score/a:b', 0.5), ('actor/loss', 0.5), None)
    """
    if len(piece) > 2 * _LONGEST_KEY:
        return None
    end = piece.rfind(":", 0, piece.find("(")) if piece.rstrip().endswith(")") else piece.rfind(":")
    key, value = piece[:end].strip(), number(piece[end + 1 :].strip())
    return (key, value) if end > 0 and key and value is not None else None


def _parse_prefix(piece: str) -> tuple[str, str] | None:
    match = _VALUE_BEFORE_OUTPUT.match(piece)
    return (match[1].strip(), match[2]) if match else None


def _join_step(items: str, line: str) -> str | None:
    """Return the text of a step joined with the next line if that line continues it, else None.

    >>> _join_step("actor/lr:0.1 - critic/sco", "re/mean:0.5 - critic/rewards/mean:0.4")
    'actor/lr:0.1 - critic/score/mean:0.5 - critic/rewards/mean:0.4'
    >>> _join_step("actor/lr:0.1 -", "critic/score/mean:0.5"), _join_step("actor/lr:0.1", "epoch 0, step 2")
    ('actor/lr:0.1 - critic/score/mean:0.5', None)
    """
    if not line.strip() or len(items) + len(line) > limits.LONGEST_LINE or _STEP.search(line):
        return None
    items, line = items.rstrip(), line.rstrip()
    if not items:  # the line was just "step:1 -"
        first_item = _parse_item(line.partition(" - ")[0])
        return line if first_item and "/" in first_item[0] else None
    if items.endswith(" -"):
        items, line = items[:-2], f" - {line.lstrip()}"
    elif line.startswith("- "):
        line = f" {line}"
    first_piece, *other_pieces = line.split(" - ")
    last_piece = items[items.rfind(" - ") + 3 :] if " - " in items else items
    if not all(_parse_item(piece) for piece in other_pieces[:-1]):
        return None
    named_items = [item for piece in other_pieces if (item := _parse_item(piece)) and "/" in item[0]]
    if not first_piece:
        return items + line if named_items else None
    seam_item = _parse_item(last_piece + first_piece)
    if not seam_item or "/" not in seam_item[0]:
        return None
    if _parse_item(last_piece) or _parse_prefix(last_piece):  # only a cut number can look complete
        return items + line if named_items and _PART_OF_NUMBER.fullmatch(first_piece) else None
    return items + line


CONTAINER = Container("verl-console", _read, file=_is_console)
