"""Limits on the time and memory for one file, since a log can come from anyone.

isolaw checks sizes and counts before it allocates anything of that size, using the actual bytes rather than
the claims of a header. The time limit grows with the file size, so that a large log is read but a small
malicious one is not. All limits are far above what frameworks write.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from isolaw.errors import DataError, shown
from isolaw.files import descriptor, open_file

MB = 1_000_000
LARGEST_LOG = 10_000 * MB
LARGEST_CONFIG = 1 * MB  # veRL's configuration has 25,000 bytes
LONGEST_LINE = 1 * MB
LONGEST_SKIPPED = 256 * MB  # of one line; a longer one is a hole in a file, not text
LONGEST_NAME = 1_000  # characters in the name of a metric or setting, with its prefix
DEEPEST = 100  # levels of nested values
MOST_SETTINGS = 100_000
MOST_DAMAGED = 100_000  # records; a file with more damage is of another kind
MOST_FILES = 1_000_000  # files that a search can visit; each takes 0.1 ms
MOST_LOGS = 5_000  # logs that a search can find

# Processor seconds, which exclude waiting for a slow disk and other threads.
FLOOR_S, S_PER_MB = 3.0, 2.0  # the slowest container, TensorBoard, takes 0.3 s per MB
# Memory for the numbers of one file. A value takes 12 bytes; records and metrics mostly cost time.
_RECORD_BYTES, _VALUE_BYTES, _NAME_BYTES = 750, 13, 7_500
_LARGEST = 750 * MB


class _TimedFile(io.FileIO):
    """A file that checks, at each read, the processor time since it was opened."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, opener=lambda name, _: descriptor(name))
        self._started_at, self._read_bytes = time.thread_time(), 0

    def readinto(self, buffer: Any) -> int | None:
        spent, read_mb = time.thread_time() - self._started_at, self._read_bytes / MB
        if spent > FLOOR_S + S_PER_MB * read_mb:
            raise DataError(
                f"{self.name}: its first {read_mb:,.1f} MB took {spent:.0f} s to read; expected at most "
                f"{FLOOR_S:g} s and {S_PER_MB:g} s per MB. The file is damaged or malicious; leave it out"
            )
        new_bytes = super().readinto(buffer)
        self._read_bytes += new_bytes or 0
        return new_bytes


class MemoryMeter:
    """Counts the memory for the numbers of one file. All logs of the file share it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.record_count = self.value_count = self.name_count = 0

    def record(self, values: int) -> None:
        """Count a record with this number of values.

        Raises `DataError` beyond a million records, 57 million values or 100,000 metrics, or an equivalent
        mix.
        """
        self.record_count += 1
        self.value_count += values
        used = _RECORD_BYTES * self.record_count + _NAME_BYTES * self.name_count
        if used + _VALUE_BYTES * self.value_count > _LARGEST:
            raise DataError(
                f"{self._source}: more than {self.record_count:,} records with {self.value_count:,} values "
                f"of {self.name_count:,} metrics; expected at most what takes {_LARGEST // MB} MB, about a "
                "million records. Keep only every tenth record, or fewer metrics"
            )


@contextmanager
def os_errors(path: str | Path) -> Iterator[None]:
    """Convert an `OSError` to a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        name = shown(str(error.filename or path), str)
        raise DataError(f"{name}: {error.strerror or error}") from None


@contextmanager
def errors_in(name: str | Path) -> Iterator[None]:
    """Put the place, such as a file, before the message of a `DataError`."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a log to read its bytes.

    Raises `DataError` if the file cannot be read, is larger than 10 GB, or has so far taken more than 3 s
    plus 2 s per MB. This check runs at each read, so read small pieces.
    """
    with os_errors(path), io.BufferedReader(_TimedFile(path)) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_LOG:
            raise DataError(
                f"{path}: {size / MB:,.0f} MB; isolaw reads logs of up to {LARGEST_LOG // MB:,} MB. "
                "Split the file, or keep only the lines with metrics"
            )
        yield file


def start(path: str | Path, size: int) -> bytes:
    """Return at most ``size`` first bytes of a regular file; none of anything else."""
    if not os.path.isfile(path):
        return b""
    with os_errors(path), open_file(path) as file:
        return file.read(size)
