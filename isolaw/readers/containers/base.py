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

    Attributes
    ----------
    name
        what ``--format`` accepts: ``verl-console``, ``tensorboard``.
    read
        ``read(path)``: its logs. Never unpickles, imports or evaluates anything that it finds; reads
        in one pass; raises `isolaw.errors.DataError` naming the file (and line) for what cannot be used,
        and drops, counted in `RawLog.dropped`, what can be spared: a torn last line, a NUL byte.
    file
        ``file(path, head)``: whether this file is one, by its content: ``head`` is its first `HEAD` bytes.
        The extension may confirm, never decide.
    directory
        ``directory(path)``: whether this directory as a whole is one (an MLflow store, an offline W&B run),
        by the names in it only.
    """

    name: str
    read: Callable[[Path], Iterable[RawLog]]
    file: Callable[[Path, bytes], bool] = lambda _path, _head: False
    directory: Callable[[Path], bool] = lambda _path: False
