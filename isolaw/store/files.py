"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.errors import StoreError


def write_atomically(path: Path, text: str, sync: bool = True) -> None:
    """Write ``text`` under a temporary name, sync it, and rename it to ``path``."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name for what shall become ``path``; of what cannot be finished nothing is left."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise StoreError(f"{path}: not a JSON object")
    return data
