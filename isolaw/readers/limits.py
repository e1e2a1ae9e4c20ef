"""Limits on the time and memory that one file may take: a log may come from anyone.

isolaw checks sizes and counts before it builds anything of that size, by the bytes and not by a header's
claim. The time limit grows with the size, so that a large log is read but a small malicious one is not. Every
limit is far above what frameworks write.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from isolaw.errors import DataError

MB = 1_000_000
LARGEST_LOG = 10_000 * MB
LARGEST_CONFIG = 1 * MB  # veRL's has 25,000 bytes
LONGEST_LINE = 1 * MB
LONGEST_SKIPPED = 256 * MB  # of one line: a longer one is a hole in a file, not text
LONGEST_NAME = 1_000  # characters of a metric's or a setting's name, with those around it
DEEPEST = 100  # of nested values
MOST_SETTINGS = 100_000
MOST_DAMAGED = 100_000  # records; a file damaged so often is of another kind
MOST_POINTS = 2_000_000  # that come key by key and are sorted into records
MOST_FILES = 1_000_000  # files that a search looks at; each takes 0.1 ms
MOST_LOGS = 5_000  # logs that a search finds

# Processor seconds: waiting for a slow disk and other threads do not count.
FLOOR_S, S_PER_MB = 3.0, 2.0  # the slowest container, TensorBoard, takes 0.3 s for 1 MB
# Memory for one file's numbers. A value takes 12 bytes; records and metrics cost mostly time.
_RECORD, _VALUE, _NAME = 750, 13, 7_500
_LARGEST = 750 * MB


class _Metered(io.FileIO):
    """A file that checks at each read the processor time since it was opened."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._began, self._done = time.thread_time(), 0

    def readinto(self, buffer: Any) -> int | None:
        spent, done = time.thread_time() - self._began, self._done / MB
        if spent > FLOOR_S + S_PER_MB * done:
            raise DataError(
                f"{self.name}: its first {done:,.1f} MB took {spent:.0f} s to read; expected at most "
                f"{FLOOR_S:g} s and {S_PER_MB:g} s per MB. The file is damaged or malicious; leave it out"
            )
        read = super().readinto(buffer)
        self._done += read or 0
        return read


class Held:
    """Counts the memory of one file's numbers; the logs of one file share it."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.records = self.values = self.names = self.points = 0

    def point(self) -> None:
        """Count a value that comes without a record; raise `DataError` beyond 2 million."""
        self.points += 1
        if self.points > MOST_POINTS:
            raise DataError(
                f"{self._source}: over {MOST_POINTS:,} values, the limit for one file of this kind. Leave "
                "out metrics, or keep only every tenth step"
            )

    def record(self, values: int) -> None:
        """Count a record of so many values.

        Raises `DataError` beyond a million records, 57 million values, 100,000 metrics, or such a mix.
        """
        self.records += 1
        self.values += values
        if _RECORD * self.records + _VALUE * self.values + _NAME * self.names > _LARGEST:
            raise DataError(
                f"{self._source}: more than {self.records:,} records with {self.values:,} values of "
                f"{self.names:,} metrics; expected at most what takes {_LARGEST // MB} MB, about a million "
                "records. Keep only every tenth record, or fewer metrics"
            )


@contextmanager
def os_errors(path: str | Path) -> Iterator[None]:
    """Turn an `OSError` into a `DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror or error}") from None


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a log to read its bytes.

    Raises `DataError` if it cannot be read, has more than 10 GB, or reading so far took more than 3 s plus 2
    s per MB. The check runs at each read, so read a little at a time.
    """
    with os_errors(path), io.BufferedReader(_Metered(path)) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_LOG:
            raise DataError(
                f"{path}: {size / MB:,.0f} MB; isolaw reads logs of up to {LARGEST_LOG // MB:,} MB. "
                "Split the file, or keep only the lines with metrics"
            )
        yield file


def start(path: str | Path, most: int) -> bytes:
    """Return up to ``count`` first bytes of a file; none of a pipe, since reading one may block forever."""
    path = Path(path)
    if not path.is_file():
        return b""
    with os_errors(path), path.open("rb") as file:
        return file.read(most)
