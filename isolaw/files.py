"""Files that isolaw writes: it replaces only its own, and each in one step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from isolaw.errors import DataError


def check_replaceable(path: Path, what: str, example: str, is_ours: Callable[[Path], bool]) -> None:
    """Raise `DataError` unless ``path`` can be written: a new file, or an older one of the same kind.

    ``what`` is the kind with its article, ``example`` a usual name, and ``is_ours`` whether an existing file
    is of this kind.
    """
    if path.is_dir():
        raise DataError(f"{path}: found a directory; expected a file name, e.g. {path / example}")
    if path.exists() and not (path.is_file() and is_ours(path)):  # opening a pipe would wait
        raise DataError(f"{path}: exists and is not {what}; it is left unchanged")
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}.", suffix=".tmp"):
            pass
    except OSError as error:
        raise DataError(f"{path}: cannot write in {folder} ({error.strerror or error})") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name that becomes ``path`` at the end; `DataError` where that cannot be written."""
    target = path.resolve()  # a link stays one
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
