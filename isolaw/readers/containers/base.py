"""`Container`: how to read one way of writing logs; a module holds one, called ``CONTAINER``.

`isolaw.readers.containers.CONTAINERS` lists the modules, the most specific first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from isolaw.readers.raw_log import RawLog

HEAD = 65_536  # bytes of a file by which it is recognised


@dataclass(frozen=True)
class Container:
    """How to read one way of writing logs.

    A reader never unpickles, imports or evaluates anything that it finds, and reads in one pass. It raises
    `isolaw.errors.DataError`, naming the file (and line), for what cannot be used, and drops, counted in
    `RawLog.dropped`, what can be spared: a torn last line, a NUL byte.
    """

    name: str  # what ``--format`` accepts: ``verl-console``, ``tensorboard``
    read: Callable[[Path], Iterable[RawLog]]
    # Whether a file is one, by its first `HEAD` bytes; the extension may confirm, never decide.
    file: Callable[[Path, bytes], bool] = lambda _path, _head: False
    # Whether a directory as a whole is one (an MLflow run, an offline W&B run), by the names in it.
    directory: Callable[[Path], bool] = lambda _path: False
