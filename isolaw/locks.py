"""Locks on files of a sweep, also where several hosts share them.

The kernel's lock (`flock`) is asked first: it goes with its process, however that ends, so that after a
``kill -9`` the same command starts at once. Linux passes it on over NFS, and over Lustre if mounted with
``flock``. Not every mount does, so the holder also shows signs of life: it touches the file every
``BEAT_S`` seconds. Whoever gets the kernel's lock, and finds that another host has touched the file within
``STALE_S``, is refused. Ages are told by the file server's clock.

What is assumed: a holder that has not touched its file for ``STALE_S`` has ended, or has lost the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from isolaw.errors import InUse

BEAT_S = 10.0
STALE_S = 60.0
# Of two holders that come together where the kernel has no locks, the last to write stays.
_SETTLES_S = 1.0
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def locked(path: Path, what: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock on ``path``, which meanwhile says who does.

    Raises
    ------
    InUse
        after ``wait_s`` another still holds it.
    OSError
        the file cannot be written.
    """
    until = time.monotonic() + wait_s
    with path.open("ab+", buffering=0) as file:
        while (holder := _other_holder(path, has := _take(file, fcntl.LOCK_EX))) is not None:
            if has:
                fcntl.flock(file, fcntl.LOCK_UN)
            if time.monotonic() >= until:
                raise InUse(f"{what} is in use by {holder}")
            time.sleep(0.05)
        mark = f"process {os.getpid()} on {socket.gethostname()}\n{secrets.token_hex(8)}\n"
        _write(file, mark)
        if has is None:
            time.sleep(_SETTLES_S)
            if not told(path).endswith(mark):
                raise InUse(f"{what} is in use by {_name(path)}")
            _write(file, mark)
        _LIFE.show(file.fileno())
        try:
            yield
        finally:
            _LIFE.end(file.fileno())
            with contextlib.suppress(OSError):  # a disk that can no longer be written
                if told(path) == mark:
                    _write(file, "")


def in_use(path: Path) -> bool:
    """Return whether somebody holds the lock on ``path``."""
    if not path.is_file():
        return False
    with path.open("r", encoding="utf-8") as file:
        return _other_holder(path, _take(file, fcntl.LOCK_SH)) is not None


def told(path: Path) -> str:
    """Return what the holder of the lock on ``path`` wrote: unlike anything else that was ever there."""
    return path.read_text(encoding="utf-8")


def _take(file: IO[Any], kind: int) -> bool | None:
    """Take the kernel's lock: whether that worked, or None where the mount has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def _other_holder(path: Path, taken: bool | None) -> str | None:
    """Return who holds the lock, where that is another, given what the kernel says."""
    name = _name(path)
    if taken is False:
        return name or "another process"
    process, _, host = name.removeprefix("process ").partition(" on ")
    if not host or (host == socket.gethostname() and (taken or not _is_alive(int(process)))):
        return None  # nobody, or one whose end the kernel has seen
    age = _now(path.parent) - path.stat().st_mtime
    if age > STALE_S:
        return None
    return f"{name}, which showed life {max(age, 0):.0f} s ago (after {STALE_S:.0f} s it counts as gone)"


def _name(path: Path) -> str:
    return told(path).partition("\n")[0].strip()


def _now(folder: Path) -> float:
    """Return the time by the clock that the folder's files are stamped with."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.", suffix=".tmp") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # it cannot be written
        return time.time()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _write(file: IO[bytes], text: str) -> None:
    if os.fstat(file.fileno()).st_size:
        file.truncate(0)
    file.write(text.encode())


class _Life:
    """One thread that touches all files that this process holds."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def show(self, descriptor: int) -> None:
        with self.lock:
            self.held.add(descriptor)
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._beat, daemon=True)
                self.thread.start()

    def end(self, descriptor: int) -> None:
        with self.lock:
            self.held.discard(descriptor)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with self.lock:
                for descriptor in self.held:
                    with contextlib.suppress(OSError):
                        os.utime(descriptor)


_LIFE = _Life()
