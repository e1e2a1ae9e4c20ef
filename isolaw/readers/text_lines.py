"""The lines of a text log, without colours, NUL bytes, and the prefixes of Ray and ``srun --label``.

The file is read in chunks, so that neither a large file nor a long line takes much memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from isolaw.errors import DataError
from isolaw.readers import limits
from isolaw.readers.raw_log import RawLog

LONGEST = limits.LONGEST_LINE
_CHUNK = 1 << 16
# Escape sequences (colours, cursor, window titles), and colour codes whose escape byte was lost in a copy.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*\x07?|[@-Z\\^_=>])|\[\d{1,3}(?:;\d{1,3}){0,4}m")
# Ray's prefix for a line of a worker: "(TaskRunner pid=123, ip=10.0.0.2) ".
_RAY = re.compile(
    r"\s{0,8}(\([^()\s]{1,100}(?: [^()\s]{1,100}){0,3}? pid=\d{1,10}(?:, ip=[\w.:]{1,50})?\)) ?"
)
# The prefix of ``srun --label`` for a line of a task: " 0: ".
_LABEL = re.compile(r" {0,4}\d{1,5}: ")
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), 127])


def lines(path: str | Path, log: RawLog, returns: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each nonempty line, without its line end.

    A line of more than 1 MB is dropped and counted in ``log``. With ``returns``, a carriage return also ends
    a line, since progress bars write many lines into one. Raises `DataError` if the file cannot be read,
    takes too long, or has a line of more than 256 MB.
    """
    number, rest, cut = 0, b"", 0
    with limits.opened(path) as file:
        ended = False
        while not ended:
            chunk = file.read(_CHUNK)
            ended, log.torn = not chunk, bool(rest)
            if returns:
                chunk = chunk.replace(b"\r", b"\n")
            *whole, rest = (rest + (chunk or b"\n")).split(b"\n")  # the end of the file ends the last line
            for line in whole:
                number, cut = number + 1, 0
                if len(line) > LONGEST:
                    log.dropped["lines longer than 1 MB"] += 1
                elif line:
                    yield number, line
            if len(rest) > LONGEST:  # the end of a long line is not kept
                cut += len(rest) - LONGEST - 1
                rest = rest[: LONGEST + 1]
                if cut > limits.LONGEST_SKIPPED:
                    raise DataError(
                        f"{path}: line {number + 1} is longer than {limits.LONGEST_SKIPPED // limits.MB} MB, "
                        "so it is no text log, or has a gap of null bytes. Truncate the file before that line"
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
    return text if text.isprintable() else text.translate(_CONTROL)


def unprefixed(text: str) -> tuple[str, str]:
    """Return the worker that wrote a line according to Ray or SLURM (empty if none), and the line itself.

    >>> unprefixed("(TaskRunner pid=123, ip=10.0.0.2) step:1 - a/b:0.5 [repeated 2x across cluster]")
    ('(TaskRunner pid=123, ip=10.0.0.2)', 'step:1 - a/b:0.5')
    >>> unprefixed("0: {'loss': 0.5}")
    ('0: ', "{'loss': 0.5}")
    """
    label = _LABEL.match(text)
    task = label[0] if label else ""
    text = text[len(task) :]
    prefix = _RAY.match(text)
    if prefix:
        return task + prefix[1], text[prefix.end() :].partition(" [repeated ")[0]
    return task, text
